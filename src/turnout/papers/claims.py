"""What a paper says, put beside what was measured, with a verdict for each claim.

Verdicts are about means over seeds, paired by seed where two schemes are compared (see
``turnout.statistics.evidence``). *holds*: the data speak for the claim. *fails*: they speak against
it. *undecided*: the interval reaches to both sides, a run diverged, or there is one seed only.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import numpy as np

from turnout.errors import InvalidInput
from turnout.papers.measures import RELATIVE, measure_named, shown, typical
from turnout.papers.results import Trials
from turnout.runs.cell import Cell
from turnout.runs.metric import Metric
from turnout.statistics import estimate
from turnout.statistics.evidence import (
    LEVEL,
    Evidence,
    above,
    all_of,
    any_of,
    holm,
    inside,
    later,
    log_ratio,
    same,
)
from turnout.types import FloatArray

#: More seeds than this are not worth naming.
_MOST_SEEDS = 200

#: From fewer seeds than this nothing can be said about the spread.
_FEWEST_SEEDS = 3


class Verdict(StrEnum):
    """How a claim fared."""

    HOLDS = "holds"
    UNDECIDED = "undecided"
    FAILS = "fails"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and how it is judged.

    Args:
        figure: Number of the figure whose schemes the sentence is about.
        says: The sentence.
        relation: A name of ``RELATIONS``.
        measure: What is compared, a name that ``measure_named`` knows.
        order: For "order": labels joined by > (more), >= (not less, within the margin), ~ (equal,
            within the margin) or = (the same runs). ``A & B`` stands for both, ``others`` for
            every other scheme of the figure.
        schemes: For "above", "below" and "is": the labels that are judged.
        limit: For "above", "below" and "is": the border.
        margin: The largest difference that still counts as none, for >=, ~ and "is".
        factor: For > between times: how many times as long.
        settings: Labels of the settings in which it is judged; empty = in all.
        reading: How the sentence was read, where it leaves room.
        place: Where the sentence or its numbers stand, such as a table; empty = the figure.
        is_anywhere: Whether it says that there is a setting ("up to"): judged once over all.
        times: Judged on runs so many times as long as the paper's.
        has_published: Whether it is judged for the published forms too.
        by_construction: Why our model of the world makes it true; empty = it does not.
    """

    figure: int
    says: str
    relation: str
    measure: str
    order: str = ""
    schemes: tuple[str, ...] = ()
    limit: float = 0.0
    margin: float = 0.0
    factor: float = 1.0
    settings: tuple[str, ...] = ()
    reading: str = ""
    place: str = ""
    is_anywhere: bool = False
    times: int = 1
    has_published: bool = False
    by_construction: str = ""

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise InvalidInput(f"relation must be one of {', '.join(RELATIONS)}.", field="relation")
        measure = measure_named(self.measure)
        signs = steps_of(self.order)[1] if self.order else ()
        needs_margin = {">=", "~"}.intersection(signs)
        if needs_margin and self.margin <= 0.0:
            sign = min(needs_margin)
            raise InvalidInput(
                f"margin must be above 0: {sign} needs to say how large a difference counts.",
                field="margin",
            )
        if measure.is_time_to and {">=", "~", "="} & set(signs):
            raise InvalidInput("times are compared by > only, with a factor.", field="order")

    def labels(self, drawn: Sequence[str]) -> tuple[str, ...]:
        """Return the schemes that must have been run.

        Args:
            drawn: The schemes of the figure, for ``others``.
        """
        groups = self.groups(drawn)[0] if self.order else [self.schemes]
        other = [self.measure.removeprefix(RELATIVE)] if self.measure.startswith(RELATIVE) else []
        return tuple(dict.fromkeys([*(label for group in groups for label in group), *other]))

    def groups(self, drawn: Sequence[str]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
        """Return the groups of the order with ``others`` filled in, and the signs between them.

        Args:
            drawn: The schemes of the figure.
        """
        groups, signs = steps_of(self.order)
        named = {label for group in groups for label in group}
        others = tuple(label for label in drawn if label not in named)
        return [others if group == ("others",) else group for group in groups], signs


class Finding(NamedTuple):
    """What was measured for a claim.

    Attributes:
        ours: The numbers, as text.
        evidence: What speaks for the claim and against it.
        n_seeds: Seeds behind it: the fewest pairs of any comparison.
        seeds_needed: Seeds that would decide it if the spread stayed as it is; None if it is
            decided or cannot be said.
    """

    ours: str
    evidence: Evidence
    n_seeds: int
    seeds_needed: int | None = None

    @property
    def verdict(self) -> Verdict:
        """The verdict on this claim alone."""
        return _verdict(self.evidence)


def judge(
    claim: Claim,
    results: Trials,
    drawn: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
) -> Finding:
    """Judge a claim.

    Args:
        claim: What is judged.
        results: What was measured.
        drawn: The schemes of the claim's figure.
        rename: Replaces schemes by others, such as their published forms.
    """
    names = dict(rename or {})
    return RELATIONS[claim.relation](claim, results, drawn, lambda label: names.get(label, label))


def joined(found: Mapping[str, Finding], n_settings: int) -> Finding:
    """Return the finding of a claim that need be true in one setting only.

    Args:
        found: What was measured in each setting.
        n_settings: How many settings there are.
    """
    best = min(found, key=lambda label: found[label].evidence.speaks_for)
    evidence = any_of([finding.evidence for finding in found.values()], n_settings)
    return Finding(f"nearest in {best}: {found[best].ours}", evidence, found[best].n_seeds)


def corrected(findings: Sequence[Finding], planned: int = 0) -> list[Verdict]:
    """Return the verdicts with Holm's correction for how many claims are judged together.

    Args:
        findings: Everything that one page judges.
        planned: How many claims the page will judge when everything was run.
    """
    tested = [i for i, finding in enumerate(findings) if not finding.evidence.is_exact]
    p_values = holm((2.0 * min(findings[i].evidence[:2]) for i in tested), planned)
    verdicts = [finding.verdict for finding in findings]
    for i, p_value in zip(tested, p_values, strict=True):
        if p_value > LEVEL:
            verdicts[i] = Verdict.UNDECIDED
    return verdicts


def steps_of(order: str) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]]:
    """Return the groups of labels and the signs between them.

    Args:
        order: As in ``Claim.order``.

    >>> steps_of("FedCS & pow-d > E3CS-inc ~ E3CS-0.8")
    ((('FedCS', 'pow-d'), ('E3CS-inc',), ('E3CS-0.8',)), ('>', '~'))
    """
    parts = re.split(r"\s+(>=|>|=|~)\s+", order.strip())
    groups = tuple(tuple(re.split(r"\s+&\s+", part)) for part in parts[0::2])
    return groups, tuple(parts[1::2])


