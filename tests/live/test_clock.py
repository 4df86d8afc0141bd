"""A computer's clock that is set back or forward locks nobody out, and frees nobody at random."""

import time

import pytest

from tests.live.test_session import present, session_of
from turnout.live import Reply, checkpoint
from turnout.live.transport import clock

HOUR, DAY = 3_600.0, 86_400.0


def late_since_10_s(tmp_path):
    """Return the file of a run in which client-3 stays busy for 20 s more."""
    session = session_of("random", late_s=20.0)
    present(session)
    for client in session.open().ids[:3]:
        session.receive(client, Reply(seconds=1.0))
    session.close()
    path = tmp_path / "run.npz"
    checkpoint.write_checkpoint(path, session.state({}), "test")
    return path


def resumed_from(path):
    session = session_of("random", late_s=20.0)
    session.load(checkpoint.read_checkpoint(path, "test"))
    present(session)
    return session


def free(session):
    return session.members.selectable().tolist()


@pytest.mark.parametrize("set_by", [0.0, -10.0, -HOUR, -DAY])
def test_set_back_between_two_runs_who_is_busy_stays_so_no_longer(ticking, tmp_path, set_by):
    path = late_since_10_s(tmp_path)
    ticking.set_by = set_by
    session = resumed_from(path)
    assert free(session) == [True, True, True, False]
    ticking.at += 19.0
    assert free(session) == [True, True, True, False]
    ticking.at += 2.0
    assert free(session) == [True] * 4
    assert session.open().ids == tuple(f"client-{i}" for i in range(4))


def test_set_back_between_many_short_runs_the_time_goes_on(ticking, tmp_path):
    path = late_since_10_s(tmp_path)
    for _ in range(4):
        session = resumed_from(path)
        assert free(session) == [True, True, True, False]
        ticking.at += 5.0
        checkpoint.write_checkpoint(path, session.state({}), "test")
        ticking.set_by -= DAY
    ticking.at += 1.0
    assert free(resumed_from(path)) == [True] * 4


@pytest.mark.parametrize("set_by", [HOUR, DAY])
def test_set_forward_it_frees_only_whose_time_is_over(ticking, tmp_path, set_by):
    path = late_since_10_s(tmp_path)
    ticking.set_by = 15.0
    assert free(resumed_from(path)) == [True, True, True, False]
    ticking.set_by = set_by
    assert free(resumed_from(path)) == [True] * 4


def test_a_checkpoint_of_an_earlier_version_has_no_seconds(ticking):
    session = session_of("random")
    present(session)
    saved = session.state({})
    saved.busy.append(["client-0", clock.wall() + 5.0])
    fresh = session_of("random")
    fresh.load(saved)
    present(fresh)
    assert free(fresh) == [False, True, True, True]
    ticking.at += 6.0
    assert free(fresh) == [True] * 4


@pytest.mark.parametrize("set_by", [HOUR, -HOUR, DAY, -DAY])
def test_set_during_a_run_it_changes_nothing(monkeypatch, set_by):
    before, real = clock.wall(), time.time
    monkeypatch.setattr(time, "time", lambda: real() + set_by)
    assert before <= clock.wall() < before + DAY / 2
