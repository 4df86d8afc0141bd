"""A selector learns from its own selections, and from each of them once."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle

import numpy as np
import pytest

import turnout
from tests.core.test_persist import N_CLIENTS, SEED, same_state, world


def selected(selector: turnout.Selector, t: int = 0) -> turnout.Selection:
    ctx, rng = world(t), turnout.stream(SEED, turnout.Purpose.SELECT, t)
    polled = selector.poll(ctx, rng)
    if polled is not None:
        ctx = ctx.with_answers(polled, np.ones(polled.size))
    return selector.select(ctx, rng)


def outcome_of(selection: turnout.Selection) -> turnout.Outcome:
    ones = np.ones(selection.clients.size)
    metrics = dict.fromkeys(("loss", "loss_std", "loss_rms"), ones)
    return turnout.Outcome(np.zeros(selection.clients.size, dtype=int), ones, metrics)


@pytest.mark.parametrize("name", turnout.list_selectors(plugins=False))
def test_a_second_report_and_a_foreign_one_change_nothing(name):
    selector = turnout.make(name)
    selector.prepare(N_CLIENTS, SEED)
    first, second = selected(selector, 0), selected(selector, 1)
    selector.observe(second, outcome_of(second))  # late feedback in any order
    selector.observe(first, outcome_of(first))
    before = copy.deepcopy(selector)
    with pytest.raises(turnout.InvalidInput, match=r"observed by this .* already"):
        selector.observe(first, outcome_of(first))
    other = turnout.make("round-robin" if name == "random" else "random")
    other.prepare(N_CLIENTS, SEED)
    foreign = selected(other)
    with pytest.raises(turnout.InvalidInput, match=f"made by {type(other).__name__}, not by"):
        selector.observe(foreign, outcome_of(foreign))
    assert same_state(selector, before)


def test_a_twin_may_learn_the_same_and_copies_start_anew():
    selectors = [turnout.make("e3cs") for _ in range(2)]
    for selector in selectors:
        selector.prepare(N_CLIENTS, SEED)
    selection = selected(selectors[0])
    for selector in selectors:
        selector.observe(selection, outcome_of(selection))
    assert same_state(*selectors)
    for again in (
        pickle.loads(pickle.dumps(selection)),
        copy.deepcopy(selection),
        dataclasses.replace(selection),
    ):
        assert again.origin.makers == ()
        selectors[0].observe(again, outcome_of(again))


def test_a_report_that_fails_does_not_count():
    selector = turnout.make("e3cs")
    selector.prepare(N_CLIENTS, SEED)
    selection = selected(selector)
    with pytest.raises(turnout.InvalidInput, match="status"):
        selector.observe(selection, turnout.Outcome([0], [1.0]))
    selector.observe(selection, outcome_of(selection))


class PassesOn(turnout.Selector):
    """Returns the selection of another selector as it is."""

    def reset(self, n_clients):
        super().reset(n_clients)
        self._inner = turnout.make("e3cs")
        self._inner.reset(n_clients)

    def select(self, ctx, rng):
        return self._inner.select(ctx, rng)

    def observe(self, selection, outcome):
        self._inner.observe(selection, outcome)


def test_a_wrapper_may_pass_selections_on():
    wrapper = PassesOn()
    wrapper.reset(N_CLIENTS)
    selection = selected(wrapper)
    assert [maker.__name__ for maker in selection.origin.makers] == ["E3CS", "PassesOn"]
    wrapper.observe(selection, outcome_of(selection))
    with pytest.raises(turnout.InvalidInput, match="PassesOn already"):
        wrapper.observe(selection, outcome_of(selection))


def test_a_selection_keeps_no_selector_alive():
    selector = turnout.make("random")
    selector.reset(N_CLIENTS)
    selection = selected(selector)
    selector.observe(selection, outcome_of(selection))
    assert len(selection.origin.observers) == 1
    del selector
    gc.collect()
    assert len(selection.origin.observers) == 0
