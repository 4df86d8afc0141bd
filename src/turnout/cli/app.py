"""The command line application: its commands, its global options, and how errors are shown.

The module of a command is imported when the command runs, or when its help is shown.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import turnout
from turnout.core.errors import InvalidInput, OutputError, TurnoutError
from turnout.core.files import DATA_VARIABLE
from turnout.core.names import NO_PLUGINS_VARIABLE

#: The headings of ``turnout --help``, and the commands below each: ``module:function``, where the
#: function may be a typer application with commands of its own.
_COMMANDS = {
    "Run": {
        "simulate": "simulate:simulate",
        "train": "simulate:train",
        "compare": "compare:compare",
        "merge": "runs:merge",
    },
    "Look": {
        "list": "listing:list_selectors",
        "worlds": "worlds:worlds",
        "data": "data:app",
        "show": "runs:show",
        "report": "runs:report",
        "export": "runs:export",
        "audit": "runs:audit",
    },
    "Study": {
        "recommend": "recommend:recommend",
        "arena": "arena:arena",
        "reproduce": "reproduce:reproduce",
    },
    "Operate": {
        "watch": "watch:watch",
        "clients": "clients:clients",
        "serve": "serve:app",
    },
    "Develop": {
        "new": "develop:new",
        "check": "develop:check",
        "bench": "develop:bench",
    },
}


class _Commands(typer.core.TyperGroup):
    """Imports commands when they are used, and turns expected errors into one line.

    The exit code is 1 if the system refused to write a file, and 2 if the command asked for
    something that cannot be done.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # Typer looks here for the name that was meant; ``get_command`` returns the command.
        names: dict[str, Any] = {}
        for commands in _COMMANDS.values():
            names |= dict.fromkeys(commands)
        self.commands = names

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, heading by heading."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; return None if there is no such command."""
        for heading, commands in _COMMANDS.items():
            if cmd_name in commands:
                module, _, function = commands[cmd_name].partition(":")
                found = getattr(import_module(f"turnout.cli.{module}"), function)
                return _command(found, cmd_name, heading)
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; selectors in the working directory are found as ``module:Class``."""
        sys.path.insert(0, "")
        try:
            return super().invoke(ctx)
        except TurnoutError as error:
            _end(str(error), 1 if isinstance(error, OutputError) else 2, ctx.params["debug"])
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # the reader of a pipe has closed it
                raise
            where = "" if error.filename is None else f"{error.filename}: "
            _end(f"{where}{error.strerror}", 1, ctx.params["debug"])


def _command(found: Any, name: str, heading: str) -> Any:
    """Return a function or an application as a command of click, under a heading of the help."""
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode="rich")
        found.command(name, rich_help_panel=heading)(function)
        return typer.main.get_command(found)
    group = typer.main.get_group(found)
    group.name, group.rich_help_panel = name, heading
    return group


def _end(message: str, exit_code: int, debug: bool) -> None:
    """Print the error that is being handled, and end."""
    if debug:
        traceback.print_exc()
    text = f"[bold red]error:[/] {escape(message)}"
    Console(stderr=True).print(text, highlight=False, soft_wrap=True)
    sys.exit(exit_code)


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
            help="Import only code of turnout. Without this option, a configuration is a program: "
            "what it names as module:Class is imported and run, also from the working directory.",
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
