"""Curves that figures draw: what they are, and which points of them are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from turnout.experiment import Cell
from turnout.types import FloatArray, IntArray

#: Points kept of a curve.
_MOST_POINTS = 80

#: Curves that figures draw, by name: (T,) each, NaN where nothing was measured.
CURVES: Mapping[str, Callable[[Cell], FloatArray]] = {
    "success ratio": lambda cell: cell.run.cep / np.maximum(cell.run.offsets[1:], 1),
    "participation": lambda cell: cell.run.cep.astype(np.float64),
    "queue": lambda cell: cell.curves["backlog_mean"],
    "time": lambda cell: cell.run.clock_s,
    "accuracy": lambda cell: cell.run.measured["accuracy"],
    "hold-out accuracy": lambda cell: cell.run.measured["holdout_accuracy"],
    "global loss": lambda cell: cell.run.measured["local_loss"],
}


class Curve(NamedTuple):
    """A thinned curve of a scheme.

    Args:
        rounds: (P,) rounds, counted from 1.
        values: (seeds, P) what was measured; NaN where it was not finite.
    """

    rounds: IntArray
    values: FloatArray

    def at(self, rounds: IntArray) -> FloatArray:
        """Return (seeds, rounds) the values of some rounds; NaN where there is none.

        Args:
            rounds: Ascending, with all of this curve's.
        """
        values = np.full((self.values.shape[0], rounds.size), np.nan)
        values[:, np.searchsorted(rounds, self.rounds)] = self.values
        return values

    def minus(self, other: Curve, rows: tuple[list[int], list[int]]) -> Curve:
        """Return the difference in the rounds that both have.

        Args:
            other: What is subtracted.
            rows: The seeds of both that belong together, by their places.
        """
        rounds, ours, theirs = np.intersect1d(self.rounds, other.rounds, return_indices=True)
        return Curve(rounds, self.values[rows[0]][:, ours] - other.values[rows[1]][:, theirs])


def thinned(curves: Mapping[str, FloatArray]) -> dict[str, Curve]:
    """Keep (seeds, T) curves in the same rounds, evenly spaced, where all were measured."""
    if not curves:
        return {}
    is_measured = np.all([np.isfinite(values).any(axis=0) for values in curves.values()], axis=0)
    rounds = np.flatnonzero(is_measured)
    if not rounds.size:  # every run diverged before the first look
        return {name: Curve(rounds, values[:, rounds]) for name, values in curves.items()}
    places = np.unique(np.linspace(0, rounds.size - 1, _MOST_POINTS).astype(np.int64))
    points = rounds[places]
    return {name: Curve(points + 1, values[:, points]) for name, values in curves.items()}
