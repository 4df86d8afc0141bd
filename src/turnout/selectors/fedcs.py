"""FedCS: as many good clients as the deadline allows, in three readings.

Paper:      T. Nishio, R. Yonetani, Client Selection for Federated Learning with Heterogeneous
            Resources in Mobile Edge, ICC 2019, arXiv:1804.08333 ("packing"); as adapted by E3CS
            ("success-rate") and by RBCS-F ("expected-duration").
Setting:    The server knows success_rate or expected_duration before the round. No feedback is
            needed.
Idea:       success-rate (E3CS): the k clients of highest true success rate, which
            no real server knows.
            expected-duration (RBCS-F): all clients whose expected time is below the deadline.
            packing (Nishio): clients train in parallel and upload one after the other; add the
            client that lengthens the round least, as long as the round ends before the deadline.
Symbols:    deadline = T_round, expected_duration = t^UD_k (training), upload_duration = t^UL_k,
            download_duration = distribution time of client k, elapsed = Theta.
Equations:  packing: Nishio Alg. 3, Eqs. (1)-(2); success-rate: E3CS Sec. VI-A; expected-duration:
            RBCS-F Sec. 6.1.1.
Deviations: 1. At most cohort_size clients are chosen. RBCS-F has no such limit; cohort_size =
            n_clients restores it. The fastest clients go first, and ties are broken at random.
            2. packing: without the column upload_duration the whole expected_duration occupies the
            shared channel, so times are packed one after the other. T_cs and T_agg count as 0;
            subtract them from the deadline.
            3. packing considers every available client. Nishio first requests the resources of
            ceil(K C) random clients and packs among those; request=C restores this.
            4. Unknown values (NaN) rank last: rate 0, infinite time.
Limits:     It must know in advance what other selectors learn. Clients below the border are never
            chosen, so their data is lost. Dead clients are chosen as long as their column looks
            good.
Cost:       O(n) select, packing O(m n); no state.
Checked:    By hand and against a slow implementation of Alg. 3, in tests/selectors/test_fedcs.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from turnout.core.domains import Positive, number
from turnout.core.errors import InvalidInput
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.types import FloatArray, RoundContext, Selection
from turnout.sampling import Ranking, kth_largest, top_m, uniform_draw

#: Slack of products that round up, such as 0.07 x 100.
SLACK = 1e-9


def _most_reliable(ctx: RoundContext, deadline: float, rng: np.random.Generator) -> Ranking:
    rate = ctx.of_pool(ctx.column("success_rate"))
    return top_m(np.where(np.isnan(rate), 0.0, rate), ctx.size, rng)


def _below_deadline(ctx: RoundContext, deadline: float, rng: np.random.Generator) -> Ranking:
    time = _times(ctx, "expected_duration")
    n_fast = int(np.count_nonzero(time < deadline))
    return top_m(-time, min(ctx.size, n_fast), rng)


def _packed(ctx: RoundContext, deadline: float, rng: np.random.Generator) -> Ranking:
    """Greedy packing; the loop is over the cohort, each step looks at the whole pool."""
    if "upload_duration" in ctx.columns:
        update, upload = _times(ctx, "expected_duration"), _times(ctx, "upload_duration")
    else:
        update, upload = np.zeros(ctx.pool.size), _times(ctx, "expected_duration")
    has_download = "download_duration" in ctx.columns
    download = _times(ctx, "download_duration") if has_download else np.zeros(ctx.pool.size)
    # Nobody whose upload alone takes longer than the whole of the m-th quickest is ever chosen.
    total = update + upload + download
    worth = np.flatnonzero(upload <= -kth_largest(-total, ctx.size))
    update, upload, download = update[worth], upload[worth], download[worth]
    elapsed = distribution = 0.0  # Theta, T^d_S
    packed: list[int] = []
    while len(packed) < ctx.size:
        longer = upload + np.maximum(update - elapsed, 0.0)
        longer += np.maximum(download - distribution, 0.0)  # Alg. 3, line 3
        x = int(top_m(-longer, 1, rng).chosen[0])
        if not elapsed + distribution + longer[x] < deadline:  # line 6: then no other client fits
            break
        elapsed += upload[x] + max(update[x] - elapsed, 0.0)  # line 5
        distribution = max(distribution, download[x])
        packed.append(x)
        upload[x] = np.inf
    chosen = np.sort(worth[np.array(packed, dtype=np.int64)])
    return Ranking(chosen, np.ones(chosen.size))


def _requested(ctx: RoundContext, size: int, rng: np.random.Generator) -> RoundContext:
    """Return the context with only the clients that the server asks: Nishio, Protocol 2."""
    asked = ctx.pool[uniform_draw(ctx.pool.size, min(size, ctx.pool.size), rng)]
    available = np.zeros(ctx.n_clients, dtype=np.bool_)
    available[asked] = True
    return dataclasses.replace(ctx, available=available)


def _times(ctx: RoundContext, name: str) -> FloatArray:
    time = np.asarray(ctx.of_pool(ctx.column(name)), dtype=np.float64)
    return np.where(np.isnan(time), np.inf, time)


class _Reading(NamedTuple):
    choose: Callable[[RoundContext, float, np.random.Generator], Ranking]
    needs: frozenset[str]
    uses: frozenset[str]
    may_underfill: bool
    reports_probability: bool


READINGS: Mapping[str, _Reading] = MappingProxyType(
    {
        "success-rate": _Reading(
            _most_reliable, frozenset({"success_rate"}), frozenset(), False, True
        ),
        "expected-duration": _Reading(
            _below_deadline, frozenset({"expected_duration"}), frozenset(), True, True
        ),
        "packing": _Reading(
            _packed,
            frozenset({"expected_duration"}),
            frozenset({"upload_duration", "download_duration"}),
            True,
            False,
        ),
    }
)


@register("fedcs")
class FedCS(Selector):
    """The most reliable, the fast enough, or as many as fit.

    Args:
        by: The reading of FedCS: that of E3CS, that of RBCS-F, or the published one. Take the one
            whose column you have.
        deadline: Seconds that a round may take; T_round in the paper. None takes the deadline of
            the round. "success-rate" does not use it.
        request: Share of all clients, drawn at random, that are asked for their resources before
            packing; C in the paper, 0.1 there. None asks everybody. Start with None. The other
            readings refuse it.
    """

    expected_check_failures: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"forgets_the_dead": "nothing is learned: a column that praises a dead client is believed"}
    )

    def __init__(
        self,
        *,
        by: Literal["success-rate", "expected-duration", "packing"] = "success-rate",
        deadline: Positive | None = None,
        request: Annotated[float, number(above=0.0, maximum=1.0)] | None = None,
    ) -> None:
        self.by = by
        self.deadline = deadline
        self.request = request

    def check_parameters(self) -> None:
        """Only packing requests resources."""
        super().check_parameters()
        if self.request is not None and self.by != "packing":
            raise InvalidInput(
                f"request is {self.request} and by is {self.by!r}: only packing requests "
                "resources; leave request at None or set by='packing'.",
                field="request",
            )

    @property
    def needs_columns(self) -> frozenset[str]:  # type: ignore[override]  # depends on a parameter
        """The column that the reading ranks by."""
        return READINGS[self.by].needs

    @property
    def uses_columns(self) -> frozenset[str]:  # type: ignore[override]  # depends on a parameter
        """Packing knows about transfer times when it is told."""
        return READINGS[self.by].uses

    @property
    def may_underfill(self) -> bool:  # type: ignore[override]  # depends on a parameter
        """A deadline may admit fewer than asked."""
        return READINGS[self.by].may_underfill

    @property
    def reports_probability(self) -> bool:  # type: ignore[override]  # depends on a parameter
        """Ties are drawn with a known chance; packing has no closed form."""
        return READINGS[self.by].reports_probability

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Choose by the reading."""
        reading = READINGS[self.by]
        deadline = ctx.deadline if self.deadline is None else self.deadline
        if self.request is not None:
            ctx = _requested(ctx, math.ceil(self.request * ctx.n_clients - SLACK), rng)
        if ctx.size == 0:
            return Selection(ctx.round, ctx.pool)
        chosen, probability = reading.choose(ctx, deadline, rng)
        reported = probability if reading.reports_probability else None
        return Selection(ctx.round, ctx.pool[chosen], reported)
