"""The bookkeeping of work in flight, as a host without a clock of ours uses it."""

import numpy as np
import pytest

import turnout
from turnout.core.errors import InvalidInput
from turnout.core.types import Outcome, Selection, Status
from turnout.experiment.engine import RoundEngine
from turnout.worlds import Buffered, FixedDeadline

N = 6


def engine_of(size=2, concurrency=3):
    """Return an engine of a host with six clients, three of which may be at work."""
    engine = RoundEngine(
        turnout.make("random"),
        FixedDeadline(),
        cohort_size=size,
        seed=0,
        schedule=Buffered(size, concurrency),
    )
    engine.resize(N)
    return engine


def begin(engine, clients, now_s=0.0):
    """Give some clients work, as the next choice."""
    choice = engine.flights.n_choices
    engine.begin(Selection(choice, np.array(clients)), now_s)
    return choice


def answer(engine, *clients):
    """Take in the replies of some clients."""
    rows = engine.flights.where(np.array(clients))
    n = len(clients)
    engine.end(rows, Outcome([Status.COMPLETED] * n, [1.0] * n, {}))


def test_a_second_answer_and_one_of_nobody_are_refused_and_counted():
    engine = engine_of()
    flights = engine.flights
    begin(engine, [1, 4])
    assert flights.refusal(1) is None
    answer(engine, 1)
    before = flights.state()
    assert flights.refusal(1) == "no work in flight"  # it answers twice
    assert flights.refusal(5) == "no work in flight"  # it was never asked
    assert flights.n_refused == {"no work in flight": 2}
    after = flights.state()
    assert after.pop("refused.no work in flight") == 2
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)
    assert flights.n_answers == 1


def test_an_answer_to_an_earlier_choice_is_refused():
    engine = engine_of()
    first = begin(engine, [1])
    answer(engine, 1)
    second = begin(engine, [1])
    assert engine.flights.refusal(1, first) == "an earlier choice"
    assert engine.flights.refusal(1, second) is None
    assert engine.flights.n_refused == {"an earlier choice": 1}


def test_refusals_are_saved_with_the_work_in_flight():
    engine = engine_of()
    begin(engine, [0, 2], now_s=5.0)
    engine.flights.refusal(3)
    other = engine_of()
    other.load_state(engine.state(), N, 0)
    assert other.flights.n_refused == engine.flights.n_refused
    assert other.flights.busy(N).tolist() == [True, False, True, False, False, False]
    assert other.flights.flights["began_s"].tolist() == [5.0, 5.0]
    answer(other, 2, 0)
    assert other.flights.is_full


def test_versions_are_kept_as_long_as_somebody_works_on_them():
    engine = engine_of()
    begin(engine, [0, 1, 2])
    answer(engine, 0, 1)
    answers, ended = engine.aggregate()
    assert sorted(answers.clients.tolist()) == [0, 1]
    assert ended.size == 2
    assert engine.flights.versions == {0, 1}  # client 2 still works on version 0
    begin(engine, [0])
    answer(engine, 2)
    assert engine.flights.versions == {0, 1}  # its answer still waits with version 0
    answer(engine, 0)
    answers, _ = engine.aggregate()
    assert dict(zip(answers.clients.tolist(), answers.staleness.tolist(), strict=True)) == {
        2: 1,
        0: 0,
    }
    assert engine.flights.versions == {2}


def test_a_client_at_work_cannot_begin_again():
    engine = engine_of()
    choice = begin(engine, [1])
    with pytest.raises(InvalidInput, match="must not be at work already"):
        begin(engine, [1, 2])
    begin(engine, [3])
    for clients in ([0, 3], [3], [3, 5], [0, 1, 2]):
        with pytest.raises(InvalidInput, match="must not be at work already"):
            begin(engine, clients)
    with pytest.raises(InvalidInput, match="every choice needs a number of its own"):
        engine.begin(Selection(choice, np.array([5])), 0.0)
    assert engine.flights.n_busy == 2


def test_engines_without_a_schedule_have_no_work_in_flight():
    engine = RoundEngine(turnout.make("random"), FixedDeadline(), cohort_size=2, seed=0)
    with pytest.raises(InvalidInput, match="schedule must overlap"):
        engine.places()
