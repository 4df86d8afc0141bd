"""A live session whose rounds overlap: as the simulator on one history, and rule by rule."""

import json
import math

import numpy as np
import pytest

import turnout
from tests.live.history import FakePort
from tests.live.history import History as Accidents
from turnout import InvalidInput, Status
from turnout.live import (
    Identity,
    Kind,
    LiveSettings,
    MissingMetric,
    OverlappingSession,
    Quorum,
    Reply,
    Session,
)
from turnout.live.clients import merge, rename
from turnout.live.driver import OverlappingLive
from turnout.live.members import Enrolled
from turnout.live.transport import clock
from turnout.worlds import (
    Bernoulli,
    Buffered,
    ConstantWeight,
    Environment,
    FirstK,
    FixedDeadline,
    History,
    LinearContextual,
    SemiSynchronous,
    Synchronous,
    named_world,
)

COMPLETED, LATE, FAILED, SILENT = (int(status) for status in Status)
N, SEED, ROUNDS = 24, 3, 40
WORLD = Environment(
    N,
    SEED,
    Bernoulli(0.8),
    named_world("volatile").example.volatility,
    LinearContextual(),
    reports_failure=True,
)
SCHEDULES = {
    "buffered": Buffered(4, 9),
    "constant": Buffered(3, 3, staleness=ConstantWeight()),
    "periods": SemiSynchronous(1.5),
    "late": Synchronous(late="use"),
}
COLUMNS = ("clients", "status", "choice", "staleness", "offsets", "probability", "n_available")


class Played:
    """Lets what a world decides happen to a session, each event at its own time."""

    def __init__(self, session, environment):
        self.session, self.environment, self.at, self.due = session, environment, 0.0, []
        self.factors, self.history = [], History.fresh(N)

    def context(self):
        """Tell the session whom the world has there for its next choice."""
        members, t = self.session.members, self.session.flights.next_choice
        busy = self.session.flights.busy(N)
        ctx = self.environment.context(
            t, 1, self.history, columns=self.session.engine.wanted, busy=busy
        )
        members.available = ctx.available
        members.columns.fill(np.arange(N), {k: np.array(x) for k, x in ctx.columns.items()})

    def fill(self):
        session = self.session
        if not session.places():
            return
        self.context()
        cohort = session.open()
        fate = self.environment.fate(cohort.round, self.history)
        clients = session.members.roster.indices(cohort.ids)
        self.history.record(clients)
        reports = self.environment.reports(
            cohort.round, clients, dict.fromkeys(session.selector.needs_metrics)
        )
        for i, client in enumerate(clients.tolist()):
            seconds = float(fate.duration[client])
            metrics = {name: float(values[i]) for name, values in reports.items()}
            reply = Reply(seconds=seconds, metrics=metrics, content=(cohort.round, client))
            if not fate.survived[client]:
                reply = Reply(Kind.FAILED, seconds, reason="crashed")
            self.due.append((self.at + seconds, cohort.round, client, reply))
        self.due.sort(key=lambda one: one[:3])

    def round(self):
        session = self.session
        while True:
            with clock.held(self.at):
                while self.due and self.due[0][0] <= self.at and not session.flights.is_full:
                    _, choice, client, reply = self.due.pop(0)
                    session.receive(session.members.roster.id_of(client), reply, choice)
                if session.has_overdue:
                    # One that crashes after its deadline is not heard of.
                    doomed = {(c, t) for _, t, c, x in self.due if x.kind is Kind.FAILED}
                    roster = session.members.roster
                    gone = {
                        f.client
                        for f in session.at_work
                        if (roster.index_of(f.client), f.choice) in doomed
                    }
                    session.give_up(set(roster.ids) - gone)
                if session.is_over():
                    ended = session.close()
                    self.factors.append(ended.taken.weight.tolist())
                    return ended
                self.fill()
                ends = self.at + session.left_s()
            self.at = min(ends, self.due[0][0] if self.due else math.inf)


