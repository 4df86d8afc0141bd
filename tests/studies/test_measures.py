from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.core.errors import InvalidInput
from turnout.experiment import Cell
from turnout.results.run import PER_CHOICE, PER_ROUND, Run
from turnout.results.settings import CellSettings
from turnout.studies.measures import measure_named, shown

# measures --------------------------------------------------------------------------------------


def cell(**columns: Any) -> Cell:
    n_rounds = max(len(values) for values in columns.values())
    made: dict[str, Any] = {name: np.zeros(0, kind) for name, kind in PER_CHOICE.items()}
    made |= {name: np.zeros(n_rounds, kind) for name, kind in PER_ROUND.items()}
    made |= {"offsets": np.zeros(n_rounds + 1, np.int64)}
    made |= {name: np.asarray(values) for name, values in columns.items()}
    training = {"evaluate_every": 5, "evaluate_clients_every": 10}
    settings = CellSettings(
        experiment="paper",
        kind="training",
        label="random",
        selector="random",
        parameters={},
        seed=0,
        n_clients=4,
        cohort_size=2,
        n_rounds=n_rounds,
        world={},
        world_id="",
        policy={},
        classes={},
        training=training,
    )
    run = Run.from_columns(4, 2, made)
    return Cell(Path(), settings, {}, {}, {}, run, made, made.get("class_of"), {}, n_rounds, True)


def of(measure: str, given: Cell) -> float:
    return measure_named(measure).compute(given)


def test_the_turn_is_found_where_success_changes() -> None:
    status = np.repeat([0, 3], [60, 140])  # one choice a round, answered until round 60
    made = cell(
        clients=np.zeros(200, np.int64),
        status=status,
        offsets=np.arange(201),
        duration=np.ones(200),
        spent=np.ones(200),
        probability=np.ones(200),
        length_s=np.ones(200),
        n_available=np.ones(200),
    )
    assert of("turn-offset", made) == 60 - 50


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0])
def test_growth_is_the_exponent(exponent: float) -> None:
    backlog = 3.0 * np.arange(1, 1001) ** exponent
    # a chord over the last fifth instead of a tangent: off by less than (1/9)**2
    assert of("backlog-growth", cell(backlog_mean=backlog)) == pytest.approx(exponent, abs=0.012)


def test_levels_and_time_constants() -> None:
    backlog = 8.0 * (1.0 - np.exp(-np.arange(1, 2001) / 50.0))
    made = cell(backlog_mean=backlog)
    assert of("backlog-level", made) == pytest.approx(8.0)
    assert of("time-constant", made) == 50.0


def test_shortfall_falls_when_the_longest_queue_stands() -> None:
    assert of("shortfall-fall", cell(backlog_max=np.full(100, 5.0))) == pytest.approx(0.05)
    growing = cell(backlog_max=0.15 * np.arange(1, 101))
    assert of("shortfall-fall", growing) == pytest.approx(0.0)


def test_measures_of_classes() -> None:
    clients = np.repeat([0, 1, 2, 3], [1, 1, 6, 2])
    made = cell(
        clients=clients,
        status=np.zeros(10),
        offsets=np.arange(11),
        duration=np.ones(10),
        spent=np.ones(10),
        probability=np.ones(10),
        class_of=[0, 0, 1, 1],
        length_s=np.ones(10),
        n_available=np.ones(10),
    )
    assert of("best-class-share", made) == 0.8
    assert of("largest-wrong-count", made) == 1.0
    assert of("best-class-jain", made) == pytest.approx(64 / (2 * 40))
    assert of("best-class-quartile", made) == pytest.approx(0.3)


def test_cohort_measures() -> None:
    made = cell(offsets=np.cumsum([0, 7, 9, 11, 9]), length_s=np.ones(4), n_available=np.ones(4))
    assert of("cohort-mean", made) == 9.0


def test_shares_of_answers_are_not_those_of_places() -> None:
    made = cell(
        clients=[0, 1, 2, 3, 0, 1, 2, 3],
        status=[0, 0, 0, 1, 0, 0, 0, 2],  # client 3 got its places and answered in none
        offsets=[0, 2, 4, 6, 8],
        length_s=np.ones(4),
        n_available=np.full(4, 4),
    )
    assert of("least-share", made) == 1.0
    assert of("least-answered", made) == 0.0
    made = cell(
        clients=[0, 1, 2, 3, 0, 1, 2, 3],
        status=[0, 0, 0, 1, 0, 0, 0, 0],  # 7 answers: an equal share is 7 / 4
        offsets=[0, 2, 4, 6, 8],
        length_s=np.ones(4),
        n_available=np.full(4, 4),
    )
    assert of("least-answered", made) == pytest.approx(4 / 7)


# training --------------------------------------------------------------------------------------


def looked_at(every: int, values: dict[int, float], n_rounds: int = 100) -> np.ndarray:
    """Return a curve measured every few rounds: 0.5, except in the rounds named."""
    curve = np.full(n_rounds, np.nan)
    curve[every - 1 :: every] = 0.5
    for t, value in values.items():
        curve[t - 1] = value
    return curve


def test_windows_are_of_the_planned_rounds() -> None:
    made = cell(**{"measured.accuracy": looked_at(5, {100: 0.9, 5: 0.1})})
    assert of("final-accuracy", made) == 0.9  # rounds 96 to 100: one look
    assert of("early-accuracy", made) == pytest.approx((0.1 + 4 * 0.5) / 5)


def test_a_run_that_diverges_does_not_disappear() -> None:
    gone = dict.fromkeys(range(40, 101, 5), math.nan)
    made = cell(**{"measured.accuracy": looked_at(5, gone)})
    assert of("final-accuracy", made) == 0.0  # the worst there is
    losses = dict.fromkeys(range(50, 101, 10), math.nan)
    made = cell(**{"measured.local_loss": looked_at(10, losses)})
    assert math.isnan(of("global-loss", made))  # a divergence, which judges count
    assert math.isnan(of("log-global-loss", made))
    assert of("global-loss-early", made) == 0.5


def test_times_to_an_accuracy_may_be_never() -> None:
    made = cell(
        **{"measured.accuracy": looked_at(5, {35: 0.8, 40: 0.7}), "length_s": np.full(100, 2.0)}
    )
    assert of("rounds-to-0.75", made) == 35.0
    assert of("time-to-0.75", made) == 70.0
    assert of("rounds-to-0.85", made) == math.inf
    assert of("time-to-0.85", made) == math.inf
    assert measure_named("rounds-to-0.85").is_time_to
    with pytest.raises(InvalidInput, match="unknown measure 'rounds-to-85'"):
        measure_named("rounds-to-85")


def test_energy_is_what_was_spent_until_the_accuracy_is_there() -> None:
    joules = np.arange(1.0, 101.0)
    joules[2] = np.nan  # a round that nobody worked in
    made = cell(
        **{"measured.accuracy": looked_at(5, {35: 0.8, 40: 0.7}), "measured.energy_j": joules}
    )
    assert of("energy-to-0.75", made) == 35 * 36 / 2 - 3.0
    assert of("energy-to-0.85", made) == math.inf
    assert measure_named("energy-to-0.75").title == "energy to 75%, J"


def test_seeds_that_say_nothing_are_not_called_diverged() -> None:
    relative, own = measure_named("rounds-to-best-of-Random"), measure_named("rounds-to-0.75")
    values = np.array([90.0, np.nan, np.nan])
    assert shown(values, relative) == "90"
    assert shown(values, own) == "90 (2 of 3 diverged)"
    assert shown(values[1:], relative) == "-"
    assert shown(values[1:], own) == "diverged"
