"""Clients without addresses: enrolled in bulk, held while they are late, the same after a load."""

import numpy as np

from turnout.core.registry import make
from turnout.live import Kind, LiveSettings, Reply, Session
from turnout.live.checkpoint import checkpoint_bytes, read_checkpoint
from turnout.live.members import Enrolled
from turnout.live.transport import clock

AT = 1.7e9


def session_of(n=8, cohort_size=4):
    settings = LiveSettings(cohort_size, late_s=5.0, limit_s=10.0)
    session = Session(settings, make("e3cs"), members=Enrolled())
    columns = {"num_samples": np.arange(float(n))}
    assert session.members.enrol([f"c{i}" for i in range(n)], columns) == n
    session.sync(())
    return session


def late_round(session, at):
    """Play a round in which the first that was chosen does not answer."""
    with clock.held(at):
        chosen = session.open()
        for client in chosen.ids[1:]:
            assert session.receive(client, Reply(Kind.ANSWERED, 1.0))
        session.close(chosen.ids, 10.0)
    return chosen.ids


def test_a_late_client_is_busy_until_it_is_heard_of_or_its_time_is_over():
    session = session_of()
    late, *_ = late_round(session, AT)
    index = session.members.roster.index_of(late)
    for seconds, is_free in ((4.9, False), (5.1, True)):  # 10 s and 5 s more, less the 10 s it took
        with clock.held(AT + seconds):
            assert session.members.selectable()[index] == is_free
    with clock.held(AT + 1.0):
        assert not session.receive(late, Reply(), round=0)
        assert session.members.selectable().all()


def test_a_loaded_session_goes_on_in_the_same_way():
    one = session_of()
    for t in range(3):
        late_round(one, AT + 2.0 * t)
    with clock.held(AT + 4.0):
        content = checkpoint_bytes(one.state({}), "test")
    other = Session(one.settings, make("e3cs"), members=Enrolled())
    other.load(read_checkpoint(content, "test"))
    for t in range(3, 9):
        assert late_round(one, AT + 2.0 * t) == late_round(other, AT + 2.0 * t)
    with clock.held(AT + 99.0):
        assert checkpoint_bytes(one.state({}), "test") == checkpoint_bytes(other.state({}), "test")


def test_who_is_withdrawn_is_not_chosen_and_keeps_its_index():
    session = session_of()
    session.members.withdraw(["c0", "c7"])
    assert np.flatnonzero(session.members.selectable()).tolist() == [1, 2, 3, 4, 5, 6]
    assert session.members.enrol(["new", "c7"], {}) == 1
    assert session.members.roster.index_of("c7") == 7
    assert session.members.roster.index_of("new") == 8
    session.members.available = np.arange(9) % 2 == 1
    assert np.flatnonzero(session.members.selectable()).tolist() == [1, 3, 5, 7]


def test_impossible_columns_count_as_unknown():
    session = session_of(n=3)
    session.members.enrol(["c1", "c0"], {"num_samples": np.array([-1.0, 7.0])})
    filled = session.members.columns.take({"num_samples"})["num_samples"]
    np.testing.assert_array_equal(filled, [7.0, np.nan, 2.0])
