"""The tables of a reproduction as plain text cells, for the terminal and for the pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from turnout.papers.claims import Claim, Finding, Verdict, corrected, joined, judge
from turnout.papers.measures import measure_named, shown
from turnout.papers.presets import CostTable, NumbersTable, Preset, RegretTable, Setting
from turnout.papers.results import Trials
from turnout.papers.results_file import ResultsFile
from turnout.statistics import estimate
from turnout.statistics.evidence import LEVEL
from turnout.types import FloatArray


class TextTable(NamedTuple):
    """A table of texts.

    Args:
        title: Heading.
        headings: One per column.
        rows: Cells.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> list[str]:
        """Return its lines in Markdown, without the title."""
        first, *others = (
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
            for row in (self.headings, *self.rows)
        )
        return [first, "|" + "---|" * len(self.headings), *others]


class Judged(NamedTuple):
    """A claim in one setting.

    Args:
        claim: What was judged.
        place: The figure or table of the paper.
        setting: Label of the setting.
        differs: In which way the setting leaves the paper's protocol.
        ours: What we measured.
        verdict: With Holm's correction for all claims that are judged together.
        n_together: How many these are, with those that are still to be run.
        published: The same two for the published forms, if there are any.
    """

    claim: Claim
    place: str
    setting: str
    differs: str
    ours: Finding
    verdict: Verdict
    n_together: int
    published: tuple[Finding, Verdict] | None

    @property
    def is_counted(self) -> bool:
        """Whether it is a verdict on the paper, and one that could have been another."""
        return not self.claim.by_construction and not self.differs


def judged_claims(
    preset: Preset, file: ResultsFile, numbers: tuple[int, ...] = (), *, extras: bool = True
) -> list[Judged]:
    """Judge every claim in every setting that was run.

    Args:
        preset: The claims.
        file: The results.
        numbers: Of the figures; empty = all.
        extras: Whether the published forms are judged too.
    """
    figures = numbers or tuple(figure.number for figure in preset.figures)
    planned = list(_planned(preset, figures))
    entries: list[_Entry] = []
    anywhere: dict[Claim, dict[str, Finding]] = {}
    for setting, claim in planned:
        results, drawn = file.parts.get((setting.label, claim.times)), preset.drawn(claim.figure)
        if results is None or not set(claim.labels(drawn)) <= set(results.labels):
            continue
        ours = judge(claim, results, drawn)
        if claim.is_anywhere:
            anywhere.setdefault(claim, {})[setting.label] = ours
            continue
        is_there = set(preset.published.values()) <= set(results.labels)
        published = None
        if extras and is_there and claim.has_published and setting.has_published:
            published = judge(claim, results, drawn, preset.published)
        entries.append(_Entry(claim, setting.label, setting.differs, ours, published))
    for claim, found in anywhere.items():
        n_settings = sum(claim is other for _, other in planned)
        label = f"any of {n_settings}, {len(found)} run"
        entries.append(_Entry(claim, label, "", joined(found, n_settings), None))
    entries.sort(key=lambda entry: bool(entry.differs))
    return _judged(preset, entries, planned)


def _planned(preset: Preset, figures: tuple[int, ...]) -> Iterator[tuple[Setting, Claim]]:
    """Yield every claim with each setting in which it will be judged when everything was run."""
    for setting in preset.settings:
        for claim in preset.claims_in(setting, figures):
            wanted = claim.labels(preset.drawn(claim.figure))
            is_here = set(wanted) <= set(preset.schemes_in(setting))
            if is_here and not (claim.is_anywhere and setting.differs):
                yield setting, claim


def _judged(
    preset: Preset, entries: Sequence[_Entry], planned: Sequence[tuple[Setting, Claim]]
) -> list[Judged]:
    """Correct for all claims that are planned: on the paper, on other protocols, as published."""
    verdicts: list[Verdict] = []
    sizes: dict[bool, int] = {}
    for differs in (False, True):
        found = [(one.claim, one.ours) for one in entries if bool(one.differs) == differs]
        wanted = [
            (claim if claim.is_anywhere else (setting.label, claim))
            for setting, claim in planned
            if bool(setting.differs) == differs and not claim.by_construction
        ]
        sizes[differs] = len(set(wanted))
        verdicts += _corrected(found, sizes[differs])
    forms = [(one.claim, one.published) for one in entries if one.published]
    n_forms = sum(
        setting.has_published and claim.has_published and not claim.by_construction
        for setting, claim in planned
    )
    others = iter(_corrected(forms, n_forms))
    places = {figure.number: figure.name for figure in preset.figures}
    return [
        Judged(
            entry.claim,
            entry.claim.place or places[entry.claim.figure],
            entry.setting,
            entry.differs,
            entry.ours,
            verdict,
            sizes[bool(entry.differs)],
            entry.published and (entry.published, next(others)),
        )
        for entry, verdict in zip(entries, verdicts, strict=True)
    ]


