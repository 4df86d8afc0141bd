"""``turnout serve``: run the selection server, and manage its tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.core.errors import InvalidInput
from turnout.core.names import NO_PLUGINS_VARIABLE

app = typer.Typer(rich_markup_mode="rich")

Database = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="TURNOUT_DATABASE",
        help="sqlite:///FILE, or postgresql://USER@HOST/NAME for several servers.",
    ),
]
_DEFAULT = "sqlite:///turnout.db"


@app.callback(invoke_without_command=True)
def serve(
    context: typer.Context,
    database: Database = _DEFAULT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8717,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of a TLS certificate, with its chain.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    max_body: Annotated[
        int, typer.Option(min=1, help="Megabytes that the body of a request may have.")
    ] = 64,
    no_auth: Annotated[
        bool,
        typer.Option(
            "--no-auth",
            help="Ask programs on this machine for no token; on loopback, before the first token.",
        ),
    ] = False,
    plugins: Annotated[
        bool, typer.Option("--plugins", help="Let requests name selectors of installed plug-ins.")
    ] = False,
) -> None:
    """Serve client selection over HTTP, with a page that shows federations, rounds and fairness.

    Example: [bold]turnout serve --database sqlite:///phones.db --no-auth[/], then open
    http://127.0.0.1:8717
    """
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    if not plugins:  # a request must not import code
        os.environ[NO_PLUGINS_VARIABLE] = "1"
    from turnout.serve import open_database, run

    engine = open_database(database)
    max_bytes = max_body * 2**20
    tls = {"certificate": certificate, "key": key}
    run(engine, host, port, max_body=max_bytes, no_auth=no_auth, **tls)


@app.command()
def token(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The name under which it is listed and revoked.")],
    scope: Annotated[
        str, typer.Option(help="read, select (and read), or admin (everything).")
    ] = "select",
    federation: Annotated[
        str | None, typer.Option(help="The only federation it applies to; default: all.")
    ] = None,
) -> None:
    """Make a token and print it; it cannot be shown again.

    Example: [bold]turnout serve token trainer --scope select --federation phones[/]
    """
    from turnout.serve import make_token, open_database, writing

    with writing(open_database(context.obj)) as connection:
        made = make_token(connection, name, scope, federation)
    typer.echo(made)


@app.command()
def tokens(context: typer.Context) -> None:
    """List tokens: name, scope and federation.

    Example: [bold]turnout serve tokens[/]
    """
    from turnout.serve import list_tokens, open_database

    table = Table("name", "scope", "federation")
    with open_database(context.obj).begin() as connection:
        for name, scope, federation in list_tokens(connection):
            table.add_row(name, scope, federation or "all")
    Console().print(table)


@app.command()
def revoke(
    context: typer.Context, name: Annotated[str, typer.Argument(help="The token's name.")]
) -> None:
    """Revoke a token; it stops working at once.

    Example: [bold]turnout serve revoke trainer[/]
    """
    from turnout.serve import open_database, revoke_token, writing

    with writing(open_database(context.obj)) as connection:
        if not revoke_token(connection, name):
            raise InvalidInput(f"there is no token {name!r}: see 'turnout serve tokens'.")
    typer.echo(f"Revoked {name}.")
