"""Checks of single rounds: what ``select`` returns, and what it must not change."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from turnout.core.errors import TurnoutError
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import Array, RoundContext, Selection
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
