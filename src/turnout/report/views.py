"""What the templates show of a world: plain text and numbers. Jinja2 escapes them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from turnout.report.charts import sections
from turnout.report.figures import Section
from turnout.report.summary import Row, summary_rows
from turnout.report.wording import describe, pairs
from turnout.results.groups import VariantCells, WorldGroup
from turnout.results.targets import targets_of
from turnout.runs.catalogue import at_targets, shown_in
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric, Scale

__all__ = ["Entry", "Heading", "Table", "VariantView", "WorldView", "target_table", "world_view"]

_MARKS = {"best": "best", "tied": "≈ best"}
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
    caution: str  #: about few seeds; empty with enough


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
        caution=world.scores.caution,
    )


def target_table(world: WorldGroup) -> Table | None:
    """Return rounds and time to some accuracies.

    Args:
        world: The cells that compare.

    Returns:
        Two columns per accuracy; None if no cell has an accuracy or a target.
    """
    metrics = at_targets(targets_of(world.cells))
    return _table("Rounds to accuracy", metrics, summary_rows(world, metrics)) if metrics else None


def _summary_table(rows: Sequence[Row]) -> Table:
    """Return the means over seeds, with the best of each column marked."""
    metrics = shown_in("report")
    shown = [metric for metric in metrics if any(metric.key in row.estimates for row in rows)]
    table = _table("Summary table", shown, rows)
    for row, (_, entries) in zip(rows, table.rows, strict=True):
        entries.insert(0, Entry(str(row.n_seeds)))
    return table._replace(headings=[Heading("Seeds"), *table.headings])


def _table(label: str, metrics: Sequence[Metric[Facts]], rows: Sequence[Row]) -> Table:
    scales = [
        metric.scale(row.estimates[metric.key].mean for row in rows if metric.key in row.estimates)
        for metric in metrics
    ]
    columns = list(zip(metrics, scales, strict=True))
    headings = [
        Heading(metric.titled(scale), metric.meaning, metric.direction) for metric, scale in columns
    ]
    return Table(
        label,
        headings,
        [(row.name, [_entry(row, metric.key, scale) for metric, scale in columns]) for row in rows],
    )


def _entry(row: Row, key: str, scale: Scale) -> Entry:
    """Return the mean of a selector; where seeds are missing, say how many there are."""
    if key not in row.estimates:
        return Entry(_NONE, remark=f"0 of {row.n_seeds} seeds")
    estimate = row.estimates[key].over(scale.size)
    margin = f"{estimate.half_width:,{scale.form}}" if math.isfinite(estimate.half_width) else ""
    entry = Entry(f"{estimate.mean:,{scale.form}}".replace("-", _MINUS), margin)
    if row.n_reached[key] < estimate.n:  # some count with the length of their run
        entry = Entry(f"≥ {entry.text}")
    kind = "best" if key in row.best else "tied" if key in row.tied else ""
    remarks = [_MARKS[kind]] if kind else []
    if row.n_reached[key] < row.n_seeds:
        remarks.append(f"{row.n_reached[key]} of {row.n_seeds} seeds")
    return entry._replace(remark=", ".join(remarks), kind=kind)


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
