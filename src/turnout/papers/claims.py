"""What a paper says, put beside what was measured, with a verdict for each claim.

A verdict is about means over seeds and their 95 % intervals, paired by seed where two schemes are
compared. *holds*: the interval is on the claimed side. *fails*: it is on the other side. *within
CI*: what is claimed lies inside the interval, or the interval reaches to both sides of the border.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout.errors import InvalidInput
from turnout.experiment import Cell, Estimate, Grid, estimate, paired_difference, read_cell
from turnout.experiment.cell import cell_folder
from turnout.papers.measures import MEASURES
from turnout.types import FloatArray

__all__ = ["RELATIONS", "Claim", "Finding", "Results", "Verdict", "judge", "steps_of"]


class Verdict(StrEnum):
    """How a claim fared."""

    HOLDS = "holds"
    WITHIN = "within CI"
    FAILS = "fails"


_FROM_WORST = (Verdict.FAILS, Verdict.WITHIN, Verdict.HOLDS)


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and how it is judged."""

    figure: int
    says: str  #: as the paper has it
    relation: str  #: a name of ``RELATIONS``
    measure: str  #: a name of ``MEASURES``
    order: str = ""  #: for "order": labels joined by >, >=, = (the same runs) or ~ (a tie)
    schemes: tuple[str, ...] = ()  #: for the other relations
    limit: float = 0.0  #: for "below", "above" and "is"
    reading: str = ""  #: how the sentence was read, where it leaves room
    times: int = 1  #: judged on runs so many times as long as the paper's
    has_published: bool = False  #: whether it is judged for the published forms too

    def __post_init__(self) -> None:
        if self.relation not in RELATIONS:
            raise InvalidInput(f"relation must be one of {', '.join(RELATIONS)}.", field="relation")
        if self.measure not in MEASURES:
            raise InvalidInput(f"measure must be one of {', '.join(MEASURES)}.", field="measure")

    @property
    def labels(self) -> tuple[str, ...]:
        """The schemes that must have been run."""
        return steps_of(self.order)[0] if self.order else self.schemes


class Finding(NamedTuple):
    """What was measured for a claim."""

    ours: str
    verdict: Verdict


class Results:
    """The runs of a grid, read back from its folder as they are asked for."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self._read: Callable[[Path], Cell] = cache(read_cell)
        self._known: dict[tuple[str, str], FloatArray] = {}

    def cells(self, label: str) -> list[Cell]:
        """Return the runs of a scheme, one per seed."""
        seeds = self.grid.experiment.seed_numbers
        return [self._read(cell_folder(self.grid.folder, label, seed)) for seed in seeds]

    def values(self, label: str, measure: str) -> FloatArray:
        """Return a measure of a scheme, one per seed."""
        key = (label, measure)
        if key not in self._known:
            compute = MEASURES[measure].compute
            self._known[key] = np.array([compute(cell) for cell in self.cells(label)])
        return self._known[key]

    def estimate(self, label: str, measure: str) -> Estimate:
        """Return the mean over seeds with its interval."""
        return estimate(self.values(label, measure))


def judge(claim: Claim, results: Results, rename: Mapping[str, str] | None = None) -> Finding:
    """Judge a claim; ``rename`` replaces schemes by others, such as their published forms."""
    names = dict(rename or {})
    return RELATIONS[claim.relation](claim, results, lambda label: names.get(label, label))


def steps_of(order: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels and the signs between them.

    >>> steps_of("FedCS > E3CS-inc ~ E3CS-0.8")
    (('FedCS', 'E3CS-inc', 'E3CS-0.8'), ('>', '~'))
    """
    parts = re.split(r"\s+(>=|>|=|~)\s+", order.strip())
    return tuple(parts[0::2]), tuple(parts[1::2])


def _order(claim: Claim, results: Results, name: Callable[[str], str]) -> Finding:
    labels, signs = steps_of(claim.order)
    values = [results.values(name(label), claim.measure) for label in labels]
    form = MEASURES[claim.measure].form
    verdicts = [_SIGNS[sign](values, i) for i, sign in enumerate(signs)]
    steps = [paired_difference(*pair) for pair in pairwise(values)]
    weakest = min(
        range(len(steps)),
        key=lambda i: (_FROM_WORST.index(verdicts[i]), signs[i] == "=", steps[i].low),
    )
    step = f"{labels[weakest]} - {labels[weakest + 1]} = {_written(steps[weakest], form)}"
    means = [format(float(np.mean(value)), form) for value in values]
    chain = " ".join(part for pair in zip(means, (*signs, ""), strict=True) for part in pair)
    return Finding(f"{chain.strip()}; weakest step: {step}", _worst(verdicts))


