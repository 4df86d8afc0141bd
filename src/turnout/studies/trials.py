"""The results that are kept of runs: measures for claims and tables, thinned curves for figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.types import BoolArray, FloatArray, IntArray
from turnout.experiment import Cell, Estimate, Experiment, FolderError, estimate, read_cell
from turnout.experiment.cell import CellTask, check_config
from turnout.experiment.grid import check_version
from turnout.results.files import SUMMARY, cell_folder
from turnout.studies.measures import RELATIVE, client_losses, measure_named, target_of

#: How a time is written that was never reached.
_NEVER = "never"

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

#: The kept curve that shows when a target was reached, by its name in a run.
_EVALUATED: Mapping[str, str] = {"accuracy": "accuracy", "holdout_accuracy": "hold-out accuracy"}

#: What figures draw of every client: (n,) each.
_CLIENTS: Mapping[str, Callable[[Cell], FloatArray]] = {
    "counts": lambda cell: cell.run.counts.astype(np.float64),
    "losses": client_losses,
}


class ResultsError(TurnoutError, ValueError):
    """A results file is damaged, or belongs to another protocol."""


class Curve(NamedTuple):
    """A thinned curve of a scheme.

    Args:
        rounds: (P,) rounds, counted from 1.
        values: (seeds, P) measured values; NaN where they were not finite.
    """

    rounds: IntArray
    values: FloatArray

    def at(self, rounds: IntArray) -> FloatArray:
        """Return (seeds, rounds) the values in some rounds; NaN where there is none.

        Args:
            rounds: Ascending, including all rounds of this curve.
        """
        values = np.full((self.values.shape[0], rounds.size), np.nan)
        values[:, np.searchsorted(rounds, self.rounds)] = self.values
        return values

    def minus(self, other: Curve, rows: tuple[list[int], list[int]]) -> Curve:
        """Return the difference in the rounds that both curves have.

        Args:
            other: The curve that is subtracted.
            rows: The rows of both curves that belong to the same seeds.
        """
        rounds, ours, theirs = np.intersect1d(self.rounds, other.rounds, return_indices=True)
        return Curve(rounds, self.values[rows[0]][:, ours] - other.values[rows[1]][:, theirs])


def thinned(curves: Mapping[str, FloatArray]) -> dict[str, Curve]:
    """Keep (seeds, T) curves in the same rounds: evenly spaced ones in which all were measured."""
    if not curves:
        return {}
    is_measured = np.all([np.isfinite(values).any(axis=0) for values in curves.values()], axis=0)
    points = np.flatnonzero(is_measured)  # empty if every run diverged before it was evaluated
    places = np.linspace(0, points.size - 1, _MOST_POINTS).astype(np.int64)
    points = points[np.unique(places)] if points.size else points
    return {name: Curve(points + 1, values[:, points]) for name, values in curves.items()}


@dataclass(frozen=True)
class SchemeResults:
    """The kept results of one scheme.

    Args:
        seeds: The seeds of complete runs.
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
        curves: Iterable[str] = (),
        clients: Iterable[str] = (),
    ) -> Self:
        """Compute the results of complete runs.

        Args:
            cells: The runs of a scheme, one per seed.
            measures: Names of measures.
            curves: Names of ``CURVES``.
            clients: "counts", "losses".
        """
        wanted = {name: measure_named(name) for name in measures}
        return cls(
            tuple(cell.settings.seed for cell in cells),
            cells[0].settings.cohort_size,
            {
                name: np.array([measure.compute(cell) for cell in cells])
                for name, measure in wanted.items()
            },
            thinned({name: np.stack([CURVES[name](cell) for cell in cells]) for name in curves}),
            {name: np.stack([_CLIENTS[name](cell) for cell in cells]) for name in clients},
        )

    def rows(self, places: Sequence[int]) -> SchemeResults:
        """Return the results of some of the seeds.

        Args:
            places: Their places in ``seeds``.
        """
        at = list(places)
        return SchemeResults(
            tuple(self.seeds[place] for place in at),
            self.cohort_size,
            {name: values[at] for name, values in self.measures.items()},
            {name: Curve(rounds, values[at]) for name, (rounds, values) in self.curves.items()},
            {name: values[at] for name, values in self.clients.items()},
        )

    def like(self, older: SchemeResults) -> SchemeResults:
        """Return these results without what older ones lack, unless they have all its seeds.

        Args:
            older: Results that these will be joined to.
        """
        if set(older.seeds) <= set(self.seeds):
            return self
        return SchemeResults(
            self.seeds,
            self.cohort_size,
            {name: values for name, values in self.measures.items() if name in older.measures},
            {name: curve for name, curve in self.curves.items() if name in older.curves},
            {name: values for name, values in self.clients.items() if name in older.clients},
        )

    def joined(self, later: SchemeResults) -> SchemeResults:
        """Return these results with those of more seeds. For a seed in both, the later run counts.

        Args:
            later: The later results. They replace these if they have all seeds of these; otherwise
                they must have the same measures and curves.
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
        old = self.rows([i for i, seed in enumerate(self.seeds) if seed not in later.seeds])
        both = SchemeResults(
            old.seeds + later.seeds,
            later.cohort_size,
            {name: np.append(old.measures[name], new) for name, new in later.measures.items()},
            {
                name: Curve(rounds, np.concatenate((old.curves[name].at(rounds), new.at(rounds))))
                for name, new in later.curves.items()
                for rounds in [np.union1d(self.curves[name].rounds, new.rounds)]
            },
            {name: np.concatenate((old.clients[name], new)) for name, new in later.clients.items()},
        )
        return both.rows(np.argsort(both.seeds).tolist())

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the results that ``table`` wrote.

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
        n = len(scheme.seeds)
        shapes: list[tuple[str, FloatArray, tuple[int, ...]]] = [
            *((name, values, (n,)) for name, values in scheme.measures.items()),
            *((name, each, (n, *each.shape[-1:])) for name, each in scheme.clients.items()),
            *((name, each.values, (n, each.rounds.size)) for name, each in scheme.curves.items()),
        ]
        for name, values, shape in shapes:
            if values.shape != shape:
                raise InvalidInput(
                    f"{name} does not have one value for each of {n} seeds, or for each round."
                )
        return scheme

    def table(self) -> dict[str, Any]:
        """Return the results as plain data with six digits."""
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
    """The results of all schemes in one setting of a paper.

    Args:
        experiment: The experiment as plain data: the protocol of these results.
        schemes: The results of each scheme, by label.
        classes: "names", "what" and "of" (the class of each client), if the world has classes.
    """

    experiment: Mapping[str, Any]
    schemes: Mapping[str, SchemeResults]
    classes: Mapping[str, Any]

    @property
    def n_rounds(self) -> int:
        """Planned rounds."""
        return int(self.experiment["n_rounds"])

    @property
    def labels(self) -> tuple[str, ...]:
        """The schemes that were run, in order."""
        return tuple(self.schemes)

    def n_seeds(self, label: str) -> int:
        """Return the number of complete runs of a scheme.

        Args:
            label: The scheme.
        """
        return len(self._scheme(label).seeds)

    def only(self, seeds: Sequence[int]) -> Trials:
        """Return the results of some seeds, without schemes that lack one of them.

        Args:
            seeds: The seeds, in the order of the values that are returned.
        """
        schemes = {
            label: scheme.rows([scheme.seeds.index(seed) for seed in seeds])
            for label, scheme in self.schemes.items()
            if set(seeds) <= set(scheme.seeds)
        }
        return replace(self, schemes=schemes)

    def values(self, label: str, measure: str) -> FloatArray:
        """Return a measure of a scheme, one value per seed.

        Args:
            label: The scheme.
            measure: A measure that was kept.
        """
        if measure.startswith(RELATIVE):
            return self._rounds_to_best_of(measure.removeprefix(RELATIVE), label)
        kept, target = self._scheme(label).measures, target_of(measure)
        if measure not in kept and target is not None and measure.startswith("rounds"):
            levels = dict.fromkeys(self._scheme(label).seeds, target[1])
            return self._first_rounds(label, _EVALUATED[target[0]], levels)
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

    def renamed(self, forms: Mapping[str, str]) -> Trials:
        """Return these results with schemes replaced by others, such as their published forms.

        Args:
            forms: The scheme whose results take the place of each scheme.
        """
        return replace(
            self, schemes={**self.schemes, **{x: self._scheme(form) for x, form in forms.items()}}
        )

    def against(self, other: str) -> Trials:
        """Return the curves of all schemes minus those of one, for the seeds that both have.

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
                schemes[label] = SchemeResults(seeds, scheme.cohort_size, {}, curves, {})
        return replace(self, schemes=schemes)

    def paired_at(
        self, label: str, other: str, curve: str, ends: FloatArray
    ) -> tuple[FloatArray, FloatArray] | None:
        """Return a curve of two schemes at some times, for the seeds that both have.

        Args:
            label: The first scheme.
            other: The second scheme.
            curve: A curve.
            ends: Virtual seconds, one per seed that both have. The last value before counts, and 0
                if there was none yet.

        Returns:
            One value per seed each; None if the curve or the times were not kept.
        """
        found = []
        for name, rows in zip((label, other), self._common(label, other), strict=True):
            curves = self._scheme(name).curves
            if not {"time", curve} <= curves.keys() or not curves[curve].values.size:
                return None
            values = np.pad(np.nan_to_num(curves[curve].values[rows]), ((0, 0), (1, 0)))
            n_past = (curves["time"].values[rows] <= ends[:, None] * (1.0 + 1e-5)).sum(axis=1)
            found.append(values[np.arange(len(rows)), n_past])
        return found[0], found[1]

    def has(self, label: str, measure: str) -> bool:
        """Return whether a measure of a scheme was kept; older results have fewer.

        Args:
            label: The scheme.
            measure: The measure.
        """
        return measure in self._scheme(label).measures

    def estimate(self, label: str, measure: str) -> Estimate:
        """Return the mean over seeds with its interval.

        Args:
            label: The scheme.
            measure: A measure that was kept.
        """
        return estimate(self.values(label, measure))

    def lengths(self, label: str, other: str, measure: str) -> tuple[FloatArray, FloatArray]:
        """Return the lengths of the runs of two schemes, for the seeds that both have.

        Args:
            label: The first scheme.
            other: The second scheme.
            measure: "rounds-to-..." counts in rounds, "time-to-..." in virtual seconds.
        """
        if measure.startswith("time"):
            return self.paired(label, other, "total-time")
        length = np.full(len(self._common(label, other)[0]), float(self.n_rounds))
        return length, length

    def reached_at_once(self, label: str, other: str, measure: str) -> tuple[BoolArray, BoolArray]:
        """Return which runs of two schemes had reached the target at their first evaluation.

        Args:
            label: The first scheme.
            other: The second scheme.
            measure: A time to an accuracy. If the accuracies were not kept, all are False.
        """
        ours, theirs = self._common(label, other)
        return self._at_once(label, measure)[ours], self._at_once(other, measure)[theirs]

    def _at_once(self, label: str, measure: str) -> BoolArray:
        scheme, target = self._scheme(label), target_of(measure)
        curve = scheme.curves.get(_EVALUATED.get(target[0], "")) if target else None
        if target is None or curve is None or not curve.values.size:
            return np.zeros(len(scheme.seeds), dtype=np.bool_)
        first = np.isfinite(curve.values).argmax(axis=1)
        return np.asarray(curve.values[np.arange(first.size), first] >= target[1])

    def _common(self, label: str, other: str) -> tuple[list[int], list[int]]:
        """Return the places of the seeds that two schemes have both."""
        ours, theirs = self._scheme(label).seeds, self._scheme(other).seeds
        both = [seed for seed in ours if seed in theirs]
        return [ours.index(seed) for seed in both], [theirs.index(seed) for seed in both]

    def _rounds_to_best_of(self, other: str, label: str) -> FloatArray:
        """Return the first rounds that are as accurate as another scheme's best of that seed.

        The result is NaN for a seed that the other scheme lacks.
        """
        targets: dict[int, float] = {}
        if other in self.schemes:
            best = self._evaluated(other, "accuracy")[1].max(axis=1, initial=0.0)
            targets = dict(zip(self.schemes[other].seeds, best.tolist(), strict=True))
        return self._first_rounds(label, "accuracy", targets)

    def _first_rounds(self, label: str, curve: str, levels: Mapping[int, float]) -> FloatArray:
        """Return the first round of each seed at its level; NaN for a seed without a level."""
        rounds, values = self._evaluated(label, curve)
        first = np.full(values.shape[0], np.nan)
        for place, seed in enumerate(self._scheme(label).seeds):
            if seed in levels:
                reached = rounds[values[place] >= levels[seed]]
                first[place] = reached[0] if reached.size else np.inf
        return first

    def _evaluated(self, label: str, curve: str) -> tuple[IntArray, FloatArray]:
        """Return the rounds in which training was evaluated, and a curve; 0 if diverged."""
        curves = self._scheme(label).curves
        if curve not in curves:
            what = {"accuracy": "accuracies"}.get(curve, curve)
            raise ResultsError(f"the {what} of {label} were not kept: draw them in a figure.")
        rounds, values = curves[curve]
        return rounds, np.nan_to_num(values)

    def last_gain(self, label: str, measure: str) -> float:
        """Return how much accuracy rose over the last fifth of the rounds; 0 if it was not kept.

        Args:
            label: The scheme.
            measure: The accuracy that is compared: on the hold-out, or on the test set.
        """
        curve = "hold-out accuracy" if "hold-out" in measure else "accuracy"
        if curve not in self._scheme(label).curves:
            return 0.0
        rounds, values = self._evaluated(label, curve)
        share = rounds / self.n_rounds
        ends = [values[:, (share > at - 0.05) & (share <= at)].mean() for at in (0.8, 1.0)]
        return float(ends[1] - ends[0])

    def _scheme(self, label: str) -> SchemeResults:
        if label not in self.schemes:
            raise ResultsError(f"{label} was not run; there are {', '.join(self.schemes)}.")
        return self.schemes[label]

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return the results that ``table`` wrote.

        Args:
            table: A setting's part of a results file.
        """
        schemes = {
            label: SchemeResults.from_table(part) for label, part in table["schemes"].items()
        }
        for name in ("n_rounds", "selectors"):
            if name not in table["experiment"]:
                raise InvalidInput(f"experiment lacks {name}.")
        return cls(table["experiment"], schemes, table["classes"])

    def table(self) -> dict[str, Any]:
        """Return the results as plain data."""
        schemes = {label: scheme.table() for label, scheme in self.schemes.items()}
        return {"experiment": self.experiment, "classes": self.classes, "schemes": schemes}


def gathered(
    experiment: Experiment,
    folder: Path,
    labels: Iterable[str],
    kept: Callable[[str], Sequence[Iterable[str]]],
    *,
    skip_bad: bool = False,
) -> Trials:
    """Return the results of the complete runs in a folder.

    Args:
        experiment: The experiment that was run.
        folder: Its run folder.
        labels: The schemes; a scheme without a complete run is left out.
        kept: Returns the measures, curves and numbers of clients that are kept of a scheme.
        skip_bad: Whether to leave out runs that cannot be used, instead of raising.

    Raises:
        FolderError: A run is damaged, has other settings, or was made by another version of
            turnout.
    """
    schemes: dict[str, SchemeResults] = {}
    classes: dict[str, object] = {}
    for label in labels:
        cells = complete_cells(experiment, folder, label, skip_bad=skip_bad)
        if cells:
            schemes[label] = SchemeResults.from_cells(cells, *kept(label))
            if cells[0].class_of is not None:
                classes = {**cells[0].settings.classes, "of": cells[0].class_of.tolist()}
    return Trials(experiment.table(), schemes, classes)


def complete_cells(
    experiment: Experiment, folder: Path, label: str, *, skip_bad: bool = False
) -> list[Cell]:
    """Return the complete runs of a scheme, one per seed.

    Args:
        experiment: The experiment that was run.
        folder: Its run folder.
        label: The scheme.
        skip_bad: Whether to leave out runs that cannot be used, instead of raising.

    Raises:
        FolderError: A run is damaged, has other settings, or was made by another version of
            turnout.
    """
    variant = next(variant for variant in experiment.selectors if variant.label == label)
    cells = []
    for seed in experiment.seeds:
        path = cell_folder(folder, label, seed)
        task = CellTask(experiment, variant, seed, path, versions={})
        if (path / SUMMARY).exists():
            try:
                check_version([task])
                check_config(task)
                cells.append(read_cell(path))
            except FolderError:
                if not skip_bad:
                    raise
    return cells


def _plain(values: Any) -> Any:
    """Return numbers with six digits as JSON holds them: NaN is null, infinity is "never"."""
    if np.ndim(values):
        return [_plain(value) for value in values]
    if math.isnan(values):
        return None
    if math.isinf(values):
        return _NEVER
    short = float(f"{values:.6g}")
    return int(short) if short.is_integer() else short


def _numbers(values: Any) -> Any:
    """Return what ``_plain`` was given."""
    if isinstance(values, list):
        return np.array([_numbers(value) for value in values], dtype=np.float64)
    if values is None:
        return math.nan
    if values == _NEVER:
        return math.inf
    if not isinstance(values, int | float):
        raise InvalidInput(f"a number is expected, got {values!r}.")
    return values