def settings_of(schedule, **given):
    given = {"cohort_size": 5, "seed": SEED, "bounds": None, "limit_s": 1e6} | given
    return LiveSettings(schedule=schedule, **given)


def session_of(schedule, selector="random", **given):
    with clock.held(0.0):
        session = OverlappingSession(
            settings_of(schedule, **given), turnout.make(selector), members=Enrolled()
        )
        session.members.enrol([f"client-{i:02d}" for i in range(N)], {})
        session.sync(())
    return session


def columns_of(run):
    columns = {name: getattr(run, name) for name in COLUMNS}
    columns["available"] = np.array([run.available_in(t) for t in range(run.n_rounds)])
    return columns


def assert_same(live, simulated):
    for name, values in columns_of(simulated).items():
        np.testing.assert_array_equal(columns_of(live)[name], values, err_msg=name)
    for name in ("began_s", "length_s", "busy_s", "duration", "spent"):
        ours, theirs = getattr(live, name), getattr(simulated, name)
        known = np.isfinite(ours)
        np.testing.assert_allclose(ours[known], theirs[known], rtol=1e-9, atol=1e-9, err_msg=name)


def simulated(schedule, selector, policy=None):
    return turnout.simulate(
        selector, WORLD, cohort_size=5, n_rounds=ROUNDS, schedule=schedule, policy=policy
    )


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("selector", ["random", "e3cs", "pace", "guarded", "oort"])
def test_a_session_does_what_the_simulator_does_on_the_same_history(kind, selector):
    schedule = SCHEDULES[kind]
    expected = simulated(schedule, selector)
    session = session_of(schedule, selector)
    played = Played(session, WORLD)
    for _ in range(ROUNDS):
        played.round()
    assert_same(session.journal.run, expected)
    for t, factors in enumerate(played.factors):
        at = slice(expected.offsets[t], expected.offsets[t + 1])
        counted = expected.staleness[at][expected.completed[at]]
        np.testing.assert_array_equal(factors, schedule.staleness.of(counted))


@pytest.mark.parametrize("selector", ["e3cs", "pace"])
def test_clients_are_given_up_at_the_deadline_as_in_the_simulator(selector):
    schedule, policy = Buffered(3, 7), FixedDeadline(2.0)
    expected = simulated(schedule, selector, policy)
    assert (expected.status == LATE).sum() > 5
    session = session_of(schedule, selector, policy=policy)
    played = Played(session, WORLD)
    for _ in range(ROUNDS):
        played.round()
    assert_same(session.journal.run, expected)
    # The answers of those that were given up came, and were refused.
    assert session.flights.n_refused["no work in flight"] > 0


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize("cut", [1, 7, 23])
def test_a_session_that_is_saved_and_loaded_with_work_in_flight_goes_on_bit_for_bit(kind, cut):
    schedule = SCHEDULES[kind]
    session = session_of(schedule, "pace")
    played = Played(session, WORLD)
    for t in range(ROUNDS):
        if t == cut:
            with clock.held(played.at):
                saved = session.state({})
                assert session.flights.n_busy or kind == "late"
                session = session_of(schedule, "pace")
                session.load(saved)
            played.session = session
        played.round()
    assert_same(session.journal.run, simulated(schedule, "pace"))


def test_a_session_can_be_saved_with_a_buffer_that_is_not_full(ticking):
    session = present(live_session(Buffered(3, 4)))
    chosen = session.open()
    ticking.at += 2.0
    session.receive(chosen.ids[0], Reply(metrics={"num-examples": 3}, weight=3.0))
    session.receive(chosen.ids[1], Reply(Kind.FAILED, reason="out of memory"))
    saved = session.state({})

    def after(session):
        present(session)
        assert session.now_s == 2.0
        assert len(session.open().ids) == 2
        ticking.at += 1.0
        for client in (chosen.ids[2], chosen.ids[3]):
            assert session.receive(client, Reply(weight=1.0))
        ended = session.close()
        assert ended.weights == (3.0, 1.0, 1.0)
        assert ended.reasons == {1: "out of memory"}
        return session.journal.lines()

    lines = after(session)
    ticking.at += 100.0  # the clock of the run stands still while nobody runs it
    other = live_session(Buffered(3, 4))
    other.load(saved)
    assert after(other) == lines


