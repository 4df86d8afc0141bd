"""The claims of a paper, and the verdict of our measurements on each of them.

Verdicts are about means over seeds, paired by seed where two schemes are compared (see
``turnout.results.statistics``). *holds*: the data support the claim. *fails*: they contradict it.
*undecided*: the interval covers both sides, a run diverged, or there is only one seed. *not
reached*: the sentence is about the end of training, and training was not over.
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

from turnout.core.errors import InvalidInput
from turnout.core.names import import_extra
from turnout.core.types import Array, FloatArray
from turnout.results.metric import Metric
from turnout.results.reader import Cell
from turnout.results.statistics import (
    LEVEL,
    Estimate,
    Evidence,
    above,
    all_of,
    any_of,
    estimate,
    holm,
    inside,
    later,
    log_ratio,
    same,
)
from turnout.studies.measures import RELATIVE, measure_named, shown, typical
from turnout.studies.trials import Trials

#: The number of seeds that would decide a claim is given up to this limit.
_MOST_SEEDS = 200

#: Fewer seeds than this say nothing about the spread.
_FEWEST_SEEDS = 3


class Verdict(StrEnum):
    """The verdict on a claim."""

    HOLDS = "holds"
    UNDECIDED = "undecided"
    FAILS = "fails"
    NOT_REACHED = "not reached"


#: Training is not over while accuracy rises by more than this over the last fifth of the rounds.
STILL_RISING = 0.01


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and how it is judged.

    Args:
        figure: Number of the figure whose schemes the sentence is about.
        says: The sentence.
        relation: A name of ``RELATIONS``.
        measure: The measure that is compared, as ``measure_named`` takes it.
        order: For "order": labels joined by > (more), >= (not less, within the margin), ~ (equal,
            within the margin) or = (the same runs). ``A & B`` stands for both, ``others`` for
            every other scheme of the figure.
        schemes: For "above", "below" and "is": labels of the schemes that are judged.
        limit: For "above", "below" and "is": the limit.
        margin: The largest difference that still counts as none, for >=, ~ and "is".
        factor: For > between times: the least ratio.
        settings: Labels of the settings in which it is judged; empty = in all.
        reading: How we read the sentence, if it is ambiguous.
        place: The place of the sentence or its numbers, such as a table; empty = the figure.
        is_anywhere: Whether one setting is enough ("up to"). It is judged once over all settings.
        times: Length of the runs on which it is judged, as a multiple of the paper's.
        has_published: Whether it is judged for the published forms too.
        by_construction: Why our model of the world makes it true; empty if it does not.
        after_look: What this reading changed after results had been seen; empty if nothing.
        is_eventual: Whether it is about the end of training. If it does not hold while the schemes
            that should end above still improve, its verdict is "not reached".
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
    after_look: str = ""
    is_eventual: bool = False

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
        """Return the schemes that the claim needs.

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


class Place(NamedTuple):
    """Where a claim is judged. Several places are pooled, with the seed as block.

    Attributes:
        results: The results of a setting.
        measure: The measure that is compared there.
        suffix: What follows the labels of the claim there, such as ", m=1".
    """

    results: Trials
    measure: str
    suffix: str = ""


class Finding(NamedTuple):
    """What was measured for a claim.

    Attributes:
        numbers: Those of every scheme, as text.
        evidence: The evidence for the claim and against it.
        n_seeds: The number of seeds: the fewest pairs of any comparison.
        seeds_needed: The number of seeds that would decide it alone with even odds if mean and
            spread stayed the same; None if it is decided or if the number is unknown.
        deciding: The comparison that decides, as text.
        effect: Its mean difference over the seeds, or that of the logarithms of times.
        is_rising: Whether training was not over.
    """

    numbers: str
    evidence: Evidence
    n_seeds: int
    seeds_needed: int | None = None
    deciding: str = ""
    effect: Estimate = estimate(())
    is_rising: bool = False

    @property
    def ours(self) -> str:
        """All numbers as text: those of every scheme, and the comparison that decides."""
        return f"{self.numbers}; {self.deciding}"

    @property
    def verdict(self) -> Verdict:
        """The verdict on this claim alone."""
        return self.unless_rising(_verdict(self.evidence))

    def unless_rising(self, verdict: Verdict) -> Verdict:
        """Return a verdict, or "not reached" if training was not over and the claim does not hold.

        Args:
            verdict: What the evidence says.
        """
        return Verdict.NOT_REACHED if self.is_rising and verdict != Verdict.HOLDS else verdict


