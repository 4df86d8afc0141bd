"""The floor and the cap where rounds overlap, over hostile histories."""

from __future__ import annotations

import re

import numpy as np
import pytest

import turnout
from turnout.core.registry import make
from turnout.core.types import Outcome, RoundContext, Selection
from turnout.selectors import guarded, pace
from turnout.selectors._accounts import fair_share


class Spite(turnout.Selector):
    """Gives every place to the clients of the lowest numbers."""

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: ctx.size])


def worst_windows(shares, chosen, floor, cap):
    """Return the largest shortfall and excess of each client over all windows, by brute force."""
    n_choices = len(shares)
    short = np.zeros(shares[0].size)
    excess = np.zeros(shares[0].size)
    owed = np.cumsum([floor * s - x for s, x in zip(shares, chosen, strict=True)], axis=0)
    ahead = np.cumsum([x - cap * s for s, x in zip(shares, chosen, strict=True)], axis=0)
    start = np.zeros((1, shares[0].size))
    owed, ahead = np.vstack((start, owed)), np.vstack((start, ahead))
    for begin in range(n_choices):
        short = np.maximum(short, (owed[begin + 1 :] - owed[begin]).max(axis=0))
        excess = np.maximum(excess, (ahead[begin + 1 :] - ahead[begin]).max(axis=0))
    return short, excess


def overlapping_history(selector, n, places, n_choices, seed, *, is_available=1.0, hostile=True):
    """Let an adversary say who returns when; feedback comes when a choice is complete."""
    rng = np.random.default_rng(seed)
    selector.prepare(n, seed)
    busy, waiting = {}, {}  # the choice of each client at work; the clients due of each choice
    shares, chosen = [], []
    for t in range(n_choices):
        free = places - len(busy)
        if free:
            at_work = np.isin(np.arange(n), list(busy))
            here = ~at_work & (rng.random(n) < is_available)
            ctx = RoundContext(t, free, here, busy=at_work)
            selection = selector.select(ctx, np.random.default_rng((seed, t)))
            shares.append(np.where(here, fair_share(ctx), 0.0))
            taken = np.zeros(n)
            taken[selection.clients] = 1.0
            chosen.append(taken)
            waiting[t] = (selection, set(selection.clients.tolist()))
            busy |= dict.fromkeys(selection.clients.tolist(), t)
            if not selection.clients.size:
                selector.observe(selection, Outcome([], []))
        # the adversary keeps those with the highest numbers, or anyone, at work
        ends = sorted(busy)[: rng.integers(1, 3)] if hostile else list(busy)
        if not hostile:
            ends = [ends[i] for i in rng.choice(len(ends), min(2, len(ends)), replace=False)]
        for client in ends:
            number = busy.pop(client)
            selection, due = waiting[number]
            due.discard(client)
            if not due:
                s = selection.clients.size
                selector.observe(selection, Outcome(np.zeros(s, int), np.ones(s)))
    return shares, chosen


@pytest.mark.parametrize("hostile", [True, False])
@pytest.mark.parametrize(("n", "places"), [(12, 1), (12, 3), (20, 8), (9, 4)])
@pytest.mark.parametrize("floor", [0.3, 0.5])
@pytest.mark.parametrize("name", ["guarded", "pace"])
def test_the_bound_with_clients_at_work(name, floor, n, places, hostile):
    bound = floor * (n - 1) / (n - places + 1)
    assert bound + floor * places / n <= 1.0  # the condition of (9)
    for seed in range(3):
        kind = make("guarded", inner="random", floor=floor, cap=2.0)
        selector = kind if name == "guarded" else make("pace", floor=floor)
        shares, chosen = overlapping_history(selector, n, places, 250, seed, hostile=hostile)
        short, excess = worst_windows(shares, chosen, floor, 2.0)
        assert short.max() <= 1.0 + bound + 1e-9
        if name == "guarded":
            assert excess.max() <= 1.0 + bound + 1e-9


def test_the_bound_also_holds_with_an_inner_selector_that_is_unfair():
    for seed in range(4):
        selector = make(
            "guarded", inner="tests.selectors.test_guarded_overlap:Spite", floor=0.5, cap=2.0
        )
        shares, chosen = overlapping_history(selector, 15, 5, 300, seed)
        short, _ = worst_windows(shares, chosen, 0.5, 2.0)
        assert short.max() <= 1.0 + 0.5 * 14 / 11 + 1e-9
        assert short.max() > 0.5  # the history is hostile: without a floor it would grow


def test_the_general_bound_holds_when_clients_come_and_go():
    for seed in range(4):
        selector = make("guarded", inner="random", floor=0.8, cap=2.0)
        shares, chosen = overlapping_history(selector, 10, 6, 300, seed, is_available=0.5)
        short, _ = worst_windows(shares, chosen, 0.8, 2.0)
        assert short.max() <= 1.0 + 0.8 * 9 + 1e-9


@pytest.mark.parametrize("module", [guarded, pace])
def test_each_number_names_one_statement(module):
    text = " ".join(module.__doc__.split())
    numbers = re.findall(r"(?:[.:] )\((\d+)\) (?=[A-Zqc]|time|utility)", text)
    assert len(numbers) == len(set(numbers)) > 3
