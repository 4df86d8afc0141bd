"""What a metric is: one number of a run, with all that is needed to show it.

The metrics themselves are in ``turnout.runs.catalogue``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

from turnout.runs.facts import Need

Better = Literal["higher", "lower", "neither"]
Group = Literal["learning", "participation", "fairness", "time", "computing"]
#: Where a metric is shown beside ``summary.json`` and JSON output, which have all of them.
Table = Literal["simulate", "train", "compare", "compare --train", "report"]

#: Larger units of time, used from three of them on.
_TIME_UNITS = (("days", 86_400.0), ("h", 3_600.0), ("min", 60.0))
_LARGE_UNIT_DECIMALS = 2

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
        run_length: for a time to a target, the key of the metric that tells how long a run was.
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
        """Return how a column of numbers is shown: times in a unit that is easy to read."""
        if self.unit != "s":
            return Scale("", 1.0, self.decimals)
        longest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
        for unit, size in _TIME_UNITS:
            if longest >= 3 * size:
                return Scale(unit, size, _LARGE_UNIT_DECIMALS)
        return Scale("s", 1.0, self.decimals)

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
        """Return who has the best mean; nobody if all are equal or there is nothing to compare."""
        if self.better == "neither" or len(means) < 2:
            return []
        top, bottom = max(means.values()), min(means.values())
        if math.isclose(top, bottom, rel_tol=1e-9):
            return []
        best = top if self.better == "higher" else bottom
        return [name for name, mean in means.items() if math.isclose(mean, best, rel_tol=1e-9)]
