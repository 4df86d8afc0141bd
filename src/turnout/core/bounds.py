"""Bounds on what clients claim, between the clients and any selector.

A client can send any number. The server compares each claim with what it knows itself: earlier
claims of the client, its behaviour, and the claims of the others. A claim inside the bounds passes
unchanged, bit for bit. A claim outside is replaced by the typical value, so a lie that is noticed
gains nothing. A lie inside the bounds gains what an honest client with that number would get.

Each client has one vote on what is typical, so the bounds are robust while fewer than half of the
clients lie. The largest amount that is believed is the median times ``exp`` of three robust
standard deviations of the logarithms, and at least twice the median. Zeros have no vote, and fewer
than five votes bound nothing. The vote of a client follows its claims up to the bound, so the
bounds move when all losses do.
"""

from __future__ import annotations

import dataclasses
import math
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from turnout.core.arrays import UPDATE_METRICS
from turnout.core.domains import Flag
from turnout.core.stateful import Range, Stateful
from turnout.core.types import (
    LARGEST_REPORT,
    Array,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)

__all__ = ["Bounds"]

#: Amounts are believed up to this many deviations above the median, in the logarithm. That admits
#: 999 of 1,000 honest log-normal amounts.
DEVIATIONS = 3.0
#: Standard deviations of a normal distribution in its median absolute deviation.
NORMAL = 1.4826
#: Twice the median is always believed, however equal the others are.
LEAST_FACTOR = 2.0
#: Largest factor between a report and the client's own mean, and between two times.
JUMP = 3.0
#: Fewer votes bound nothing.
FEWEST = 5

#: Reports that are bounded, each with a row of ``reported_``.
REPORTS = ("loss", "loss_rms", "loss_std", "polled_loss")
#: Columns of times that clients claim.
TIMES = ("expected_duration", "upload_duration", "download_duration")
#: Columns of several numbers per client. Only the selector knows what they mean.
FEATURES = ("context", "features")


