"""``turnout serve``: the selection server, and its tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from turnout.names import NO_PLUGINS_VARIABLE

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
        str, typer.Option(help="Address to listen at; others than loopback need a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at.")] = 8717,
    certificate: Annotated[
        Path | None, typer.Option(help="PEM file of a TLS certificate, with its chain.")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file of its private key.")] = None,
    max_body: Annotated[
        int, typer.Option(min=1, help="Megabytes that the body of a request may have.")
    ] = 64,
    plugins: Annotated[
        bool, typer.Option("--plugins", help="Let requests name selectors of installed plug-ins.")
    ] = False,
) -> None:
    """Serve selection over HTTP: federations, clients, rounds, records and a page that shows them.

    Example: [bold]turnout serve --database sqlite:///phones.db[/], then open http://127.0.0.1:8717
    """
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    if not plugins:  # a request must not have code imported
        os.environ[NO_PLUGINS_VARIABLE] = "1"
    from turnout.serve.run import Listen, run

    run(_open(database), Listen(host, port, certificate, key, max_body * 2**20))


@app.command()
def token(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="What it is called when it is listed or revoked.")],
    scope: Annotated[
        str, typer.Option(help="read, select (and read), or admin (everything).")
    ] = "select",
    federation: Annotated[
        str | None, typer.Option(help="The one federation it is for; default: all.")
    ] = None,
) -> None:
    """Make a token and print it; it cannot be shown again.

    Example: [bold]turnout serve token trainer --scope select --federation phones[/]
    """
    engine = _open(context.obj)
    from turnout.serve.database import writing
    from turnout.serve.tokens import make_token

    with writing(engine) as connection:
        made = make_token(connection, name, scope, federation)
    typer.echo(made)


@app.command()
def tokens(context: typer.Context) -> None:
    """List tokens: name, scope and federation.

    Example: [bold]turnout serve tokens[/]
    """
    engine = _open(context.obj)
    from turnout.serve.tokens import list_tokens

    table = Table("name", "scope", "federation")
    with engine.begin() as connection:
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
    engine = _open(context.obj)
    from turnout.errors import InvalidInput
    from turnout.serve.database import writing
    from turnout.serve.tokens import revoke_token

    with writing(engine) as connection:
        if not revoke_token(connection, name):
            raise InvalidInput(f"there is no token {name!r}: see 'turnout serve tokens'.")
    typer.echo(f"Revoked {name}.")


def _open(database: str) -> Any:
    from turnout.serve import open_database

    return open_database(database)
