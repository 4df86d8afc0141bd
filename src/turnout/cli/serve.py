"""``turnout serve``: run the selection server, and manage its tokens."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from turnout.cli.app import documented
from turnout.cli.output import AsJson, show
from turnout.core.errors import InvalidInput
from turnout.core.names import NO_PLUGINS_VARIABLE

#: Every option below is also an environment variable: ``--keep-days`` is ``TURNOUT_KEEP_DAYS``.
_SETTINGS = {"auto_envvar_prefix": "TURNOUT"}

#: Actions that are about a choice of a federation whose rounds overlap.
_ON_CHOICES = ("filled", "answered")

app = typer.Typer(rich_markup_mode="rich", context_settings=_SETTINGS)


@app.callback(invoke_without_command=True, context_settings=_SETTINGS)
@documented
def serve(
    context: typer.Context,
    *,
    database: str = "sqlite:///turnout.db",
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8717,
    certificate: Path | None = None,
    key: Path | None = None,
    max_body: Annotated[int, typer.Option(min=1)] = 64,
    no_auth: bool = False,
    token_file: Path | None = None,
    plugins: bool = False,
    keep_days: Annotated[float | None, typer.Option(min=0.0)] = None,
    grace: Annotated[int, typer.Option(min=0)] = 30,
    json_logs: bool = False,
    receipt_key: Path | None = None,
) -> None:
    """Serve client selection over HTTP, with a page that shows federations, rounds and fairness.

    Example: [bold]turnout serve --database sqlite:///phones.db --no-auth[/], then open
    http://127.0.0.1:8717

    Every option is also an environment variable, such as TURNOUT_KEEP_DAYS for --keep-days.

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
        token_file: File with a name, a scope and a token in each line; the server accepts them.
        plugins: Let requests name selectors of installed plug-ins.
        keep_days: Days after which the records of a round are deleted; default: never.
        grace: Seconds that requests in progress have when the server is stopped.
        json_logs: Write each line of the log as a JSON object.
        receipt_key: PEM file of an Ed25519 key that signs the receipts of clients.
    """
    if context.invoked_subcommand is not None:
        context.obj = database
        return
    if not plugins:  # a request must not import code
        os.environ[NO_PLUGINS_VARIABLE] = "1"
    from turnout.serve import open_database, run

    engine = open_database(database)
    run(
        engine,
        host,
        port,
        certificate=certificate,
        key=key,
        max_body=max_body * 2**20,
        no_auth=no_auth,
        token_file=token_file,
        keep_days=keep_days,
        grace_s=grace,
        json_logs=json_logs,
        receipt_key=receipt_key,
    )


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


@app.command()
@documented
def backup(context: typer.Context, path: Path) -> None:
    """Copy the database into a new file; servers need not be stopped.

    Example: [bold]turnout serve --database postgresql://turnout@db/turnout backup monday.db[/]

    Args:
        context: Has the database.
        path: The file, a SQLite database of its own.
    """
    from turnout.serve import back_up, open_database

    typer.echo(f"Backed up {_amount(back_up(open_database(context.obj), path))} to {path}.")


@app.command()
@documented
def export(context: typer.Context, federation: str, path: Path) -> None:
    """Write the rounds of a federation as a run folder; servers need not be stopped.

    turnout audit --privacy, show, report, fit, replay and recommend read it.

    Example: [bold]turnout serve --database sqlite:///phones.db export phones runs/phones[/]

    Args:
        context: Has the database.
        federation: The name of the federation.
        path: The folder.
    """
    from turnout.serve import Store, open_database, write_folder

    n_rounds = write_folder(Store(open_database(context.obj)), federation, path)
    typer.echo(f"Wrote {n_rounds} rounds of {federation} to {path}.")


@app.command()
@documented
def restore(context: typer.Context, path: Path) -> None:
    """Fill an empty database from a backup, SQLite or PostgreSQL; stop its servers first.

    Example: [bold]turnout serve --database sqlite:///new.db restore monday.db[/]

    Args:
        context: Has the database.
        path: The backup.
    """
    from turnout.serve import open_database
    from turnout.serve import restore as fill

    typer.echo(f"Restored {_amount(fill(open_database(context.obj), path))} from {path}.")


def _amount(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}s: {n}" for name, n in counts.items())


@app.command()
def migrate(context: typer.Context) -> None:
    """Bring the database up to date without serving it, which servers also do when they start.

    Example: [bold]turnout serve --database postgresql://turnout@db/turnout migrate[/]
    """
    from turnout.serve import migrated

    _, before, now = migrated(context.obj)
    typer.echo(f"The database has version {now}; before: {before or 'empty'}.")


@app.command()
@documented
def audit(
    context: typer.Context,
    *,
    federation: str | None = None,
    token: str | None = None,
    limit: Annotated[int, typer.Option(min=1)] = 100,
    as_json: AsJson = False,
) -> None:
    """Show who did what: the token, the action, the federation and its version, the newest first.

    Example: [bold]turnout serve audit --federation phones --token trainer[/]

    Args:
        context: Has the database.
        federation: Only changes of this federation.
        token: Only changes by the token of this name.
        limit: How many entries to show.
        as_json: For programs, with all fields.
    """
    from turnout.serve import list_audit, open_database

    with open_database(context.obj).begin() as connection:
        entries = list_audit(connection, federation, token, limit)
    table = Table()
    for column in ("when (UTC)", "who", "what", "federation"):
        table.add_column(column, overflow="fold", no_wrap=column.startswith("when"))
    for entry in entries:
        when = datetime.fromtimestamp(entry["at"], UTC).isoformat(" ", "seconds")[:-6]
        kind = "choice" if entry["action"] in _ON_CHOICES else "round"
        about = "" if entry["round"] is None else f"{kind} {entry['round']}"
        what = f"{entry['action']} {entry['subject'] or about}".strip()
        where = entry["federation"] or ""
        if entry["version"] is not None:
            where += f", version {entry['version']}"
        table.add_row(when, *map(escape, (entry["actor"], what, where)))
    show(table, entries, as_json)
