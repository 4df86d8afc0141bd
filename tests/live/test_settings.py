"""Settings are declared once: as an object, by name, as a table, and in every host."""

import json
from dataclasses import fields

import pytest

from turnout import InvalidInput
from turnout.core.bounds import Bounds
from turnout.live import AlertRules, Guard, LiveSettings, Quorum, Settings
from turnout.worlds import FirstK, OverSelect

GIVEN = LiveSettings(
    cohort_size=7,
    policy=OverSelect(FirstK(seconds=60.0), 1.5),
    seed=3,
    checkpoint="run.npz",
    records="runs",
    guard=Guard(floor=0.25, cap=float("inf")),
    bounds=Bounds(losses=False),
    quorum=Quorum(min_answers=2),
    label="mine",
    metric_keys={"loss": "my-loss"},
    limit_s=float("inf"),
    late_s=4.0,
    alerts=None,
)


def test_settings_survive_a_table():
    again = LiveSettings.of(json.loads(json.dumps(GIVEN.table())))
    for one in fields(LiveSettings):
        if one.name not in ("bounds", "limit_s"):
            assert getattr(again, one.name) == getattr(GIVEN, one.name), one.name
    assert again.bounds.parameters == GIVEN.bounds.parameters
    assert float(again.limit_s) == float("inf")


def test_switches_turn_bounds_and_alerts_on_and_off():
    off = LiveSettings.of({"bounds": False, "alerts": False})
    assert (off.bounds, off.alerts) == (None, None)
    assert LiveSettings.of(off.table()).bounds is None
    on = LiveSettings.of({"bounds": True, "alerts": {"failures": 2}}, off)
    assert (on.bounds.parameters, on.alerts) == (Bounds().parameters, AlertRules(failures=2))


def test_what_is_given_replaces_single_settings():
    settings = LiveSettings.of({"seed": 4, "quorum": None}, GIVEN)
    assert (settings.seed, settings.quorum, settings.cohort_size) == (4, GIVEN.quorum, 7)


def test_names_of_earlier_versions_still_work():
    assert Settings is LiveSettings
    assert LiveSettings.of({"wait_for_nodes_s": 2.0}).wait_for_clients_s == 2.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"chekpoint": "run.npz"}, "unknown setting 'chekpoint'. Did you mean 'checkpoint'"),
        ({"guard": 0.5}, "guard must be Guard or a table"),
        ({"quorum": {"answers": 2}}, "quorum.answers"),
        ({"bounds": {"losse": False}}, "bounds has no switch 'losse'. Did you mean 'losses'"),
        ({"policy": "first-kk"}, "first-k"),
        ({"limit_s": 0.0}, "limit_s must be"),
        ({"wait_for_nodes_s": 5.0, "wait_for_clients_s": 9.0}, "the former name of"),
    ],
)
def test_wrong_settings_are_refused_by_name(given, message):
    with pytest.raises(InvalidInput, match=message):
        LiveSettings.of(given)


def test_only_numbers_are_read_as_infinite():
    assert LiveSettings.of({"label": "inf"}).label == "inf"
    assert LiveSettings.of({"limit_s": "inf"}).limit_s == float("inf")
