"""Checks by counting: probabilities equal frequencies, and no index is favoured.

A count is compared with its expectation by Bernstein's inequality at the level of five standard
deviations of a normal variable. It holds for every probability, also where few hits are expected.
"""

from __future__ import annotations

import numpy as np

from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import Array, FloatArray, RoundContext
from turnout.testing.harness import Subject, ToyFederation, contract, doing, expect, expect_valid

#: How many standard deviations a count may differ from its expectation.
SIGMAS = 5.0

#: Two reports of the same probability may differ by this rounding error.
ROUNDING = 1e-9


def margin(variance: Array) -> FloatArray:
    """Return how far a sum of independent hits may be from its mean, by Bernstein's inequality.

    Args:
        variance: The variance of the sum.

    """
    a = SIGMAS**2 / 2.0
    return a / 3.0 + np.sqrt(a * a / 9.0 + 2.0 * a * variance)


@contract
def check_probability(subject: Subject) -> None:
    """Compare reported probabilities with frequencies of ``select`` from the same state."""
    toy = ToyFederation(12, 4)
    everyone = np.ones(12, dtype=np.bool_)
    few = np.arange(12) % 5 != 2
    for n_before, available, repeats in ((0, everyone, 500), (6, everyone, 1500), (25, few, 1500)):
        selector = subject.ready(12)
        toy.play(selector, range(n_before))
        ctx = toy.context(selector, n_before, available=available)
        ctx = toy.ask(selector, ctx, stream(0, Purpose.POLL, n_before))
        with doing(f"after {n_before} rounds"):
            _expect_frequencies(selector, ctx, subject.times(repeats, least=100))


def _expect_frequencies(selector: Selector, ctx: RoundContext, repeats: int) -> None:
    rng = stream(1, Purpose.SELECT)
    hits = np.zeros((repeats, ctx.n_clients))
    reported = np.full(ctx.n_clients, np.nan)
    for draw in range(repeats):
        selection = selector.select(ctx, rng)
        if selection.probability is None:
            expect_valid(selector, ctx, selection)
            return
        chosen, p = selection.clients, selection.probability
        hits[draw, chosen] = 1.0
        change = np.abs(reported[chosen] - p)
        expect(
            not np.any(change > ROUNDING),
            "the same client was reported with different probabilities from the same state: "
            "report the chance of being chosen before the draw, or probability=None.",
        )
        reported[chosen] = p
    seen = np.flatnonzero(hits.any(axis=0))
    p = reported[seen]
    everyone = selector.chances(ctx)
    expect(
        everyone is None
        or (everyone.shape == (ctx.n_clients,) and np.allclose(everyone[seen], p, atol=ROUNDING)),
        "chances differs from the probabilities of select: return (n,) the same numbers, and those "
        "of the clients that were not drawn.",
    )
    expect(bool(np.all((p > 0.0) & (p <= 1.0))), "probability is outside (0, 1].")
    allowed = np.where(p >= 1.0 - ROUNDING, 0.5, margin(repeats * p * (1.0 - p)))
    odd = seen[np.abs(hits[:, seen].sum(axis=0) - repeats * p) > allowed]
    details = [
        f"client {i} reported {reported[i]:.4f}, chosen {hits[:, i].mean():.4f}" for i in odd
    ]
    expect(
        not details,
        f"probability is not the frequency of being chosen over {repeats} draws (5 sigma): "
        f"{'; '.join(details)}. Draw with turnout.sampling.exact_draw, or report None.",
    )
    _expect_no_tilt(hits[:, seen], p)


def _expect_no_tilt(hits: FloatArray, p: FloatArray) -> None:
    """Compare the sum over all clients: it shows a draw that slightly favours unlikely clients.

    Clients that are hit or missed fewer than 25 times are left out: their sum is not normal.
    """
    repeats = hits.shape[0]
    inside = repeats * np.minimum(p, 1.0 - p) >= 25.0
    of_draw = hits[:, inside] @ p[inside]
    expected = float(np.square(p[inside]).sum())
    off = float(of_draw.mean()) - expected
    allowed = SIGMAS * float(of_draw.std()) / np.sqrt(repeats) + ROUNDING
    expect(
        abs(off) <= allowed,
        f"the likely clients are chosen too {'often' if off > 0.0 else 'rarely'}: their "
        f"probabilities sum to {expected + off:.4f} a draw instead of {expected:.4f} (5 sigma over "
        f"{repeats} draws). Draw with turnout.sampling.exact_draw, or report None.",
    )


@contract
def check_relabelling(subject: Subject) -> None:
    """Equal clients have equal chances, and renaming the clients renames the chances."""
    _expect_equal_chances(subject)
    labels = stream(7, Purpose.INIT).permutation(12)
    repeats = subject.times(150, least=30)
    plain = _counts(subject, ToyFederation(12, 4), repeats)
    renamed = _counts(subject, ToyFederation(12, 4, labels=labels), repeats)
    expected = (plain[:, labels] + renamed) / 2.0
    variance = 2.0 * expected * (1.0 - expected / repeats)
    off = np.abs(plain[:, labels] - renamed)
    rounds, clients = np.nonzero(off > margin(variance))
    details = [
        f"client {i} in round {t}: {renamed[t, i] / repeats:.3f}, under its other name "
        f"{plain[t, labels[i]] / repeats:.3f}"
        for t, i in zip(rounds, clients, strict=True)
    ]
    expect(
        not details,
        f"the chance of being chosen depends on the index (5 sigma over {repeats} runs): "
        f"{'; '.join(details)}. Break ties at random, for example with turnout.sampling.top_m.",
    )


def _expect_equal_chances(subject: Subject) -> None:
    """Make all columns and answers equal: all clients must be chosen equally often."""
    toy, n = ToyFederation(12, 4), 12
    selector = subject.fresh()
    row = int(np.flatnonzero(toy.good)[0])
    columns = {
        name: np.repeat(values[row : row + 1], n, axis=0)
        for name, values in toy.context(selector, 0).columns.items()
    }
    ctx = toy.context(selector, 0, columns=columns, available=np.ones(n, dtype=np.bool_))
    repeats = subject.times(400, least=60)
    count = np.zeros(n)
    poll, choose = stream(2, Purpose.POLL), stream(2, Purpose.SELECT)
    for i in range(repeats):
        selector.prepare(n, seed=i)
        polled = selector.poll(ctx, poll)
        asked = ctx if polled is None else ctx.with_answers(polled, np.ones(len(polled)))
        count[selector.select(asked, choose).clients] += 1.0
    p = count.mean() / repeats
    is_odd = np.abs(count - repeats * p) > margin(np.array(repeats * p * (1.0 - p)))
    expect(
        not is_odd.any(),
        f"equal clients must have equal chances, but over {repeats} fresh states they were chosen "
        f"{count.astype(int).tolist()} times: break ties at random, not by index.",
    )


def _counts(subject: Subject, toy: ToyFederation, repeats: int) -> FloatArray:
    """Return how often each client is chosen in each of the first rounds of independent runs."""
    n_rounds = 3
    selector = subject.fresh()
    contexts = [toy.context(selector, t) for t in range(n_rounds)]
    poll, choose = stream(3, Purpose.POLL), stream(3, Purpose.SELECT)
    count = np.zeros((n_rounds, toy.n_clients))
    for i in range(repeats):
        selector.prepare(toy.n_clients, seed=i)
        for t, ctx in enumerate(contexts):
            selection = selector.select(toy.ask(selector, ctx, poll), choose)
            selector.observe(selection, toy.feedback(selector, selection))
            count[t, selection.clients] += 1.0
    return count
