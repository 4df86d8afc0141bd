"""Alerts: who is passed over, with a stated rate of false alarms; who fails; void rounds."""

import dataclasses
import json

import numpy as np
import pytest

import turnout
from tests.live.history import FakePort
from tests.live.test_session import answered, calm, play_round, present, session_of
from turnout import InvalidInput, RoundContext
from turnout.live import AlertRules, Kind, Live, LiveSettings, Quorum, Session, VirtualWorld
from turnout.live.alerts import (
    BEHIND,
    FAILING,
    QUORUM,
    VOID,
    Tally,
    behind,
    log_evidence,
    promised_chance,
)
from turnout.live.records import Records
from turnout.worlds import e3cs_world


def honest_runs(rng, n_runs, n_clients, n_rounds, chance):
    """Return (n_runs, n_clients) the strongest evidence ever against a promise that is kept."""
    promised = chance * np.arange(1, n_rounds + 1)
    most = np.full((n_runs, n_clients), -np.inf)
    chosen = np.zeros((n_runs, n_clients), dtype=int)
    for least in promised:
        chosen += rng.random(chosen.shape) < chance
        seen = log_evidence(np.full(chosen.size, least), chosen.ravel())
        np.maximum(most, seen.reshape(chosen.shape), out=most)
    return most


def test_a_thousand_honest_clients_raise_no_false_alarms():
    """At most one run in five has any, over all of its clients and rounds."""
    evidence = honest_runs(np.random.default_rng(1), 20, 1000, 120, 0.15)
    assert (evidence >= np.log(1000 / 0.2)).any(axis=1).mean() <= 0.2
    assert (evidence >= np.log(1 / 0.2)).any(axis=1).all()  # many clients must be allowed for


def test_the_rate_of_false_alarms_is_not_far_below_what_is_promised():
    evidence = honest_runs(np.random.default_rng(2), 2000, 1, 150, 0.1)
    for rate in (0.5, 0.2, 0.05):
        assert rate / 10 <= (evidence >= np.log(1 / rate)).mean() <= rate


def test_evidence_is_a_supermartingale():
    """Its mean does not grow in a round in which the promise is kept, whatever came before."""
    for promised, chosen, chance in [(0.0, 0, 0.3), (5.0, 1, 0.1), (20.0, 18, 0.9), (3.0, 9, 1.0)]:
        ahead, behind_ = (
            np.exp(log_evidence(np.array([promised + chance]), np.array([chosen + x])))[0]
            for x in (1, 0)
        )
        now = np.exp(log_evidence(np.array([promised]), np.array([chosen])))[0]
        assert chance * ahead + (1 - chance) * behind_ <= now * (1 + 1e-12)
    assert log_evidence(np.zeros(1), np.zeros(1, dtype=int))[0] == pytest.approx(0.0)


@pytest.mark.parametrize(("factor", "most_rounds"), [(0.0, 160), (0.5, 700)])
def test_who_gets_less_than_promised_is_found(factor, most_rounds):
    """A client of a thousand that is never chosen, and one that is chosen half as often."""
    rng = np.random.default_rng(3)
    tally, everyone = Tally(), np.ones(1000, dtype=bool)
    chances = np.full(1000, 0.1)
    chances[17] *= factor
    for _ in range(most_rounds):
        clients = np.flatnonzero(rng.random(1000) < chances)
        tally.add(clients, np.zeros(clients.size, dtype=np.int8), everyone, 0.1)
        if behind(tally, 0.01).size:
            break
    assert behind(tally, 0.01).tolist() == [17]
    assert tally.free[17] > 100  # and not before there is evidence


def promise_of(selector, n_free=20, m=5, **parameters):
    chooser = turnout.make(selector, **parameters)
    chooser.prepare(24)
    available = np.arange(24) < n_free
    columns = {"context": np.zeros((24, 3))} if chooser.needs_columns else {}
    ctx = RoundContext(3, m, available, columns=columns)
    chosen = chooser.select(ctx, np.random.default_rng(0))
    return promised_chance(chooser, 3, available, chosen.clients, chosen.probability)


def test_what_selectors_promise_to_whoever_is_free():
    assert promise_of("random") == pytest.approx(0.25)  # chances that are equal
    assert promise_of("e3cs", quota=0.5, share=0.1) >= 0.125  # the quota
    assert promise_of("guarded", inner="round-robin", floor=0.4) == pytest.approx(0.1)
    assert promise_of("pace", floor=0.2) >= 0.05 - 1e-12
    everyone, some, nobody = np.ones(20, bool), np.arange(5), np.zeros(0, dtype=int)
    rated = turnout.make("rbcs-f", rate=0.07)
    assert promised_chance(rated, 3, everyone, some, np.full(5, 0.9)) == 0.07
    plain = turnout.make("random")
    assert promised_chance(plain, 3, everyone, some, np.full(5, 0.9)) == 0.0
    assert promised_chance(plain, 3, np.zeros(3, bool), nobody, None) == 0.0


class Unfair(turnout.Selector):
    """Promises equal chances, and never chooses the first client while there are others."""

    reports_probability = True

    def select(self, ctx, rng):
        pool = ctx.pool[ctx.pool != 0] if ctx.pool.size > ctx.size else ctx.pool
        chosen = np.sort(rng.choice(pool, ctx.size, replace=False))
        chance = np.full(ctx.size, ctx.size / ctx.pool.size)
        return turnout.Selection(ctx.round, chosen, chance)


def unfair(**given):
    session = session_of("random", cohort_size=3, **given)
    settings = session.settings
    return Session(settings, Unfair())