class _Entry(NamedTuple):
    """A claim in one setting, before the correction."""

    claim: Claim
    setting: str
    differs: str
    ours: Finding
    published: Finding | None


def _corrected(found: Sequence[tuple[Claim, Finding]], planned: int) -> list[Verdict]:
    """Return verdicts with Holm's correction; those by construction stay outside of it."""
    tested = iter(
        corrected([finding for claim, finding in found if not claim.by_construction], planned)
    )
    return [finding.verdict if claim.by_construction else next(tested) for claim, finding in found]


def count_sentence(judged: Sequence[Judged], *, pages: int = 1) -> str:
    """Return how many claims hold, and how many would be wrong by chance.

    Args:
        judged: What is judged.
        pages: On how many pages, each with a correction of its own.
    """
    if not judged:
        return "No claim can be judged yet: the schemes that it compares were not all run."
    counted = [entry for entry in judged if entry.is_counted]
    counts = Counter(entry.verdict for entry in counted)
    parts = ", ".join(
        f"{counts[verdict]} {_plural(verdict, counts[verdict])}" for verdict in Verdict
    )
    by_chance = LEVEL * sum(
        not entry.ours.evidence.is_exact for entry in counted if entry.ours.n_seeds > 1
    )
    changed = sum(entry.verdict != entry.ours.verdict for entry in counted)
    n_to_come = counted[0].n_together - len(counted) if counted and pages == 1 else 0
    where = "on each page" if pages > 1 else "here"
    where += f" with {n_to_come} more claims that are still to be run" if n_to_come else ""
    text = (
        f"{len(counted)} verdicts: {parts}. Each alone would be wrong in at most {LEVEL:.0%} of "
        f"cases, at most {_rounded_up(by_chance):.1f} of them together on average. Holm's "
        f"correction, which is applied {where}, keeps the chance of even one at {LEVEL:.0%}"
    )
    together = f" there, so at most at {min(1.0, LEVEL * pages):.0%} over {pages} pages,"
    text += together if pages > 1 else ""
    text += f" and makes {changed} more undecided." if changed else "."
    n_given = sum(bool(entry.claim.by_construction) for entry in judged)
    text += f" {n_given} by construction are not counted." if n_given else ""
    reasons = "; ".join(dict.fromkeys(entry.differs for entry in judged if entry.differs))
    n_other = sum(bool(entry.differs) for entry in judged)
    other = f" {n_other} more are not counted ({reasons})."
    return text + (other if n_other else "")


def claims_table(judged: Sequence[Judged], title: str = "Claims") -> TextTable:
    """Return claims, numbers and verdicts.

    Args:
        judged: What is shown.
        title: Heading.
    """
    has_settings = len({entry.setting for entry in judged}) > 1
    has_published = any(entry.published for entry in judged)
    headings = (
        "where",
        "the paper says",
        *(("setting",) if has_settings else ()),
        "ours",
        "verdict",
        *(("as published",) if has_published else ()),
    )
    rows = []
    for entry in judged:
        says = entry.claim.says + (f" [{entry.claim.reading}]" if entry.claim.reading else "")
        row = [entry.place, says]
        row += [entry.setting] if has_settings else []
        row += [entry.ours.ours, _verdict_text(entry)]
        row += [_published_text(entry)] if has_published else []
        rows.append(tuple(row))
    return TextTable(title, headings, tuple(rows))


def all_tables(preset: Preset, file: ResultsFile, *, extras: bool = True) -> list[TextTable]:
    """Return every table beside the claims, for the settings that were run.

    Args:
        preset: What is shown.
        file: The results.
        extras: Whether cost and regret are shown.
    """
    tables = []
    for setting in preset.settings:
        results = file.parts.get((setting.label, 1))
        if results is None:
            continue
        tables.append(_overview(preset, setting.label, results))
        if extras and preset.cost and set(preset.cost.schemes) <= set(results.labels):
            tables.append(_cost(preset.cost, results))
        if extras and preset.regret and set(preset.regret.schemes) <= set(results.labels):
            tables.append(_regret(preset.regret, results))
    for printed in preset.numbers:
        labels = printed.settings or tuple(setting.label for setting in preset.settings)
        ours = {label: file.parts[(label, 1)] for label in labels if (label, 1) in file.parts}
        tables += [_numbers(printed, ours)] if ours else []
    return tables