# --------------------------------------------------------------------------------------------------
# The rules, one by one.
# --------------------------------------------------------------------------------------------------


def live_session(schedule, selector="random", **given):
    given = {"limit_s": 50.0, "policy": FixedDeadline(10.0), "cohort_size": 4} | given
    return OverlappingSession(settings_of(schedule, **given), turnout.make(selector))


def present(session, n=6):
    for i in range(n):
        session.identify(i + 100, Reply(content=Identity(f"client-{i}")))
    session.sync(range(100, 100 + n))
    return session


def test_free_places_are_filled_and_a_full_buffer_ends_the_round(ticking):
    session = present(live_session(Buffered(2, 3)))
    assert session.places() == 3
    first = session.open()
    assert len(first.ids) == 3
    assert (first.round, first.version, first.deadline) == (0, 0, 10.0)
    assert session.open().ids == ()  # no place is free
    assert not session.is_over()
    ticking.at += 1.0
    assert session.receive(first.ids[0], Reply(weight=5.0), 0)
    assert not session.is_over()
    second = session.open()
    assert (second.round, second.version, len(second.ids)) == (1, 0, 1)
    assert second.ids[0] not in first.ids[1:]
    ticking.at += 2.0
    session.receive(second.ids[0], Reply(weight=2.0))
    assert session.is_over()
    ended = session.close()
    assert ended.weights == (5.0, 2.0)
    assert ended.taken.staleness.tolist() == [0, 0]
    assert ended.closed.duration.tolist() == [1.0, 2.0]
    assert ended.closed.length_s == 3.0
    assert session.version == session.round == 1
    assert session.flights.versions == {0, 1}
    ticking.at += 1.0
    session.open()
    for flight in session.at_work[:2]:
        session.receive(flight.client, Reply())
    ended = session.close()
    assert ended.taken.staleness.tolist() == [1, 1]
    np.testing.assert_allclose(ended.taken.weight, [0.5**0.5] * 2)
    run = session.journal.run
    assert run.busy_s.tolist() == [9.0, 2.0]
    assert run.measured["models_kept"].tolist() == [2.0, 2.0]
    line = json.loads(session.journal.lines()[1])
    assert (line["staleness"], line["at_work"]) == (1.0, 2.0)


def test_second_answers_and_answers_to_forgotten_models_are_refused_and_counted(ticking):
    session = present(live_session(Buffered(1, 2)))
    first = session.open()
    client = first.ids[0]
    assert session.receive(client, Reply(), 0)
    assert not session.receive(client, Reply(), 0)  # it answers twice
    session.close()
    # It gets work again, and its old answer comes once more: model 0 is gone.
    for _ in range(20):
        chosen = session.open()
        if client in chosen.ids:
            break
        session.receive(session.at_work[-1].client, Reply())
        session.close()
    assert not session.receive(client, Reply(), 0)
    assert session.receive(client, Reply(), chosen.round)
    assert session.flights.n_refused == {"no work in flight": 1, "an earlier choice": 1}
    session.close()
    refused = session.journal.run.measured["refused_replies"]
    assert (refused[0], refused[-1], np.nansum(refused)) == (1.0, 1.0, 2.0)


def test_a_clock_that_is_set_back_is_counted_and_nothing_else(ticking):
    session = present(live_session(Buffered(2, 2)))
    chosen = session.open()
    ticking.at += 5.0
    assert session.now_s == 5.0
    ticking.set_by -= 3600.0
    assert session.now_s == 5.0
    ticking.at += 2.0
    for client in chosen.ids:
        session.receive(client, Reply())
    ended = session.close()
    assert session.n_jumps == 1
    assert ended.closed.duration.tolist() == [7.0, 7.0]
    assert session.journal.run.measured["clock_jumps"].tolist() == [1.0]
    # Set forward, everyone is overdue: given up, never fatal.
    session.open()
    ticking.set_by += 1e6
    assert len(session.give_up()) == 2
    assert session.is_over()
    assert session.close().closed.status.tolist() == [LATE, LATE]


