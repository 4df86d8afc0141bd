"""Metrics against what was swept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turnout.experiment import Experiment, Sweep, run_sweep
from turnout.report.charts import draw_results
from turnout.results import Results, open_runs
from turnout.results.catalogue import metric_named
from turnout.results.sensitivity import Sensitivity, parameter_panels, swept_settings, world_panels

METRIC = metric_named("success_ratio")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("swept")
    selectors = ["random", "e3cs:quota=[0.5,0,1],eta=[0.1,0.2]"]
    experiment = Experiment(selectors, n_clients=12, n_rounds=6, seeds=2)
    swept = {"cohort_size": [4, 2], "world": ["volatile", "e3cs"]}
    run_sweep(Sweep(experiment).over(swept), folder, n_jobs=1)
    return open_runs(folder)


def test_a_parameter_has_a_line_for_each_rest_and_levels_to_compare(results: Results) -> None:
    world = results.worlds[0]
    panels = {panel.key: panel for panel in parameter_panels(world, METRIC, "here")}
    assert set(panels) == {"quota", "eta"}
    panel = panels["quota"]
    assert (panel.where, panel.places, panel.is_numeric) == ("here", [0, 0.5, 1], True)
    assert [each.name for each in panel.responses] == ["e3cs eta=0.1", "e3cs eta=0.2", "random"]
    line, level = panel.responses[0], panel.responses[-1]
    assert line.places == (0, 0.5, 1)
    assert level.places == ()
    values = world.scores.values("e3cs quota=1, eta=0.1", METRIC)
    np.testing.assert_array_equal(line.values[:, 2], [values[0], values[1]])
    np.testing.assert_array_equal(
        level.values[:, 0], [*world.scores.values("random", METRIC).values()]
    )


def test_a_setting_of_worlds_has_a_panel_for_each_rest(results: Results) -> None:
    panels = list(world_panels(results.worlds, METRIC))
    assert [(panel.key, panel.where) for panel in panels] == [
        ("cohort_size", "world=e3cs"),
        ("cohort_size", "world=volatile"),
        ("world", "cohort_size=2"),
        ("world", "cohort_size=4"),
    ]
    sizes, worlds = panels[0], panels[-1]
    assert (sizes.places, sizes.is_numeric) == ([2, 4], True)
    assert (worlds.places, worlds.is_numeric) == (["e3cs", "volatile"], False)
    by_size = {
        swept_settings(world)["cohort_size"]: world.scores.values("random", METRIC)
        for world in results.worlds
        if swept_settings(world)["world"] == "e3cs"
    }
    expected = [[by_size[size][seed] for size in (2, 4)] for seed in (0, 1)]
    np.testing.assert_array_equal(_random(sizes), expected)


def _random(panel: Sensitivity) -> np.ndarray:
    return next(each.values for each in panel.responses if each.name == "random")


def test_figures_of_everything_that_was_swept(results: Results, tmp_path: Path) -> None:
    files = draw_results(results, tmp_path, metrics=[METRIC])
    drawn = {path.name for path in files if path.name.startswith("sensitivity")}
    names = ("cohort_size", "world", "quota", "eta")
    assert drawn == {f"sensitivity-{name}.pdf" for name in names}
    assert all(path.stat().st_size > 1000 for path in files)


def test_nothing_swept_nothing_drawn(tmp_path: Path) -> None:
    experiment = Experiment(["random", "e3cs"], n_clients=12, n_rounds=3, seeds=2)
    run_sweep(Sweep(experiment), tmp_path / "run", n_jobs=1)
    world = open_runs(tmp_path / "run").worlds[0]
    assert list(parameter_panels(world, METRIC)) == []
    assert list(world_panels([world], METRIC)) == []
    assert swept_settings(world) == {}