def _is_above(values: Sequence[FloatArray], i: int) -> Verdict:
    return _side(paired_difference(values[i], values[i + 1]), 0.0)


def _is_not_below(values: Sequence[FloatArray], i: int) -> Verdict:
    step = paired_difference(values[i], values[i + 1])
    return Verdict.FAILS if step.high < 0.0 else Verdict.HOLDS


def _is_same(values: Sequence[FloatArray], i: int) -> Verdict:
    return _meets(paired_difference(values[i], values[i + 1]), 0.0)


def _is_tied(values: Sequence[FloatArray], i: int) -> Verdict:
    """Judge a tie: the two are closer to each other than to their neighbours in the order."""
    pair = np.stack((values[i], values[i + 1]))
    gaps = [values[i - 1] - pair.max(axis=0)] if i > 0 else []
    gaps += [pair.min(axis=0) - values[i + 2]] if i + 2 < len(values) else []
    spare = np.minimum.reduce(gaps) - np.abs(pair[0] - pair[1])
    return _side(estimate(spare), 0.0)


_SIGNS: Mapping[str, Callable[[Sequence[FloatArray], int], Verdict]] = MappingProxyType(
    {">": _is_above, ">=": _is_not_below, "=": _is_same, "~": _is_tied}
)


def _below(claim: Claim, results: Results, name: Callable[[str], str]) -> Finding:
    return _each(claim, results, name, lambda found: _side(found, claim.limit, -1.0))


def _above(claim: Claim, results: Results, name: Callable[[str], str]) -> Finding:
    return _each(claim, results, name, lambda found: _side(found, claim.limit))


def _is(claim: Claim, results: Results, name: Callable[[str], str]) -> Finding:
    return _each(claim, results, name, lambda found: _meets(found, claim.limit))


def _each(
    claim: Claim,
    results: Results,
    name: Callable[[str], str],
    verdict_of: Callable[[Estimate], Verdict],
) -> Finding:
    form = MEASURES[claim.measure].form
    found = {label: results.estimate(name(label), claim.measure) for label in claim.schemes}
    verdicts = {label: verdict_of(value) for label, value in found.items()}
    parts = [
        f"{label} {_written(value, form)}"
        + ("" if verdicts[label] == Verdict.HOLDS else f" ({verdicts[label]})")
        for label, value in found.items()
    ]
    return Finding("; ".join(parts), _worst(verdicts.values()))


def _equal(claim: Claim, results: Results, name: Callable[[str], str]) -> Finding:
    first, second = claim.schemes
    step = paired_difference(
        results.values(name(first), claim.measure), results.values(name(second), claim.measure)
    )
    text = f"{first} - {second} = {_written(step, MEASURES[claim.measure].form)}"
    return Finding(text, _meets(step, 0.0))


#: How a claim can be judged.
RELATIONS: Mapping[str, Callable[[Claim, Results, Callable[[str], str]], Finding]] = (
    MappingProxyType(
        {"order": _order, "below": _below, "above": _above, "is": _is, "equal": _equal}
    )
)


def _side(found: Estimate, border: float, sign: float = 1.0) -> Verdict:
    """Judge "above the border" (or below it, with sign -1)."""
    low, high = sorted((sign * (found.low - border), sign * (found.high - border)))
    if low > 0.0:
        return Verdict.HOLDS
    return Verdict.FAILS if high < 0.0 else Verdict.WITHIN


def _meets(found: Estimate, target: float) -> Verdict:
    if found.low == found.high == target:
        return Verdict.HOLDS
    return Verdict.WITHIN if found.low <= target <= found.high else Verdict.FAILS


def _worst(verdicts: Iterable[Verdict]) -> Verdict:
    return min(verdicts, key=_FROM_WORST.index)


def _written(found: Estimate, form: str) -> str:
    mean = format(found.mean, form)
    return mean if found.n < 2 else f"{mean} ± {format(found.half_width, form)}"