def test_those_that_are_given_up_are_late_if_they_are_connected_and_silent_otherwise(ticking):
    session = present(live_session(Buffered(2, 3)))
    chosen = session.open()
    ticking.at += 10.0
    there = set(session.members.connected) - {chosen.addresses[0]}
    assert session.has_overdue
    assert session.give_up(there) == list(chosen.ids)
    assert session.flights.ended["status"].tolist() == [SILENT, LATE, LATE]
    assert session.places() == 3


def test_a_round_without_answers_ends_at_the_limit_and_is_void(ticking):
    session = present(live_session(Buffered(2, 2), limit_s=20.0, quorum=Quorum(min_answers=2)))
    session.open()
    ticking.at += 20.0
    session.receive(session.at_work[0].client, Reply(seconds=1.0, content="model"))
    assert session.is_over()
    ended = session.close()
    assert ended.is_void
    assert ended.answers == ()
    assert ended.taken.clients.size == 1


def test_answers_that_do_not_fit_the_others_are_recorded_as_failed(ticking):
    session = present(live_session(Buffered(3, 3)))
    chosen = session.open()
    for i, client in enumerate(chosen.ids):
        session.receive(client, Reply(content=i, weight=1.0 + i))
    ended = session.close(reject=lambda replies, versions: {1: f"{len(replies)} came"})
    assert ended.closed.status.tolist() == [COMPLETED, FAILED, COMPLETED]
    assert ended.reasons == {1: "reply dropped, 3 came"}
    assert (ended.answers, ended.weights) == ((0, 2), (1.0, 3.0))
    assert ended.taken.clients.size == 2


def test_work_that_is_given_out_again_counts_from_then(ticking):
    session = present(live_session(Buffered(1, 1)))
    (client,) = session.open().ids
    ticking.at += 8.0
    session.restart(client)
    ticking.at += 3.0
    assert not session.has_overdue
    session.receive(client, Reply())
    assert session.close().closed.duration.tolist() == [3.0]


def test_what_does_not_go_together_is_refused_before_the_first_round():
    def refused(match, schedule, selector="random", **given):
        with pytest.raises(InvalidInput, match=match) as error:
            live_session(schedule, selector, **given)
        return error.value.field

    assert refused("policy must be FixedDeadline", Buffered(2, 4), policy=FirstK(2)) == "policy"
    assert refused("cannot fill single places", Buffered(2, 4), "divfl") == "schedule"
    assert refused("schedule must overlap", Synchronous()) == "schedule"
    assert refused("min_answers must be at most cohort_size = 2", Buffered(2, 4), quorum=Quorum(3))
    assert refused("shadow needs synchronous", Buffered(2, 4), shadow=["e3cs"]) == "shadow"
    limited = turnout.make("guarded", inner="random", min_gap=3)
    with pytest.raises(InvalidInput, match="limits participation"):
        OverlappingSession(settings_of(Buffered(2, 4)), limited)
    with pytest.raises(InvalidInput, match="plays one round after the other") as error:
        Session(settings_of(Buffered(2, 4)), turnout.make("random"))
    assert error.value.field == "schedule"
    Session(settings_of(Synchronous()), turnout.make("random"))


def test_a_schedule_is_a_setting_like_the_others():
    table = {"kind": "buffered", "size": 3, "concurrency": 8}
    given = LiveSettings.of({"cohort_size": 5, "schedule": table})
    assert given.schedule == Buffered(3, 8)
    assert given.answers == 3
    assert LiveSettings.of(json.loads(json.dumps(given.table()))).schedule == given.schedule
    assert LiveSettings(cohort_size=5, schedule=SemiSynchronous(9.0)).answers == 5
    with pytest.raises(InvalidInput, match="concurrency must be at least size"):
        LiveSettings.of({"schedule": {"kind": "buffered", "size": 9, "concurrency": 8}})
    with pytest.raises(InvalidInput, match="period_s must be a finite number > 0"):
        LiveSettings.of({"schedule": {"kind": "semi-synchronous", "period_s": 0}})
    plain = LiveSettings().identity(turnout.make("random"), {})
    assert "schedule" not in plain
    assert LiveSettings(schedule=Synchronous()).identity(turnout.make("random"), {}) == plain