def judge(
    claim: Claim,
    results: Trials,
    drawn: Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
) -> Finding:
    """Judge a claim.

    Args:
        claim: The claim.
        results: The results.
        drawn: The schemes of the claim's figure.
        rename: Schemes that are replaced by others, such as their published forms.
    """
    place = Place(results.renamed(rename or {}), claim.measure)
    return judge_pooled(claim, [place], drawn)


def judge_pooled(claim: Claim, places: Sequence[Place], drawn: Sequence[str] = ()) -> Finding:
    """Judge a claim over several settings at once: each seed counts with its mean over them.

    Args:
        claim: The claim; its own measure is not used.
        places: The settings, all with the same seeds.
        drawn: The schemes of the claim's figure.
    """
    found = RELATIONS[claim.relation](claim, places, drawn)
    if claim.is_eventual:
        winners = [label for group in claim.groups(drawn)[0][:-1] for label in group]
        gains = [
            place.results.last_gain(label + place.suffix, place.measure)
            for place in places
            for label in winners
        ]
        found = found._replace(is_rising=max(gains) > STILL_RISING)
    return found


def joined(found: Mapping[str, Finding], n_settings: int) -> Finding:
    """Return the finding of a claim that needs to be true in one setting only.

    Args:
        found: The finding in each setting that was run.
        n_settings: The number of all settings.
    """

    def rank(label: str) -> tuple[float, float]:  # the surest; the largest if all are below
        return min(found[label].evidence.speaks_for, 0.5), -found[label].effect.mean

    best = min(found, key=rank)
    evidence = any_of([finding.evidence for finding in found.values()], n_settings)
    numbers = f"nearest in {best}: {found[best].numbers}"
    return found[best]._replace(numbers=numbers, evidence=evidence, seeds_needed=None)


def corrected(findings: Sequence[Finding], planned: int = 0) -> list[Verdict]:
    """Return the verdicts with Holm's correction for the number of claims that share a page.

    Args:
        findings: The findings of all claims that were run.
        planned: The number of claims once everything was run.
    """
    tested = [i for i, finding in enumerate(findings) if not finding.evidence.is_exact]
    p_values = holm((2.0 * min(findings[i].evidence[:2]) for i in tested), planned)
    verdicts = [finding.verdict for finding in findings]
    for i, p_value in zip(tested, p_values, strict=True):
        if p_value > LEVEL:
            verdicts[i] = findings[i].unless_rising(Verdict.UNDECIDED)
    return verdicts


def seeds_for(effect: float, spread: float, level: float, *, power: float, most: int) -> int | None:
    """Return the number of seeds with which a paired t-test finds an effect; None = above ``most``.

    Args:
        effect: The distance of the mean difference from the border that decides.
        spread: Standard deviation of the differences between seeds, above 0.
        level: Level of the one-sided test.
        power: Chance of finding the effect.
        most: The largest number that is tried.

    >>> seeds_for(1.0, 1.0, 0.025, power=0.9, most=30)
    13
    """
    special = import_extra("scipy.special", "Sample sizes need scipy: pip install 'turnout[cli]'.")
    n = np.arange(_FEWEST_SEEDS, most + 1)
    border = special.stdtrit(n - 1, 1.0 - level)
    missed = special.nctdtr(n - 1, effect / spread * np.sqrt(n), border)
    enough = n[np.nan_to_num(missed) <= 1.0 - power]  # NaN where it is nearly 0
    return int(enough[0]) if enough.size else None


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
    """One comparison of a claim: its name, the differences and their evidence."""

    name: str
    differences: FloatArray
    distance: float  #: of the mean from the border that decides
    evidence: Evidence
    test: Callable[[FloatArray], Evidence]  #: the evidence of other differences
    is_censored: bool = False  #: whether a time is unknown, so that more seeds do not help
    n_early: int = 0  #: seeds with a run that had reached the target at its first evaluation
    n_never: int = 0  #: seeds with a run that never reached the target
    is_unknown: bool = False  #: whether no run of any seed reached the target

    @property
    def n_seeds(self) -> int:
        """Seeds that both schemes have, including those with a run that diverged."""
        return self.differences.size

    def with_seeds(self, n: int) -> Evidence:
        """Return the evidence of more seeds if mean and spread stayed the same."""
        values = self.differences
        if self.is_censored or self.evidence.is_exact or not np.isfinite(values).all():
            return self.evidence
        places = np.linspace(-1.0, 1.0, max(n, self.n_seeds))
        return self.test(values.mean() + values.std(ddof=1) * places / places.std(ddof=1))

    @property
    def weakness(self) -> tuple[float, bool, float]:
        """The key that sorts steps by how little they support the claim; exact ones come first."""
        return self.evidence.speaks_for, not self.evidence.is_exact, -self.distance


