"""What the templates show of a world: plain text and numbers. Jinja2 escapes them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnout.report.charts import sections
from turnout.report.curves import time_unit
from turnout.report.figures import Section
from turnout.report.groups import VariantCells, WorldGroup
from turnout.report.summary import COLUMNS, Column, Row
from turnout.report.targets import Reached, reached, targets_of
from turnout.report.wording import describe, pairs
from turnout.statistics import Estimate

__all__ = ["Entry", "Heading", "Table", "VariantView", "WorldView", "target_table", "world_view"]

_NONE, _MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


class Entry(NamedTuple):
    """A number in a table."""

    text: str
    margin: str = ""  #: half the confidence interval
    remark: str = ""  #: such as "best" or "2 of 5 seeds"
    kind: str = ""  #: class of the style sheet: best or tied


class Heading(NamedTuple):
    """The head of a column."""

    title: str
    meaning: str = ""  #: shown when the pointer rests on it
    note: str = ""  #: which direction is better


class Table(NamedTuple):
    """Numbers of all selectors."""

    label: str  #: for screen readers
    headings: list[Heading]
    rows: list[tuple[str, list[Entry]]]  #: the name of a selector and its numbers


class VariantView(NamedTuple):
    """How a selector was run."""

    name: str
    method: str
    parameters: str
    cohort_size: str
    seeds: str


@dataclass(frozen=True, slots=True)
class WorldView:
    """Everything that is shown of one world."""

    id: str  #: of the element in the page
    sentence: str
    summary: Table
    targets: Table | None  #: None without any accuracy
    sections: list[Section]
    variants: list[VariantView]
    versions: Mapping[str, int]  #: how many cells were written by which versions
    settings: str  #: as JSON


def world_view(
    world: WorldGroup, rows: Sequence[Row], id: str, order: Mapping[str, int]
) -> WorldView:
    """Return what the page shows of a world.

    Args:
        world: The cells that compare.
        rows: Their summary, one row per selector.
        id: The name of the world's element in the page.
        order: The number of each selector, for colours and toggling.
    """
    versions = Counter(json.dumps(cell.versions, sort_keys=True) for cell in world.cells)
    return WorldView(
        id=id,
        sentence=describe(world),
        summary=_summary_table(rows),
        targets=target_table(world),
        sections=sections(world, order),
        variants=[_variant_view(variant) for variant in world.variants],
        versions={pairs(json.loads(text)): n_cells for text, n_cells in versions.items()},
        settings=json.dumps(_settings(world), indent=2),
    )


def target_table(world: WorldGroup) -> Table | None:
    """Return rounds and time to some accuracies.

    Args:
        world: The cells that compare.

    Returns:
        Two columns per accuracy; None if no cell has an accuracy or a target.
    """
    by_target = {target: reached(world, target) for target in targets_of(world)}
    if not by_target:
        return None
    results = [result for by_name in by_target.values() for result in by_name.values()]
    times = [result.seconds.mean for result in results if result.seconds.n]
    unit, scale = time_unit(max(times, default=0.0))
    columns = ("rounds", f"time ({unit})")
    titles = [f"{target:g}, {column}" for target in by_target for column in columns]
    rows = []
    for variant in world.variants:
        by_column = [_reached(by_name[variant.name], scale) for by_name in by_target.values()]
        rows.append((variant.name, [entry for entries in by_column for entry in entries]))
    return Table("Rounds to accuracy", [Heading(title) for title in titles], rows)


def _reached(result: Reached, scale: float) -> list[Entry]:
    """Return the rounds and the time of one selector to one accuracy."""
    share = f"{result.rounds.n} of {result.n_seeds} seeds"
    if result.rounds.n == 0:
        return [Entry(_NONE, remark=share)] * 2
    rounds, seconds = _entry(result.rounds), _entry(result.seconds, scale)
    if result.is_first:
        return [rounds._replace(remark="fewest rounds", kind="best"), seconds]
    return [rounds if result.is_complete else rounds._replace(remark=share), seconds]


def _summary_table(rows: Sequence[Row]) -> Table:
    """Return the means over seeds, with the best of each column marked."""
    columns = [column for column in COLUMNS if any(column.key in row.estimates for row in rows)]
    units = {column.key: _unit(column, rows) for column in columns}
    headings = [_heading(column, units[column.key][0]) for column in columns]
    table = Table("Summary table", [Heading("Seeds"), *headings], [])
    for row in rows:
        entries = [_summary_entry(row, column.key, units[column.key][1]) for column in columns]
        table.rows.append((row.name, [Entry(str(row.n_seeds)), *entries]))
    return table


def _unit(column: Column, rows: Sequence[Row]) -> tuple[str, float]:
    if not column.is_time:
        return "", 1.0
    estimates = [row.estimates[column.key] for row in rows if column.key in row.estimates]
    return time_unit(max(abs(estimate.mean) for estimate in estimates))


def _heading(column: Column, unit: str) -> Heading:
    title = f"{column.title} ({unit})" if unit else column.title
    note = "at own quota" if column.better == "neither" else f"{column.better} is better"
    return Heading(title, column.meaning, note)


def _summary_entry(row: Row, key: str, scale: float) -> Entry:
    if key not in row.estimates:
        return Entry(_NONE)
    entry = _entry(row.estimates[key], scale)
    if key in row.best:
        return entry._replace(remark="best", kind="best")
    return entry._replace(remark="≈ best", kind="tied") if key in row.tied else entry


def _entry(estimate: Estimate, scale: float = 1.0) -> Entry:
    mean, half_width = estimate.mean / scale, estimate.half_width / scale
    size = abs(mean)
    digits = 0 if size >= 1_000 else 1 if size >= 100 else 2 if size >= 10 else 3
    margin = f"{half_width:,.{digits}f}" if math.isfinite(half_width) else ""
    return Entry(f"{mean:,.{digits}f}".replace("-", _MINUS), margin)


def _variant_view(variant: VariantCells) -> VariantView:
    settings = variant.cells[0].settings
    return VariantView(
        variant.name,
        settings.selector,
        pairs(settings.parameters) or "defaults",
        f"{settings.cohort_size:,}",
        ", ".join(map(str, variant.seeds)),
    )


def _settings(world: WorldGroup) -> dict[str, object]:
    settings = world.settings
    return {
        "experiments": sorted({cell.settings.experiment for cell in world.cells}),
        "kind": settings.kind,
        "n_clients": settings.n_clients,
        "cohort_size": world.cohort_sizes,
        "n_rounds": settings.n_rounds,
        "world_id": settings.world_id,
        "world": settings.world,
        "policy": settings.policy,
        "classes": settings.classes,
        "training": settings.training,
    }
