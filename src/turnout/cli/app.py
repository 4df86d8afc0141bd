"""The command line application: its commands, its global options, and how errors are shown.

The module of a command is imported when the command runs, or when its help is shown.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import click
import typer
from rich.markup import escape

import turnout
from turnout.cli.output import errors
from turnout.core.describe import entries
from turnout.core.errors import InvalidInput, OutputError, TurnoutError
from turnout.core.files import DATA_VARIABLE
from turnout.core.names import NO_PLUGINS_VARIABLE

#: The headings of ``turnout --help``, and below each the module of every command. Its function has
#: the name of the command, or the name behind the colon; it may be a typer application with
#: commands of its own.
_COMMANDS = {
    "Run": {"simulate": "simulate", "train": "simulate", "compare": "compare", "merge": "runs"},
    "Look": {
        "list": "listing:list_selectors",
        "worlds": "worlds",
        "data": "data:app",
        "show": "runs",
        "report": "runs",
        "export": "runs",
        "audit": "runs",
    },
    "Study": {
        "fit": "fit",
        "replay": "replay",
        "recommend": "recommend",
        "arena": "arena",
        "reproduce": "reproduce",
    },
    "Operate": {"watch": "runs:watch", "clients": "clients", "serve": "serve:app"},
    "Develop": {"new": "develop", "check": "develop", "bench": "develop"},
}


class _Commands(typer.core.TyperGroup):
    """Imports commands when they are used, and turns expected errors into one line.

    The exit code is 1 if the system refused to write a file, and 2 if the command asked for
    something that cannot be done.
    """

    def __init__(self, **options: Any) -> None:
        # Typer lists these names and looks for the one that was meant; ``get_command`` returns the
        # command.
        names = (name for commands in _COMMANDS.values() for name in commands)
        super().__init__(**options | {"commands": dict.fromkeys(names)})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command; return None if there is no such command."""
        for heading, commands in _COMMANDS.items():
            if cmd_name in commands:
                module, _, function = commands[cmd_name].partition(":")
                found = getattr(import_module(f"turnout.cli.{module}"), function or cmd_name)
                return _command(found, cmd_name, heading)
        return None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; selectors in the working directory are found as ``module:Class``."""
        sys.path.insert(0, "")
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            error.message += _whose(error)
            raise
        except TurnoutError as error:
            _end(str(error), 1 if isinstance(error, OutputError) else 2, ctx.params["debug"])
        except OSError as error:
            if error.errno in (None, errno.EPIPE):  # the reader of a pipe has closed it
                raise
            where = "" if error.filename is None else f"{error.filename}: "
            _end(f"{where}{error.strerror}", 1, ctx.params["debug"])


def _whose(error: click.NoSuchOption) -> str:
    """Return where an option belongs that the command above the one in use has."""
    here = error.ctx
    above = here and here.parent
    if not here or not above or not any(error.option_name in x.opts for x in above.command.params):
        return ""
    place = f"{above.command_path} {error.option_name} ... {here.info_name}"
    return f" It belongs before {here.info_name!r}: {place}."


def _command(found: Any, name: str, heading: str) -> Any:
    """Return a function or an application as a command of click, under a heading of the help."""
    if not isinstance(found, typer.Typer):
        function, found = found, typer.Typer(add_completion=False, rich_markup_mode="rich")
        found.command(name, rich_help_panel=heading)(function)
        return typer.main.get_command(found)
    group = typer.main.get_group(found)
    group.name, group.rich_help_panel = name, heading
    return group


def documented(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function as typer takes it, with what its signature and its docstring say.

    Parameters before ``*`` are arguments of the command, those after it are options. A parameter
    that is a dataclass stands for the options of its fields. The section ``Args`` of the docstring
    is the help of each; ``Annotated`` holds what else typer has to know, such as a limit.

    Args:
        function: The function.
    """
    kinds = get_type_hints(function).items()
    groups: dict[str, Any] = {name: kind for name, kind in kinds if dataclasses.is_dataclass(kind)}
    parameters = list(_parameters(function))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            fields = [field.name for field in dataclasses.fields(group)]
            values[name] = group(**{field: values.pop(field) for field in fields})
        function(**values)

    command.__doc__ = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")[0]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command


def _parameters(owner: Any) -> Iterator[inspect.Parameter]:
    """Yield the arguments and options of a function, or of a dataclass."""
    hints, meanings = get_type_hints(owner, include_extras=True), entries(owner.__doc__)
    for name, parameter in inspect.signature(owner).parameters.items():
        hint = hints[name]
        if dataclasses.is_dataclass(hint):
            yield from _parameters(hint)
            continue
        if hint is not typer.Context:
            is_option = isinstance(owner, type) or parameter.kind is parameter.KEYWORD_ONLY
            plain = (hint, typer.Option() if is_option else typer.Argument())
            kind, info = get_args(hint) if get_origin(hint) is Annotated else plain
            info = copy.copy(info)
            if meanings:  # python -OO has no docstrings
                info.help = info.help or meanings[name].meaning
            info.rich_help_panel = info.rich_help_panel or getattr(owner, "help_panel", None)
            if kind is bool and info.default is ...:
                info.default = f"--{name.replace('_', '-')}"  # without it there is a --no-, too
            hint = Annotated[kind, info]
        yield parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hint)


def _end(message: str, exit_code: int, debug: bool) -> None:
    """Print the error that is being handled, and end."""
    if debug:
        traceback.print_exc()
    errors.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    sys.exit(exit_code)


app = typer.Typer(
    name="turnout",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"turnout {turnout.__version__}")
        raise typer.Exit


@app.callback()
@documented
def _main(
    context: typer.Context,
    *,
    version: Annotated[bool, typer.Option(callback=_show_version, is_eager=True)] = False,
    data_dir: Path | None = None,
    debug: bool = False,
    no_plugins: bool = False,
) -> None:
    """Client selection for federated learning. Start with [bold]turnout list[/].

    Args:
        context: What was called.
        version: Show the version.
        data_dir: Folder of datasets and device traces; default: TURNOUT_DATA.
        debug: Show the traceback of an error.
        no_plugins: Import only code of turnout. Without this option, a configuration is a program:
            what it names as module:Class is imported and run, also from the working directory.
    """
    if no_plugins:
        os.environ[NO_PLUGINS_VARIABLE] = "1"  # worker processes inherit it
    if data_dir is not None:
        may_be_new = context.invoked_subcommand == "data" and not data_dir.exists()
        if not data_dir.is_dir() and not may_be_new:  # 'data get' makes it
            raise InvalidInput(f"--data-dir: {data_dir} is not a folder.")
        os.environ[DATA_VARIABLE] = str(data_dir)  # worker processes inherit it
