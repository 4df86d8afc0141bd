"""The tables of a reproduction as plain text cells, for the terminal and for the pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from turnout.results.statistics import LEVEL, estimate
from turnout.studies.claims import Claim, Finding, Verdict, corrected, joined, judge
from turnout.studies.measures import measure_named, shown
from turnout.studies.presets import CostTable, NumbersTable, Preset, RegretTable, Setting
from turnout.studies.results_file import ResultsFile
from turnout.studies.trials import Trials


class TextTable(NamedTuple):
    """A table of texts.

    Args:
        title: The title.
        headings: One per column.
        rows: The cells, row by row.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, title: str, rows: Iterable[Mapping[str, str]]) -> Self:
        """Return the table of rows that have their cells by heading.

        Args:
            title: The title.
            rows: All with the same headings.
        """
        cells = list(rows)
        headings = tuple(cells[0]) if cells else ()
        return cls(title, headings, tuple(tuple(row.values()) for row in cells))

    def markdown(self) -> list[str]:
        """Return its lines in Markdown, without the title."""
        first, *others = (
            f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
            for row in (self.headings, *self.rows)
        )
        return [first, "|" + "---|" * len(self.headings), *others]


class Judged(NamedTuple):
    """A claim in one setting, with its verdict.

    Args:
        claim: The claim.
        place: The figure or table of the paper.
        setting: Label of the setting.
        differs: How the setting deviates from the paper's protocol; empty if it does not.
        ours: What we measured.
        verdict: The verdict, with Holm's correction for all claims that are judged together.
        n_together: The number of these claims, including those that are still to be run.
        published: Finding and verdict of the published forms, if there are any.
    """

    claim: Claim
    place: str
    setting: str
    differs: str
    ours: Finding
    verdict: Verdict
    n_together: int = 0
    published: tuple[Finding, Verdict] | None = None

    @property
    def is_counted(self) -> bool:
        """Whether it is a verdict about the paper that could have been different."""
        return not self.claim.by_construction and not self.differs


def judged_claims(
    preset: Preset, file: ResultsFile, numbers: tuple[int, ...] = (), *, extras: bool = True
) -> list[Judged]:
    """Judge every claim in every setting that was run.

    Args:
        preset: The preset with the claims.
        file: The results.
        numbers: Numbers of figures; empty = all.
        extras: Whether to judge the published forms too.
    """
    planned = list(_planned(preset, numbers or tuple(one.number for one in preset.figures)))
    places = {figure.number: figure.name for figure in preset.figures}
    judged: list[Judged] = []
    anywhere: dict[Claim, dict[str, Finding]] = {}
    for setting, claim in planned:
        results, drawn = file.parts.get((setting.label, claim.times)), preset.drawn(claim.figure)
        if results is None or not set(claim.labels(drawn)) <= set(results.labels):
            continue
        ours = judge(claim, results, drawn)
        if claim.is_anywhere:
            anywhere.setdefault(claim, {})[setting.label] = ours
            continue
        place = claim.place or places[claim.figure]
        one = Judged(claim, place, setting.label, setting.differs, ours, ours.verdict)
        if (
            extras
            and set(preset.published.values()) <= set(results.labels)
            and _has_published(setting, claim)
        ):
            form = judge(claim, results, drawn, preset.published)
            one = one._replace(published=(form, form.verdict))
        judged.append(one)
    for claim, found in anywhere.items():
        n_settings = sum(claim is other for _, other in planned)
        label = f"any of {n_settings}, {len(found)} run"
        ours = joined(found, n_settings)
        place = claim.place or places[claim.figure]
        judged.append(Judged(claim, place, label, "", ours, ours.verdict))
    judged.sort(key=lambda one: bool(one.differs))
    return _corrected(judged, planned)


def _planned(preset: Preset, figures: tuple[int, ...]) -> Iterator[tuple[Setting, Claim]]:
    """Yield every claim with each setting in which it is judged once everything was run."""
    for setting in preset.settings:
        for claim in preset.claims_in(setting, figures):
            wanted = claim.labels(preset.drawn(claim.figure))
            is_here = set(wanted) <= set(preset.schemes_in(setting))
            if is_here and not (claim.is_anywhere and setting.differs):
                yield setting, claim


def _has_published(setting: Setting, claim: Claim) -> bool:
    return setting.has_published and claim.has_published


def _corrected(judged: Sequence[Judged], planned: Sequence[tuple[Setting, Claim]]) -> list[Judged]:
    """Apply Holm's correction to each family of claims, for the number that is planned.

    There are three families: verdicts about the paper, about other protocols, and about published
    forms. A claim that is true by construction belongs to none of them.
    """
    tested = [(setting, claim) for setting, claim in planned if not claim.by_construction]
    after = []
    for differs in (False, True):
        distinct = {
            claim if claim.is_anywhere else (setting.label, claim)
            for setting, claim in tested
            if bool(setting.differs) == differs
        }
        family = [one for one in judged if bool(one.differs) == differs]
        verdicts = _family_verdicts([(one.claim, one.ours) for one in family], len(distinct))
        after += [
            one._replace(verdict=verdict, n_together=len(distinct))
            for one, verdict in zip(family, verdicts, strict=True)
        ]
    forms = [(one.claim, one.published[0]) for one in after if one.published]
    verdicts = _family_verdicts(forms, sum(_has_published(*both) for both in tested))
    others = zip((form for _, form in forms), verdicts, strict=True)
    return [one._replace(published=next(others)) if one.published else one for one in after]


def _family_verdicts(found: Sequence[tuple[Claim, Finding]], planned: int) -> list[Verdict]:
    """Return corrected verdicts; a claim that is true by construction keeps its own."""
    tested = [finding for claim, finding in found if not claim.by_construction]
    verdicts = iter(corrected(tested, planned))
    return [
        finding.verdict if claim.by_construction else next(verdicts) for claim, finding in found
    ]


