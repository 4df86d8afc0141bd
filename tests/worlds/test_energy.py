"""Batteries: levels by hand, pure functions of a round, who is available, and what fails."""

import dataclasses
import math

import numpy as np
import pytest

import turnout
from turnout import InvalidInput
from turnout.experiment import Experiment, Progress, rounds, run_experiment
from turnout.results.catalogue import summarize
from turnout.results.metric import Facts
from turnout.worlds import (
    Battery,
    BatteryOnGrid,
    Environment,
    FixedTime,
    History,
    Plugged,
    Reliable,
)

#: 3,600 J, 2 W of work, 1 W idle, 10 W charger from 12 to 13 o'clock, half an hour a round.
PLAIN = Battery(
    capacity_wh=1.0,
    work_w=2.0,
    spread=0.0,
    idle_w=0.1,
    charge_w=1.0,
    charge_from=1.0,
    charge_to=2.0,
    zones=0.0,
    full=(0.5, 0.5),
    reserve=0.2,
    round_s=1800.0,
)


def world(energy=PLAIN, seconds=300.0, n=3):
    return Environment(n, 1, volatility=Reliable(), timing=FixedTime(seconds), energy=energy)


def test_levels_by_hand():
    own, history = world(), History.fresh(3)
    seen = []
    for t, chosen in enumerate([[0], [0, 1], [], []]):
        ctx = own.context(t, 2, history, columns={"battery", "energy_j"})
        seen.append((ctx.column("battery") * 3600.0).tolist())
        assert ctx.column("energy_j").tolist() == [600.0] * 3
        clients = np.array(chosen, dtype=np.int64)
        joules = own.record(t, history, clients, np.full(clients.size, 300.0))
        assert joules.tolist() == [600.0] * len(chosen)
    # 600 J of work in 300 s, and 150 J in the other 1,500 s; idling alone takes 180 J. Rounds 2 and
    # 3 begin at 1:00 and 1:30, when the charger gives 0.9 W more than idling takes.
    expected = [[1800.0] * 3, [1050.0, 1620.0, 1620.0], [300.0, 870.0, 1440.0]]
    np.testing.assert_allclose(seen[:3], expected)
    np.testing.assert_allclose(seen[3], [300 + 1620, 870 + 1620, 1440 + 1620])
    np.testing.assert_allclose(history.level_, [3540.0, 3600.0, 3600.0])  # full is full


def test_a_charger_feeds_work():
    own, history = world(seconds=300.0), History.fresh(3)
    history.level_ = np.array([0.0, 200.0, 3600.0])
    away, plugged = own.fate(0, history), own.fate(2, history)  # from 1 o'clock on
    assert away.survived.tolist() == [False, False, True]
    assert away.duration.tolist() == [0.0, 100.0, 300.0]
    assert plugged.survived.tolist() == [False, False, True]  # 2 W of work, 1 W from the charger
    assert plugged.duration.tolist() == [0.0, 200.0, 300.0]
    strong = world(dataclasses.replace(PLAIN, charge_w=2.0))
    assert strong.fate(2, history).survived.all()
    joules = strong.record(2, history, np.array([0]), np.array([300.0]))
    assert joules.tolist() == [600.0]
    np.testing.assert_allclose(history.level_[0], 2 * 1800 - 600 - 150)


def test_who_is_below_the_reserve_is_away_unless_it_charges():
    own, history = world(), History.fresh(3)
    history.level_ = np.array([719.0, 721.0, 3600.0])
    assert own.context(0, 2, history).available.tolist() == [False, True, True]
    assert own.context(2, 2, history).available.all()  # 1 o'clock


def test_an_empty_battery_ends_the_work():
    own, history = world(), History.fresh(3)
    history.level_ = np.array([100.0, 600.0, 3600.0])
    fate = own.fate(0, history)
    assert fate.survived.tolist() == [False, True, True]
    assert fate.duration.tolist() == [50.0, 300.0, 300.0]
    joules = own.record(0, history, np.array([0]), np.array([300.0]))
    assert joules.tolist() == [100.0]  # there was no more
    assert history.level_[0] == 0.0


