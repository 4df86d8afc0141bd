"""What is kept of a paper's runs: measures for claims and tables, thinned curves for figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from turnout import require
from turnout.errors import InvalidInput, TurnoutError
from turnout.experiment import Cell, Estimate, estimate
from turnout.papers.curves import CURVES, Curve, thinned
from turnout.papers.figure_measures import client_losses
from turnout.papers.measures import RELATIVE, measure_named, target_of
from turnout.types import BoolArray, FloatArray, IntArray

#: How a time that was never reached is written.
_NEVER = "never"


class ResultsError(TurnoutError, ValueError):
    """A results file is damaged, or belongs to another protocol."""


#: The kept curve in which a run is looked at, by its name in a run.
_LOOKED_AT: Mapping[str, str] = {"accuracy": "accuracy", "holdout_accuracy": "hold-out accuracy"}

#: What figures draw of every client: (n,) each.
_CLIENTS: Mapping[str, Callable[[Cell], FloatArray]] = {
    "counts": lambda cell: cell.run.counts.astype(np.float64),
    "losses": client_losses,
}


@dataclass(frozen=True)
class SchemeResults:
    """What is kept of one scheme.

    Args:
        seeds: The seeds that were run to the end.
        cohort_size: Clients wanted per round.
        measures: A value per seed; NaN = diverged, infinity = never reached.
        curves: By the names of ``CURVES``.
        clients: "counts" and "losses" of every client, (seeds, n) each.
    """

    seeds: tuple[int, ...]
    cohort_size: int
    measures: Mapping[str, FloatArray]
    curves: Mapping[str, Curve]
    clients: Mapping[str, FloatArray]

    @classmethod
    def from_cells(
        cls,
        cells: Sequence[Cell],
        measures: Iterable[str],
        curves: Iterable[str],
        clients: Iterable[str],
    ) -> Self:
        """Compute what is kept from complete runs.

        Args:
            cells: The runs of a scheme, one per seed.
            measures: Names of measures.
            curves: Names of ``CURVES``.
            clients: "counts", "losses".
        """
        return cls(
            tuple(cell.settings.seed for cell in cells),
            cells[0].settings.cohort_size,
            {
                name: np.array([measure_named(name).compute(cell) for cell in cells])
                for name in measures
            },
            thinned({name: np.stack([CURVES[name](cell) for cell in cells]) for name in curves}),
            {name: np.stack([_CLIENTS[name](cell) for cell in cells]) for name in clients},
        )

    def joined(self, later: SchemeResults) -> SchemeResults:
        """Return these results with more seeds; a seed that both have counts as run last.

        Args:
            later: What was run since. It takes the place of these if it has all their seeds;
                otherwise it must have the same measures and curves.
        """
        if set(self.seeds) <= set(later.seeds):
            return later
        for part in ("measures", "curves", "clients"):
            differ = sorted(getattr(self, part).keys() ^ getattr(later, part).keys())
            if differ:
                raise ResultsError(
                    f"the kept results were made for other claims or figures: {part} "
                    f"{', '.join(differ)}. Write to another file, or delete them."
                )
        old = [i for i, seed in enumerate(self.seeds) if seed not in later.seeds]
        seeds = (*(self.seeds[i] for i in old), *later.seeds)
        order = np.argsort(seeds)

        def rows(ours: FloatArray, theirs: FloatArray) -> FloatArray:
            both: FloatArray = np.concatenate((ours[old], theirs))[order]
            return both

        return SchemeResults(
            tuple(sorted(seeds)),
            later.cohort_size,
            {name: rows(self.measures[name], new) for name, new in later.measures.items()},
            {
                name: Curve(rounds, rows(self.curves[name].at(rounds), new.at(rounds)))
                for name, new in later.curves.items()
                for rounds in [np.union1d(self.curves[name].rounds, new.rounds)]
            },
            {name: rows(self.clients[name], new) for name, new in later.clients.items()},
        )

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return what ``table`` wrote.

        Args:
            table: The scheme's part of a results file.
        """
        scheme = cls(
            tuple(require.integer("seeds", seed, minimum=0) for seed in table["seeds"]),
            table["cohort_size"],
            {name: _numbers(values) for name, values in table["measures"].items()},
            {
                name: Curve(np.array(curve["rounds"]), _numbers(curve["values"]))
                for name, curve in table["curves"].items()
            },
            {name: _numbers(values) for name, values in table["clients"].items()},
        )
        scheme._check_lengths()
        return scheme

    def _check_lengths(self) -> None:
        """Raise unless there is a value for each seed, and in curves for each round."""
        n_seeds = len(self.seeds)
        shapes = {name: values.shape for name, values in self.measures.items()}
        wrong = [name for name, shape in shapes.items() if shape != (n_seeds,)]
        wrong += [
            name
            for name, values in self.clients.items()
            if values.ndim != 2 or len(values) != n_seeds
        ]
        wrong += [
            name
            for name, (rounds, values) in self.curves.items()
            if values.shape != (n_seeds, rounds.size)
        ]
        if wrong:
            raise InvalidInput(
                f"{wrong[0]} has not one value for each of {n_seeds} seeds, or of each round."
            )

    def table(self) -> dict[str, Any]:
        """Return it as plain data with six digits."""
        return {
            "seeds": list(self.seeds),
            "cohort_size": self.cohort_size,
            "measures": {name: _plain(values) for name, values in self.measures.items()},
            "curves": {
                name: {"rounds": curve.rounds.tolist(), "values": _plain(curve.values)}
                for name, curve in self.curves.items()
            },
            "clients": {name: _plain(values) for name, values in self.clients.items()},
        }


