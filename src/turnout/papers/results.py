"""What a paper's runs came out at: small enough to be kept in the repository.

Run folders are large and stay with whoever ran them. ``results/<preset>.json`` keeps, for each
scheme and seed, the measures that claims and tables need and the curves that figures draw, thinned.
Pages, verdicts and figures are made from it alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from turnout.errors import InvalidInput, TurnoutError
from turnout.experiment import Cell, Estimate, estimate
from turnout.papers.figure_measures import client_losses
from turnout.papers.measures import measure_named
from turnout.runs.settings import first_difference
from turnout.storage import write_atomically
from turnout.types import FloatArray, IntArray

__all__ = ["CURVES", "Curve", "Results", "ResultsError", "ResultsFile", "SchemeResults"]

#: Version of the format of results files.
FORMAT = 1

#: Points kept of a curve.
_MOST_POINTS = 80

#: How a time that was never reached is written.
_NEVER = "never"


class ResultsError(TurnoutError, ValueError):
    """A results file is damaged, or belongs to another protocol."""


#: Curves that figures draw, by name: (T,) each, NaN where nothing was measured.
CURVES: Mapping[str, Callable[[Cell], FloatArray]] = MappingProxyType(
    {
        "success ratio": lambda cell: cell.run.cep / np.maximum(cell.run.offsets[1:], 1),
        "participation": lambda cell: cell.run.cep.astype(np.float64),
        "queue": lambda cell: cell.curves["backlog_mean"],
        "time": lambda cell: cell.run.clock_s,
        "accuracy": lambda cell: cell.run.measured["accuracy"],
        "hold-out accuracy": lambda cell: cell.run.measured["holdout_accuracy"],
        "global loss": lambda cell: cell.run.measured["local_loss"],
    }
)

#: What figures draw of every client: (n,) each.
_CLIENTS: Mapping[str, Callable[[Cell], FloatArray]] = MappingProxyType(
    {
        "counts": lambda cell: cell.run.counts.astype(np.float64),
        "losses": client_losses,
    }
)


class Curve(NamedTuple):
    """A thinned curve of a scheme.

    Args:
        rounds: (P,) rounds, counted from 1.
        values: (seeds, P) what was measured; NaN where it was not finite.
    """

    rounds: IntArray
    values: FloatArray


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
            _thinned({name: np.stack([CURVES[name](cell) for cell in cells]) for name in curves}),
            {name: np.stack([_CLIENTS[name](cell) for cell in cells]) for name in clients},
        )

    def joined(self, later: SchemeResults) -> SchemeResults:
        """Return these results with more seeds; a seed that both have counts as run last.

        Args:
            later: What was run since. It replaces everything if other measures or curves are kept.
        """
        parts = ("measures", "curves", "clients")
        if any(getattr(self, part).keys() != getattr(later, part).keys() for part in parts):
            return later
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
                name: Curve(new.rounds, rows(self.curves[name].values, new.values))
                for name, new in later.curves.items()
            },
            {name: rows(self.clients[name], new) for name, new in later.clients.items()},
        )

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Self:
        """Return what ``table`` wrote.

        Args:
            table: The scheme's part of a results file.
        """
        return cls(
            tuple(table["seeds"]),
            table["cohort_size"],
            {name: _numbers(values) for name, values in table["measures"].items()},
            {
                name: Curve(np.array(curve["rounds"]), _numbers(curve["values"]))
                for name, curve in table["curves"].items()
            },
            {name: _numbers(values) for name, values in table["clients"].items()},
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
class Results:
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
        kept = self._scheme(label).measures
        if measure not in kept:
            raise ResultsError(f"{measure} of {label} was not kept: run turnout reproduce again.")
        return kept[measure]

    def paired(self, label: str, other: str, measure: str) -> tuple[FloatArray, FloatArray]:
        """Return a measure of two schemes for the seeds that both have.

        Args:
            label: The first scheme.
            other: The second scheme.
            measure: A measure that was kept.
        """
        ours, theirs = self._scheme(label).seeds, self._scheme(other).seeds
        both = [seed for seed in ours if seed in theirs]
        first = self.values(label, measure)[[ours.index(seed) for seed in both]]
        return first, self.values(other, measure)[[theirs.index(seed) for seed in both]]

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
        return cls(table["experiment"], schemes, table["classes"])

    def table(self) -> dict[str, Any]:
        """Return it as plain data."""
        schemes = {label: scheme.table() for label, scheme in self.schemes.items()}
        return {"experiment": self.experiment, "classes": self.classes, "schemes": schemes}


class ResultsFile:
    """``results/<preset>.json``: the results of each setting and length of a preset.

    Args:
        preset: Name of the preset.
        parts: Results by setting and by how many times the paper's length.
        made_with: Version of turnout and others that made them.
    """

    def __init__(
        self,
        preset: str,
        parts: Mapping[tuple[str, int], Results] | None = None,
        made_with: Mapping[str, Any] | None = None,
    ) -> None:
        self.preset = preset
        self.parts = dict(parts or {})
        self.made_with = dict(made_with or {})

    @classmethod
    def read(cls, path: Path, preset: str) -> Self:
        """Read a file.

        Args:
            path: The file.
            preset: The preset that it must belong to.
        """
        try:
            table = json.loads(path.read_text(encoding="utf-8"))
            if table["format"] > FORMAT:
                raise ResultsError(f"{path} was written by a newer turnout: upgrade.")
            if table["preset"] != preset:
                raise ResultsError(f"{path} is about {table['preset']}, not about {preset}.")
            parts = {
                (part["setting"], part["times"]): Results.from_table(part)
                for part in table["parts"]
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            if isinstance(error, ResultsError):
                raise
            raise ResultsError(
                f"{path} cannot be read ({error}): run turnout reproduce {preset} again."
            ) from error
        return cls(preset, parts, table["made_with"])

    def write(self, path: Path) -> None:
        """Write the file.

        Args:
            path: Where; the folder must exist.
        """
        parts = [
            {"setting": setting, "times": times, **results.table()}
            for (setting, times), results in self.parts.items()
        ]
        table = {
            "format": FORMAT,
            "preset": self.preset,
            "made_with": self.made_with,
            "parts": parts,
        }
        write_atomically(path, (json.dumps(table, allow_nan=False) + "\n").encode())

    def update(self, setting: str, times: int, results: Results) -> None:
        """Put results into the file; schemes and seeds that are not among them stay.

        Args:
            setting: Label of the setting.
            times: Length.
            results: What was collected; nothing changes if there is nothing.
        """
        if not results.schemes:
            return
        kept = self.parts.get((setting, times))
        schemes = dict(kept.schemes if kept else {})
        for label, new in results.schemes.items():
            schemes[label] = schemes[label].joined(new) if label in schemes else new
        order = [selector["label"] for selector in results.experiment["selectors"]]
        in_order = {label: schemes[label] for label in order if label in schemes}
        part = Results(results.experiment, in_order, results.classes)
        self.parts[(setting, times)] = part

    def missing(
        self, setting: str, times: int, labels: Iterable[str], seeds: Iterable[int]
    ) -> list[int]:
        """Return the seeds that some scheme still lacks.

        Args:
            setting: Label of the setting.
            times: Length.
            labels: The schemes that are wanted.
            seeds: The seeds that are wanted.
        """
        kept = self.parts.get((setting, times))
        done = [
            set(kept.schemes[label].seeds) if kept and label in kept.schemes else set()
            for label in labels
        ]
        return [seed for seed in seeds if any(seed not in run for run in done)]

    def check(self, setting: str, times: int, experiment: Mapping[str, Any]) -> None:
        """Raise if kept results are of another protocol.

        Args:
            setting: Label of the setting.
            times: Length.
            experiment: The protocol as it is now, as plain data.
        """
        kept = self.parts.get((setting, times))
        if kept is None:
            return
        varies = {"seeds", "selectors", "name"}
        there, here = (
            {name: value for name, value in table.items() if name not in varies}
            for table in (kept.experiment, experiment)
        )
        difference = first_difference(there, here)
        if difference is not None:
            raise ResultsError(
                f"the kept results of {self.preset} ({setting or 'its only setting'}) follow "
                f"another protocol: {difference}. Write to another file, or delete them."
            )


def _thinned(curves: Mapping[str, FloatArray]) -> dict[str, Curve]:
    """Keep (seeds, T) curves in the same rounds, evenly spaced, where all were measured."""
    if not curves:
        return {}
    is_measured = np.all([np.isfinite(values).any(axis=0) for values in curves.values()], axis=0)
    rounds = np.flatnonzero(is_measured)
    places = np.unique(np.linspace(0, rounds.size - 1, _MOST_POINTS).astype(np.int64))
    points = rounds[places]
    return {name: Curve(points + 1, values[:, points]) for name, values in curves.items()}


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