@pytest.mark.parametrize(("start", "end"), [(22.0, 6.0), (6.0, 22.0)])
def test_charging_windows_may_pass_midnight(start, end):
    energy = Battery(charge_from=start, charge_to=end, zones=0.0, round_s=3600.0)
    own, history = world(energy), History.fresh(3)
    for t in range(48):
        moment = own._moment(t, history)
        inside = start <= t % 24 < end if start < end else (t % 24 >= start or t % 24 < end)
        assert energy.is_charging(moment).tolist() == [inside] * 3


def test_a_round_is_a_pure_function_of_the_level_before():
    energy = Battery()
    own = world(energy, n=50)
    history = History.fresh(50)
    history.level_ = np.linspace(0.0, energy.capacity_j, 50)
    first = own.fate(7, history), own.context(7, 5, history).available
    own.fate(3, history)
    again = own.fate(7, history), own.context(7, 5, history).available
    np.testing.assert_array_equal(first[0].duration, again[0].duration)
    np.testing.assert_array_equal(first[1], again[1])
    levels = own.energy.after(own._moment(7, history), np.zeros(50))
    assert ((levels >= 0.0) & (levels <= energy.capacity_j)).all()
    watts = own.energy.watts(own._moment(7, history))
    assert np.log(watts / 4.0).std() == pytest.approx(0.3, abs=0.12)


def test_worlds_on_the_mains_are_as_before():
    plain, plugged = Environment(9, 2), Environment(9, 2, energy=Plugged())
    assert plain == plugged
    assert not plugged.uses_history
    assert not {"battery", "energy_j"} & plugged.columns
    history = History.fresh(9)
    assert plugged.record(0, history, np.array([1]), np.ones(1)) is None
    assert history.level_.size == 0
    run = turnout.simulate("random", plugged, cohort_size=2, n_rounds=3)
    assert not run.measured
    assert not run.reported
    assert "energy_j" not in summarize(Facts.of_run(run, {}, {}))


def test_a_run_records_and_sums_energy_and_resumes_to_the_same(tmp_path):
    own = world(Battery(capacity_wh=2.0), n=20)
    run = turnout.simulate("random", own, cohort_size=5, n_rounds=40)
    joules = run.reported["energy_j"]
    by_round = np.add.reduceat(np.append(joules, 0.0), run.offsets[:-1])
    played = np.diff(run.offsets) > 0
    np.testing.assert_allclose(run.measured["energy_j"][played], by_round[played])
    numbers = summarize(Facts.of_run(run, {}, {}))
    assert numbers["energy_j"] == pytest.approx(joules.sum())
    assert numbers["most_energy_j"] == pytest.approx(np.bincount(run.clients, joules).max())
    assert "co2_g" not in numbers

    selector = turnout.make("random")
    progress = Progress(20)
    play = {"cohort_size": 5, "n_rounds": 40}
    records = rounds(selector, own, progress=progress, **play)
    for _ in range(17):
        next(records)
    saved = Progress.from_state(20, progress.state())
    rest = rounds(selector, own, start=17, progress=saved, **play)
    np.testing.assert_array_equal(
        np.concatenate([record.joules for record in rest]), joules[run.offsets[17] :]
    )


def test_carbon_by_the_hour_and_region(tmp_path):
    path = tmp_path / "grid.csv"
    path.write_text("hour,north,south\n0,36,360\n1,72,720\n")
    energy = BatteryOnGrid(path=str(path), round_s=3600.0, full=(1.0, 1.0))
    own = world(energy, n=4)
    clients, joules = np.array([0, 3]), np.array([1e5, 1e5])
    assert own.carbon(0, clients, joules) == pytest.approx(1.0 + 10.0)
    assert own.carbon(1, clients, joules) == pytest.approx(2.0 + 20.0)
    assert own.carbon(2, clients, joules) == pytest.approx(1.0 + 10.0)  # it repeats
    run = turnout.simulate("random", own, cohort_size=2, n_rounds=6)
    numbers = summarize(Facts.of_run(run, {}, {}))
    assert numbers["co2_g"] == pytest.approx(run.measured["co2_g"].sum())
    assert numbers["co2_g"] > 0.0


