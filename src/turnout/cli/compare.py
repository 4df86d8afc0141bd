"""``turnout compare``: several selectors in the same worlds, with confidence intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from turnout.cli.output import AsJson, console, table
from turnout.cli.running import (
    Clients,
    Cohort,
    Deadline,
    Jobs,
    Rounds,
    World,
    end_badly_on_problems,
    experiment_of,
    numbers,
    plus_minus,
    print_json,
    run_shown,
)
from turnout.errors import InvalidInput
from turnout.experiment import Experiment, Grid

__all__ = ["compare"]


class _Column(NamedTuple):
    heading: str
    form: str
    is_more_better: bool


_COLUMNS = {
    "success_ratio": _Column("success", ".3f", True),
    "cep": _Column("CEP", ".0f", True),
    "jain_of_counts": _Column("Jain", ".3f", True),
    "minimum_rate": _Column("min rate", ".3f", True),
    "round_time_s": _Column("round, s", ".2f", False),
}

Selectors = Annotated[
    list[str] | None,
    typer.Argument(
        help="name, name:key=value,... or label=name:key=value,...; names are those of turnout list"
    ),
]
Config = Annotated[
    Path | None, typer.Option("--config", help="An experiment as TOML, instead of selectors.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", help="Run folder; default: runs/ and a name made of the settings."),
]


def compare(
    selectors: Selectors = None,
    world: World = "volatile",
    rounds: Rounds = None,
    clients: Clients = None,
    cohort: Cohort = None,
    deadline: Deadline = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Runs per selector.")] = 5,
    config: Config = None,
    out: Out = None,
    jobs: Jobs = None,
    as_json: AsJson = False,
) -> None:
    """Run selectors in the same simulated federations and compare them, seed by seed.

    An interrupted comparison goes on where it stopped when the same command is given again.

    Example: [bold]turnout compare random e3cs E3CS-0.8=e3cs:quota=0.8 --rounds 300 --seeds 3[/]
    """
    if config is not None:
        if selectors:
            raise InvalidInput("--config and selectors exclude each other: give one of them.")
        experiment = Experiment.from_toml(config)
    elif selectors:
        sizes = {"n_clients": clients, "cohort_size": cohort, "n_rounds": rounds}
        experiment = experiment_of(selectors, "compare", world, sizes, seeds, deadline)
    else:
        raise InvalidInput("give selectors, e.g. turnout compare random e3cs, or --config FILE.")
    folder = out or Path("runs") / f"{experiment.name}-{experiment.digest[:8]}"
    grid = run_shown(experiment, folder, quiet=as_json, n_jobs=jobs)
    if as_json:
        print_json(_rows(grid))
    else:
        console.print(_main_table(grid), _differences(grid))
        console.print(f"Run folder: {folder}", highlight=False)
    end_badly_on_problems(grid)


def _main_table(grid: Grid) -> Table:
    experiment = grid.experiment
    title = (
        f"{experiment.n_rounds} rounds, {experiment.cohort_size} of {experiment.n_clients} clients"
        f", {len(experiment.seed_numbers)} seeds (mean ± 95 % interval, best in bold)"
    )
    made = _empty(title)
    best = {name: _best(grid, name) for name in _COLUMNS}
    for label in grid.labels:
        cells = []
        for name, column in _COLUMNS.items():
            text = plus_minus(grid.estimate(label, name), column.form)
            cells.append(f"[bold green]{text}[/]" if label == best[name] else text)
        made.add_row(escape(label), *cells)
    return made


def _differences(grid: Grid) -> Table:
    """Return the paired differences to the first selector."""
    first = grid.labels[0]
    made = _empty(f"Difference to {escape(first)}, paired by seed (* = the interval excludes 0)")
    for label in grid.labels[1:]:
        cells = []
        for name, column in _COLUMNS.items():
            step = grid.difference(label, first, name)
            is_clear = step.n > 1 and not step.low <= 0.0 <= step.high
            cells.append(plus_minus(step, f"+{column.form}").replace("± +", "± ") + "*" * is_clear)
        made.add_row(escape(label), *cells)
    return made


def _empty(title: str) -> Table:
    headings = tuple(column.heading for column in _COLUMNS.values())
    made = table(title, "selector", *headings, numbers=headings)
    made.columns[0].overflow = "fold"  # a label is never cut
    return made


def _best(grid: Grid, metric: str) -> str:
    sign = 1.0 if _COLUMNS[metric].is_more_better else -1.0
    known = {label: grid.estimate(label, metric) for label in grid.labels}
    found = [label for label, value in known.items() if value.n]
    return max(found, key=lambda label: sign * known[label].mean, default="")


def _rows(grid: Grid) -> list[dict[str, Any]]:
    """Return all metrics of all selectors, with differences to the first."""
    metrics = [name for cell in grid.cells if cell.summary for name in cell.summary]
    names = [name for name in dict.fromkeys(metrics) if name != "seconds"]
    variants = {variant.label: variant for variant in grid.experiment.variants}
    return [
        {
            "label": label,
            "selector": variants[label].name,
            "parameters": variants[label].parameters,
            "folder": str(grid.folder),
            "metrics": {name: numbers(grid.estimate(label, name)) for name in names},
            "difference_to_first": {
                name: numbers(grid.difference(label, grid.labels[0], name)) for name in names
            },
            "problems": [cell.message for cell in grid.problems if cell.label == label],
        }
        for label in grid.labels
    ]
