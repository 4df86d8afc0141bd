"""A live run without a framework: thousands of rounds with accidents, and the rules one by one."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import turnout
from tests.live.history import DEADLINE, FakePort, History
from turnout import InvalidInput, Status
from turnout.core.bounds import Bounds
from turnout.live import Identity, Kind, Live, LiveSettings, Quorum, Reply, Session, TooFewAnswers
from turnout.live.members import MOST_COLUMNS
from turnout.worlds import FirstK, FixedDeadline, OverSelect

COMPLETED, LATE, FAILED, SILENT = (int(status) for status in Status)
COHORT = 4


def settings_of(**given):
    given = {
        "cohort_size": COHORT,
        "policy": FixedDeadline(DEADLINE),
        "bounds": Bounds(),
        "seed": 5,
        "start_s": 5.0,
        "wait_for_clients_s": 2.0,
        "ask_s": 5.0,
        "poll_s": 0.5,
    } | given
    return LiveSettings(**given)


def session_of(selector="e3cs", **given):
    return Session(settings_of(**given), turnout.make(selector))


def play_round(live, model="model"):
    """Play a round; return who was chosen, who could be, and how it ended."""
    live.gather(COHORT)
    free = set(live.session.members.addresses_of(np.flatnonzero(live.session.members.selectable())))
    chosen = live.choose(model)
    work = [f"work for {client}" for client in chosen.ids]
    ended = live.train(chosen, work) if chosen.ids else live.session.close()
    return chosen, free, ended


def check_round(live, chosen, free, ended, names_before):
    """Whatever happens, these hold after every round."""
    session, closed = live.session, ended.closed
    assert len(set(chosen.ids)) == len(chosen.ids)
    assert set(chosen.addresses) <= free
    assert len(closed.status) == len(chosen.ids) == len(ended.ids)
    n_completed = np.count_nonzero(closed.status == COMPLETED)
    assert len(ended.answers) == n_completed
    in_time = [i for i, status in enumerate(closed.status) if status == COMPLETED]
    assert all(closed.duration[i] <= closed.length_s + 1e-9 for i in in_time)
    assert [answer[1] for answer in ended.answers] == [f"work for {ended.ids[i]}" for i in in_time]
    assert {i for i, s in enumerate(closed.status) if s == FAILED} <= ended.reasons.keys()
    assert not set(in_time) & ended.reasons.keys()
    assert 0.0 <= closed.length_s <= DEADLINE + 1e-9
    assert ended.began_at <= ended.closed_at
    names = session.members.roster.ids
    assert names[: len(names_before)] == names_before  # nobody loses its index
    assert len(set(names)) == len(names)
    assert session.engine.n_clients == len(names)
    assert session.round == ended.round + 1
    late = {chosen.addresses[i] for i, s in enumerate(closed.status) if s == LATE}
    assert late <= session.members.pending.busy  # not chosen again before it answers or expires
    return names


POLICIES = {
    "deadline": FixedDeadline(DEADLINE),
    "first": FirstK(count=3, seconds=DEADLINE),
    "over": OverSelect(FirstK(seconds=DEADLINE), factor=1.5),
}


def play(seed, n_rounds, selector="e3cs", *, restart_every=None, **given):
    """Return the history of a run; with ``restart_every`` the server is killed now and then."""
    history = History(seed)
    port = FakePort(history)
    live, names, told = Live(session_of(selector, **given), port), (), []
    for t in range(n_rounds):
        if restart_every and t and t % restart_every == 0:
            saved = live.session.state({})
            fresh = session_of(selector, **given)
            fresh.load(saved)
            live = Live(fresh, port)
        chosen, free, ended = play_round(live)
        names = check_round(live, chosen, free, ended, names)
        told.append((chosen.ids, ended.closed.status.tolist()))
        history.advance()
    return told


@pytest.mark.slow
@pytest.mark.parametrize("selector", ["e3cs", "random", "oort", "ucb-cs", "pow-d", "round-robin"])
@pytest.mark.parametrize("policy", POLICIES)
def test_thousands_of_rounds_with_accidents(ticking, selector, policy):
    told = play(len(selector), 120, selector, policy=POLICIES[policy])
    statuses = {status for _, ended in told for status in ended}
    assert statuses == {COMPLETED, LATE, FAILED, SILENT}
    assert max(len(ids) for ids, _ in told) > 3


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_history(ticking, seed):
    first = play(seed, 30)
    assert play(seed, 30) == first
    assert play(seed + 100, 30) != first


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_rules_hold_when_the_server_is_killed_now_and_then(ticking, seed):
    told = play(seed, 150, restart_every=7)
    assert sum(len(ids) for ids, _ in told) > 300


def calm(seed=0, n=8):
    return History(seed, n=n, churn=0.0, kinds=("ok",))


def test_a_resumed_run_chooses_as_one_that_was_not_killed(ticking):
    def run(restart_at):
        history = calm()
        port = FakePort(history)
        live, told = Live(session_of(), port), []
        for t in range(12):
            if t == restart_at:
                saved = live.session.state({})
                fresh = session_of()
                fresh.load(saved)
                live = Live(fresh, port)
            told.append(play_round(live)[0].ids)
        return told

    assert run(6) == run(None)


def answered(session, chosen, *kinds):
    for client, kind in zip(chosen.ids, kinds, strict=True):
        session.receive(client, Reply(kind, 1.0, {}, None if kind is Kind.ANSWERED else "why"))


def present(session, n=4):
    for i in range(n):
        session.identify(i + 100, Reply(content=Identity(f"client-{i}")))
    session.sync(range(100, 100 + n))


def test_a_session_can_be_driven_by_hand(ticking):
    session = session_of("random")
    present(session)
    chosen = session.open()
    assert chosen.ids == tuple(f"client-{i}" for i in range(4))
    assert session.closes_at() == DEADLINE
    kinds = (Kind.ANSWERED, Kind.FAILED, Kind.LOST, Kind.GARBLED)
    answered(session, chosen, *kinds)
    assert not session.receive("client-0", Reply(Kind.FAILED, 2.0))  # the first word counts
    ended = session.close()
    assert ended.closed.status.tolist() == [COMPLETED, FAILED, SILENT, FAILED]
    assert ended.closed.length_s == 1.0
    with pytest.raises(InvalidInput, match="'nobody' is not on the roster"):
        session.receive("nobody", Reply())


def test_who_is_late_is_busy_until_it_is_heard_or_its_time_is_over(ticking):
    session = session_of("random", late_s=20.0)
    present(session)
    chosen = session.open()
    for client in chosen.ids[:2]:
        session.receive(client, Reply(seconds=1.0))
    ended = session.close()
    assert ended.closed.status.tolist() == [COMPLETED, COMPLETED, LATE, LATE]
    assert not session.receive("client-2", Reply(seconds=14.0))
    session.sync(range(100, 104))
    assert session.open().ids == ("client-0", "client-1", "client-2")
    session.close()
    ticking.at += 40.0
    session.members.pending.expire()
    assert len(session.open().ids) == 4


def test_an_answer_to_an_earlier_round_does_not_count_in_this_one(ticking):
    session = session_of("random", late_s=0.0)
    present(session)
    session.open()
    session.close()
    ticking.at += 40.0
    session.members.pending.expire()
    assert len(session.open().ids) == 4
    assert not session.receive("client-0", Reply(seconds=55.0), round=0)
    assert session.receive("client-0", Reply(Kind.FAILED, 1.0), round=1)
    assert session.close().closed.status.tolist() == [FAILED, LATE, LATE, LATE]


def test_a_round_must_be_closed_before_the_next(ticking):
    session = session_of("random")
    present(session)
    session.open()
    with pytest.raises(InvalidInput, match="round 0 is open"):
        session.open()


def test_a_round_can_be_opened_by_its_number_again_and_again(ticking):
    session = session_of("random")
    present(session)
    with pytest.raises(InvalidInput, match="round must be 0, which comes next, got 1") as error:
        session.open(1)
    assert error.value.field == "round"
    chosen = session.open(0)
    assert session.open(0).ids == chosen.ids  # a request that was sent twice
    with pytest.raises(InvalidInput, match="round must be 0, which is open, got 1"):
        session.open(1)
    answered(session, chosen, *[Kind.ANSWERED] * 4)
    session.close()
    with pytest.raises(InvalidInput, match="round must be 1, which comes next, got 0"):
        session.open(0)
    assert session.open(1).round == 1


def test_answers_may_come_from_many_threads(ticking):
    session = session_of("random", cohort_size=64)
    present(session, 64)
    chosen = session.open()
    counted = []

    def tell(client):
        counted.extend(session.receive(client, Reply(seconds=1.0)) for _ in range(5))

    threads = [threading.Thread(target=tell, args=(client,)) for client in chosen.ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counted) == 64
    assert not session.is_waiting
    assert (session.close().closed.status == COMPLETED).all()


def test_too_few_answers_make_a_round_void(ticking):
    session = session_of("random", quorum=Quorum(min_answers=3))
    present(session)
    chosen = session.open()
    answered(session, chosen, Kind.ANSWERED, Kind.ANSWERED, Kind.FAILED, Kind.LOST)
    ended = session.close()
    assert ended.is_void
    assert ended.answers == ()
    assert ended.closed.status.tolist() == [COMPLETED, COMPLETED, FAILED, SILENT]
    assert json.loads(session.journal.lines()[0])["void"] == 1.0
    fresh = session_of("random", quorum=Quorum(min_answers=3))
    fresh.load(session.state({}))
    assert fresh.journal.lines() == session.journal.lines()
    chosen = session.open()
    answered(session, chosen, *[Kind.ANSWERED] * 3, Kind.FAILED)
    assert len(session.close().answers) == 3
    assert "void" not in json.loads(session.journal.lines()[1])


def test_rounds_in_a_row_without_enough_answers_are_counted_over_restarts(ticking):
    quorum = Quorum(min_answers=2, max_empty_rounds=3)
    session = session_of("random", quorum=quorum)
    present(session)
    outcomes = [4, 1, 0, 2, 1, 0, 1]
    counted = []
    for n in outcomes:
        answered(session, session.open(), *[Kind.ANSWERED] * n, *[Kind.FAILED] * (4 - n))
        session.close()
        counted.append(session.journal.n_last_below(2))
        fresh = session_of("random", quorum=quorum)
        fresh.load(session.state({}))
        session = fresh
        present(session)
        if counted[-1] < 3:
            session.check_quorum()
    assert counted == [0, 1, 2, 0, 1, 2, 3]
    with pytest.raises(TooFewAnswers, match=r"3 rounds in a row had fewer than 2 answers"):
        session.check_quorum()


@pytest.mark.parametrize("name", ["min_answers", "min_free", "max_empty_rounds"])
def test_a_quorum_of_nothing_is_refused(name):
    with pytest.raises(InvalidInput, match=name):
        Quorum(**{name: 0})


def test_a_quorum_above_the_cohort_is_refused():
    with pytest.raises(InvalidInput, match="min_answers must be at most cohort_size = 4"):
        session_of(quorum=Quorum(min_answers=5))


def test_a_round_waits_for_free_clients_not_only_connected_ones(ticking):
    history = calm(n=4)
    port = FakePort(history)
    live = Live(session_of("random", quorum=Quorum(min_free=4), wait_for_clients_s=30.0), port)
    history.step = lambda client, number: type("S", (), {"kind": "late", "delay": 16.0})()
    play_round(live)  # everybody is late, and answers at 16 s
    started = ticking.at
    chosen, _, _ = play_round(live)
    assert len(chosen.ids) == 4
    assert ticking.at - started >= 6.0


def test_a_newcomer_that_hangs_holds_nobody_up(ticking):
    history = calm(n=6)
    history._is_on[5] = False
    port = FakePort(history)
    live = Live(session_of("random", ask_s=30.0), port)
    play_round(live)
    history._is_on[5] = True
    port.hangs = {history.online()[5]}
    for _ in range(3):
        started = ticking.at
        live.gather(COHORT)
        assert ticking.at == started
        live.train(live.choose(), ["work"] * COHORT)
    port.hangs = set()
    live.gather(COHORT)
    assert len(live.session.members.roster) == 6


def test_the_first_owner_keeps_its_id_after_a_restart(ticking):
    history = calm(n=4)
    port = FakePort(history)
    live = Live(session_of("random"), port)
    play_round(live)
    owner = live.session.members.addresses_of(np.array([3]))[0]
    impostor = history.online()[0]  # a lower address, which would win a tie
    port.claims[impostor] = "client-003"
    fresh = session_of("random")
    fresh.load(live.session.state({}))
    again = Live(fresh, port)
    chosen, _, _ = play_round(again)
    assert dict(zip(chosen.ids, chosen.addresses, strict=True))["client-003"] == owner
    assert impostor not in chosen.addresses
    # Without the checkpoint nobody knows who was first.
    plain = Live(session_of("random"), port)
    chosen, _, _ = play_round(plain)
    assert dict(zip(chosen.ids, chosen.addresses, strict=True))["client-003"] == impostor


def test_nothing_of_a_session_imports_a_framework():
    folder = Path(turnout.__file__).parent / "live"
    files = list(folder.glob("*.py"))
    assert len(files) > 10
    assert not [path.name for path in files if "flwr" in path.read_text()]


def test_every_client_gets_room_only_for_short_vectors_that_nobody_asked_for(ticking):
    session = session_of("fed-cbs")
    sent = {"features": [1.0] * 100_000, "context": [1.0] * 16, "label_counts": [1.0] * 1000}
    session.identify("adversary", Reply(metrics=sent, content=Identity("adversary")))
    session.sync(["adversary"])
    assert session.members.columns.state().keys() == {"context", "label_counts"}


def test_a_client_cannot_fill_the_memory_with_columns_or_the_records_with_words(ticking):
    session = session_of("fed-cbs")
    junk = {f"column-{i}": 1.0 for i in range(1000)}
    session.identify("adversary", Reply(metrics=junk, content=Identity("adversary")))
    session.identify(
        "honest", Reply(metrics={"label_counts": [1.0, 2.0]}, content=Identity("honest"))
    )
    session.sync(["adversary", "honest"])
    session.identify("other", Reply(metrics={"mine": 2.0}, content=Identity("other")))
    session.sync(["adversary", "honest", "other"])
    kept = session.members.columns.state()
    assert len(kept) == MOST_COLUMNS + 1
    assert kept.keys() - junk.keys() == {"label_counts"}
    cohort = session.open()
    session.receive(cohort.ids[0], Reply(Kind.FAILED, 1.0, reason="x" * 10_000))
    assert len(session.close().reasons[0]) < 600
