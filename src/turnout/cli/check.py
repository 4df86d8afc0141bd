"""``turnout check``: run the contract on a selector."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import Progress

from turnout.cli.output import AsJson, console, show, table
from turnout.registry import make
from turnout.testing import CHECKS, CheckResult, check_selector, name_of_check


def check(
    selector: Annotated[str, typer.Argument(help="A name from turnout list, or module:Class.")],
    as_json: AsJson = False,
) -> None:
    """Run the seventeen checks of the contract on a selector; exit code 1 if one fails.

    Examples: [bold]turnout check e3cs[/] or [bold]turnout check mypackage.mymodule:MySelector[/]
    """
    make(selector)  # a bad name or bad defaults are reported before anything runs
    results: list[CheckResult] = []
    with Progress(console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task(f"checking {selector}", total=len(CHECKS))
        for rule in CHECKS:
            progress.update(task, description=f"{selector}: {name_of_check(rule)}")
            results += check_selector(lambda: make(selector), checks=[rule])
            progress.advance(task)
    verdicts = table(f"Contract of {selector}", "#", "check", "result", "seconds", numbers=("#",))
    for result in results:
        verdict = "[green]passed[/]" if result.passed else "[red]failed[/]"
        verdict += f" {escape(result.message)}"
        verdicts.add_row(str(result.number), result.name, verdict, f"{result.seconds:.2f}")
    rows = [asdict(result) | {"seconds": round(result.seconds, 3)} for result in results]
    show(verdicts, rows, as_json)
    if not all(result.passed for result in results):
        raise typer.Exit(1)
