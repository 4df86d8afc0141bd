"""The files of a fitted world, and the world that they make."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

import turnout
from turnout.core.errors import InvalidInput
from turnout.experiment.sweep import settings_of
from turnout.studies.arena_tasks import tasks_named
from turnout.twin import FittedWorld
from turnout.worlds import Environment, FixedDeadline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    options = {"n_rounds": 150, "seeds": 1, "n_jobs": 1, "out": folder / "log", "deadline": 20.0}
    turnout.compare(["random"], "volatile", **options)
    turnout.fit(folder / "log").save(folder / "fed.toml")
    return folder


@pytest.fixture(scope="module")
def world(folder: Path) -> FittedWorld:
    return FittedWorld.load(folder / "fed.toml")


def rounds_of(environment: Environment, *rounds: int) -> list[np.ndarray]:
    return [
        np.stack((environment.context(t, 5).available, *environment.fate(t)[:2])) for t in rounds
    ]


def test_rounds_are_the_same_in_any_order(world: FittedWorld):
    ahead = rounds_of(world.environment_of(3), 0, 1, 2, 9)
    back = rounds_of(world.environment_of(3), 9, 2, 1, 0)
    assert all(np.array_equal(a, b) for a, b in zip(ahead, reversed(back), strict=True))


def test_seeds_draw_what_the_records_leave_open(world: FittedWorld):
    rates = [world.environment_of(seed).context(0, 5, columns=["success_rate"]) for seed in (0, 1)]
    first, second = (ctx.columns["success_rate"] for ctx in rates)
    assert not np.allclose(first, second)
    fixed = [world.environment_of(seed, draw=False).volatility for seed in (0, 1)]
    assert fixed[0] == fixed[1]


def test_a_world_in_memory_equals_the_one_on_the_disk(folder: Path, world: FittedWorld):
    fresh = turnout.fit(folder / "log")
    for a, b in zip(
        rounds_of(fresh.environment_of(4), 0, 7),
        rounds_of(world.environment_of(4), 0, 7),
        strict=True,
    ):
        assert np.array_equal(a, b)
    assert fresh.quantities == world.quantities


def test_commands_take_sizes_and_policy_of_the_file(folder: Path):
    settings = settings_of(str(folder / "fed.toml"), None, None, name="x")
    assert (settings["n_clients"], settings["cohort_size"], settings["n_rounds"]) == (100, 20, 150)
    experiment = turnout.Experiment(["random"], **settings)
    assert experiment.policy == FixedDeadline(20.0)
    assert settings_of(str(folder / "fed.toml"), None, 5.0)["policy"] == FixedDeadline(5.0)


def test_a_run_in_it_needs_no_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")
    results = turnout.compare(["random", "pace"], str(folder / "fed.toml"), seeds=2, n_jobs=1)
    assert not results.failed
    assert len(results.runs) == 4


def test_more_clients_than_recorded_are_drawn_from_the_population(world: FittedWorld):
    larger = dataclasses.replace(world.environment_of(1), n_clients=300)
    rate = larger.context(0, 5, columns=["success_rate"]).columns["success_rate"]
    assert rate.shape == (300,)
    assert abs(rate[100:].mean() - rate[:100].mean()) < 5 * rate.std() / np.sqrt(100)


def test_in_time_counts_failures_and_late_answers(world: FittedWorld):
    assert np.array_equal(world.in_time(), world.success)
    assert (world.in_time(1e-6) == 0.0).all()
    assert (world.in_time(5.0) <= world.in_time(10.0)).all()


def test_a_missing_or_damaged_file_is_named(folder: Path, tmp_path: Path):
    text = (folder / "fed.toml").read_text()
    (tmp_path / "fed.toml").write_text(text)
    with pytest.raises(InvalidInput, match=r"fed\.toml .* with its \.npz beside it"):
        FittedWorld.load(tmp_path / "fed.toml")
    (tmp_path / "fed.npz").write_bytes(b"PK" + bytes(100))
    with pytest.raises(InvalidInput, match=r"fed\.toml"):
        FittedWorld.load(tmp_path / "fed.toml")
    with pytest.raises(InvalidInput, match="written"):
        turnout.compare(["random"], str(tmp_path / "fed.toml"), seeds=1, n_jobs=1)
    with pytest.raises(InvalidInput, match=r"must end in \.toml"):
        turnout.fit(folder / "log").save(tmp_path / "fed.txt")


def test_the_arena_has_a_task_in_it(folder: Path):
    volatile, own = tasks_named([str(folder / "fed.toml"), "volatile"])
    assert (volatile.label, own.label) == ("volatile", "fed")
    experiment = own.experiment(["random"], [0])
    assert (experiment.n_clients, experiment.cohort_size) == (100, 20)
    assert experiment.policy == FixedDeadline(20.0)
    assert experiment.n_rounds == volatile.experiment(["random"], [0]).n_rounds
    with pytest.raises(InvalidInput, match=r"nope\.toml cannot be read"):
        tasks_named(["nope.toml"])