def _order(claim: Claim, places: Sequence[Place], drawn: Sequence[str]) -> Finding:
    groups, signs = claim.groups(drawn)
    measure = measure_named(places[0].measure)
    steps = [
        _time_step(claim, places, first, second)
        if measure.is_time_to
        else _step(claim, places, first, second, sign)
        for left, sign, right in zip(groups, signs, groups[1:], strict=False)
        for first in left
        for second in right
    ]
    numbers = ", ".join(
        f"{label} {typical(places[0].results.values(label, claim.measure), measure)}"
        for group in groups
        for label in group
        if len(places) == 1 and not places[0].suffix
    )
    return _finding(numbers, steps, _remarked(_deciding(steps), measure))


def _both(
    places: Sequence[Place], first: str, second: str, part: Callable[..., tuple[Array, Array]]
) -> tuple[Array, Array]:
    """Return (places, seeds) a part of the results of two schemes."""
    found = [
        part(place.results, first + place.suffix, second + place.suffix, place.measure)
        for place in places
    ]
    return np.stack([one for one, _ in found]), np.stack([other for _, other in found])


def _step(claim: Claim, places: Sequence[Place], first: str, second: str, sign: str) -> _Step:
    ours, theirs = _both(places, first, second, Trials.paired)
    differences = (ours - theirs).mean(axis=0)
    return _judged(f"{first} - {second}", differences, _SIGNS[sign], claim.margin)


def _time_step(claim: Claim, places: Sequence[Place], first: str, second: str) -> _Step:
    ours, theirs = _both(places, first, second, Trials.paired)
    bounds = _both(places, first, second, Trials.lengths)
    early = _both(places, first, second, Trials.reached_at_once)
    evidence = later(ours, theirs, bounds, claim.factor, early)
    setter = claim.measure.removeprefix(RELATIVE)  # the scheme that sets the target reaches it
    if setter == first:
        evidence = evidence._replace(speaks_against=1.0)
    if setter == second:
        evidence = evidence._replace(speaks_for=1.0)
    never = np.isinf(ours), np.isinf(theirs)
    n_early, n_never = (int((one | other).any(axis=0).sum()) for one, other in (early, never))
    ratio, border = log_ratio(ours, theirs, bounds), math.log(claim.factor)
    return _Step(
        f"{first} / {second}",
        ratio,
        _mean(ratio) - border,
        evidence,
        partial(above, border=border),
        is_censored=bool(n_early or n_never) or setter in (first, second),
        n_early=n_early,
        n_never=n_never,
        is_unknown=bool(ours.size) and all(bool(those.all()) for those in never),
    )


def _judged(name: str, differences: FloatArray, sign: _Sign, margin: float) -> _Step:
    distance, evidence = sign(differences, margin)
    return _Step(name, differences, distance, evidence, lambda others: sign(others, margin)[1])


#: From differences and a margin: the distance from the border, and the evidence for the claim.
_Sign = Callable[[FloatArray, float], tuple[float, Evidence]]

