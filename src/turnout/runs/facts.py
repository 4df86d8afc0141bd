"""What is known about a run when its metrics are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np

from turnout.runs.cell import Cell
from turnout.runs.run import Run
from turnout.types import Array, FloatArray, IntArray

#: What only some runs have.
Need = Literal["training", "hold-out"]


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
        numbers: single numbers that somebody else counted, such as ``seconds``.
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
    """Return a computation: a number that somebody else counted."""
    return lambda facts: facts.numbers.get(name, math.nan)
