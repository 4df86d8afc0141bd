"""Charts of what was swept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from turnout.experiment import Experiment, Sweep, run_sweep
from turnout.report import write_report
from turnout.report.charts import parameter_charts, sections, world_charts
from turnout.report.to_plotly import plotly_chart
from turnout.results import Results, open_runs
from turnout.results.catalogue import metric_named


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("swept")
    experiment = Experiment(["random", "e3cs:eta=[0.01,1]"], n_clients=12, n_rounds=6, seeds=2)
    swept = {"world": ["volatile", "e3cs"]}
    run_sweep(Sweep(experiment).over(swept), folder, n_jobs=1)
    return open_runs(folder)


def order_of(results: Results) -> dict[str, int]:
    return {label: number for number, label in enumerate(results.labels)}


def test_a_parameter_is_a_chart_with_the_numbers_of_its_selectors(results: Results) -> None:
    world = results.worlds[0]
    (chart,) = parameter_charts(world, order_of(results))
    assert chart.title.endswith("by eta")
    drawn = plotly_chart(chart)
    assert drawn["layout"]["xaxis"]["type"] == "log"
    lines = {t["name"]: t for t in drawn["traces"] if t["meta"]["role"] == "line"}
    assert set(lines) == {"e3cs", "random"}
    assert lines["e3cs"]["x"] == lines["random"]["x"] == [0.01, 1]
    cep = metric_named("cep")
    means = [
        np.mean([*world.scores.values(f"e3cs eta={eta}", cep).values()]) for eta in ("0.01", "1")
    ]
    np.testing.assert_allclose(lines["e3cs"]["y"], means, rtol=1e-4)
    assert lines["e3cs"]["meta"]["selector"] == order_of(results)["e3cs eta=0.01"]
    assert sections(world, order_of(results))[0].title == "Sensitivity"


def test_words_are_marks_without_lines(results: Results) -> None:
    (chart,) = world_charts(results.worlds, order_of(results))
    traces, layout = plotly_chart(chart).values()
    assert layout["xaxis"]["type"] == "category"
    assert {trace["mode"] for trace in traces} == {"markers"}
    assert [trace["x"] for trace in traces] == [["e3cs", "volatile"]] * 3


def test_the_page_shows_both(results: Results, tmp_path: Path) -> None:
    folder = results.cells[0].path.parents[2]
    written = write_report([folder], tmp_path / "r.html")  # points of one sweep need no word
    page = written.path.read_text("utf-8")
    assert not [problem for problem in written.problems if problem.kind == "mixed"]
    assert "<h2>World 1: world=" in page
    assert "turnout/selectors/random.py" not in page
    for place in ("sweep-swept-0", "w0-swept-0", "w1-swept-0"):
        assert page.count(f'id="{place}"') == 1
        assert f'"{place}":{{' in page
    assert '<a href="#sweep">' in page


def test_a_page_without_a_sweep_has_no_such_section(results: Results, tmp_path: Path) -> None:
    folder = results.cells[0].path.parents[1]
    page = write_report([folder], tmp_path / "r.html").path.read_text("utf-8")
    assert "sweep-swept" not in page
    assert "w0-swept-0" in page
