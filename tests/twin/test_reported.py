"""Losses and sizes that clients report: recorded, resumed, read, and learned from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout.core.files import write_npz
from turnout.results import read_cell
from turnout.results.files import DamagedFile, read_arrays
from turnout.results.run import REPORTED, Collector, RoundRow
from turnout.worlds import Bernoulli, Environment, Population, Reliable, SyntheticLoss


def row(clients: list[int], **reported: list[float]) -> RoundRow:
    s = len(clients)
    zeros, arrays = np.zeros(s), {name: np.array(x) for name, x in reported.items()}
    available = np.ones(5, dtype=np.bool_)
    return RoundRow(
        np.array(clients), zeros.astype(np.int8), zeros, zeros, None, 1.0, available, {}, arrays
    )


def test_what_is_reported_later_is_missing_before():
    rounds = Collector()
    rounds.add(row([0, 2]))
    rounds.add(row([1], loss=[0.5]))
    rounds.add(row([3, 4], num_samples=[7.0, 9.0]))
    columns = rounds.columns()
    nan = np.nan
    assert np.array_equal(columns["reported.loss"], [nan, nan, 0.5, nan, nan], equal_nan=True)
    sizes = [nan, nan, nan, 7.0, 9.0]
    assert np.array_equal(columns["reported.num_samples"], sizes, equal_nan=True)
    resumed = Collector.from_columns(columns)
    for each in (rounds, resumed):
        each.add(row([0], loss=[0.25]))
    for name, values in rounds.columns().items():
        assert np.array_equal(values, resumed.columns()[name], equal_nan=True), name


def test_selectors_that_learn_from_losses_leave_them_in_the_records(tmp_path: Path):
    options = {"n_rounds": 20, "seeds": 1, "n_jobs": 1, "out": tmp_path}
    turnout.compare(["random", "oort"], "reliable", **options)
    random, oort = (read_cell(tmp_path / name / "seed-0").run for name in ("random", "oort"))
    assert random.reported == {}
    assert set(oort.reported) == {"loss_rms", "num_samples"}
    assert oort.reported["loss_rms"].shape == oort.clients.shape
    assert oort.first(3).reported["loss_rms"].size == oort.offsets[3]
    path = tmp_path / "oort" / "seed-0" / "selections.npz"
    columns = read_arrays(path)
    write_npz(path, columns | {f"{REPORTED}loss_rms": np.zeros(3)})
    with pytest.raises(DamagedFile, match="loss_rms is not one number per choice"):
        read_cell(path.parent)


def test_levels_sizes_and_the_fall_of_losses_are_recovered(tmp_path: Path):
    population = Population(samples=100, tail=1.5, level_spread=0.7)
    losses = SyntheticLoss(floor=0.2, half_life=60.0, noise=0.2)
    world = Environment(60, 0, Bernoulli(0.9), Reliable(), population=population, losses=losses)
    sizes = {"n_clients": 60, "cohort_size": 15, "n_rounds": 200}
    turnout.compare(["oort"], world, **sizes, seeds=1, n_jobs=1, out=tmp_path)
    fitted = turnout.fit(tmp_path)
    seen = read_cell(tmp_path / "oort" / "seed-0").run.counts >= 5
    assert seen.sum() > 20
    twin = fitted.environment_of(0, draw=False).population
    level = np.log(twin.loss_level(60, 0) / population.loss_level(60, 0))
    # 0.2 / sqrt(5 reports) is the standard error of a level, 0.1 the step between the curves tried
    assert np.abs(level[seen]).mean() < 0.2
    assert np.array_equal(twin.num_samples(60, 0)[seen], population.num_samples(60, 0)[seen])
    assert abs(fitted.losses.noise - 0.2) < 0.03
    for t in (0, 50, 150):
        ratio = fitted.losses.mean(np.ones(1), t) / losses.mean(np.ones(1), t)
        assert 0.8 < ratio[0] < 1.25
    by_name = {each.name: each for each in fitted.quantities}
    assert not by_name["losses"].is_guess
    assert not by_name["examples"].is_guess
