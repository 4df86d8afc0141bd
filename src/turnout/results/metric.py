"""What a metric is: one number of a run, with all that is needed to show it.

The metrics themselves are in ``turnout.results.catalogue``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np

from turnout.core.types import Array, FloatArray, IntArray
from turnout.results.reader import Cell
from turnout.results.run import Run

# --------------------------------------------------------------------------------------------------
# What is known about a run when its metrics are computed.
# --------------------------------------------------------------------------------------------------

#: What only some runs have.
Need = Literal["training", "hold-out", "energy", "overlap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known about a run when its metrics are computed.

    Args:
        n_rounds: rounds that were played, T.
        chosen: (T,) clients chosen in each round.
        completed: (T,) those of them that answered in time.
        length_s: (T,) virtual seconds of each round.
        wasted_s: device seconds spent on answers that did not come in time.
        counts: (n,) how often each client was chosen; None while that is not known.
        curves: (T,) each, by name: regret, its bound, backlogs, and what training measured. NaN
            stands for a round in which nothing was measured.
        numbers: single numbers from elsewhere, such as ``seconds``.
        targets: accuracies of which the run is asked when it reached them.
        has: what the run has beside selections, so that a missing number is worth a null.
        run: the run itself; None while its choices are not known.
    """

    n_rounds: int
    chosen: Array
    completed: Array
    length_s: FloatArray
    wasted_s: float
    counts: IntArray | None = None
    curves: Mapping[str, FloatArray] = field(default_factory=dict)
    numbers: Mapping[str, float] = field(default_factory=dict)
    targets: tuple[float, ...] = ()
    has: frozenset[Need] = frozenset()
    run: Run | None = None

    def curve(self, name: str) -> FloatArray:
        """Return a curve; empty if there is none."""
        return self.curves.get(name, np.zeros(0))

    def last(self, name: str) -> float:
        """Return the last value of a curve that was measured; NaN if there is none."""
        measured = self.measured(name)
        return float(measured[-1]) if measured.size else math.nan

    def measured(self, name: str) -> FloatArray:
        """Return the values of a curve without the rounds in which nothing was measured."""
        values = self.curve(name)
        return values[np.isfinite(values)]

    @classmethod
    def of_run(
        cls,
        run: Run,
        curves: Mapping[str, Array],
        numbers: Mapping[str, float],
        *,
        targets: tuple[float, ...] = (),
        has: frozenset[Need] = frozenset(),
    ) -> Self:
        """Return the facts of a run that has ended.

        Args:
            run: The run.
            curves: Those that the run itself does not hold, such as the regret.
            numbers: As above.
            targets: As above.
            has: As above.
        """
        return cls(
            n_rounds=run.n_rounds,
            chosen=np.diff(run.offsets),
            completed=np.diff(run.cep, prepend=0),
            length_s=run.length_s,
            wasted_s=run.wasted_s,
            counts=run.counts,
            curves={**run.measured, **curves},
            numbers=numbers,
            targets=targets,
            has=has,
            run=run,
        )

    @classmethod
    def of_cell(cls, cell: Cell) -> Self:
        """Return what the files of a cell say about its rounds; it may be incomplete or old.

        Args:
            cell: A cell, read back.
        """
        wasted = cell.series.get("wasted_s", np.zeros(0))
        wasted = wasted[np.isfinite(wasted)]
        return cls(
            n_rounds=cell.n_rounds,
            chosen=cell.series["chosen"],
            completed=cell.series["completed"],
            length_s=cell.series["length_s"],
            wasted_s=float(wasted.sum()) if wasted.size else math.nan,
            counts=None if cell.choices is None else cell.choices.counts,
            curves={**cell.series, **cell.curves},
            numbers={"rounds_run": cell.n_rounds},
            run=cell.choices,
        )


def last_of(curve: str) -> Callable[[Facts], float]:
    """Return a computation: the last value of a curve that was measured."""
    return lambda facts: facts.last(curve)


def number_of(name: str) -> Callable[[Facts], float]:
    """Return a computation: a number from elsewhere."""
    return lambda facts: facts.numbers.get(name, math.nan)


Better = Literal["higher", "lower", "neither"]
Group = Literal["learning", "participation", "fairness", "time", "energy", "computing"]
#: Where a metric is shown beside ``summary.json`` and JSON output, which have all of them.
Table = Literal["simulate", "train", "compare", "compare --train", "report"]

