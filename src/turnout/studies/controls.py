"""Positive controls: what a method gains in a world in which its assumption holds by design.

A method that gains nothing on some data may be wrong, or its assumption may not hold there. In its
control the assumption holds, so a method that does not win there is at fault. Each control has
bars: a measure, a rival and a margin, written into ``controls.toml`` before the deciding runs.

>>> [control.label for control in controls_named(["oort", "nccb"])]
['oort', 'nccb']
"""

from __future__ import annotations

import math
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.core.types import FloatArray
from turnout.experiment import Experiment, run_experiment
from turnout.results.statistics import LEVEL, Estimate, above, estimate, holm, later, log_ratio
from turnout.studies import control_worlds as control_worlds  # registers its measure
from turnout.studies.measures import measure_named
from turnout.studies.results_file import ResultsFile
from turnout.studies.trials import ResultsError, SchemeResults, Trials, complete_cells

#: The seeds that decide. Worlds and margins were found with seeds from 100 on.
SEEDS = tuple(range(10))

#: Measures of which less is better; of the others more is. Times are apart.
_LESS_IS_BETTER = frozenset({"global-loss", "round-time-s"})


class ControlVerdict(StrEnum):
    """How a method did against a bar.

    *wins*: it is better by more than the margin. *short*: it is better, but perhaps by less than
    the margin. *loses*: the rival is better. *undecided*: the difference may be chance.
    """

    WINS = "wins"
    SHORT = "short"
    UNDECIDED = "undecided"
    LOSES = "loses"


@dataclass(frozen=True)
class Bar:
    """What a method must do in its control.

    Args:
        measure: A measure, as ``measure_named`` takes it.
        rival: Label of the scheme that it must beat.
        margin: It must be better by more than this. For a time to an accuracy it is a ratio: the
            method must need less than margin times the rival's time.
    """

    measure: str
    rival: str
    margin: float

    def __post_init__(self) -> None:
        measure_named(self.measure)
        is_ratio = self.is_ratio
        if self.margin < 0.0 or (is_ratio and not 0.0 < self.margin <= 1.0):
            wanted = "a ratio inside (0, 1]" if is_ratio else "at least 0"
            raise InvalidInput(f"margin must be {wanted}, got {self.margin}.", field="margin")

    @property
    def is_ratio(self) -> bool:
        """Whether effects are ratios of times."""
        return measure_named(self.measure).is_time_to

    @property
    def less_is_better(self) -> bool:
        """Whether a smaller number is the better one."""
        return self.is_ratio or self.measure in _LESS_IS_BETTER


@dataclass(frozen=True)
class Control:
    """A small world in which the assumption of a method holds.

    Args:
        label: Its name.
        method: The selector, as registered.
        scheme: Label of the selector in the experiment.
        title: A title for people.
        assumes: What the method assumes.
        world: The world in a few sentences.
        table: The experiment as plain data, without seeds.
        bars: What the method must do.
    """

    label: str
    method: str
    scheme: str
    title: str
    assumes: str
    world: str
    table: Mapping[str, Any]
    bars: tuple[Bar, ...]

    def experiment(self, seeds: Sequence[int] = SEEDS) -> Experiment:
        """Return the experiment.

        Args:
            seeds: The seeds.
        """
        return Experiment(name=f"control: {self.label}", seeds=list(seeds), **self.table)

    def shortened(
        self, *, rivals: Sequence[str] = (), n_rounds: int = 0, method: str = ""
    ) -> Control:
        """Return a cheaper form, for tests.

        Args:
            rivals: Only the bars of these rivals are kept; none = all.
            n_rounds: The number of rounds; 0 = as it is.
            method: A selector that takes the place of the method; empty = the method itself.
        """
        bars = tuple(bar for bar in self.bars if not rivals or bar.rival in rivals)
        kept = {self.scheme, *(bar.rival for bar in bars)}
        selectors = [dict(each) for each in self.table["selectors"] if each["label"] in kept]
        if method:
            place = [each["label"] for each in selectors].index(self.scheme)
            selectors[place] = {"label": self.scheme, "name": method}
        table = {**self.table, "selectors": selectors}
        if n_rounds:
            table["n_rounds"] = n_rounds
        return replace(self, table=table, bars=bars)


class BarFinding(NamedTuple):
    """What was measured for a bar.

    Attributes:
        bar: The bar.
        effect: Method minus rival, or the ratio of their times (geometric mean).
        low: Lower end of its 95 % interval.
        high: Upper end of it.
        by_seed: The effect of each seed.
        wins: One-sided p-value of "better by more than the margin".
        better: One-sided p-value of "better".
        loses: One-sided p-value of "worse".
        is_bound: Whether the rival did not reach the accuracy with some seeds, so that a ratio is
            an upper bound.
    """

    bar: Bar
    effect: float
    low: float
    high: float
    by_seed: FloatArray
    wins: float
    better: float
    loses: float
    is_bound: bool

    @property
    def n_seeds(self) -> int:
        """The number of seeds."""
        return self.by_seed.size