@dataclass(frozen=True)
class Trials:
    """The schemes of one setting of a paper.

    Args:
        experiment: The experiment as plain data: the protocol of these results.
        schemes: What is kept of each scheme, by label.
        classes: "names", "what" and "of" (the class of each client), if the world has classes.
    """

    experiment: Mapping[str, Any]
    schemes: Mapping[str, SchemeResults]
    classes: Mapping[str, Any]

    @property
    def n_rounds(self) -> int:
        """Rounds that were planned."""
        return int(self.experiment["n_rounds"])

    @property
    def labels(self) -> tuple[str, ...]:
        """The schemes that were run, in order."""
        return tuple(self.schemes)

    def n_seeds(self, label: str) -> int:
        """Return how many seeds of a scheme were run to the end.

        Args:
            label: The scheme.
        """
        return len(self._scheme(label).seeds)

    def values(self, label: str, measure: str) -> FloatArray:
        """Return a measure of a scheme, one per seed.

        Args:
            label: The scheme.
            measure: A measure that was kept.
        """
        if measure.startswith(RELATIVE):
            return self._rounds_to_best_of(measure.removeprefix(RELATIVE), label)
        kept = self._scheme(label).measures
        if measure not in kept:
            raise ResultsError(
                f"{measure} of {label} was not kept: collect its runs again with --collect, or "
                "delete the kept results."
            )
        return kept[measure]

    def paired(self, label: str, other: str, measure: str) -> tuple[FloatArray, FloatArray]:
        """Return a measure of two schemes for the seeds that both have.

        Args:
            label: The first scheme.
            other: The second scheme.
            measure: A measure that was kept.
        """
        ours, theirs = self._common(label, other)
        return self.values(label, measure)[ours], self.values(other, measure)[theirs]

    def against(self, other: str) -> Trials:
        """Return the curves of schemes minus those of one, for the seeds that both have.

        Args:
            other: The scheme that is subtracted. Schemes without a seed in common are left out.
        """
        base = self._scheme(other).curves
        schemes = {}
        for label, scheme in self.schemes.items():
            rows = self._common(label, other)
            seeds = tuple(scheme.seeds[place] for place in rows[0])
            curves = {
                name: curve.minus(base[name], rows)
                for name, curve in scheme.curves.items()
                if name in base  # it may be in fewer figures
            }
            if seeds:
                schemes[label] = replace(
                    scheme, seeds=seeds, measures={}, curves=curves, clients={}
                )
        return replace(self, schemes=schemes)

    def estimate(self, label: str, measure: str) -> Estimate:
        """Return the mean over seeds with its interval.

        Args:
            label: The scheme.
            measure: A measure that was kept.
        """
        return estimate(self.values(label, measure))

    def lengths(self, label: str, other: str, measure: str) -> tuple[FloatArray, FloatArray]:
        """Return how long the runs of two schemes were, for the seeds that both have.

        Args:
            label: The first scheme.
            other: The second scheme.
            measure: "rounds-to-..." counts in rounds, "time-to-..." in virtual seconds.
        """
        if measure.startswith("time"):
            return self.paired(label, other, "total-time")
        length = np.full(self.paired(label, other, measure)[0].size, float(self.n_rounds))
        return length, length

    def at_first_look(self, label: str, other: str, measure: str) -> tuple[BoolArray, BoolArray]:
        """Return which runs of two schemes were at the target when they were first looked at.

        Args:
            label: The first scheme.
            other: The second scheme.
            measure: A time to an accuracy. If the accuracies were not kept, no run is named.
        """
        ours, theirs = self._common(label, other)
        return self._at_first_look(label, measure)[ours], self._at_first_look(other, measure)[
            theirs
        ]

    def _at_first_look(self, label: str, measure: str) -> BoolArray:
        scheme, target = self._scheme(label), target_of(measure)
        name = _LOOKED_AT.get(target[0], "") if target else ""
        if target is None or name not in scheme.curves:
            return np.zeros(len(scheme.seeds), dtype=np.bool_)
        values = scheme.curves[name].values
        looks = np.isfinite(values)
        first = values[np.arange(values.shape[0]), looks.argmax(axis=1)] if values.size else values
        return np.asarray(first >= target[1]).reshape(len(scheme.seeds))

    def _common(self, label: str, other: str) -> tuple[list[int], list[int]]:
        """Return the places of the seeds that two schemes have both."""
        ours, theirs = self._scheme(label).seeds, self._scheme(other).seeds
        both = [seed for seed in ours if seed in theirs]
        return [ours.index(seed) for seed in both], [theirs.index(seed) for seed in both]

    def _rounds_to_best_of(self, other: str, label: str) -> FloatArray:
        """Return the first rounds that are as accurate as another scheme's best of that seed.

        NaN for a seed that the other scheme lacks.
        """
        ours, theirs = self._accuracies(label), {}
        if other in self.schemes:
            theirs = dict(zip(self.schemes[other].seeds, self._accuracies(other)[1], strict=True))
        rounds, values = ours
        first = np.full(values.shape[0], np.nan)
        for place, seed in enumerate(self.schemes[label].seeds):
            if seed in theirs:
                reached = rounds[values[place] >= theirs[seed].max(initial=0.0)]
                first[place] = reached[0] if reached.size else np.inf
        return first

    def _accuracies(self, label: str) -> tuple[IntArray, FloatArray]:
        """Return the rounds in which training was looked at, and accuracies; 0 if diverged."""
        curves = self._scheme(label).curves
        if "accuracy" not in curves:
            raise ResultsError(f"the accuracies of {label} were not kept: draw them in a figure.")
        rounds, values = curves["accuracy"]
        return rounds, np.nan_to_num(values)

    def _scheme(self, label: str) -> SchemeResults:
        if label not in self.schemes:
            raise ResultsError(f"{label} was not run; there are {', '.join(self.schemes)}.")
        return self.schemes[label]

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return what ``table`` wrote.

        Args:
            table: A setting's part of a results file.
        """
        schemes = {
            label: SchemeResults.from_table(part) for label, part in table["schemes"].items()
        }
        experiment = table["experiment"]
        for name in ("n_rounds", "selectors"):
            if name not in experiment:
                raise InvalidInput(f"experiment lacks {name}.")
        return cls(experiment, schemes, table["classes"])

    def table(self) -> dict[str, Any]:
        """Return it as plain data."""
        schemes = {label: scheme.table() for label, scheme in self.schemes.items()}
        return {"experiment": self.experiment, "classes": self.classes, "schemes": schemes}


def _plain(values: FloatArray) -> Any:
    """Return numbers with six digits as JSON holds them."""
    if values.ndim > 1:
        return [_plain(row) for row in values]
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | int | str | None:
    if math.isnan(value):
        return None
    if math.isinf(value):
        return _NEVER
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short


def _numbers(values: Any) -> FloatArray:
    def number(value: Any) -> float:
        if value is None:
            return math.nan
        if value == _NEVER:
            return math.inf
        if not isinstance(value, int | float):
            raise InvalidInput(f"a number is expected, got {value!r}.")
        return float(value)

    if values and isinstance(values[0], list):
        return np.array([[number(value) for value in row] for row in values])
    return np.array([number(value) for value in values])