def count_sentence(judged: Sequence[Judged], *, pages: int = 1) -> str:
    """Return how many claims hold, and how many would be wrong by chance.

    Args:
        judged: The verdicts.
        pages: The number of pages that show them, each with a correction of its own.
    """
    if not judged:
        return "No claim can be judged yet: the schemes that it compares were not all run."
    counted = [entry for entry in judged if entry.is_counted]
    counts = Counter(entry.verdict for entry in counted)
    plural = {Verdict.HOLDS: "hold", Verdict.FAILS: "fail"}
    parts = ", ".join(
        f"{counts[verdict]} {verdict if counts[verdict] == 1 else plural.get(verdict, verdict)}"
        for verdict in Verdict
    )
    n_tested = sum(not entry.ours.evidence.is_exact for entry in counted if entry.ours.n_seeds > 1)
    by_chance = math.ceil(round(10.0 * LEVEL * n_tested, 6)) / 10.0  # a bound is rounded up
    changed = sum(entry.verdict != entry.ours.verdict for entry in counted)
    n_to_come = counted[0].n_together - len(counted) if counted and pages == 1 else 0
    where = "on each page" if pages > 1 else "here"
    where += f" with {n_to_come} more claims that are still to be run" if n_to_come else ""
    text = (
        f"{len(counted)} verdicts: {parts}. Each verdict alone would be wrong in at most "
        f"{LEVEL:.0%} of cases, so at most {by_chance:.1f} of them on average. Holm's "
        f"correction, which is applied {where}, keeps the chance of any wrong verdict at "
        f"{LEVEL:.0%}"
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
        judged: The verdicts.
        title: The title.
    """
    left_out = set() if len({one.setting for one in judged}) > 1 else {"setting"}
    left_out |= set() if any(one.published for one in judged) else {"as published"}
    rows = (
        {
            "where": one.place,
            "the paper says": one.claim.says
            + (f" [{one.claim.reading}]" if one.claim.reading else ""),
            "setting": one.setting,
            "ours": one.ours.ours,
            "verdict": _verdict_text(one),
            "as published": _published_text(one),
        }
        for one in judged
    )
    return TextTable.of(
        title, ({name: row[name] for name in row if name not in left_out} for row in rows)
    )


def all_tables(preset: Preset, file: ResultsFile, *, extras: bool = True) -> list[TextTable]:
    """Return every table except that of the claims, for the settings that were run.

    Args:
        preset: The preset.
        file: The results.
        extras: Whether to show cost and regret.
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


def _shown(results: Trials, label: str, measure: str) -> str:
    return shown(results.values(label, measure), measure_named(measure))


def _heading(name: str) -> str:
    measure = measure_named(name)
    return measure.titled(measure.scale(()))


def _overview(preset: Preset, setting: str, results: Trials) -> TextTable:
    """Return every scheme except those that only the table of costs shows."""
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
    return TextTable.of(
        title,
        (
            {"scheme": label}
            | {_heading(name): _shown(results, label, name) for name in preset.overview}
            for label in labels
        ),
    )


def _cost(cost: CostTable, results: Trials) -> TextTable:
    rows = tuple(
        (name, *(_shown(results, label, cost.measure) for label in labels))
        for name, *labels in cost.rows
    )
    return TextTable(cost.title, ("scheme", *cost.columns), rows)


def _regret(regret: RegretTable, results: Trials) -> TextTable:
    rows = []
    for label in regret.schemes:
        ours, bound = (results.values(label, name) for name in ("regret", "regret-bound"))
        row = {
            "scheme": label,
            "regret": estimate(ours).written(".0f"),
            "bound": estimate(bound).written(".0f"),
            "regret / bound": estimate(ours / bound).written(".3f"),
        }
        rows.append(row)
    return TextTable.of(regret.title, rows)


def _numbers(printed: NumbersTable, settings: Mapping[str, Trials]) -> TextTable:
    """Return the paper's numbers beside ours; a cell is empty where a scheme was not run."""
    headings = ["scheme"]
    for name in printed.measures:
        headings.append(f"{_heading(name)}: the paper")
        headings += [f"ours, {label}" if len(settings) > 1 else "ours" for label in settings]
    rows = []
    for scheme, *values in printed.rows:
        row = [str(scheme)]
        for measure, value in zip(printed.measures, values, strict=True):
            row.append(value if isinstance(value, str) else f"{value:g}")
            row += [
                _shown(results, row[0], measure) if scheme in results.labels else ""
                for results in settings.values()
            ]
        rows.append(tuple(row))
    where = f" ({next(iter(settings))})" if len(settings) == 1 and next(iter(settings)) else ""
    return TextTable(printed.title + where, tuple(headings), tuple(rows))


def _verdict_text(entry: Judged) -> str:
    text: str = entry.verdict
    if entry.claim.by_construction:
        return f"{text}, by construction: {entry.claim.by_construction}"
    if entry.verdict != entry.ours.verdict:
        text += f" ({entry.ours.verdict} alone)"
    if entry.differs:
        text += f", not counted: {entry.differs}"
    if entry.ours.n_seeds < 2:
        text += f" ({'one' if entry.ours.n_seeds else 'no common'} seed; at least 2 are needed)"
    elif entry.ours.seeds_needed is not None:
        text += f" (about {entry.ours.seeds_needed} seeds would decide)"
    return text


def _published_text(entry: Judged) -> str:
    if entry.published is None:
        return ""
    finding, verdict = entry.published
    return f"{verdict}: {finding.ours}" if verdict == Verdict.FAILS else verdict