def test_a_client_that_is_passed_over_is_named_once_also_after_a_restart(ticking, caplog):
    port = FakePort(calm(n=8))
    live = Live(unfair(), port)
    alerts = []
    for t in range(60):
        if t in (20, 45):
            fresh = unfair()
            fresh.load(live.session.state({}))
            live = Live(fresh, port)
        alerts += play_round(live)[2].alerts
    assert [(alert.kind, alert.client) for alert in alerts] == [(BEHIND, "client-000")]
    assert alerts[0].numbers["chosen"] == 0
    assert alerts[0].numbers["free"] == alerts[0].round + 1
    assert alerts[0].numbers["promised"] == pytest.approx(3 / 8 * (alerts[0].round + 1), abs=1e-3)
    assert caplog.text.count("alert: client-000 is behind: chosen 0 times in") == 1


def test_an_older_checkpoint_is_counted_from_its_rounds(ticking):
    live = Live(unfair(), FakePort(calm(n=8)))
    for _ in range(60):
        play_round(live)
    saved = live.session.state({})
    old = {name: part for name, part in saved.arrays.items() if name not in ("tally", "alerts")}
    fresh = unfair()
    fresh.load(dataclasses.replace(saved, arrays=old))
    for name, values in live.session.monitor.tally.state().items():
        np.testing.assert_allclose(fresh.monitor.tally.state()[name], values)
    again = Live(fresh, live.port)
    assert not [alert for _ in range(5) for alert in play_round(again)[2].alerts]


def test_a_client_that_keeps_failing_is_named_with_the_reason(ticking):
    session = session_of("random", alerts=AlertRules(failures=3))
    present(session)
    bad = [Kind.FAILED, Kind.LOST, Kind.FAILED, Kind.ANSWERED, Kind.FAILED, Kind.FAILED]
    alerts = []
    for kind in [*bad, Kind.LOST, Kind.FAILED]:
        answered(session, session.open(), kind, *[Kind.ANSWERED] * 3)
        alerts += session.close().alerts
    assert [(alert.round, alert.kind, alert.client) for alert in alerts] == [
        (2, FAILING, "client-0"),
        (6, FAILING, "client-0"),  # once for each time that it stops answering
    ]
    assert alerts[0].text == "client-0 has failed 3 times in a row, the last time: why."


@pytest.mark.parametrize("n", [20, 21])
def test_many_clients_that_fail_at_once_are_one_alert(ticking, n):
    session = session_of("random", cohort_size=n, alerts=AlertRules(failures=2, void_rounds=9))
    present(session, n)
    alerts = []
    for _ in range(3):
        answered(session, session.open(), *[Kind.FAILED] * n)
        alerts += [alert for alert in session.close().alerts if alert.kind == FAILING]
    assert len(alerts) == (n if n == 20 else 1)
    if n == 21:
        assert alerts[0].text.startswith("21 clients are failing, among them client-0, client-1, ")
        assert (alerts[0].client, alerts[0].numbers) == (None, {"clients": 21})


def test_void_rounds_are_named_when_they_begin_and_when_they_go_on(ticking):
    session = session_of("random", quorum=Quorum(min_answers=2), alerts=AlertRules(void_rounds=3))
    present(session)
    told = []
    for n in [4, 1, 0, 1, 1, 2, 0]:
        answered(session, session.open(), *[Kind.ANSWERED] * n, *[Kind.FAILED] * (4 - n))
        alerts = session.close().alerts
        told.append([alert.kind for alert in alerts if alert.kind != FAILING])
        fresh = session_of("random", quorum=Quorum(min_answers=2), alerts=AlertRules(void_rounds=3))
        fresh.load(session.state({}))
        session = fresh
        present(session)
    assert told == [[], [QUORUM], [], [VOID], [], [], [QUORUM]]
    empty = session_of("random")
    empty.open()
    assert empty.close().alerts[0].text == "Round 1 is void: no client could be chosen."


def test_alerts_can_be_left_out(ticking):
    session = session_of("random", alerts=None, quorum=Quorum(min_answers=4))
    present(session)
    for _ in range(6):
        answered(session, session.open(), *[Kind.FAILED] * 4)
        assert session.close().alerts == ()


@pytest.mark.parametrize("rules", [{"failures": 0}, {"false_alarms": 1.5}, {"void_rounds": 0}])
def test_impossible_rules_are_refused(rules):
    with pytest.raises(InvalidInput, match=next(iter(rules))):
        AlertRules(**rules)


def test_alerts_are_lines_of_the_run_folder_and_go_on_after_a_restart(ticking, tmp_path):
    session = session_of("random", quorum=Quorum(min_answers=4), alerts=AlertRules(failures=1))
    settings = session.settings

    def records():
        return Records(tmp_path, settings.config("test", turnout.make("random"), None, 3))

    first = records()
    first.open(session.journal, resumed=False)
    present(session)
    for _ in range(2):
        answered(session, session.open(), Kind.FAILED, *[Kind.ANSWERED] * 3)
        first.write_answers(session.close(), session.members.roster)
    path = first.path / "alerts.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["kind"] for line in lines] == [FAILING, QUORUM]
    assert lines[0]["client"] == "client-0"
    assert lines[0]["at"] == lines[1]["at"] == "2023-11-14T22:30:00.000+00:00"
    path.write_text(path.read_text() + '{"round": 2, "kind": "of a round that was lost"}\n{"torn')
    records().open(session.journal, resumed=True)
    assert [json.loads(line) for line in path.read_text().splitlines()] == lines


def test_a_world_gives_no_alerts():
    assert LiveSettings(cohort_size=3).alerts == AlertRules()
    world = VirtualWorld(e3cs_world(n_clients=4, seed=1))
    session = Session(LiveSettings(cohort_size=3), turnout.make("random"), world=world)
    assert session.monitor.state()["alerts"] == {}
