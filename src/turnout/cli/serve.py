"""``turnout serve``: run the selection server, and manage its tokens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from turnout.cli.app import documented
from turnout.core.errors import InvalidInput
from turnout.core.names import NO_PLUGINS_VARIABLE

app = typer.Typer(rich_markup_mode="rich")


@app.callback(invoke_without_command=True)
@documented
def serve(
    context: typer.Context,
    *,
    database: Annotated[str, typer.Option(envvar="TURNOUT_DATABASE")] = "sqlite:///turnout.db",
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8717,
    certificate: Path | None = None,
    key: Path | None = None,
    max_body: Annotated[int, typer.Option(min=1)] = 64,
    no_auth: bool = False,
    plugins: bool = False,
) -> None:
    """Serve client selection over HTTP, with a page that shows federations, rounds and fairness.

    Example: [bold]turnout serve --database sqlite:///phones.db --no-auth[/], then open
    http://127.0.0.1:8717

    Args:
        context: Whether it is a command below this one that was called.
        database: sqlite:///FILE, or postgresql://USER@HOST/NAME for several servers.
        host: Address to listen on; 0.0.0.0 lets other machines in.
        port: Port to listen on.
        certificate: PEM file of a TLS certificate, with its chain.
        key: PEM file of its private key.
        max_body: Megabytes that the body of a request may have.
        no_auth: Require no token from programs on this machine. Only on loopback, and only before
            the first token.
        plugins: Let requests name selectors of installed plug-ins.
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
@documented
def token(
    context: typer.Context, name: str, *, scope: str = "select", federation: str | None = None
) -> None:
    """Make a token and print it; it cannot be shown again.

    Example: [bold]turnout serve token trainer --scope select --federation phones[/]

    Args:
        context: Has the database.
        name: The name under which it is listed and revoked.
        scope: read, select (and read), or admin (everything).
        federation: The only federation it applies to; default: all.
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
@documented
def revoke(context: typer.Context, name: str) -> None:
    """Revoke a token; it stops working at once.

    Example: [bold]turnout serve revoke trainer[/]

    Args:
        context: Has the database.
        name: The token's name.
    """
    from turnout.serve import open_database, revoke_token, writing

    with writing(open_database(context.obj)) as connection:
        if not revoke_token(connection, name):
            raise InvalidInput(f"there is no token {name!r}: see 'turnout serve tokens'.")
    typer.echo(f"Revoked {name}.")
