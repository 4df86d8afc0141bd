"""A model that is being ruined: sizes of updates, accuracy that falls, cohorts that shrink."""

import json
import math

import numpy as np
import pytest

from tests.live.history import FakePort
from tests.live.test_session import answered, calm, play_round, present, session_of
from turnout import InvalidInput, StateFileError, Status
from turnout.core.bounds import Bounds
from turnout.live import AlertRules, Kind, Live, Reply
from turnout.live.alerts import MODEL, SHORT, UPDATE, Quality
from turnout.live.records import Records
from turnout.live.reports import LARGEST, REFUSED, UpdateSizes, squared_distance
from turnout.live.round import BY_SERVER

NAN = math.nan


def compared(sizes, *, clients=None, votes=()):
    known = UpdateSizes()
    if len(votes):
        known.load_state({"update": np.array(votes, dtype=float)}, len(votes))
    clients = np.arange(len(sizes)) if clients is None else np.array(clients)
    return known.compare(clients, np.array(sizes, dtype=float)).tolist(), known


def test_with_four_sizes_the_round_says_what_is_usual():
    assert compared([1.0, 2.0, 4.0, 2000.0])[0] == [0.5, 1.0, 2.0, 1000.0]
    # Zeros and unknown sizes have no vote.
    assert np.isnan(compared([0.0, NAN, 2.0, 2.0, 8.0])[0]).all()
    assert compared([0.0, 2.0, 2.0, 2.0, 8.0])[0] == [0.0, 1.0, 1.0, 1.0, 4.0]


def test_with_fewer_the_last_sizes_of_all_clients_do():
    multiples, known = compared([5.0, 1e6], clients=[0, 4], votes=[1.0, 2.0, 3.0, NAN, NAN])
    assert multiples == pytest.approx([5 / 3, 1e6 / 3])  # votes are 5, 2, 3, 1e6
    assert known.state()["update"].tolist() == pytest.approx([5.0, 2.0, 3.0, NAN, 3e3], nan_ok=True)
    assert np.isnan(compared([5.0, 1e6])[0]).all()


def test_an_impossible_size_is_known_without_others():
    assert compared([1.0, 2 * LARGEST])[0] == [pytest.approx(NAN, nan_ok=True), math.inf]
    assert compared([math.inf])[0] == [math.inf]


def test_the_usual_size_follows_if_all_updates_grow():
    """Two clients a round, as small as a cohort gets: nobody is refused for ever."""
    known = UpdateSizes()
    for t in range(6):
        known.compare(np.array([t % 6, (t + 3) % 6]), np.array([1.0, 1.0]))
    refused = 0
    for t in range(12):
        multiples = known.compare(np.array([t % 6, (t + 3) % 6]), np.array([1e5, 1e5]))
        refused += int((multiples > REFUSED).sum())
    assert 0 < refused <= 12
    assert multiples.tolist() == [1.0, 1.0]


def test_saved_sizes_must_fit():
    known = UpdateSizes()
    known.load_state({}, 3)
    assert np.isnan(known.state()["update"]).tolist() == [True] * 3
    for wrong in (np.zeros(4), np.zeros((2, 2)), np.zeros(2, dtype=int)):
        with pytest.raises(StateFileError, match="sizes must be numbers of 3 clients"):
            known.load_state({"update": wrong}, 3)


def test_distances_are_computed_without_overflow():
    new, old = np.array([3.0, 1e30], dtype=np.float32), np.zeros(2, dtype=np.float32)
    assert squared_distance(new, old) == pytest.approx(1e60)
    assert squared_distance(np.array([1e200]), np.array([0.0])) == math.inf


def sized_round(session, sizes):
    cohort = session.open()
    for client, size in zip(cohort.ids, sizes, strict=True):
        session.receive(client, Reply(seconds=1.0, content=client, size=size))
    return session.close()


@pytest.mark.parametrize("bounds", [Bounds(), None, Bounds(losses=False)])
def test_an_update_that_ruins_the_model_is_refused_and_reported(ticking, caplog, bounds):
    session = session_of("random", bounds=bounds)
    present(session)
    ended = sized_round(session, [1.0, 1.2, 1e30, 50.0])
    refuses = bounds is not None and bounds.losses
    assert [Status(s).name for s in ended.closed.status] == [
        *("COMPLETED", "COMPLETED", "FAILED" if refuses else "COMPLETED", "COMPLETED")
    ]
    assert ended.ids[2] not in ended.answers or not refuses
    (huge, large) = (alert for alert in ended.alerts if alert.kind == UPDATE)
    assert (huge.client, large.client) == (ended.ids[2], ended.ids[3])
    assert huge.text.endswith("it was refused." if refuses else "impossible size.")
    assert large.text.endswith("sent an update 41.7 times as large as usual.")
    assert "reply dropped, its update has the size 1e+30" in caplog.text or not refuses


