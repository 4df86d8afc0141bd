"""What the templates show of a world: plain text and numbers. Jinja2 escapes them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from turnout.report.charts import sections
from turnout.report.figures import Chart, Section
from turnout.report.live import LiveView, live_view
from turnout.report.wording import describe, pairs
from turnout.results.groups import VariantCells, WorldGroup
from turnout.results.live import live_runs
from turnout.results.scores import Scores
from turnout.results.sensitivity import point_name
from turnout.results.tables import (
    Entry,
    Mark,
    ScoreTable,
    compared_metrics,
    difference_table,
    mean_table,
    suitable,
    usual_metrics,
)
from turnout.runs.catalogue import shown_in
from turnout.runs.facts import Facts
from turnout.runs.metric import Metric

#: Class of the style sheet and words of each mark.
_MARKS: Mapping[Mark, tuple[str, str]] = {
    "": ("", ""),
    "best": ("best", "best"),
    "leading": ("tied", "≈ best"),
    "tied": ("tied", "≈ best"),
    "clear": ("clear", ""),
}
_NONE, _MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"


class PageCell(NamedTuple):
    """A number in a table."""

    text: str
    margin: str = ""  #: half the confidence interval
    remark: str = ""  #: such as "best" or "2 of 5 seeds"
    kind: str = ""  #: class of the style sheet: best, tied or clear
    is_extra: bool = False  #: shown on demand


class Heading(NamedTuple):
    """The head of a column."""

    title: str
    meaning: str = ""  #: shown when the pointer rests on it
    note: str = ""  #: which direction is better
    is_extra: bool = False  #: shown on demand


class Table(NamedTuple):
    """Numbers of all selectors."""

    label: str  #: for screen readers
    headings: list[Heading]
    rows: list[tuple[str, list[PageCell]]]  #: the name of a selector and its numbers

    @property
    def has_extra(self) -> bool:
        """Whether some columns are shown on demand."""
        return any(heading.is_extra for heading in self.headings)


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
    point: str  #: of a sweep; empty without one
    sentence: str
    live: list[LiveView]  #: as who operates it sees it; empty for simulations
    summary: Table
    targets: Table | None  #: None without any accuracy
    differences: Table | None  #: to the first selector; None if it is alone
    sections: list[Section]
    variants: list[VariantView]
    versions: Mapping[str, int]  #: how many cells were written by which versions
    settings: str  #: as JSON
    caution: str  #: about few seeds; empty with enough

    @property
    def charts(self) -> list[Chart]:
        """The charts of all sections."""
        return [chart for section in self.sections for chart in section.charts]


def world_view(world: WorldGroup, id: str, order: Mapping[str, int]) -> WorldView:
    """Return what the page shows of a world.

    Args:
        world: The cells that compare.
        id: The name of the world's element in the page.
        order: The number of each selector, for colours and toggling.
    """
    scores, usual = world.scores, usual_metrics(world)
    reported = suitable(world, shown_in("report"))
    versions = Counter(json.dumps(_told(cell.versions), sort_keys=True) for cell in world.cells)
    return WorldView(
        id=id,
        point=point_name(world),
        sentence=describe(world),
        live=[
            live_view(each.run, f"{id}-live-{i}", f"{each.title}, as it ran")
            for i, each in enumerate(live_runs(world))
        ],
        summary=_summary_table(scores, reported, usual),
        targets=target_table(scores, [metric for metric in usual if metric.is_time_to]),
        differences=_difference_table(scores, usual),
        sections=sections(world, order),
        variants=[_variant_view(variant) for variant in world.variants],
        versions={pairs(json.loads(text)): n_cells for text, n_cells in versions.items()},
        settings=json.dumps(_settings(world), indent=2),
        caution=scores.caution,
    )


def _told(versions: Mapping[str, Any]) -> dict[str, Any]:
    """Return versions without the digests of files, which differ by selector."""
    return {name: value for name, value in versions.items() if name != "files"}


def target_table(scores: Scores, metrics: Sequence[Metric[Facts]]) -> Table | None:
    """Return rounds and time to some accuracies.

    Args:
        scores: The numbers of the world.
        metrics: Rounds and time for each accuracy.

    Returns:
        Two columns per accuracy; None if there is no accuracy to ask for.
    """
    return _table("Rounds to accuracy", mean_table(scores, metrics)) if metrics else None


def _summary_table(
    scores: Scores, reported: Sequence[Metric[Facts]], usual: Collection[Metric[Facts]]
) -> Table:
    """Return the means over seeds; columns that are not usual are shown on demand."""
    shown = [m for m in reported if any(scores.n_reached(n, m) for n in scores.labels)]
    table = _table("Summary table", mean_table(scores, shown), usual)
    for label, entries in table.rows:
        entries.insert(0, PageCell(str(scores.n_seeds(label))))
    return table._replace(headings=[Heading("Seeds"), *table.headings])


def _difference_table(scores: Scores, metrics: Sequence[Metric[Facts]]) -> Table | None:
    """Return the differences to the first selector; None if it is alone."""
    if len(scores.labels) < 2:
        return None
    compared = compared_metrics(metrics)
    return _table(f"Difference to {scores.labels[0]}", difference_table(scores, compared))


def _table(
    label: str, content: ScoreTable, usual: Collection[Metric[Facts]] | None = None
) -> Table:
    keys = (
        {metric.key for metric, _ in content.columns} if usual is None else {m.key for m in usual}
    )
    headings = [
        Heading(metric.titled(scale), metric.meaning, metric.direction, metric.key not in keys)
        for metric, scale in content.columns
    ]
    rows = [
        (name, [_entry(*pair) for pair in zip(entries, headings, strict=True)])
        for name, entries in content.rows
    ]
    return Table(label, headings, rows)


def _entry(number: Entry, heading: Heading) -> PageCell:
    """Return a number for the page; where seeds are missing, say how many there are."""
    text = _NONE if number.mean == "-" else number.mean.replace("-", _MINUS)
    kind, mark = _MARKS[number.mark]
    seeds = f"{number.reached} seeds" if number.reached else ""
    star = "*" if number.mark == "clear" else ""
    remark = ", ".join(filter(None, (mark, seeds)))
    return PageCell(f"{text}{star}", number.margin, remark, kind, heading.is_extra)


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