# --------------------------------------------------------------------------------------------------
# Over a port, with accidents.
# --------------------------------------------------------------------------------------------------


def play(seed, n_rounds, restart_at=(), schedule=None, selector="e3cs"):
    """Return what a run over a fake port told, and the session; it is killed now and then."""
    schedule = Buffered(3, 5) if schedule is None else schedule
    history = Accidents(seed)
    port = FakePort(history)
    given = {"start_s": 5.0, "wait_for_clients_s": 2.0, "ask_s": 5.0, "poll_s": 0.5}

    def session():
        return live_session(schedule, selector, **given)

    live, told, sent = OverlappingLive(session(), port), [], []

    def write(addresses, version):
        sent.append((len(addresses), version))
        return [("work", version)] * len(addresses)

    for t in range(n_rounds):
        if t in restart_at:
            fresh = session()
            fresh.load(live.session.state({}))
            live = OverlappingLive(fresh, port)
        live.gather(4)
        kept = live.session.flights.versions
        ended = live.play(write, "model")
        assert {version for _, version in sent} <= kept | {ended.round}
        sent.clear()
        told.append((ended.ids, ended.closed.status.tolist(), ended.staleness))
        for content, version in zip(ended.answers, ended.taken.versions, strict=False):
            assert content[1] == ("work", version)  # its own model, also after a restart
        history.advance()
    return told, live.session


@pytest.mark.parametrize("kind", SCHEDULES)
def test_rounds_with_accidents_over_a_port(ticking, kind):
    told, session = play(len(kind), 60, schedule=SCHEDULES[kind])
    statuses = {status for _, ended, _ in told for status in ended}
    assert statuses >= {COMPLETED, FAILED, SILENT}
    assert max(max(stale, default=0) for *_, stale in told) > 0
    run = session.journal.run
    assert run.n_rounds == 60
    assert run.overlaps
    assert (run.began_s >= 0.0).all()
    assert (run.staleness >= 0).all()
    size = min(session.schedule.enough, N)
    if session.schedule.refills:
        assert (np.diff(run.offsets) > 0).all()
        counts = [sum(s == COMPLETED for s in ended) for _, ended, _ in told]
        assert max(counts) == size


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_server_gives_the_work_in_flight_out_again(ticking, seed):
    told, session = play(seed, 40, restart_at=(5, 11, 12, 30))
    assert len(told) == session.journal.run.n_rounds == 40
    # The same seed is the same history, with the same restarts.
    assert play(seed, 40, restart_at=(5, 11, 12, 30))[0] == told
    assert max(max(stale, default=0) for *_, stale in told) > 0


def test_answers_of_lost_work_do_not_count_twice(ticking):
    history = Accidents(0, n=6, churn=0.0, kinds=("ok",))
    port = FakePort(history)
    session = live_session(Buffered(2, 4), poll_s=0.5)
    live = OverlappingLive(session, port)
    live.gather(6)
    live.play(lambda addresses, version: [version] * len(addresses))
    before = dict(port.trained)
    at_work = session.at_work
    assert at_work
    fresh = live_session(Buffered(2, 4), poll_s=0.5)
    fresh.load(session.state({}))
    again = OverlappingLive(fresh, port)
    again.gather(6)
    again.play(lambda addresses, version: [version] * len(addresses))
    for flight in at_work:
        client = history.names.index(flight.client)
        assert port.trained[client] > before[client]  # it got the work once more
    run = fresh.journal.run
    pieces = list(zip(run.choice.tolist(), run.clients.tolist(), strict=True))
    assert len(set(pieces)) == len(pieces)


