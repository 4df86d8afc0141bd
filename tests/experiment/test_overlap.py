"""Rounds that overlap: by hand, against a slow reference, resumed, and what is refused."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np
import pytest

import turnout
from tests.references import refl_slow
from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.types import Outcome, Selection, Status
from turnout.experiment.loop import Progress, rounds
from turnout.experiment.overlap import PATIENCE, overlapping
from turnout.worlds import (
    AdaptiveDeadline,
    Bernoulli,
    Buffered,
    ConstantWeight,
    DeviationWeight,
    Environment,
    FirstK,
    FixedDeadline,
    FixedTime,
    HingeWeight,
    History,
    LinearContextual,
    PolynomialWeight,
    Reliable,
    SemiSynchronous,
    Synchronous,
    Timing,
    Volatility,
    named_world,
)


class Listed(turnout.Selector):
    """Takes the available clients with the lowest numbers, and notes what it is told."""

    def reset(self, n_clients):
        super().reset(n_clients)
        self.told = []

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: ctx.size])

    def observe(self, selection, outcome):
        self.told.append((selection.round, selection.clients.tolist(), outcome.status.tolist()))


@dataclass(frozen=True)
class Seconds(Timing):
    """The same seconds for a client in every choice."""

    seconds: tuple[float, ...]

    def column(self, name, moment):
        return self.duration(moment)

    def duration(self, moment):
        return np.array(self.seconds)


@dataclass(frozen=True)
class Fails(Volatility):
    """These clients crash in every choice."""

    clients: tuple[int, ...]

    def success_rate(self, moment):
        return self.survived(moment).astype(float)

    def survived(self, moment):
        return ~np.isin(np.arange(moment.n_clients), self.clients)


def world(*seconds, fails=(), **more):
    return Environment(
        len(seconds), volatility=Fails(tuple(fails)), timing=Seconds(seconds), **more
    )


def played(schedule, environment, n_rounds, cohort_size=None, selector=None, **more):
    selector = Listed() if selector is None else selector
    size = schedule.answers(cohort_size or 1)
    records = overlapping(
        selector, environment, schedule=schedule, cohort_size=size, n_rounds=n_rounds, **more
    )
    return selector, list(records)


def test_buffered_by_hand():
    # Five clients take 1, 2, 4, 8 and 8 s; two answers fill the buffer, three are at work. Choices:
    # 0 at 0 s takes 0, 1, 2. 0 ends at 1 s, choice 1 takes 0 again (2 s). At 2 s: 1 (choice 0)
    # and 0 (choice 1). Buffer after 0 at 1 s and 1 at 2 s: aggregated, version 1. Then 0 (choice 1)
    # at 2 s starts the next buffer, on version 0: staleness 1. Then two places are free at 2 s:
    # choice 2 takes 0 and 1 on version 1. 0 ends at 3 s: buffer full, aggregated, staleness 0.
    selector, records = played(Buffered(2, 3), world(1.0, 2.0, 4.0, 8.0, 8.0), 3)
    first, second, third = (record.row for record in records)
    assert first.clients.tolist() == [0, 1]
    assert first.length_s == 2.0
    assert first.overlap.choice.tolist() == [0, 0]
    assert first.overlap.staleness.tolist() == [0, 0]
    assert first.overlap.busy_s == 3 * 2.0
    assert second.clients.tolist() == [0, 0]
    assert second.length_s == 1.0
    assert second.overlap.choice.tolist() == [1, 2]
    assert second.overlap.staleness.tolist() == [1, 0]
    assert second.overlap.began_s.tolist() == [1.0, 2.0]
    assert records[1].answers.weight.tolist() == [2**-0.5, 1.0]
    # choice 3 takes 0 at 3 s. At 4 s end 2 (choice 0), 1 (choice 2) and 0 (choice 3).
    assert third.clients.tolist() == [2, 1]
    assert third.length_s == 1.0
    assert third.overlap.staleness.tolist() == [2, 1]
    # choice 0 is complete when client 2 has answered; the single ones at once
    assert selector.told == [(1, [0], [0]), (0, [0, 1, 2], [0, 0, 0]), (2, [0, 1], [0, 0])]


def test_semi_synchronous_by_hand():
    # A period is 3 s. 0, 1, 2 start at 0 s and take 1, 4 and 7 s. At 3 s only 0 is done, and its
    # place goes to 0 again. Client 1 ends at 4 s and counts in the second round, 2 at 7 s in the
    # third, as does 1 again, which started at 6 s (until 10 s, so in the fourth).
    # Answers of the same instant are ordered by their choices.
    schedule = SemiSynchronous(3.0, ConstantWeight())
    _, records = played(schedule, world(1.0, 4.0, 7.0, 9.0), 4, cohort_size=3)
    rows = [record.row for record in records]
    assert [row.clients.tolist() for row in rows] == [[0], [1, 0], [2, 0], [1, 0]]
    assert [row.overlap.staleness.tolist() for row in rows] == [[0], [1, 0], [2, 0], [1, 0]]
    assert [row.overlap.choice.tolist() for row in rows] == [[0], [0, 1], [0, 2], [2, 3]]
    assert [row.length_s for row in rows] == [3.0] * 4
    assert [row.overlap.busy_s for row in rows] == [1 + 3 + 3, 1 + 1 + 3, 1 + 3 + 1, 1 + 1 + 3]


def test_late_work_is_used_by_hand():
    # A deadline of 2 s. 0 and 1 start; 1 takes 5 s. It is busy in the next two rounds, and its
    # answer counts in the third (4 s .. 6 s).
    schedule = Synchronous("use", PolynomialWeight(1.0))
    environment, policy = world(1.0, 5.0, 2.0, 2.0), FixedDeadline(2.0)
    selector, records = played(schedule, environment, 3, cohort_size=2, policy=policy)
    assert [record.row.clients.tolist() for record in records] == [[0], [0, 2], [1, 0, 2]]
    last = records[2]
    assert last.row.length_s == 2.0
    late = last.row.clients.tolist().index(1)
    assert last.answers.staleness[late] == 2
    assert last.answers.weight[late] == 1 / 3
    assert last.row.status.tolist() == [0, 0, 0]
    assert last.row.duration[late] == 5.0
    assert [number for number, *_ in selector.told] == [1, 0, 2]


def test_the_server_waits_for_the_next_client_if_everybody_is_at_work():
    # Two clients of 50 s and a deadline of 2 s: both are chosen at once, and nobody is left.
    environment, policy = world(50.0, 50.0), FixedDeadline(2.0)
    _, records = played(Synchronous("use"), environment, 3, cohort_size=2, policy=policy)
    assert [record.row.length_s for record in records] == [2.0, 48.0, 2.0]
    assert [record.row.clients.tolist() for record in records] == [[], [0, 1], []]


def test_a_resumed_run_knows_who_could_be_reached():
    environment = Environment(
        3, seed=1, availability=Bernoulli(0.6), timing=Seconds((9.5, 9.5, 9.5))
    )
    schedule = SemiSynchronous(1.0)
    whole = played(schedule, environment, 12, cohort_size=3)[1]
    for cut in range(1, 11):
        selector, progress = Listed(), Progress(3)
        records = overlapping(
            selector, environment, schedule=schedule, cohort_size=3, n_rounds=12, progress=progress
        )
        for _ in range(cut):
            next(records)
        again = Progress.from_state(3, progress.state())
        rest = overlapping(
            selector,
            environment,
            schedule=schedule,
            cohort_size=3,
            n_rounds=12,
            start=cut,
            progress=again,
        )
        for record, expected in zip(rest, whole[cut:], strict=True):
            np.testing.assert_array_equal(record.row.available, expected.row.available)


def test_nccb_and_refl_run_where_clients_are_at_work():
    environment = Environment(8, seed=0, timing=Seconds((1.0, 2.0, 3.0, 4.0) * 2))
    for name in ("nccb", "refl"):
        played(Buffered(2, 4), environment, 20, selector=turnout.make(name))
    # Without forecasts, REFL sees that clients at work are still there.
    refl = turnout.make("refl")
    refl.reset(2)
    for t, busy in enumerate([[False, False], [True, False], [False, False]]):
        at_work = np.array(busy)
        ctx = turnout.RoundContext(t, 1, ~at_work, busy=at_work)
        selection = refl.select(ctx, np.random.default_rng(t))
        refl.observe(selection, Outcome([Status.COMPLETED], [1.0]))
    assert refl.stays_.tolist() == refl.chances_.tolist() == [2, 2]


def test_failures_and_deadlines_free_places():
    # Client 0 crashes after 1 s without a word: the server gives it up after 3 s. Client 1 needs
    # 5 s and is given up too. Client 2 answers after 2 s.
    environment = world(1.0, 5.0, 2.0, fails=[0])
    _selector, records = played(Buffered(1, 3), environment, 2, policy=FixedDeadline(3.0))
    first, second = (record.row for record in records)
    assert first.clients.tolist() == [2]
    assert first.length_s == 2.0
    # 2 again from 2 s to 4 s; at 3 s 0 and 1 are given up and start again
    assert second.clients.tolist() == [0, 1, 2]
    assert second.length_s == 2.0
    assert second.status.tolist() == [Status.SILENT, Status.LATE, Status.COMPLETED]
    assert second.spent.tolist() == [1.0, 3.0, 2.0]
    assert records[1].answers.clients.tolist() == [2]  # who is given up has no part in the model
    # With an error message, the place is free at once: 0 starts again at 1 s. It fails again at
    # 2 s, but client 2 answers first then, because its choice is older.
    told = world(1.0, 5.0, 2.0, fails=[0], reports_failure=True)
    _, records = played(Buffered(1, 3), told, 1, policy=FixedDeadline(3.0))
    assert records[0].row.clients.tolist() == [0, 2]
    assert records[0].row.status.tolist() == [Status.FAILED, Status.COMPLETED]


def test_busy_clients_are_in_the_context():
    seen = []

    class Watches(Listed):
        def select(self, ctx, rng):
            seen.append((ctx.cohort_size, ctx.busy.tolist(), ctx.available.tolist()))
            return super().select(ctx, rng)

    played(Buffered(1, 2), world(1.0, 3.0, 3.0), 2, selector=Watches())
    assert seen[0] == (2, [False] * 3, [True] * 3)
    assert seen[1] == (1, [False, True, False], [True, False, True])


def test_nobody_answers_and_rounds_end():
    environment = world(1.0, 1.0, fails=[0, 1])
    _, records = played(Buffered(1, 2), environment, 2)
    assert [record.row.clients.size for record in records] == [PATIENCE, PATIENCE]
    assert not np.any(records[0].row.status == Status.COMPLETED)
    assert records[0].answers.clients.size == 0
    empty = Environment(3, availability=Bernoulli(1e-12))
    _, records = played(Buffered(1, 2), empty, 2)
    assert [record.row.clients.size for record in records] == [0, 0]
    assert [record.row.length_s for record in records] == [0.0, 0.0]


# --------------------------------------------------------------------------------------------------
# A slow reference: a heap of single answers, dictionaries, one client at a time.
# --------------------------------------------------------------------------------------------------


def slow_buffered(selector, environment, schedule, n_rounds, deadline=math.inf):
    """Return (client, status, staleness, choice, began) of every round, and the lengths."""
    n, seed = environment.n_clients, environment.seed
    selector.prepare(n, seed)
    heap, busy, due, told, past = [], set(), {}, {}, History.fresh(n)
    t = version = 0
    now = 0.0
    log, lengths = [], []
    for _ in range(n_rounds):
        buffer, began_round, n_answers = [], now, 0
        while n_answers < schedule.size:
            if not heap or heap[0][0] > now:
                free = schedule.concurrency - len(busy)
                if free:
                    names = selector.needs_columns | selector.uses_columns
                    ctx = environment.context(t, free, past, columns=names, deadline=deadline)
                    here = ctx.available.copy()
                    here[list(busy)] = False
                    at_work = np.isin(np.arange(n), list(busy))
                    ctx = turnout.RoundContext(t, free, here, deadline, ctx.columns, busy=at_work)
                    selection = selector.select(ctx, stream(seed, Purpose.SELECT, t))
                    fate = environment.fate(t, past)
                    past.record(selection.clients)
                    due[t] = [selection, {}]
                    for client in selection.clients.tolist():
                        seconds, lives = fate.duration[client], fate.survived[client]
                        in_time = seconds <= deadline
                        if lives and in_time:
                            status, ends = Status.COMPLETED, now + seconds
                        elif lives:
                            status, ends = Status.LATE, now + deadline
                        elif in_time and fate.reports_failure:
                            status, ends = Status.FAILED, now + seconds
                        else:
                            status = Status.SILENT
                            ends = now + (seconds if deadline == math.inf else deadline)
                        heapq.heappush(heap, (ends, t, client, status, seconds, now, version))
                        busy.add(client)
                    if not selection.clients.size:
                        selector.observe(selection, Outcome([], []))
                    t += 1
                if not heap:
                    continue
            ends, choice, client, status, seconds, began, seen = heapq.heappop(heap)
            now = ends
            busy.discard(client)
            buffer.append((client, int(status), version - seen, choice, began))
            n_answers += status == Status.COMPLETED
            heard = status in (Status.COMPLETED, Status.FAILED)
            told.setdefault(choice, {})[client] = (status, seconds if heard else math.nan)
            selection = due[choice][0]
            if len(told[choice]) == selection.clients.size:
                ends_of = [told[choice][i] for i in selection.clients.tolist()]
                metrics = {}
                for name in ("loss_rms", "loss"):
                    if name in selector.needs_metrics:
                        values = environment.metrics(choice)[name][selection.clients]
                        done = [status == Status.COMPLETED for status, _ in ends_of]
                        metrics[name] = np.where(done, values, np.nan)
                outcome = Outcome([s for s, _ in ends_of], [d for _, d in ends_of], metrics)
                selector.observe(selection, outcome)
        version += 1
        log.append(buffer)
        lengths.append(now - began_round)
    return log, lengths


@pytest.mark.parametrize("name", ["random", "e3cs", "pace", "guarded", "oort"])
@pytest.mark.parametrize("deadline", [math.inf, 6.0])
def test_buffered_equals_the_slow_reference(name, deadline):
    environment = Environment(
        30,
        5,
        Bernoulli(0.8),
        named_world("volatile").example.volatility,
        LinearContextual(),
        reports_failure=deadline < math.inf,
    )
    schedule = Buffered(4, 9)
    log, lengths = slow_buffered(turnout.make(name), environment, schedule, 40, deadline)
    _, records = played(
        schedule, environment, 40, selector=turnout.make(name), policy=FixedDeadline(deadline)
    )
    for record, expected, length in zip(records, log, lengths, strict=True):
        row = record.row
        found = zip(
            row.clients.tolist(),
            row.status.tolist(),
            row.overlap.staleness.tolist(),
            row.overlap.choice.tolist(),
            row.overlap.began_s.tolist(),
            strict=True,
        )
        assert list(found) == expected
        assert row.length_s == pytest.approx(length, abs=1e-9)


# --------------------------------------------------------------------------------------------------
# What must be the same as a synchronous run, or as a run that was not interrupted.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        (name, schedule)
        for name in ("random", "e3cs", "oort", "guarded", "clustered")
        for schedule in (Buffered(5, 5), SemiSynchronous(2.0), Synchronous("use"))
        if name != "clustered" or schedule.has_whole_cohorts  # others are refused, see below
    ],
)
def test_without_stragglers_every_schedule_is_synchronous(name, schedule):
    environment = Environment(20, 3, Bernoulli(0.9), Reliable(), FixedTime(2.0))
    sync = rounds(turnout.make(name), environment, cohort_size=5, n_rounds=30)
    _, records = played(schedule, environment, 30, 5, selector=turnout.make(name))
    for one, two in zip(sync, records, strict=True):
        for field in ("clients", "status", "duration", "spent", "length_s", "available"):
            np.testing.assert_array_equal(getattr(one.row, field), getattr(two.row, field))
        np.testing.assert_array_equal(one.row.probability, two.row.probability)


def kept(record):
    row = record.row
    overlap = [np.asarray(part).tolist() for part in row.overlap]
    return [row.clients.tolist(), row.status.tolist(), row.spent.tolist(), row.length_s, overlap]


_SCHEDULES = [
    (Buffered(4, 12), None),
    (Buffered(1, 10), FixedDeadline(5.0)),
    (SemiSynchronous(2.5), None),
    (Synchronous("use"), FirstK(share=0.5)),
    (Synchronous("use"), AdaptiveDeadline(0.5)),
]


@pytest.mark.parametrize(("schedule", "policy"), _SCHEDULES)
@pytest.mark.parametrize("name", ["random", "pace", "guarded", "oort", "mix", "k-linucb"])
def test_a_resumed_run_is_the_same(name, schedule, policy):
    environment = named_world("volatile").example
    size = schedule.answers(8)
    selector = turnout.make(name)
    if name == "mix":
        selector = turnout.make("mix", members={"pace": 0.5, "guarded": 0.5})
    again = selector.clone()
    settings = {"schedule": schedule, "cohort_size": size, "n_rounds": 40, "policy": policy}
    whole = [kept(record) for record in overlapping(again, environment, **settings)]
    progress = Progress(100)
    first = []
    for record in overlapping(selector, environment, progress=progress, **settings):
        first.append(kept(record))
        if len(first) == 17:
            break
    saved, learned = progress.state(), selector.state()
    selector = again.clone()
    selector.reset(100)
    selector.load_state(learned)
    rest = overlapping(
        selector, environment, start=17, progress=Progress.from_state(100, saved), **settings
    )
    assert first + [kept(record) for record in rest] == whole


def test_places_are_never_exceeded_and_nobody_works_twice():
    environment = named_world("volatile").example
    _, records = played(Buffered(7, 20), environment, 150, selector=turnout.make("random"))
    clock, spans = 0.0, []
    for record in records:
        row = record.row
        held = np.where(np.isnan(row.duration), row.spent, row.duration)
        spans += zip(row.clients, row.overlap.began_s, row.overlap.began_s + held, strict=True)
        clock += row.length_s
        assert row.overlap.busy_s <= 20 * row.length_s + 1e-9
    events = sorted((time, change) for _, a, b in spans for time, change in ((a, 1), (b, -1)))
    level = np.cumsum([change for _, change in events])
    assert level.max() <= 20
    last = {}
    for client, begins, ends in sorted(spans, key=lambda span: span[1]):
        assert begins >= last.get(client, 0.0) - 1e-9
        last[client] = ends


# --------------------------------------------------------------------------------------------------
# What is refused before anything runs.
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Buffered(10, 5), "concurrency"),
        (lambda: Buffered(0, 5), "size"),
        (lambda: SemiSynchronous(0.0), "period_s"),
        (lambda: SemiSynchronous(math.inf), "period_s"),
        (lambda: Synchronous("keep"), "late"),
        (lambda: Buffered(1, 2, staleness=0.5), "staleness"),
        (lambda: Buffered(1, 2, mixes=1), "mixes"),
        (lambda: Buffered(1, 2, DeviationWeight(), mixes=True), "mixes"),
        (lambda: PolynomialWeight(-1.0), "a"),
        (lambda: HingeWeight(b=-1.0), "b"),
        (lambda: DeviationWeight(beta=1.5), "beta"),
        (lambda: DeviationWeight(scale=0.5), "scale"),
    ],
)
def test_bad_schedules_are_refused(make, field):
    with pytest.raises(InvalidInput) as error:
        make()
    assert error.value.field == field


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"policy": FirstK()}, "policy must be FixedDeadline"),
        ({"selector": turnout.make("clustered")}, "cannot fill single places"),
        ({"selector": turnout.make("guarded", min_gap=2)}, "limits participation"),
        ({"environment": world(0.0, 0.0, 0.0)}, "timing must say how long"),
        ({"environment": world(math.nan, math.nan, math.nan)}, "timing must say how long"),
        ({"schedule": Buffered(2, 4)}, "at most n_clients"),
        ({"schedule": SemiSynchronous(1.0), "cohort_size": None}, "cohort_size is missing"),
        ({"start": 3}, "needs progress"),
        ({"schedule": Synchronous()}, "must overlap"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(change, words):
    settings = {
        "selector": Listed(),
        "environment": world(1.0, 2.0, 3.0),
        "schedule": Buffered(2, 3),
        "cohort_size": 2,
        "n_rounds": 2,
    }
    with pytest.raises(InvalidInput, match=words):
        overlapping(**(settings | change))


def test_weights_of_staleness():
    ages = np.array([0, 1, 4, 5, 9])
    assert ConstantWeight().of(ages).tolist() == [1.0] * 5
    np.testing.assert_allclose(PolynomialWeight(0.5).of(ages), 1 / np.sqrt(1 + ages))
    np.testing.assert_allclose(HingeWeight(10.0, 4.0).of(ages), [1, 1, 1, 1 / 11, 1 / 51])


@pytest.mark.parametrize(("beta", "scale"), [(0.35, 1.0), (0.35, 10.0), (1.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("ages", [[0, 0, 0, 1, 2, 5], [0, 3], [2, 1, 4], [0, 0], [7]])
def test_weights_of_refl_are_those_of_the_slow_one(ages, beta, scale):
    rng = np.random.default_rng(len(ages))
    updates = rng.standard_normal((len(ages), 4)) + 1.0
    fresh = updates[np.array(ages) == 0]

    def deviation():
        if not len(fresh):
            return np.full(len(ages), np.nan)
        return np.square(updates - fresh.mean(axis=0)).sum(axis=1)

    found = DeviationWeight(beta, scale).of_updates(np.array(ages), deviation)
    if beta == 1.0 and not len(fresh):  # nothing that counts is known
        assert found.tolist() == [0.0] * len(ages)
        return
    slow = refl_slow.stale_weights(ages, updates.tolist(), beta, scale)
    np.testing.assert_allclose(found / len(ages), slow, rtol=1e-12)


def test_a_hostile_update_gets_no_more_than_the_bound_of_refl():
    for huge in (1e300, np.inf):
        found = DeviationWeight(0.35).of_updates(
            np.array([0, 1, 1]), lambda huge=huge: np.array([0.0, huge, 1.0])
        )
        raw = found / found[0]  # a fresh answer counts 1
        assert raw[1] == pytest.approx(0.65 / 2 + 0.35 * (1 - math.exp(-1)))
        assert raw[2] == pytest.approx(0.65 / 2)
