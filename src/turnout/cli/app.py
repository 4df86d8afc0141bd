"""The typer application and what its commands share."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import turnout
from turnout.cli import (
    arena,
    audit,
    bench,
    check,
    clients,
    compare,
    data,
    export,
    listing,
    merge,
    new,
    recommend,
    report,
    reproduce,
    serve,
    show,
    simulate,
    train,
    watch,
    worlds,
)
from turnout.data_directory import DATA_VARIABLE
from turnout.errors import InvalidInput, OutputError, TurnoutError
from turnout.names import NO_PLUGINS_VARIABLE


class _Commands(typer.core.TyperGroup):
    """Turns turnout's own errors, and those of the system, into one line.

    The exit code is 1 if the system refused to write a file, and 2 if the command asked for
    something that cannot be done.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command; selectors in the working directory are found as ``module:Class``."""
        sys.path.insert(0, "")
        try:
            return super().invoke(ctx)
        except TurnoutError as error:
            if ctx.params["debug"]:
                traceback.print_exc()
            text = f"[bold red]error:[/] {escape(str(error))}"
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
            sys.exit(1 if isinstance(error, OutputError) else 2)
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # whoever reads the output has seen enough
                raise
            if ctx.params["debug"]:
                traceback.print_exc()
            where = "" if error.filename is None else f"{error.filename}: "
            text = f"[bold red]error:[/] {escape(where + str(error.strerror))}"
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
            sys.exit(1)


app = typer.Typer(
    name="turnout",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help="Client selection for federated learning. Start with [bold]turnout list[/].",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnout {turnout.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of datasets and device traces; default: TURNOUT_DATA."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    no_plugins: Annotated[
        bool,
        typer.Option(
            "--no-plugins",
            help="Import no code but turnout's. Without it, what names module:Class runs that "
            "code, also from the working directory: a configuration is a program.",
        ),
    ] = False,
) -> None:
    if no_plugins:
        os.environ[NO_PLUGINS_VARIABLE] = "1"  # worker processes inherit it
    if data_dir is not None:
        may_be_new = context.invoked_subcommand == "data" and not data_dir.exists()
        if not data_dir.is_dir() and not may_be_new:  # 'data get' makes it
            raise InvalidInput(f"--data-dir: {data_dir} is not a folder.")
        os.environ[DATA_VARIABLE] = str(data_dir)  # worker processes inherit it


app.command("list")(listing.list_selectors)
app.command("check")(check.check)
app.command("bench")(bench.bench)
app.command("report")(report.report)
app.command("audit")(audit.audit)
app.command("clients")(clients.clients)
app.command("simulate")(simulate.simulate)
app.command("train")(train.train)
app.command("compare")(compare.compare)
app.command("recommend")(recommend.recommend)
app.command("arena")(arena.arena)
app.command("reproduce")(reproduce.reproduce)
app.command("merge")(merge.merge)
app.command("show")(show.show)
app.command("watch")(watch.watch)
app.command("export")(export.export)
app.command("worlds")(worlds.worlds)
app.add_typer(data.app, name="data")
app.add_typer(new.app, name="new")
app.add_typer(serve.app, name="serve")