#: Larger units of a unit, used from three of them on. Other units are words, and are not shown.
_LARGER: Mapping[str, Sequence[tuple[str, float]]] = {
    "s": (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0)),
    "J": (("MJ", 1e6), ("kJ", 1e3)),
    "g": (("kg", 1e3),),
}
_LARGE_UNIT_DECIMALS = 2
#: Means of whole numbers below this one are shown with a decimal: 1, 2 and 1 are 1.3 on average.
_FEW = 10

Source = TypeVar("Source")


class Scale(NamedTuple):
    """In which unit a column of numbers is shown, and with how many decimals."""

    unit: str  #: as in the heading; empty without one
    size: float  #: what the numbers are divided by
    decimals: int

    @property
    def form(self) -> str:
        """The format of one number."""
        return f".{self.decimals}f"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric(Generic[Source]):
    """One number of a run.

    Args:
        key: its name in ``summary.json`` and in JSON output.
        title: its name for people.
        meaning: what it says, in one sentence.
        compute: how it is computed; NaN where it is not defined. Metrics of every run are computed
            from ``Facts``, those of one figure of a paper from its run folder.
        group: what it is about.
        needs: what a run must have; None for metrics of every run.
        detail: more for readers who have not met it before, for the glossary.
        heading: a short name for narrow tables; default: the title.
        unit: what it is counted in; empty for a share or an index.
        better: which direction is better.
        decimals: digits after the point.
        tables: where it is shown.
        is_time_to: whether it is a time to a target, which a run may never reach.
        goal: the target of such a time, in words.
        run_length: for a time to a target, the key of the metric for the length of a run.
    """

    key: str
    title: str
    meaning: str
    compute: Callable[[Source], float]
    group: Group = "participation"
    needs: Need | None = None
    detail: str = ""
    heading: str = ""
    unit: str = ""
    better: Better = "neither"
    decimals: int = 3
    tables: frozenset[Table] = frozenset({"simulate", "train", "report"})
    is_time_to: bool = False
    goal: str = ""
    run_length: str = ""

    @property
    def form(self) -> str:
        """The format of one number in the metric's own unit."""
        return f".{self.decimals}f"

    @property
    def short(self) -> str:
        """Its name where there is little room."""
        return self.heading or self.title

    @property
    def direction(self) -> str:
        """Which direction is better, in words."""
        return "not ranked" if self.better == "neither" else f"{self.better} is better"

    def scale(self, values: Iterable[float]) -> Scale:
        """Return how a column of numbers is shown.

        Times and energies are in a unit that is easy to read. Means of a few whole numbers have a
        decimal.
        """
        finite = [abs(value) for value in values if math.isfinite(value)]
        longest = max(finite, default=0.0)
        if self.unit not in _LARGER:
            is_rough = self.decimals == 0 and longest < _FEW and any(n % 1.0 for n in finite)
            return Scale("", 1.0, 1 if is_rough else self.decimals)
        for unit, size in _LARGER[self.unit]:
            if longest >= 3 * size:
                return Scale(unit, size, _LARGE_UNIT_DECIMALS)
        return Scale(self.unit, 1.0, self.decimals)

    def titled(self, scale: Scale, *, short: bool = False) -> str:
        """Return the title, or the short heading, with the unit of its numbers.

        Args:
            scale: In which unit the numbers are shown.
            short: Whether there is little room.
        """
        name = self.short if short else self.title
        return f"{name} ({scale.unit})" if scale.unit else name

    def written(self, value: float | None) -> str:
        """Return a single number as it stands in a table without a column of others."""
        if value is None or math.isnan(value):
            return "not reached" if self.is_time_to else "-"
        if isinstance(value, bool):
            return "yes" if value else "no"
        scale = self.scale([value])
        return f"{format(value / scale.size, scale.form)} {scale.unit}".rstrip()

    def leaders(self, means: Mapping[str, float]) -> list[str]:
        """Return the labels with the best mean; none if all are equal or nothing compares."""
        if self.better == "neither" or len(means) < 2:
            return []
        top, bottom = max(means.values()), min(means.values())
        if math.isclose(top, bottom, rel_tol=1e-9):
            return []
        best = top if self.better == "higher" else bottom
        return [name for name, mean in means.items() if math.isclose(mean, best, rel_tol=1e-9)]
