"""Checks of the learned state: any feedback, late feedback, resuming, growth, long runs."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.arrays import COLUMN_LIMITS
from turnout.core.errors import InvalidInput, TurnoutError
from turnout.core.persist import load, save
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.types import LARGEST_REPORT, Array, Outcome, RoundContext, Selection, Status
from turnout.testing.harness import (
    METRICS,
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


def _report(
    selector: Selector, size: int, status: Status, duration: float, metric: float | None
) -> Outcome:
    """Return the outcome in which every chosen client has the same report."""
    names, sizes = selector.needs_metrics | {*METRICS}, selector.metric_sizes
    values = {
        name: np.full((size, sizes[name]) if name in sizes else size, metric)
        for name in (() if metric is None else names)
    }
    return Outcome(np.full(size, status, dtype=np.int8), np.full(size, duration), values)


#: Status, duration and metric that all chosen clients report.
_FEEDBACK: Mapping[str, tuple[Status, float, float | None]] = {
    "nobody completed, all failed": (Status.FAILED, 1.0, np.nan),
    "nobody completed, all silent": (Status.SILENT, np.nan, np.nan),
    "nobody completed, all late": (Status.LATE, 9.0, 1.0),
    "all completed": (Status.COMPLETED, 1.0, 1.0),
    "NaN metrics": (Status.COMPLETED, 1.0, np.nan),
    "no metrics at all": (Status.COMPLETED, 1.0, None),
    "zero duration": (Status.COMPLETED, 0.0, 1.0),
    "NaN duration": (Status.COMPLETED, np.nan, 1.0),
    "zero metrics": (Status.COMPLETED, 1.0, 0.0),
    "the largest metrics": (Status.COMPLETED, 1.0, LARGEST_REPORT),
    "the largest metrics and durations": (Status.LATE, LARGEST_REPORT, LARGEST_REPORT),
    "the smallest metrics and durations": (Status.COMPLETED, 1e-300, 1e-300),
}


@contract
def check_observe_survives(subject: Subject) -> None:
    """No legal feedback brings NaN or infinity into the state; illegal feedback is refused."""
    toy = ToyFederation(12, 4)
    for situation, report in _FEEDBACK.items():
        for n_before in (0, 5):
            selector = subject.ready(12)
            toy.play(selector, range(n_before))
            with doing(f"{situation}, after {n_before} rounds"):
                for t in range(n_before, n_before + 8):
                    selection = _select(selector, toy, t)
                    selector.observe(selection, _report(selector, selection.clients.size, *report))
                    expect_finite(selector)
                _select(selector, toy, n_before + 8)
    for value in (0.0, LARGEST_REPORT):
        with doing(f"columns of {value:g}"):
            _survives_columns(subject.ready(12), toy, value)
    selector = subject.ready(12)
    toy.play(selector, range(3))
    selection = _select(selector, toy, 3, available=np.ones(12, dtype=np.bool_))
    longer = _report(selector, selection.clients.size + 1, Status.COMPLETED, 1.0, 1.0)
    advice = "an outcome of another length than the selection was accepted: raise InvalidInput."
    with refused(TurnoutError, selector, "outcome", advice):
        selector.observe(selection, longer)


def _select(selector: Selector, toy: ToyFederation, t: int, **changes: Any) -> Selection:
    ctx, selection = toy.choose(selector, t, **changes)
    expect_valid(selector, ctx, selection)
    return selection


def _survives_columns(selector: Selector, toy: ToyFederation, value: float) -> None:
    for t in range(8):
        columns = {
            name: np.full(values.shape, min(value, COLUMN_LIMITS.get(name, value)))
            for name, values in toy.context(selector, t).columns.items()
        }
        selection = _select(selector, toy, t, columns=columns)
        size = selection.clients.size
        selector.observe(selection, _report(selector, size, Status.COMPLETED, 1.0, value))
        expect_finite(selector)


@contract
def check_late_feedback(subject: Subject) -> None:
    """Give feedback two rounds late and out of order; ``observe`` needs only the selection."""
    toy = ToyFederation(12, 4)
    selector = subject.ready(12)
    observer = twin(selector)  # gets the same feedback, but never selects
    waiting: list[tuple[Selection, dict[str, Array]]] = []
    for t in range(30):
        selection = _select(selector, toy, t)
        waiting.append((selection, arrays_of(selection)))
        while t % 3 == 2 and waiting:  # three rounds at once, the latest first
            late, as_made = waiting.pop()
            message = (
                f"{{odd}} of the selection of round {late.round} changed after it was made: put "
                "copies of the state into a selection."
            )
            expect_same(as_made, arrays_of(late), message)
            outcome = toy.feedback(selector, late)
            with doing(f"late feedback of round {late.round}"):
                selector.observe(late, outcome)
                expect_finite(selector)
                observer.observe(late, outcome)
            message = (
                "observe took something for {odd} from an earlier select: put what it needs into "
                "Selection.memo, so that it travels with the decision."
            )
            expect_same(selector.state(), observer.state(), message)


@contract
def check_save_and_load(subject: Subject) -> None:
    """Compare a run that is saved, loaded and continued with an uninterrupted one, bit for bit."""
    toy = ToyFederation(12, 4)
    whole = subject.ready(12)
    toy.play(whole, range(12))
    expect_finite(whole)  # a state file would refuse it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "state.npz"
        with doing("turnout.save"):
            save(whole, path)
        with doing("turnout.load(path) (a class must be importable: define it in a module)"):
            loaded = load(path)
        with doing("turnout.load(path, into=selector)"):
            restored = subject.ready(12, seed=1)
            load(path, into=restored)
    expected = toy.play(whole, range(12, 24))
    for way, selector in {"load(path)": loaded, "load(path, into=...)": restored}.items():
        for selection, resumed in zip(expected, toy.play(selector, range(12, 24)), strict=True):
            message = (
                f"after {way}, round {selection.round} differs in {{odd}}: everything learned must "
                "be in attributes whose names end in '_' and allocated in reset."
            )
            expect_same(arrays_of(selection), arrays_of(resumed), message)
        message = f"after {way} and 12 more rounds the state differs in {{odd}}."
        expect_same(whole.state(), selector.state(), message)


@contract
def check_grow(subject: Subject) -> None:
    """``grow`` keeps the old rows, and the new clients, which are the best, are chosen."""
    n_old, n_new = 8, 12
    before_growth = ToyFederation(n_old, 4, good=np.zeros(n_old, dtype=np.bool_))
    for n_before in (1, 2, 5, 10):
        selector = subject.ready(n_old)
        before_growth.play(selector, range(n_before))
        before = selector.state()
        advice = "grow to fewer clients was accepted: raise turnout.InvalidInput."
        with refused(InvalidInput, selector, "grow", advice):
            selector.grow(selector.n_clients - 1)
        selector.grow(n_new)
        expect(selector.n_clients == n_new, f"grow({n_new}) left n_clients = {selector.n_clients}.")
        _expect_old_rows(before, selector.state())
    toy = ToyFederation(n_new, 4, good=np.arange(n_new) >= n_old)
    chosen = np.concatenate([s.clients for s in toy.play(selector, range(10, 160))])
    never = sorted(set(range(n_old, n_new)) - set(chosen.tolist()))
    expect(
        not never,
        f"of the new clients {never} were not chosen in 150 rounds although they are the best: "
        "give new rows the state of a client that was never seen.",
    )


def _expect_old_rows(before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
    for name in sorted(before.keys() - {"n_clients_"}):
        rows = tuple(slice(0, length) for length in before[name].shape)
        same_rank = after[name].ndim == before[name].ndim
        kept = np.array(after[name][rows]) if same_rank else after[name]
        message = "grow changed the old rows of {odd}: let Stateful.grow copy them."
        expect_same({name: before[name]}, {name: kept}, message)


@contract
def check_long_run(subject: Subject) -> None:
    """After 5,000 rounds the state is finite and not larger than after 500."""
    n_rounds = subject.times(5000, least=300)
    n_early = min(500, n_rounds // 2)
    toy = ToyFederation(10, 3)
    selector = subject.ready(10)
    poll, choose = stream(0, Purpose.POLL), stream(0, Purpose.SELECT)
    early = 0
    for t in range(n_rounds):
        ctx: RoundContext = toy.ask(selector, toy.context(selector, t), poll)
        selection = selector.select(ctx, choose)
        selector.observe(selection, toy.feedback(selector, selection))
        if t + 1 == n_early:
            expect_finite(selector)
            early = _footprint(vars(selector))
    with doing(f"{n_rounds} rounds"):
        expect_finite(selector)
    late = _footprint(vars(selector))
    expect(
        late <= early,
        f"the selector grew from {early} bytes after {n_early} rounds to {late} after {n_rounds}: "
        "keep sums, discounted means or a bounded window instead of a history.",
    )


def _footprint(value: object) -> int:
    """Return roughly how many bytes an attribute holds."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_footprint(item) for item in value.values())
    if isinstance(value, Collection):
        return sum(8 + _footprint(item) for item in value)
    return 8