@lru_cache(maxsize=1)
def _all_controls() -> tuple[Control, ...]:
    file = resources.files("turnout.studies").joinpath("controls.toml")
    entries = tomllib.loads(file.read_text(encoding="utf-8"))["controls"]
    return tuple(
        Control(
            table=entry.pop("experiment"),
            bars=tuple(Bar(**bar) for bar in entry.pop("bars")),
            **entry,
        )
        for entry in entries
    )


def controls_named(labels: Iterable[str] = ()) -> tuple[Control, ...]:
    """Return controls by their labels, in the order of the file; all if none is named.

    Args:
        labels: Labels of controls.

    Raises:
        InvalidInput: There is no such control; the message suggests the nearest label.
    """
    wanted, known = tuple(labels), [control.label for control in _all_controls()]
    for label in wanted:
        if label not in known:
            raise InvalidInput(f"unknown control {label!r}.{nearest(label, known)}", field="labels")
    return tuple(x for x in _all_controls() if not wanted or x.label in wanted)


def run_control(control: Control, seeds: Sequence[int] = SEEDS, **computing: Any) -> Trials:
    """Run a control and return the measures of its bars.

    Args:
        control: The control.
        seeds: The seeds.
        **computing: Options of ``run_experiment``, such as ``n_jobs`` and ``progress``.
    """
    experiment = control.experiment(seeds)
    measures = {bar.measure for bar in control.bars}
    measures |= {"total-time"} if any(bar.is_ratio for bar in control.bars) else set()
    with tempfile.TemporaryDirectory() as folder:
        failed = run_experiment(experiment, folder, **computing).failed
        if failed:
            where = f"{control.label}, {failed[0].label}, seed {failed[0].seed}"
            raise ResultsError(f"a run of the control failed ({where}): {failed[0].message}")
        schemes = {
            label: SchemeResults.from_cells(
                complete_cells(experiment, Path(folder), label), sorted(measures)
            )
            for label in experiment.labels
        }
    return Trials(experiment.table(), schemes, {})


def run_controls(
    path: Path, labels: Iterable[str] = (), seeds: Sequence[int] = SEEDS, **computing: Any
) -> ResultsFile:
    """Run controls and keep their results in a file, one control after the other.

    Args:
        path: The file. Results of other controls in it stay.
        labels: The controls; none = all.
        seeds: The seeds.
        **computing: Options of ``run_experiment``.
    """
    file = ResultsFile.read(path, "controls") if path.exists() else ResultsFile("controls")
    for control in controls_named(labels):
        file.parts[(control.label, 1)] = run_control(control, seeds, **computing)
        file.keep(path, trains=True)
    return file


def judged(control: Control, trials: Trials) -> list[BarFinding]:
    """Return what was measured for each bar of a control.

    Args:
        control: The control.
        trials: Its results.
    """
    return [_judged(bar, control.scheme, trials) for bar in control.bars]


def verdicts(findings: Sequence[BarFinding]) -> list[ControlVerdict]:
    """Return how the methods did, with Holm's correction for the number of bars.

    Args:
        findings: What was measured for the bars of all controls.
    """
    beyond = holm(2.0 * found.wins for found in findings)
    apart = holm(2.0 * min(found.better, found.loses) for found in findings)
    return [
        _verdict(found, is_beyond=wins <= LEVEL, is_apart=differs <= LEVEL)
        for found, wins, differs in zip(findings, beyond, apart, strict=True)
    ]


def _verdict(found: BarFinding, *, is_beyond: bool, is_apart: bool) -> ControlVerdict:
    if is_beyond:
        return ControlVerdict.WINS
    if not is_apart:
        return ControlVerdict.UNDECIDED
    return ControlVerdict.SHORT if found.better < found.loses else ControlVerdict.LOSES


def _judged(bar: Bar, scheme: str, trials: Trials) -> BarFinding:
    ours, theirs = trials.paired(scheme, bar.rival, bar.measure)
    if not bar.is_ratio:
        effect = ours - theirs
        gain = -effect if bar.less_is_better else effect
        wins, apart = above(gain, bar.margin).speaks_for, above(gain)
        return BarFinding(bar, *_interval(estimate(effect)), effect, wins, *apart[:2], False)
    lengths = trials.lengths(scheme, bar.rival, bar.measure)
    ratio = log_ratio(ours, theirs, lengths)
    swapped = lengths[1], lengths[0]
    wins = later(theirs, ours, swapped, 1.0 / bar.margin).speaks_for
    apart = later(theirs, ours, swapped)
    middle, low, high = (math.exp(end) for end in _interval(estimate(ratio)))
    is_bound = bool(np.isinf(theirs).any())
    return BarFinding(bar, middle, low, high, np.exp(ratio), wins, *apart[:2], is_bound)


def _interval(found: Estimate) -> tuple[float, float, float]:
    return found.mean, found.mean - found.half_width, found.mean + found.half_width


__all__ = [
    "SEEDS",
    "Bar",
    "BarFinding",
    "Control",
    "ControlVerdict",
    "controls_named",
    "judged",
    "run_control",
    "run_controls",
    "verdicts",
]