class _Step(NamedTuple):
    """One comparison of a claim: its name, the differences and what they speak for."""

    name: str
    differences: FloatArray
    distance: float  #: of the mean from the border that decides
    evidence: Evidence
    test: Callable[[FloatArray], Evidence]  #: what such differences would speak for
    is_censored: bool = False  #: whether more seeds would not say more: a time is not known
    n_early: int = 0  #: seeds with a run that was there at the first look
    n_never: int = 0  #: seeds with a run that never got there
    is_unknown: bool = False  #: whether no run got there with any seed

    @property
    def n_seeds(self) -> int:
        """Seeds that both schemes have; one that diverged counts."""
        return self.differences.size

    def with_seeds(self, n: int) -> Evidence:
        """Return what as many seeds would say if mean and spread stayed as they are."""
        values = self.differences
        if self.is_censored or self.evidence.is_exact or not np.isfinite(values).all():
            return self.evidence
        places = np.linspace(-1.0, 1.0, max(n, self.n_seeds))
        return self.test(values.mean() + values.std(ddof=1) * places / places.std(ddof=1))

    @property
    def weakness(self) -> tuple[float, bool, float]:
        """Orders steps: what speaks least for the claim is largest; exact ones are small."""
        return self.evidence.speaks_for, not self.evidence.is_exact, -self.distance


def _order(
    claim: Claim, results: Trials, drawn: Sequence[str], name: Callable[[str], str]
) -> Finding:
    groups, signs = claim.groups(drawn)
    measure = measure_named(claim.measure)
    steps = [
        _step(claim, measure, sign, first, second, results, name)
        for left, sign, right in zip(groups, signs, groups[1:], strict=False)
        for first in left
        for second in right
    ]
    numbers = ", ".join(
        f"{label} {typical(results.values(name(label), claim.measure), measure)}"
        for group in groups
        for label in group
    )
    return _finding(numbers, steps, measure, min(step.n_seeds for step in steps))


def _step(
    claim: Claim,
    measure: Metric[Cell],
    sign: str,
    first: str,
    second: str,
    results: Trials,
    name: Callable[[str], str],
) -> _Step:
    ours, theirs = results.paired(name(first), name(second), claim.measure)
    if measure.is_time_to:
        bounds = results.lengths(name(first), name(second), claim.measure)
        ratio = log_ratio(ours, theirs, bounds)
        early = results.at_first_look(name(first), name(second), claim.measure)
        evidence = later(ours, theirs, bounds, claim.factor, early)
        setter = claim.measure.removeprefix(RELATIVE)  # who sets the target always gets there
        if setter == name(first):
            evidence = evidence._replace(speaks_against=1.0)
        if setter == name(second):
            evidence = evidence._replace(speaks_for=1.0)
        n_early = int((early[0] | early[1]).sum())
        n_never = int((np.isinf(ours) | np.isinf(theirs)).sum())
        is_unknown = bool(ours.size and np.isinf(ours).all() and np.isinf(theirs).all())
        is_censored = bool(n_early or n_never) or setter in (name(first), name(second))
        border = math.log(claim.factor)
        distance, test = _mean(ratio) - border, partial(above, border=border)
        shown_as = f"log({first} / {second})"
        return _Step(
            shown_as, ratio, distance, evidence, test, is_censored, n_early, n_never, is_unknown
        )
    return _judged(f"{first} - {second}", ours - theirs, _SIGNS[sign], claim.margin)