class Bounds(Stateful):
    """Bounds on the sizes, times and losses that clients claim. Each rule has a switch.

    Args:
        fixed_samples: Whether the first ``num_samples`` of a client stands. A client that could
            change it would try out which size is chosen most.
        samples: Whether ``num_samples`` is bounded by the others'. A claim of 1e30 examples would
            take every place of a selector that weighs by data.
        losses: Whether losses, their spread and the size of updates are bounded by the others'. One
            huge loss would rank first forever, or drown all differences.
        history: Whether a loss above the median is at most three times the client's own mean so
            far. Honest losses change slowly, so occasional lies stand out.
        times: Whether times that clients claim are bounded from below by the others', and an
            expected duration by a factor of three around what was measured. The server has a clock.
        features: Whether each number of ``context`` and ``features`` is bounded in size by those of
            the others. One that is too large counts as unknown. A selector that multiplies it would
            take it for any time or any reward.

    >>> bounds = Bounds()
    >>> bounds.reset(6)
    >>> claims = {"num_samples": np.array([90, 100, 110, 100, 95, 10**18])}
    >>> ctx = RoundContext(round=0, cohort_size=2, available=[True] * 6, columns=claims)
    >>> bounds.columns(ctx).column("num_samples").tolist()
    [90.0, 100.0, 110.0, 100.0, 95.0, 100.0]
    """

    later_state = frozenset({"norms_"})
    state_ranges = MappingProxyType(
        dict.fromkeys(
            ("samples_", "seconds_", "reported_", "norms_"),
            Range(0.0, LARGEST_REPORT, may_be_nan=True),
        )
    )

    def __init__(
        self,
        *,
        fixed_samples: Flag = True,
        samples: Flag = True,
        losses: Flag = True,
        history: Flag = True,
        times: Flag = True,
        features: Flag = True,
    ) -> None:
        self.fixed_samples = fixed_samples
        self.samples = samples
        self.losses = losses
        self.history = history
        self.times = times
        self.features = features

    def reset(self, n_clients: int) -> None:
        """Forget all claims and measurements."""
        super().reset(n_clients)
        self.samples_ = np.full(n_clients, np.nan)
        self.seconds_ = np.full(n_clients, np.nan)
        self.reported_ = np.full((len(REPORTS), n_clients), np.nan)
        self.norms_ = np.full((len(UPDATE_METRICS), n_clients), np.nan)

    def columns(self, ctx: RoundContext) -> RoundContext:
        """Return the context with believable columns, and remember the first claims.

        Args:
            ctx: The context as clients claim it.
        """
        changed = {}
        if "num_samples" in ctx.columns:
            changed["num_samples"] = self._sizes(ctx.columns["num_samples"])
        if self.times:
            for name in ctx.columns.keys() & set(TIMES):
                changed[name] = self._seconds(name, ctx.columns[name])
        if self.features:
            for name in ctx.columns.keys() & set(FEATURES):
                changed[name] = _of_usual_size(ctx.columns[name])
        changed = {
            name: values
            for name, values in changed.items()
            if not np.array_equal(values, ctx.columns[name], equal_nan=True)
        }
        return dataclasses.replace(ctx, columns={**ctx.columns, **changed}) if changed else ctx

    def answers(self, ctx: RoundContext) -> RoundContext:
        """Return the context with believable polled losses.

        Args:
            ctx: The context with the answers of the polled clients.
        """
        if ctx.polled is None or ctx.polled_loss is None:
            return ctx
        loss = self._report("polled_loss", ctx.polled, ctx.polled_loss)
        return dataclasses.replace(ctx, polled_loss=loss)

    def outcome(self, selection: Selection, outcome: Outcome) -> Outcome:
        """Return the outcome with believable reports, and remember them and the durations.

        Args:
            selection: Who was chosen.
            outcome: What happened; its durations are the server's own.
        """
        timed = outcome.completed & ~np.isnan(outcome.duration)
        _average(self.seconds_, selection.clients[timed], outcome.duration[timed])
        metrics = dict(outcome.metrics)
        for name in metrics.keys() & REPORTS:
            metrics[name] = self._report(name, selection.clients, metrics[name])
        for name in metrics.keys() & UPDATE_METRICS:
            metrics[name] = self._update(name, selection.clients, metrics[name])
        return dataclasses.replace(outcome, metrics=metrics)

    def _sizes(self, claim: Array) -> Array:
        if self.fixed_samples:
            np.copyto(self.samples_, claim, where=np.isnan(self.samples_))
            claim = self.samples_
        usual = _usual(claim)
        is_wrong = claim > usual.most if self.samples else np.False_
        return np.where(is_wrong, usual.median, claim)

    def _seconds(self, name: str, claim: Array) -> Array:
        usual = _usual(claim)
        believed = np.where(claim < usual.least, usual.median, claim)
        if name == "expected_duration":
            measured = self.seconds_
            is_off = (claim > JUMP * measured) | (JUMP * claim < measured)
            believed = np.where(is_off, measured, believed)
        return believed

    def _report(self, name: str, clients: IntArray, claim: FloatArray) -> FloatArray:
        return self._believed(self.reported_[REPORTS.index(name)], clients, claim)

    def _update(self, name: str, clients: IntArray, claim: FloatArray) -> FloatArray:
        mean = self.norms_[UPDATE_METRICS.index(name)]
        if claim.ndim == 1:
            return self._believed(mean, clients, claim)
        length = np.minimum(np.linalg.norm(claim, axis=1), LARGEST_REPORT)
        believed = self._believed(mean, clients, length)
        factor = np.divide(believed, length, out=np.ones(length.size), where=believed < length)
        bounded: FloatArray = claim * factor[:, None]
        return bounded

    def _believed(self, mean: FloatArray, clients: IntArray, claim: FloatArray) -> FloatArray:
        """Return believable amounts, and follow them in the client's ``mean``, in place."""
        own = mean[clients]
        votes = mean.copy()
        votes[clients] = np.where(np.isnan(own), claim, own)
        usual = _usual(votes)
        most = np.full(claim.size, usual.most if self.losses else np.inf)
        if self.history:  # up to the median everything is believed
            most = np.fmin(most, np.maximum(JUMP * own, usual.median))
        said = ~np.isnan(claim)
        _average(mean, clients[said], np.minimum(claim, most)[said])
        return np.where(claim > most, usual.median, claim)


class _Usual(NamedTuple):
    """The median of amounts, and the least and most that is believed."""

    median: float
    least: float
    most: float


def _usual(amounts: Array) -> _Usual:
    """Return the usual amounts. Fewer than five positive amounts bound nothing."""
    votes = amounts[amounts > 0.0]
    if votes.size < FEWEST:
        return _Usual(math.inf, 0.0, math.inf)
    median = _middle(votes)
    deviation = NORMAL * _middle(np.abs(np.log(votes / median)))
    factor = max(LEAST_FACTOR, math.exp(DEVIATIONS * deviation))
    return _Usual(median, median / factor, median * factor)


def _of_usual_size(claim: Array) -> Array:
    """Return numbers by client and feature; those that are too large become unknown (NaN)."""
    size = np.abs(claim).reshape(claim.shape[0], -1)
    most = np.array([_usual(one).most for one in size.T])
    return np.where((size > most).reshape(claim.shape), np.nan, claim)


def _middle(amounts: Array) -> float:
    """Return the median; of two in the middle, the larger one."""
    half = amounts.size // 2
    return float(np.partition(amounts, half)[half])


def _average(mean: FloatArray, clients: IntArray, amounts: FloatArray) -> None:
    """Move each client's mean halfway to its latest amount, in place."""
    own = mean[clients]
    mean[clients] = np.where(np.isnan(own), amounts, 0.5 * (own + amounts))