def test_the_time_of_a_work_ends_when_its_reply_comes_not_after_a_question_to_others(ticking):
    """Each question takes eight seconds, and each work at most seven and a half."""
    history = Accidents(1, n=8, churn=0.0, kinds=("ok",))
    port = FakePort(history, asks_s=8.0)
    session = live_session(Buffered(2, 5), "pow-d", poll_s=0.5, ask_s=20.0)
    live = OverlappingLive(session, port)
    for _ in range(10):
        live.gather(8)
        live.play(lambda addresses, version: [version] * len(addresses))
    run, works, names = session.journal.run, dict.fromkeys(range(8), 0), session.members.roster.ids
    assert (run.status == COMPLETED).all()
    for client, seconds in zip(run.clients.tolist(), run.duration.tolist(), strict=True):
        step = history.step(history.names.index(names[client]), works[client])
        assert seconds == pytest.approx(step.delay, abs=0.5)
        works[client] += 1


def test_waiting_for_the_first_clients_is_no_part_of_a_round(ticking):
    history = Accidents(1, n=8, churn=0.0, kinds=("ok",))
    port, is_on = FakePort(history), history._is_on.copy()
    session = live_session(Buffered(2, 5), poll_s=0.5, start_s=300.0)  # a round has 50 s
    live = OverlappingLive(session, port)

    def play():
        live.gather(8)  # one is never there, so it waits for 300 s
        return live.play(lambda addresses, version: [version] * len(addresses))

    assert not play().is_void
    saved = session.state({})
    session = live_session(Buffered(2, 5), poll_s=0.5, start_s=300.0)
    session.load(saved)
    live = OverlappingLive(session, port)
    assert not play().is_void  # nor is waiting after a restart
    assert session.journal.run.length_s.max() < 50.0
    history._is_on[:] = False
    session = live_session(Buffered(2, 5), poll_s=0.5, start_s=5.0)
    live = OverlappingLive(session, port)
    assert [play().is_void for _ in range(2)] == [True, True]  # nobody is there
    history._is_on[:] = is_on
    assert not play().is_void
    np.testing.assert_allclose(session.journal.run.length_s[:2], 50.0, atol=0.5)
    assert 0.0 < session.journal.run.length_s[2] < 50.0


def test_a_reply_is_not_late_because_the_server_was_busy(ticking):
    """The server aggregates or evaluates for 12 s; each work takes at most 7.5 of 10 s."""
    session = live_session(Buffered(2, 5), poll_s=0.5)
    live = OverlappingLive(session, FakePort(Accidents(1, n=8, churn=0.0, kinds=("ok",))))
    for _ in range(5):
        live.gather(8)
        live.play(lambda addresses, version: [version] * len(addresses))
        ticking.at += 12.0
    run = session.journal.run
    assert (run.status == COMPLETED).all()
    assert run.duration.max() == 10.0


def test_clients_at_work_keep_their_work_under_a_new_name_and_are_not_merged(ticking):
    session = present(live_session(Buffered(1, 2)))
    session.open()
    client = session.at_work[0].client
    saved = session.state({})
    with pytest.raises(InvalidInput, match="cannot be merged where rounds overlap"):
        merge(saved, "client-0", "client-1")
    other = live_session(Buffered(1, 2))
    other.load(rename(saved, client, "renamed"))
    assert other.receive("renamed", Reply(), 0)
    assert other.close().ids == ("renamed",)


def test_the_first_reply_does_not_end_the_run_if_another_one_has_the_metric(ticking):
    """A selector that needs a metric stops the run only if no reply of a round has it."""
    session = present(live_session(Buffered(2, 3), "oort"))
    first = session.open()
    session.receive(first.ids[0], Reply(content="without"), first.round)
    session.receive(first.ids[1], Reply(metrics={"loss_rms": 0.5}, content="with"), first.round)
    assert session.close().answers == ("without", "with")
    session = present(live_session(Buffered(2, 3), "oort"))
    first = session.open()
    for client in first.ids[:2]:
        session.receive(client, Reply(), first.round)
    with pytest.raises(MissingMetric, match="Oort needs 'loss_rms', and no reply has it"):
        session.close()
