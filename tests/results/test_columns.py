import json
import math

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.core.types import Status
from turnout.results.run import Collector, RoundRow, Run


def row(t, size, **measured):
    clients = np.arange(size) + t
    status = np.arange(size) % len(Status)
    seconds = np.linspace(1.0, 2.0, size)
    chance = None if t % 2 else np.full(size, 0.5)
    available = np.roll(np.arange(60) < 40 + t, 10 * (t % 2))
    return RoundRow(clients, status, seconds, 2 * seconds, chance, 1.5 * t, available, measured)


@pytest.fixture
def collector():
    rounds = Collector()
    for t, size in enumerate([3, 0, 100, 1]):
        rounds.add(row(t, size, **({"accuracy": t / 10} if t % 2 else {})))
    return rounds


def same(columns, others):
    assert columns.keys() == others.keys()
    for name, values in columns.items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)
        assert values.dtype == others[name].dtype


def test_columns_hold_every_round(collector):
    run = Run.from_columns(200, 5, collector.columns())
    assert run.offsets.tolist() == [0, 3, 3, 103, 104]
    assert run.chosen_in(2).tolist() == collector.clients_of(2).tolist() == list(range(2, 102))
    assert run.n_available.tolist() == [40, 41, 42, 43]
    assert [np.flatnonzero(run.available_in(t))[[0, -1]].tolist() for t in range(4)] == [
        [0, 39],
        [10, 50],
        [0, 41],
        [10, 52],
    ]
    assert run.available_bits.size == 2 * 8  # none where the first n_available were there
    np.testing.assert_array_equal(run.first(2).available_in(1), run.available_in(1))
    assert np.isnan(run.probability[-1])
    assert run.status.dtype == np.int8
    np.testing.assert_array_equal(run.accuracy, [math.nan, 0.1, math.nan, 0.3])


def test_a_collector_goes_on_behind_saved_columns(collector):
    back = Collector.from_columns(collector.columns())
    same(back.columns(), collector.columns())
    for rounds in (back, collector):
        rounds.add(row(4, 7, accuracy=0.4, loss=1.0))
    same(back.columns(), collector.columns())
    assert back.lines(0, 5) == collector.lines(0, 5)


def test_columns_that_were_returned_stay_as_they_are(collector):
    before = collector.columns()
    kept = {name: values.copy() for name, values in before.items()}
    for t in range(4, 200):
        collector.add(row(t, 9))
    same(before, kept)


def test_lines_say_what_the_columns_say(collector):
    lines = [json.loads(line) for line in collector.lines(1, 4, {"regret": np.arange(3.0)})]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert [line["chosen"] for line in lines] == [0, 100, 1]
    assert [line["regret"] for line in lines] == [0.0, 1.0, 2.0]
    assert [line.get("accuracy") for line in lines] == [0.1, None, 0.3]
    assert lines[1]["late"] == 25
    spent = 2 * np.linspace(1.0, 2.0, 100)
    assert lines[1]["wasted_s"] == pytest.approx(spent[np.arange(100) % 4 != 0].sum())
    assert collector.lines(2, 2) == []


def test_what_is_measured_cannot_overwrite_what_is_recorded():
    rounds = Collector()
    rounds.add(row(0, 2, chosen=99.0, loss=math.nan))
    (line,) = map(json.loads, rounds.lines(0, 1))
    assert line["chosen"] == 2
    assert line["loss"] is None


def test_no_rounds_are_a_run():
    run = Run.from_columns(5, 2, Collector().columns())
    assert (run.n_rounds, run.clients.size, run.measured) == (0, 0, {})


def test_columns_of_an_older_turnout_do_not_know_who_was_available(collector):
    columns = collector.columns()
    del columns["available_bits"], columns["available_at"]
    old = Collector.from_columns(columns)
    same(old.columns(), columns)
    old.add(row(4, 7))
    run = Run.from_columns(44, 5, old.columns())
    assert run.available_in(4).all()
    with pytest.raises(InvalidInput, match="43 of 44 were in round 3"):
        run.available_in(3)