def _shown(values: FloatArray, measure: str) -> str:
    return shown(values, measure_named(measure))


def _heading(name: str) -> str:
    measure = measure_named(name)
    return measure.titled(measure.scale(()))


def _overview(preset: Preset, setting: str, results: Trials) -> TextTable:
    """Return every scheme of the figures, and of the extras those that no other table shows."""
    drawn = {label for figure in preset.figures for label in figure.schemes}
    elsewhere = set(() if preset.cost is None else preset.cost.schemes) - drawn
    labels = [label for label in results.labels if label not in elsewhere]
    n_seeds = sorted({results.n_seeds(label) for label in labels})
    seeds = " to ".join(str(n) for n in dict.fromkeys((n_seeds[0], n_seeds[-1])))
    where = f"{setting}: " if setting else ""
    seeds += " seed" if n_seeds[-1] == 1 else " seeds"
    title = f"{where}{results.n_rounds} rounds, {seeds}, mean ± 95 %"
    if any(measure_named(name).is_time_to for name in preset.overview):
        title += ", times: median"
    rows = tuple(
        (label, *(_shown(results.values(label, name), name) for name in preset.overview))
        for label in labels
    )
    return TextTable(title, ("scheme", *(_heading(n) for n in preset.overview)), rows)


def _cost(cost: CostTable, results: Trials) -> TextTable:
    rows = tuple(
        (name, *(_shown(results.values(label, cost.measure), cost.measure) for label in labels))
        for name, *labels in cost.rows
    )
    return TextTable(cost.title, ("scheme", *cost.columns), rows)


def _regret(regret: RegretTable, results: Trials) -> TextTable:
    rows = []
    for label in regret.schemes:
        ours, bound = (results.values(label, name) for name in ("regret", "regret-bound"))
        parts = ((ours, ".0f"), (bound, ".0f"), (ours / bound, ".3f"))
        rows.append((label, *(estimate(values).written(form) for values, form in parts)))
    return TextTable(regret.title, ("scheme", "regret", "bound", "regret / bound"), tuple(rows))


def _numbers(printed: NumbersTable, settings: Mapping[str, Trials]) -> TextTable:
    """Return the paper's numbers beside ours, for the schemes and settings that were run."""
    rows = tuple(
        (
            str(scheme),
            *(
                cell
                for part in zip(printed.measures, values, strict=True)
                for cell in _beside(str(scheme), *part, settings.values())
            ),
        )
        for scheme, *values in printed.rows
    )
    headings = ["scheme"]
    for name in printed.measures:
        title = _heading(name)
        headings.append(f"{title}: the paper")
        headings += [f"ours, {label}" if len(settings) > 1 else "ours" for label in settings]
    where = f" ({next(iter(settings))})" if len(settings) == 1 and next(iter(settings)) else ""
    return TextTable(printed.title + where, tuple(headings), rows)


def _beside(scheme: str, measure: str, value: float | str, ours: Iterable[Trials]) -> list[str]:
    """Return what the paper prints and what each setting measured; empty where it was not run."""
    return [
        value if isinstance(value, str) else f"{value:g}",
        *(
            _shown(results.values(scheme, measure), measure) if scheme in results.labels else ""
            for results in ours
        ),
    ]


def _verdict_text(entry: Judged) -> str:
    text: str = entry.verdict
    if entry.claim.by_construction:
        return f"{text}, by construction: {entry.claim.by_construction}"
    if entry.verdict != entry.ours.verdict:
        text += f" ({entry.ours.verdict} alone)"
    if entry.differs:
        text += f", not counted: {entry.differs}"
    if entry.ours.n_seeds < 2:
        text += f" ({'one' if entry.ours.n_seeds else 'no common'} seed; 2 are the least)"
    elif entry.ours.seeds_needed is not None:
        text += f" (about {entry.ours.seeds_needed} seeds would decide)"
    return text


def _published_text(entry: Judged) -> str:
    if entry.published is None:
        return ""
    finding, verdict = entry.published
    return f"{verdict}: {finding.ours}" if verdict == Verdict.FAILS else verdict


def _rounded_up(value: float) -> float:
    """Return a bound with one decimal."""
    return math.ceil(round(10.0 * value, 6)) / 10.0


def _plural(verdict: Verdict, count: int) -> str:
    words = {Verdict.HOLDS: ("holds", "hold"), Verdict.FAILS: ("fails", "fail")}
    return words.get(verdict, (verdict, verdict))[count != 1]