def test_what_a_client_claims_causes_an_alert_only(ticking):
    session = session_of("random")
    present(session)
    cohort = session.open()
    for client, norm in zip(cohort.ids, [1.0, 1.0, 1.0, 1e25], strict=True):
        session.receive(client, Reply(seconds=1.0, metrics={"update_norm": norm}))
    ended = session.close()
    assert [alert.kind for alert in ended.alerts] == [UPDATE]
    assert (ended.closed.status == Status.COMPLETED).all()
    fresh = session_of("random")  # a restart remembers what is usual
    fresh.load(session.state({}))
    np.testing.assert_array_equal(
        fresh.state({}).arrays["claims"]["update"], session.state({}).arrays["claims"]["update"]
    )


def told(quality, *accuracies, start=0):
    return [quality.measured(start + t, {"accuracy": x}) for t, x in enumerate(accuracies)]


def test_accuracy_that_falls_is_told_once():
    quality = Quality(patience=3)
    said = told(quality, 0.1, 0.5, 0.8, 0.44, 0.1, 0.1, 0.1, 0.1)
    assert [text is not None for text in said] == [False] * 5 + [True] + [False] * 2
    assert said[5] == (
        "the accuracy has fallen from 0.8 to 0.1, for 3 measurements in a row up to round 6."
    )
    said = told(quality, 0.9, 0.2, 0.2, math.nan, start=8)  # again after it had recovered
    assert said[3] is not None


def test_noise_and_a_slow_start_are_no_fall():
    assert not any(told(Quality(2), 0.1, 0.12, 0.05, 0.05, 0.08, 0.05, 0.13, 0.05, 0.05))
    assert not any(told(Quality(2), 0.5, 0.6, 0.5, 0.6, 0.5, 0.58, 0.56, 0.56))
    quality = Quality(2)
    assert quality.measured(0, {"train_loss": 1.0}) is None
    assert quality.measured(1, {"accuracy": 0.9}) is None
    for _ in range(3):  # the same round again: more metrics became known
        assert quality.measured(1, {"accuracy": 0.1}) is None


@pytest.mark.parametrize("wrong", [NAN, math.inf, 231.0])
def test_a_loss_without_measure_is_told_at_once(wrong):
    quality = Quality(3)
    assert quality.measured(0, {"loss": 2.3}) is None
    assert "and was 2.3 before" in quality.measured(1, {"loss": wrong})
    assert quality.measured(2, {"loss": wrong}) is None
    assert quality.measured(3, {"loss": 2.0}) is None
    assert quality.measured(4, {"loss": NAN}) is not None
    assert Quality(3).measured(0, {"loss": NAN}) is not None


def test_a_fall_reaches_log_and_records_and_is_not_repeated_after_a_restart(
    ticking, tmp_path, caplog
):
    def run(live, accuracies):
        for x in accuracies:
            play_round(live)
            live.session.journal.note(BY_SERVER, live.session.round, {"accuracy": x})

    port = FakePort(calm(n=6))
    live = Live(session_of("random", alerts=AlertRules(worse=2)), port)
    run(live, [0.1, 0.9, 0.1])
    fresh = session_of("random", alerts=AlertRules(worse=2))
    fresh.load(live.session.state({}))
    assert not fresh.monitor.unwritten
    run(Live(fresh, port), [0.1, 0.1])
    (alert,) = fresh.monitor.unwritten
    assert (alert.kind, alert.round) == (MODEL, 3)
    assert caplog.text.count("alert: The accuracy has fallen from 0.9 to 0.1") == 1
    config = fresh.settings.config("flower", fresh.selector, None, 5)
    records = Records(tmp_path, config)
    records.open(fresh.journal, resumed=False)
    records.write_alerts([alert])
    (line,) = (records.path / "alerts.jsonl").read_text().splitlines()
    assert json.loads(line)["kind"] == MODEL


def test_a_short_cohort_is_reported_when_it_begins(ticking, caplog):
    session = session_of("random")
    present(session)
    everyone = set(session.members.connected)
    kinds = []
    for there in (everyone, sorted(everyone)[:1], sorted(everyone)[:1], everyone, everyone):
        session.sync(there)
        cohort = session.open()
        answered(session, cohort, *[Kind.ANSWERED] * len(cohort.ids))
        ended = session.close()
        kinds.append([alert.kind for alert in ended.alerts])
        if len(ended.ids) == 1:
            assert ended.n_wanted == 4
            fresh = session_of("random")
            fresh.load(session.state({}))
            assert fresh.monitor._alerts.is_short
    assert kinds == [[], [SHORT], [], [], []]
    assert "Round 2 has 1 of the 4 clients that it should have: too few were free." in caplog.text


def test_the_driver_warns_of_every_short_cohort(ticking, caplog):
    live = Live(session_of("random"), FakePort(calm(n=2)))
    for _ in range(2):
        play_round(live)
    warning = "has 2 instead of 4 clients: 2 are connected, and 2 of these are free"
    assert caplog.text.count(warning) == 2


def test_bad_rules_are_refused():
    for rules in ({"update_size": 0.0}, {"worse": 0}):
        with pytest.raises(InvalidInput, match=next(iter(rules))):
            AlertRules(**rules)