@pytest.mark.parametrize(
    "text", ["", "hour,a\n", "hour,a\n0,x\n", "hour,a\n0,-1\n", "h,a\n0\n1,2\n"]
)
def test_a_damaged_table_is_named(tmp_path, text):
    path = tmp_path / "grid.csv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"grid\.csv must be a table"):
        world(BatteryOnGrid(path=str(path))).carbon(0, np.array([0]), np.ones(1))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"full": (0.9, 0.3)}, "full"),
        ({"capacity_wh": 0.0}, "capacity_wh"),
        ({"charge_to": 25.0}, "charge_to"),
    ],
)
def test_impossible_batteries_are_refused(wrong, field):
    with pytest.raises(InvalidInput) as caught:
        Battery(**wrong)
    assert caught.value.field == field


def test_a_table_describes_a_world_with_batteries():
    table = {"energy": {"kind": "battery", "capacity_wh": 5.0}}
    experiment = Experiment.from_table(
        {
            "name": "e",
            "selectors": ["random"],
            "n_clients": 9,
            "cohort_size": 2,
            "n_rounds": 2,
            "world": table,
        }
    )
    assert experiment.environment(0).energy == Battery(capacity_wh=5.0)
    assert Experiment.from_table(experiment.table()) == experiment


def budgeted(n_rounds=60, **limits):
    own = world(Battery(capacity_wh=50.0, full=(1.0, 1.0)), n=20)
    selector = turnout.make("guarded", inner="random", **limits)
    return selector, turnout.simulate(selector, own, cohort_size=4, n_rounds=n_rounds)


@pytest.mark.parametrize("floor", [0.0, 1.0])
def test_budgets_hold_for_each_client_and_for_all(floor):
    """Times are fixed here, so what is announced is what is spent."""
    for limits in ({"max_energy_j": 5000.0}, {"total_energy_j": 5e4}):
        selector, run = budgeted(floor=floor, **limits)
        spent = np.bincount(run.clients, run.reported["energy_j"], minlength=20)
        assert spent.max() <= limits.get("max_energy_j", math.inf) + 1e-6
        assert spent.sum() <= limits.get("total_energy_j", math.inf) + 1e-6
        assert spent.sum() > 0.6 * min(5e4, 20 * limits.get("max_energy_j", math.inf))
        np.testing.assert_allclose(selector.state()["energy_"], spent)
        assert selector.state()["energy_of_all_"][0] == pytest.approx(spent.sum())


def test_who_announces_no_energy_is_excluded():
    selector = turnout.make("guarded", max_energy_j=100.0)
    selector.prepare(3)
    columns = {"energy_j": np.array([np.nan, 1.0, 200.0])}
    ctx = turnout.RoundContext(0, 3, np.ones(3, dtype=np.bool_), columns=columns)
    assert selector.select(ctx, turnout.stream(0, 1, 0)).clients.tolist() == [1]


def test_budgets_count_rounds_in_flight():
    selector = turnout.make("guarded", floor=0.0, cap=math.inf, max_energy_j=100.0)
    selector.prepare(1)
    columns = {"energy_j": np.array([40.0])}
    chosen = []
    for t in range(5):
        ctx = turnout.RoundContext(t, 1, np.ones(1, dtype=np.bool_), columns=columns)
        chosen.append(selector.select(ctx, turnout.stream(0, 1, t)).clients.size)
    assert chosen == [1, 1, 0, 0, 0]


def test_a_damaged_table_of_the_grid_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "grid.csv").write_text("hour,north\n0,-5\n")
    energy = {"kind": "battery-on-grid", "path": str(tmp_path / "grid.csv")}
    made = Experiment(["random"], n_clients=5, cohort_size=2, n_rounds=3, world={"energy": energy})
    with pytest.raises(InvalidInput, match=r"grid\.csv must be a table .* a number >= 0"):
        run_experiment(made, tmp_path / "runs", n_jobs=1)
    assert not (tmp_path / "runs").exists()