def _judged(name: str, differences: FloatArray, sign: _Sign, margin: float) -> _Step:
    distance, evidence = sign(differences, margin)
    return _Step(name, differences, distance, evidence, lambda others: sign(others, margin)[1])


#: From differences and a margin: the distance from the border, and what speaks for the claim.
_Sign = Callable[[FloatArray, float], tuple[float, Evidence]]

_SIGNS: Mapping[str, _Sign] = {
    ">": lambda step, _: (_mean(step), above(step)),
    ">=": lambda step, margin: (_mean(step) + margin, above(step, -margin)),
    "=": lambda step, _: (_mean(step), same(step)),
    "~": lambda step, margin: (margin - abs(_mean(step)), inside(step, margin)),
}


def _finding(numbers: str, steps: Sequence[_Step], measure: Metric[Cell], n_seeds: int) -> Finding:
    evidence = all_of([step.evidence for step in steps])
    verdict = _verdict(evidence)
    weakest = min(steps, key=lambda step: step.evidence.speaks_against)
    if verdict != Verdict.FAILS:
        weakest = max(steps, key=lambda step: step.weakness)
    form = ".2f" if measure.is_time_to else measure.form
    step_shown = f"{weakest.name} = {estimate(weakest.differences).written(form)}"
    if weakest.n_never:
        step_shown += f", a run never got there in {weakest.n_never} of {weakest.n_seeds} seeds"
    if weakest.is_unknown:
        step_shown = f"{weakest.name} is not known, no run got there"
    n_diverged = int(np.isnan(weakest.differences).sum())
    if n_diverged:
        step_shown += f", diverged in {n_diverged} of {weakest.differences.size} seeds"
    if weakest.n_early:
        step_shown += f", there by the first look in {weakest.n_early} of {weakest.n_seeds} seeds"
    needed = _seeds_needed(steps) if verdict == Verdict.UNDECIDED else None
    which = "weakest" if len(steps) > 1 else "paired"
    return Finding(f"{numbers}; {which}: {step_shown}", evidence, n_seeds, needed)


def _seeds_needed(steps: Sequence[_Step]) -> int | None:
    """Return how many seeds would decide a claim if means and spreads stay as they are.

    Args:
        steps: Its comparisons. One whose spread is not known stays as it is.
    """
    n_seeds = min(step.n_seeds for step in steps)
    if n_seeds < _FEWEST_SEEDS:
        return None

    def decides(n: int) -> bool:
        return _verdict(all_of([step.with_seeds(n) for step in steps])) != Verdict.UNDECIDED

    numbers = range(n_seeds + 1, _MOST_SEEDS + 1)
    first = bisect_left(numbers, True, key=decides)  # if n seeds decide, so do more
    return numbers[first] if first < len(numbers) else None


def _each(
    claim: Claim, results: Trials, drawn: Sequence[str], name: Callable[[str], str]
) -> Finding:
    """Judge each scheme by its distance from the limit: above, below or at it."""
    measure = measure_named(claim.measure)
    side = -1.0 if claim.relation == "below" else 1.0
    equal = "~" if claim.margin > 0.0 else "="
    sign = _SIGNS[equal if claim.relation == "is" else ">"]
    steps, parts = [], []
    for label in claim.schemes:
        values = results.values(name(label), claim.measure)
        steps.append(_judged(label, side * (values - claim.limit), sign, claim.margin))
        verdict = _verdict(_one_of(steps[-1].evidence, len(claim.schemes)))
        remark = "" if verdict == Verdict.HOLDS else f" ({verdict})"
        parts.append(f"{label} {shown(values, measure)}{remark}")
    evidence = all_of([step.evidence for step in steps])
    n_seeds = min(step.n_seeds for step in steps)
    needed = _seeds_needed(steps) if _verdict(evidence) == Verdict.UNDECIDED else None
    return Finding("; ".join(parts), evidence, n_seeds, needed)


def _one_of(evidence: Evidence, n: int) -> Evidence:
    """Return the evidence of one of several parts: it fails only if it makes the claim fail."""
    if evidence.is_exact:
        return evidence
    return evidence._replace(speaks_against=min(1.0, n * evidence.speaks_against))


#: How a claim can be judged.
RELATIONS: Mapping[str, Callable[..., Finding]] = {
    "order": _order,
    "above": _each,
    "below": _each,
    "is": _each,
}


def _verdict(evidence: Evidence) -> Verdict:
    if evidence.speaks_for <= LEVEL / 2:
        return Verdict.HOLDS
    return Verdict.FAILS if evidence.speaks_against <= LEVEL / 2 else Verdict.UNDECIDED


def _mean(values: FloatArray) -> float:
    return float(values.mean()) if values.size else math.nan
