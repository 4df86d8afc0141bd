"""``turnout simulate``: one run of one selector."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli.options import (
    Clients,
    Cohort,
    Deadline,
    Param,
    Rounds,
    Seed,
    World,
    end_badly_on_problems,
    experiment_of,
    row_of,
    run_shown,
    variant_with,
)
from turnout.cli.output import AsJson, console, show, table

__all__ = ["simulate"]

#: What the summary's numbers are, and how they are written.
_ROWS = {
    "success_ratio": ("share of the chosen that answered in time", ".4f"),
    "cep": ("answers in time (cumulative effective participation)", ".0f"),
    "regret": ("answers lost against the best fixed allocation", ".1f"),
    "regret_bound": ("bound of E3CS, Theorem 1", ".1f"),
    "jain_of_counts": ("Jain's index of selection counts", ".4f"),
    "gini_of_counts": ("Gini coefficient of selection counts", ".4f"),
    "minimum_rate": ("share of rounds of the least chosen client", ".4f"),
    "round_time_s": ("mean length of a round, s", ".3f"),
    "total_time_s": ("length of the run, s", ".1f"),
    "wasted_s": ("device seconds that came to nothing", ".1f"),
    "backlog_per_round": ("longest fairness queue (rate 0.15) per round", ".4f"),
    "seconds": ("seconds that this took", ".2f"),
}


def simulate(
    context: typer.Context,
    selector: Annotated[str, typer.Argument(help="A name from turnout list, or module:Class.")],
    param: Param = None,
    world: World = "volatile",
    n_rounds: Rounds = None,
    n_clients: Clients = None,
    cohort_size: Cohort = None,
    deadline: Deadline = None,
    seed: Seed = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Keep the run in this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run one selector in a simulated federation and show what it came to.

    Example: [bold]turnout simulate e3cs --param quota=0.8 --world e3cs --rounds 500[/]
    """
    variant = variant_with(selector, param)
    experiment = experiment_of("simulate", [variant], [seed], context.params)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if out is None else out
        grid = run_shown(experiment, folder, quiet=as_json, n_jobs=1)
        end_badly_on_problems(grid)
    row = row_of(grid)
    show(_table(f"{variant.label}, seed {seed}", row), [row], as_json)
    if out is not None and not as_json:
        console.print(f"Run folder: {out}", highlight=False)


def _table(title: str, summary: dict[str, Any]) -> Table:
    made = table(escape(title), "what", "value", numbers=("value",))
    for name, (what, form) in _ROWS.items():
        value = summary[name]
        made.add_row(what, "-" if value is None else format(value, form))
    return made
