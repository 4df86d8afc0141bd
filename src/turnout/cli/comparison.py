"""What a comparison shows: means with intervals, paired differences, rounds to an accuracy."""

from __future__ import annotations

from typing import Any, NamedTuple

from rich.markup import escape
from rich.table import Table

from turnout.cli.options import numbers, plus_minus
from turnout.cli.output import table
from turnout.experiment import Grid
from turnout.experiment.summary import to_target

__all__ = ["comparison_rows", "comparison_tables"]


class _Column(NamedTuple):
    heading: str
    form: str
    is_more_better: bool


_SIMULATION = {
    "success_ratio": _Column("success", ".3f", True),
    "cep": _Column("CEP", ".0f", True),
    "jain_of_counts": _Column("Jain", ".3f", True),
    "minimum_rate": _Column("min rate", ".3f", True),
    "round_time_s": _Column("round, s", ".2f", False),
}
_TRAINING = {
    "accuracy": _Column("accuracy", ".3f", True),
    "loss": _Column("loss", ".3f", False),
    "jain_of_losses": _Column("Jain, losses", ".3f", True),
    "worst_accuracy": _Column("worst 10 %", ".3f", True),
    "success_ratio": _Column("success", ".3f", True),
}


def comparison_tables(grid: Grid) -> list[Table]:
    """Return the tables of a grid, the best of each column in bold."""
    columns = _SIMULATION if grid.experiment.training is None else _TRAINING
    tables, compared, targets = [_main_table(grid, columns)], columns, _targets(grid)
    if targets:
        tables.append(_target_table(grid, targets))
        compared = {name: column for name, column in columns.items() if name != "success_ratio"}
        highest, _ = to_target(targets[-1])
        compared[highest] = _target_columns(targets)[highest]
    return [*tables, _differences(grid, compared)] if len(grid.labels) > 1 else tables


def comparison_rows(grid: Grid) -> list[dict[str, Any]]:
    """Return all metrics of all selectors for JSON, with differences to the first."""
    metrics = [name for cell in grid.cells if cell.summary for name in cell.summary]
    names = [name for name in dict.fromkeys(metrics) if name != "seconds"]
    variants = {variant.label: variant for variant in grid.experiment.selectors}
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


def _main_table(grid: Grid, columns: dict[str, _Column]) -> Table:
    experiment = grid.experiment
    title = (
        f"{experiment.n_rounds} rounds, {experiment.cohort_size} of {experiment.n_clients} clients"
        f", {_seeds(len(experiment.seeds))}"
    )
    return _filled(grid, title, columns)


def _seeds(n_seeds: int) -> str:
    return "1 seed" if n_seeds == 1 else f"{n_seeds} seeds (mean ± 95 % interval, best in bold)"


def _target_table(grid: Grid, targets: tuple[float, ...]) -> Table:
    """Return rounds and virtual time to each accuracy; a mean is over the seeds that reached it."""
    title = "Rounds and virtual time to an accuracy (n of m = seeds that reached it)"
    return _filled(grid, title, _target_columns(targets))


def _filled(grid: Grid, title: str, columns: dict[str, _Column]) -> Table:
    made = _empty(title, columns)
    best = {name: _best(grid, name, column) for name, column in columns.items()}
    for label in grid.labels:
        cells = []
        for name, column in columns.items():
            text = _text(grid, label, name, column.form)
            cells.append(f"[bold green]{text}[/]" if label == best[name] else text)
        made.add_row(escape(label), *cells)
    return made


def _text(grid: Grid, label: str, name: str, form: str) -> str:
    found = grid.estimate(label, name)
    n_seeds = sum(cell.label == label and cell.summary is not None for cell in grid.cells)
    is_partial = "_to_" in name and found.n < n_seeds
    return plus_minus(found, form) + (f" ({found.n} of {n_seeds})" if is_partial else "")


def _differences(grid: Grid, columns: dict[str, _Column]) -> Table:
    """Return the paired differences to the first selector."""
    first = grid.labels[0]
    title = f"Difference to {escape(first)}, paired by seed (* = the interval excludes 0)"
    made = _empty(title, columns)
    for label in grid.labels[1:]:
        cells = []
        for name, column in columns.items():
            step = grid.difference(label, first, name)
            is_clear = step.n > 1 and not step.low <= 0.0 <= step.high
            cells.append(plus_minus(step, f"+{column.form}").replace("± +", "± ") + "*" * is_clear)
        made.add_row(escape(label), *cells)
    return made


def _empty(title: str, columns: dict[str, _Column]) -> Table:
    headings = tuple(column.heading for column in columns.values())
    made = table(title, "selector", *headings, numbers=headings)
    made.columns[0].overflow = "fold"  # a label is never cut
    return made


def _best(grid: Grid, metric: str, column: _Column) -> str:
    """Return who has the best mean; where seeds are missing, means do not compare."""
    sign = 1.0 if column.is_more_better else -1.0
    known = {label: grid.estimate(label, metric) for label in grid.labels}
    most = max(value.n for value in known.values())
    found = [label for label, value in known.items() if value.n and value.n == most]
    return max(found, key=lambda label: sign * known[label].mean, default="")


def _targets(grid: Grid) -> tuple[float, ...]:
    recipe = grid.experiment.training
    return () if recipe is None else recipe.target_accuracy


def _target_columns(targets: tuple[float, ...]) -> dict[str, _Column]:
    columns = {}
    for target in targets:
        for_rounds, for_time = to_target(target)
        columns[for_rounds] = _Column(f"rounds to {target:g}", ".0f", False)
        columns[for_time] = _Column(f"time to {target:g}, s", ".0f", False)
    return columns
