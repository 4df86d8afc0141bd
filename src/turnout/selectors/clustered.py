"""Clustered sampling: one client from each of m distributions, unbiased with less variance.

Paper:      Y. Fraboni, R. Vidal, L. Kameni, M. Lorenzi, Clustered Sampling: Low-Variance and
            Improved Representativity for Clients Selection in Federated Learning, ICML 2021,
            arXiv:2105.05883. We read the abstract and, line by line, the authors' code
            (Accenture/Labs-Federated-Learning), but not the whole text.
Setting:    The server knows num_samples. By similarity, the chosen clients report a sketch of their
            update (update_sketch). No horizon and no polls are needed.
Idea:       Drawing m times from one distribution (multinomial sampling) may draw the same kind of
            client again and again. Here the data of all clients are dealt to m urns of equal size.
            One client is drawn from each urn, in proportion to its data there. On average a client
            is drawn m times its share of the data, as before, but clients whose data are all in the
            same urn never take part together. Urns are filled by size (Alg. 1) or with groups of
            similar updates (Alg. 2).
Symbols:    num_samples = n_i, share = p_i, cohort_size = m, amount = m n_i / M, sketch_ = the
            representative gradient.
Equations:  select: Alg. 1 (by="size"), Alg. 2 (by="similarity"). observe: the last update of the
            chosen.
Deviations: 1. Groups are formed from sketches of the updates instead of the updates: angles are
            right to about sqrt(2 / sketch_size). A longer sketch comes closer.
            2. The authors' public code passes the matrix of angles to a function that reads its
            rows as points, so it compares clients by their angles to all others. of_rows=True does
            the same. The default compares two clients by the angle between them, as the text says.
            3. To form groups, all pairs of clients are compared. With more than 400 available
            clients, the signs of the first 16 numbers of the sketches take the place of groups: two
            clients agree in a sign with probability 1 - angle / pi. Urns are filled in the order of
            these signs, as a Gray code, so clients of an urn agree in the first of them. Every
            client keeps its chance.
            4. By similarity, clients with more than an urn fill whole ones first; the authors' code
            for Alg. 2 does not provide for them. It also deals the lightest groups first, and their
            clients in random order; here the heaviest come first, by size. In 60 random federations
            the variances of the two differed by less than 1 %.
            5. Unknown data sizes (NaN) count as the mean size. Clients of size 0 are drawn only if
            no client has any data.
            6. Silent clients are not avoided: the draw would no longer be unbiased.
Limits:     The mean must count every draw alike: train with MeanReturned("equal"), which counts a
            client that two urns gave twice. Failures bias it, as they bias every draw.
Cost:       O(n log n) select by size; by similarity O(n), and O(n^2) up to 400 clients. O(m)
            observe; state (8 d) n bytes by similarity, for sketches of d numbers.
Checked:    By hand, against a slow implementation of both algorithms, and for unbiasedness and a
            smaller variance than that of multinomial sampling, in
            tests/selectors/test_clustered.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from turnout.core.domains import Count, Flag
from turnout.core.registry import register
from turnout.core.selector import Selector
from turnout.core.stateful import Range
from turnout.core.types import (
    LARGEST_REPORT,
    Array,
    FloatArray,
    IntArray,
    Outcome,
    RoundContext,
    Selection,
)
from turnout.sampling import known_weights
from turnout.sampling.linkage import light_groups, row_distances

#: Clients whose pairs are compared; distances between more would take too long.
MOST_GROUPED = 400
#: Signs that stand for the direction of an update if there are more clients, at most 16.
N_SIGNS = 16
#: Amounts of an urn that are lost to rounding.
_TINY = 1e-12


@register("clustered")
class Clustered(Selector):
    """Draw one client from each of m urns that share all data.

    Args:
        by: ``"size"`` fills urns in the order of data sizes (Alg. 1), ``"similarity"`` with groups
            of clients whose last updates point the same way (Alg. 2).
        sketch_size: Numbers of a sketch, by similarity only. Try 64.
        of_rows: Whether clients are compared by their angles to all others, as in the authors' code
            (deviation 2). Keep False.
    """

    whole_cohorts = "it deals the data of all clients to as many urns as the cohort has places"
    may_underfill = True
    needs_columns = frozenset({"num_samples"})
    reports_probability = True
    expected_check_failures = MappingProxyType(
        {"learns": "every client keeps the chance of its data; groups only spread the draws"}
    )
    state_ranges = MappingProxyType({"sketch_": Range(-LARGEST_REPORT, LARGEST_REPORT)})

    def __init__(
        self,
        *,
        by: Literal["size", "similarity"] = "similarity",
        sketch_size: Count = 64,
        of_rows: Flag = False,
    ) -> None:
        self.by = by
        self.sketch_size = sketch_size
        self.of_rows = of_rows

    @property
    def needs_metrics(self) -> frozenset[str]:  # type: ignore[override]  # depends on a parameter
        """Sketches, by similarity."""
        return frozenset({"update_sketch"} if self.by == "similarity" else ())

    @property
    def metric_sizes(self) -> Mapping[str, int]:  # type: ignore[override]  # depends on a parameter
        """The length of the sketches."""
        return {"update_sketch": self.sketch_size} if self.by == "similarity" else {}

    def reset(self, n_clients: int) -> None:
        """All updates are zero, as in the paper before the first round."""
        super().reset(n_clients)
        if self.by == "similarity":
            self.sketch_ = np.zeros((n_clients, self.sketch_size))

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw a client from each urn."""
        size = ctx.of_pool(known_weights(ctx.column("num_samples")))
        if ctx.size == 0:
            return Selection(ctx.round, ctx.pool[:0], np.zeros(0))
        total = float(size.sum())
        amount = ctx.size * (size / total if total > 0.0 else np.full(size.size, 1.0 / size.size))
        group = code = None
        if self.by == "similarity" and size.size <= MOST_GROUPED:
            group = self._groups(self.sketch_[ctx.pool], amount)
        elif self.by == "similarity":
            code = sign_code(ctx.of_pool(self.sketch_[:, :N_SIGNS]))
        client, urn, share = fill_urns(amount, ctx.size, group, code)
        ends = np.cumsum(share)
        first = np.searchsorted(urn, np.arange(ctx.size))
        start = np.where(first > 0, ends[first - 1], 0.0)
        span = np.bincount(urn, share, minlength=ctx.size)
        drawn = np.searchsorted(ends, start + rng.random(ctx.size) * span, side="right")
        last = np.append(first[1:], urn.size) - 1
        chosen, times = np.unique(client[np.clip(drawn, first, last)], return_counts=True)
        is_chosen = np.zeros(size.size, dtype=np.bool_)
        is_chosen[chosen] = True
        theirs = np.flatnonzero(is_chosen[client])
        with np.errstate(divide="ignore"):
            missed = np.log1p(-np.minimum(share[theirs], 1.0))
        chance = -np.expm1(np.bincount(np.searchsorted(chosen, client[theirs]), missed))
        return Selection(ctx.round, ctx.pool[chosen], chance, {"multiplicity": times})

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Remember the updates of the chosen."""
        if self.by == "similarity":
            sent = outcome.metric("update_sketch", self.sketch_size)
            answered = ~np.isnan(sent[:, 0])  # a vector is whole or missing
            self.sketch_[selection.clients[answered]] = sent[answered]

    def _groups(self, sketch: FloatArray, amount: FloatArray) -> IntArray:
        """Return groups of similar clients that fit into an urn."""
        angle = angles(sketch)
        if self.of_rows:
            angle = row_distances(angle)
        return light_groups(angle, amount, 1.0 + _TINY)


def angles(sketch: FloatArray) -> FloatArray:
    """Return (n, n) angles between vectors; 0 to and from a vector of zeros, as in the code.

    Args:
        sketch: (n, d) the vectors.
    """
    largest = np.abs(sketch).max(axis=1, keepdims=True)
    scaled = sketch / np.where(largest > 0.0, largest, 1.0)
    length = np.linalg.norm(scaled, axis=1)
    unit = scaled / np.where(length > 0.0, length, 1.0)[:, None]
    found = np.arccos(np.clip(unit @ unit.T, -1.0, 1.0))
    is_zero = length == 0.0
    found[is_zero] = 0.0
    found[:, is_zero] = 0.0
    np.fill_diagonal(found, 0.0)
    return 0.5 * (found + found.T)


def sign_code(vectors: FloatArray) -> Array:
    """Return (n,) unsigned codes of the signs; neighbours in their order differ in few signs.

    Args:
        vectors: (n, k) for k up to 16.
    """
    is_negative = np.zeros((len(vectors), 16), dtype=np.bool_)
    np.less(vectors, 0.0, out=is_negative[:, : vectors.shape[1]])
    code = np.packbits(is_negative.reshape(-1)).view(">u2").astype(np.uint16)
    for shift in (8, 4, 2, 1):  # the place of a Gray code in its order
        code ^= code >> shift
    return code


def fill_urns(
    amount: FloatArray, n_urns: int, group: IntArray | None = None, code: Array | None = None
) -> tuple[IntArray, IntArray, FloatArray]:
    """Return the pieces of all urns, urn after urn: client, urn, and its share of the urn.

    By size, the amounts are laid end to end, the largest first (Alg. 1). Otherwise clients with
    more than an urn fill whole ones first. The heaviest groups begin the urns that are left, and
    everything else fills them up: other groups by weight, then clients by size.

    Args:
        amount: (n,) m n_i / M; sums to m.
        n_urns: m.
        group: (n,) groups of the clients, from 0; None has none.
        code: (n,) the order in which urns are filled; None is by groups and by size.
    """
    is_by_size = group is None and code is None
    whole = np.zeros(amount.size, dtype=np.int64)
    if not is_by_size:
        whole = np.floor(amount + _TINY).astype(np.int64)
    rest = np.maximum(amount - whole, 0.0)
    rest[rest < _TINY] = 0.0
    n_whole = int(whole.sum())
    n_left, begins = n_urns - n_whole, np.zeros(0, dtype=np.int64)
    first, room = begins, np.ones(n_left)
    if group is not None:
        weight = np.bincount(group, rest)
        rank = np.empty(weight.size, dtype=np.int64)
        rank[np.argsort(-weight, kind="stable")] = np.arange(weight.size)
        order = np.lexsort((-rest, rank[group]))
        order = order[rest[order] > 0.0]
        n_begun = np.searchsorted(rank[group[order]], min(n_left, weight.size))
        begins, order = order[:n_begun], order[n_begun:]
        first = rank[group[begins]]
        room = np.maximum(room - np.bincount(first, rest[begins], minlength=n_left), 0.0)
    else:
        order = np.argsort(-rest if code is None else code, kind="stable")
        order = order[rest[order] > 0.0]
    dealt, their_urn, their_share = _dealt(order, rest[order], room)
    client = np.concatenate((np.repeat(np.arange(amount.size), whole), begins, dealt))
    urn = np.concatenate((np.arange(n_whole), n_whole + first, n_whole + their_urn))
    share = np.concatenate((np.ones(n_whole), rest[begins], their_share))
    if begins.size:
        by_urn = np.argsort(urn, kind="stable")
        client, urn, share = client[by_urn], urn[by_urn], share[by_urn]
    return client, urn, share


def _dealt(
    clients: IntArray, amount: FloatArray, room: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    """Lay amounts end to end into the room that urns have left, and cut them at its borders."""
    if not clients.size:
        return clients, clients, np.zeros(0)
    ends, borders = np.cumsum(amount), np.cumsum(room)
    borders = borders * (ends[-1] / borders[-1])  # equal but for rounding
    cut = np.searchsorted(ends, borders)  # a client that ends at a border is not cut there
    cuts = np.insert(ends, cut, borders)
    who = np.insert(np.arange(clients.size), cut, np.minimum(cut, clients.size - 1))
    urn = np.repeat(np.arange(room.size), np.diff(cut + np.arange(1, room.size + 1), prepend=0))
    last = cuts.size - urn.size
    urn = np.append(urn, np.full(last, room.size - 1))
    length = np.diff(cuts, prepend=0.0)
    kept = length > _TINY
    return clients[who[kept]], urn[kept], length[kept]
