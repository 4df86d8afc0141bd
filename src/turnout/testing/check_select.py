"""Checks of single rounds: what ``select`` returns, and what it must not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from turnout.core.errors import TurnoutError
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import Array, FloatArray, RoundContext, Selection
from turnout.testing.harness import (
    Subject,
    ToyFederation,
    arrays_of,
    contract,
    doing,
    expect,
    expect_finite,
    expect_same,
    expect_valid,
    refused,
    twin,
)


@contract
def check_selection(subject: Subject) -> None:
    """Clients are unique, ascending, available and as many as asked."""
    toy = ToyFederation(12, 4)
    selector = subject.ready(12)
    for t in range(40):
        size = (4, 1, 7, 2, 12)[t % 5]
        with doing(f"round {t} with cohort_size {size}"):
            _whole_round(selector, toy, toy.context(selector, t, cohort_size=size))


def _whole_round(
    selector: Selector, toy: ToyFederation, ctx: RoundContext, *, is_silent: bool = False
) -> None:
    """Poll, select and observe; with ``is_silent`` no polled client answers."""
    t = ctx.round
    polled = selector.poll(ctx, stream(0, Purpose.POLL, t))
    if polled is not None:
        expect(
            bool(ctx.available[polled].all()) and np.unique(polled).size == polled.size,
            "poll must return available clients, each once: draw them from ctx.pool.",
        )
        answers = toy.fate(t).polled_loss[polled]
        if is_silent:
            answers = np.full(polled.size, np.nan)
        ctx = dataclasses.replace(ctx, polled=polled, polled_loss=answers)
    selection = selector.select(ctx, stream(0, Purpose.SELECT, t))
    expect_valid(selector, ctx, selection)
    selector.observe(selection, toy.feedback(selector, selection))


@contract
def check_edge_rounds(subject: Subject) -> None:
    """Unusual rounds work, with a fresh state and after some rounds."""
    lone = ToyFederation(1, 1)
    with doing("n = 1"):
        _edges_survive(subject, lone, {"n = 1": {"available": np.ones(1, dtype=np.bool_)}})
    toy = ToyFederation(12, 4)
    _edges_survive(subject, toy, _edges(toy, subject.fresh()))


def _edges(toy: ToyFederation, selector: Selector) -> Mapping[str, Mapping[str, Any]]:
    """Return changes of the context by the name of the situation."""
    n = toy.n_clients
    everyone, nobody = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    single, few = np.arange(n) == 5, np.arange(n) % 4 == 1
    columns = toy.context(selector, 0).columns
    unknown = {name: np.full(values.shape, np.nan) for name, values in columns.items()}
    partly = {name: values.astype(np.float64) for name, values in columns.items()}
    for values in partly.values():
        values[::2] = np.nan
    return {
        "an ordinary round": {"available": everyone},
        "m = 1": {"available": everyone, "cohort_size": 1},
        "m = n": {"available": everyone, "cohort_size": n},
        "m > n": {"available": everyone, "cohort_size": n + 3},
        "m > available": {"available": few, "cohort_size": 8},
        "one available": {"available": single},
        "nobody available": {"available": nobody},
        "all columns NaN": {"available": everyone, "columns": unknown},
        "half of each column NaN": {"available": everyone, "columns": partly},
        "all columns NaN and few available": {"available": few, "columns": unknown},
    }


def _edges_survive(
    subject: Subject, toy: ToyFederation, edges: Mapping[str, Mapping[str, Any]]
) -> None:
    for situation, changes in edges.items():
        for n_before, is_silent in ((0, False), (5, False), (0, True), (5, True)):
            selector = subject.ready(toy.n_clients)
            toy.play(selector, range(n_before))
            answers = ", all polled NaN" if is_silent else ""
            with doing(f"{situation}, after {n_before} rounds{answers}"):
                ctx = toy.context(selector, n_before, **changes)
                _whole_round(selector, toy, ctx, is_silent=is_silent)
                expect_finite(selector)
                _whole_round(selector, toy, toy.context(selector, n_before + 1))


@contract
def check_select_keeps_state(subject: Subject) -> None:
    """``select`` and ``poll`` change nothing and depend on state, context and generator only."""
    toy = ToyFederation(12, 4)
    for n_before in (0, 10):
        selector = subject.ready(12)
        toy.play(selector, range(n_before))
        state, parameters = selector.state(), selector.parameters
        first = _selections(selector, toy, n_before)
        message = (
            "select or poll changed {odd}: what advances per round advances in observe, or is "
            "computed from ctx.round."
        )
        expect_same(state, selector.state(), message)
        expect(selector.parameters == parameters, "select or poll changed a parameter.")
        _expect_repeated(
            first,
            _selections(selector, toy, n_before),
            "the same context and generator gave another selection: draw from the rng that "
            "select is given, never from global numpy or random.",
        )
        _expect_repeated(
            first,
            _selections(twin(selector), toy, n_before),
            "a selector with the same state selects differently: everything learned must be "
            "in attributes whose names end in '_'.",
        )
        other = ToyFederation(13, 4)
        advice = (
            "a context of 13 clients was accepted by a selector that was reset for 12: raise "
            "turnout.InvalidInput."
        )
        with refused(TurnoutError, selector, "context", advice):
            selector.select(other.context(selector, 0), stream(0, Purpose.SELECT))


def _selections(selector: Selector, toy: ToyFederation, start: int) -> list[Selection]:
    return [toy.choose(selector, t)[1] for t in range(start, start + 8)]


def _expect_repeated(first: list[Selection], second: list[Selection], message: str) -> None:
    for selection, repeated in zip(first, second, strict=True):
        whole = f"{message} Round {selection.round} differs in {{odd}}."
        expect_same(arrays_of(selection), arrays_of(repeated), whole)


@contract
def check_inputs_untouched(subject: Subject) -> None:
    """Nothing is written to an input, and the state keeps no reference to one."""
    toy = ToyFederation(12, 4)
    selector = subject.ready(12)
    for t in range(6):
        ctx = _private(toy.ask(selector, toy.context(selector, t), stream(0, Purpose.POLL, t)))
        _freeze(_arrays(ctx))
        with doing("poll and select with read-only inputs (copy an input before changing it)"):
            selector.poll(ctx, stream(0, Purpose.POLL, t))
            selection = selector.select(ctx, stream(0, Purpose.SELECT, t))
        outcome = toy.feedback(selector, selection)
        inputs = [*_arrays(ctx), *_arrays(selection), *_arrays(outcome)]
        _freeze(inputs)
        with doing(
            "observe with read-only inputs (copy an input before changing it, and put copies of "
            "the state into a selection)"
        ):
            selector.observe(selection, outcome)
        state = selector.state()
        for array in inputs:
            _overwrite(array)
        message = "{odd} changes when an input is reused: store a copy of the input."
        expect_same(state, selector.state(), message)


def _private(ctx: RoundContext) -> RoundContext:
    """Return the context with arrays of its own."""
    polled: dict[str, Any] = {}
    if ctx.polled is not None and ctx.polled_loss is not None:
        polled = {"polled": ctx.polled.copy(), "polled_loss": ctx.polled_loss.copy()}
    columns = {name: values.copy() for name, values in ctx.columns.items()}
    return dataclasses.replace(ctx, available=ctx.available.copy(), columns=columns, **polled)


def _arrays(value: object) -> Iterator[Array]:
    """Yield every array in the fields of a context, a selection or an outcome."""
    for field in dataclasses.fields(value):  # type: ignore[arg-type]  # all three are dataclasses
        content = getattr(value, field.name)
        items = content.values() if isinstance(content, Mapping) else (content,)
        yield from (item for item in items if isinstance(item, np.ndarray))


def _freeze(arrays: Iterable[Array]) -> None:
    for array in arrays:
        array.setflags(write=False)


def _overwrite(array: Array) -> None:
    """Change an array, as a runner that reuses its buffers does."""
    if array.base is not None and not array.base.flags.writeable:
        return
    array.setflags(write=True)
    array[...] = ~array if array.dtype.kind == "b" else array + 1


# Checks by counting -------------------------------------------------------------------------------


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