_SIGNS: Mapping[str, _Sign] = {
    ">": lambda step, _: (_mean(step), above(step)),
    ">=": lambda step, margin: (_mean(step) + margin, above(step, -margin)),
    "=": lambda step, _: (_mean(step), same(step)),
    "~": lambda step, margin: (margin - abs(_mean(step)), inside(step, margin)),
}


def _finding(numbers: str, steps: Sequence[_Step], deciding: str) -> Finding:
    evidence, weakest = all_of([step.evidence for step in steps]), _deciding(steps)
    n_seeds = min(step.n_seeds for step in steps)
    needed = _seeds_needed(steps) if _verdict(evidence) == Verdict.UNDECIDED else None
    return Finding(numbers, evidence, n_seeds, needed, deciding, estimate(weakest.differences))


def _deciding(steps: Sequence[_Step]) -> _Step:
    """Return the comparison that decides: the weakest, or the one that makes the claim fail."""
    if _verdict(all_of([step.evidence for step in steps])) == Verdict.FAILS:
        return min(steps, key=lambda step: step.evidence.speaks_against)
    return max(steps, key=lambda step: step.weakness)


def _remarked(weakest: _Step, measure: Metric[Cell]) -> str:
    """Return a comparison as text."""
    found = estimate(weakest.differences)
    effect = _ratio(found) if measure.is_time_to else found.written(measure.form)
    text = f"{weakest.name} = {effect}"
    if weakest.n_never:
        text += f", a run never reached it in {weakest.n_never} of {weakest.n_seeds} seeds"
    if weakest.is_unknown:
        text = f"{weakest.name} is unknown: no run reached the target"
    n_diverged = int(np.isnan(weakest.differences).sum())
    if n_diverged:
        text += f", diverged in {n_diverged} of {weakest.n_seeds} seeds"
    if weakest.n_early:
        text += f", reached by the first evaluation in {weakest.n_early} of {weakest.n_seeds} seeds"
    return text


def _ratio(found: Estimate) -> str:
    """Return an effect on logarithms of times as a ratio, with its interval if it has one."""
    ratio = f"{math.exp(found.mean):.2f}x" if found.n else "-"
    ends = " to ".join(f"{math.exp(end):.2f}x" for end in (found.low, found.high))
    return f"{ratio} ({ends})" if found.n > 1 else ratio


def _seeds_needed(steps: Sequence[_Step]) -> int | None:
    """Return how many seeds would decide a claim if means and spreads stayed the same.

    A comparison whose spread is unknown keeps its evidence.
    """
    n_seeds = min(step.n_seeds for step in steps)
    if n_seeds < _FEWEST_SEEDS:
        return None

    def decides(n: int) -> bool:
        return _verdict(all_of([step.with_seeds(n) for step in steps])) != Verdict.UNDECIDED

    numbers = range(n_seeds + 1, _MOST_SEEDS + 1)
    first = bisect_left(numbers, True, key=decides)  # if n seeds decide, so do more
    return numbers[first] if first < len(numbers) else None


def _each(claim: Claim, places: Sequence[Place], drawn: Sequence[str]) -> Finding:
    """Judge each scheme by its distance from the limit: above, below or at it."""
    measure = measure_named(claim.measure)
    side = -1.0 if claim.relation == "below" else 1.0
    equal = "~" if claim.margin > 0.0 else "="
    sign = _SIGNS[equal if claim.relation == "is" else ">"]
    steps, parts, remarks = [], {}, []
    for label in claim.schemes:
        values = places[0].results.values(label, claim.measure)
        steps.append(_judged(label, side * (values - claim.limit), sign, claim.margin))
        verdict = _verdict(_one_of(steps[-1].evidence, len(claim.schemes)))
        parts[label] = f"{label} {shown(values, measure)}"
        remarks.append("" if verdict == Verdict.HOLDS else f" ({verdict})")
    numbers = "; ".join(map("".join, zip(parts.values(), remarks, strict=True)))
    deciding = f"{parts[_deciding(steps).name]}, limit {claim.limit:g}"
    return _finding(numbers, steps, deciding)


def _one_of(evidence: Evidence, n: int) -> Evidence:
    """Return the evidence of one of several parts. It fails only if it makes the claim fail."""
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
