"""The tables of a reproduction as plain text cells, for the terminal and for the pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from turnout.results.statistics import estimate
from turnout.studies.claims import Claim, Finding, joined, judge
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
    """A claim in one setting. It is explored, not decided: no plan fixed it before its runs.

    Args:
        claim: The claim.
        place: The figure or table of the paper.
        setting: Label of the setting.
        differs: How the setting deviates from the paper's protocol; empty if it does not.
        ours: What we measured.
        published: The same for the published forms, if there are any.
    """

    claim: Claim
    place: str
    setting: str
    differs: str
    ours: Finding
    published: Finding | None = None


def judged_claims(
    preset: Preset, file: ResultsFile, numbers: tuple[int, ...] = (), *, extras: bool = True
) -> list[Judged]:
    """Judge every claim alone, in every setting that was run.

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
        ours, form = judge(claim, results, drawn), None
        if claim.is_anywhere:
            anywhere.setdefault(claim, {})[setting.label] = ours
            continue
        has_forms = extras and set(preset.published.values()) <= set(results.labels)
        if has_forms and setting.has_published and claim.has_published:
            form = judge(claim, results, drawn, preset.published)
        place = claim.place or places[claim.figure]
        judged.append(Judged(claim, place, setting.label, setting.differs, ours, form))
    for claim, found in anywhere.items():
        n_settings = sum(claim is other for _, other in planned)
        label = f"any of {n_settings}, {len(found)} run"
        place = claim.place or places[claim.figure]
        judged.append(Judged(claim, place, label, "", joined(found, n_settings)))
    order = list(preset.claims)
    return sorted(judged, key=lambda one: (bool(one.differs), order.index(one.claim)))


def _planned(preset: Preset, figures: tuple[int, ...]) -> Iterator[tuple[Setting, Claim]]:
    """Yield every claim with each setting in which it is judged once everything was run."""
    for setting in preset.settings:
        for claim in preset.claims_in(setting, figures):
            wanted = claim.labels(preset.drawn(claim.figure))
            is_here = set(wanted) <= set(preset.schemes_in(setting))
            if is_here and not (claim.is_anywhere and setting.differs):
                yield setting, claim


def claims_table(judged: Sequence[Judged], title: str = "Claims") -> TextTable:
    """Return claims with effect and interval, and what each alone would be judged to be.

    Args:
        judged: The claims.
        title: The title.
    """
    left_out = set() if len({one.setting for one in judged}) > 1 else {"setting"}
    left_out |= set() if any(one.published for one in judged) else {"as published"}
    settings = _short_settings(judged)
    rows, before = [], None
    for one in judged:
        is_same = one.claim is before
        row = {
            "where": "" if is_same else one.place,
            "the paper says": "" if is_same else one.claim.says,
            "setting": settings[one.setting],
            "effect": one.ours.deciding,
            "seeds": str(one.ours.n_seeds),
            "alone": _alone(one),
            "as published": one.published.verdict if one.published else "",
        }
        rows.append({name: cell for name, cell in row.items() if name not in left_out})
        before = one.claim
    return TextTable.of(title, rows)


def _short_settings(judged: Sequence[Judged]) -> dict[str, str]:
    """Return the settings without the words that all of them share."""
    parts = {one.setting: one.setting.split(", ") for one in judged}
    of_each = [parts[one.setting] for one in judged if not one.claim.is_anywhere]
    shared = set(of_each[0]).intersection(*of_each) if len(set(map(tuple, of_each))) > 1 else set()
    return {
        setting: ", ".join(part for part in own if part not in shared) or setting
        for setting, own in parts.items()
    }


def details(judged: Sequence[Judged]) -> list[str]:
    """Return what the short cells leave out, one text per claim: its reading, and every number.

    Args:
        judged: The claims.
    """
    texts = []
    for one in judged:
        where = f" ({one.setting})" if one.setting else ""
        parts = [one.claim.reading, one.ours.numbers, one.differs and f"deviates: {one.differs}"]
        parts += [f"as published: {one.published.deciding}"] if one.published else []
        texts.append(f"{one.claim.says}{where}: {'; '.join(part for part in parts if part)}")
    return texts


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


def _alone(entry: Judged) -> str:
    """Return the verdict on a claim alone, and what would change it."""
    text, n_seeds = str(entry.ours.verdict), entry.ours.n_seeds
    if entry.claim.by_construction:
        return f"{text}, by construction: {entry.claim.by_construction}"
    if n_seeds < 2:
        return f"{text} ({'one' if n_seeds else 'no common'} seed; at least 2 are needed)"
    if entry.ours.seeds_needed is None:
        return text
    return f"{text} (about {entry.ours.seeds_needed} seeds: even odds, without Holm's correction)"
