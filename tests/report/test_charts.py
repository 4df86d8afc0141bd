import base64
import json
import re

import numpy as np
import plotly.graph_objects as go
import pytest

from tests.report.folders import (
    COHORT,
    LABELS,
    N_CLIENTS,
    N_ROUNDS,
    change_arrays,
    change_json,
    run_cell,
    run_folder,
    simulated,
)
from turnout.experiment import Experiment, run_experiment
from turnout.report.charts import N_COLUMNS, N_POINTS, N_ROWS, sections
from turnout.report.figure import COLOURS, MEANINGS, THEME
from turnout.report.page import packaged
from turnout.report.to_matplotlib import drawn
from turnout.report.to_plotly import plotly_chart, plotly_maps
from turnout.results.groups import gather
from turnout.results.reader import read_cells
from turnout.results.run import PER_CHOICE, PER_ROUND
from turnout.worlds import Buffered, e3cs_world


def charts_of(path):
    (world,), _ = gather(read_cells([path])[0])
    order = {variant.name: number for number, variant in enumerate(world.variants)}
    found = {c.key: c for section in sections(world, order) for c in section.charts}
    return found, order


@pytest.fixture(scope="module")
def charts(experiment):
    return charts_of(experiment)


@pytest.fixture(scope="module")
def runs():
    return [simulated("e3cs-0.5", seed)[0] for seed in (0, 1, 2)]


def rounds_of(cell):
    return [json.loads(line) for line in (cell / "rounds.jsonl").read_text().splitlines()]


def trace(chart, selector, role="line"):
    (found,) = [
        one
        for one in plotly_chart(chart)["traces"]
        if one["meta"].get("selector") == selector and one["meta"]["role"] == role
    ]
    return found


def test_all_charts_are_there(charts):
    found, order = charts
    assert list(found) == [
        "swept-0", "success", "success-moving", "cep", "regret", "bound", "counts", "map", "lorenz",
        "fairness", "time", "round-time", "backlog-mean", "backlog-max",
    ]  # fmt: skip
    for chart in found.values():
        assert chart.title
        assert chart.caption.endswith(".")
        if not chart.is_menu and chart.key != "swept-0":  # where variants share a line
            traces = plotly_chart(chart)["traces"]
            shown = {one["meta"].get("selector") for one in traces} - {None}
            assert shown == set(order.values())


def test_plotly_accepts_every_figure(charts, training):
    for found in (charts[0], charts_of(training)[0]):
        for chart in found.values():
            traces, layout = plotly_chart(chart).values()
            figure = go.Figure({"data": traces, "layout": layout})
            assert len(figure.data) == len(traces)
            assert len(traces) >= len(chart.panels)


def test_matplotlib_draws_every_figure(charts, training):
    for found in (charts[0], charts_of(training)[0]):
        for chart in found.values():
            canvas = drawn(chart)
            shown = [axes for axes in canvas.axes if axes.get_label() != "<colorbar>"]
            assert len(shown) == len(chart.panels)
            assert all(axes.has_data() for axes in shown)


def test_lines_are_means_over_seeds_and_bands_their_range(charts, runs):
    found, order = charts
    me = order["e3cs-0.5"]
    cep = np.array([run.cep for run in runs])
    line, band = trace(found["cep"], me), trace(found["cep"], me, "band")
    assert line["x"] == list(range(1, N_ROUNDS + 1))
    np.testing.assert_allclose(line["y"], cep.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(np.array(line["customdata"])[:, 0], cep.min(axis=0), rtol=1e-4)
    np.testing.assert_allclose(band["y"][:N_ROUNDS], cep.max(axis=0), rtol=1e-4)
    np.testing.assert_allclose(band["y"][N_ROUNDS:][::-1], cep.min(axis=0), rtol=1e-4)
    ratio = cep / np.array([np.cumsum(np.diff(run.offsets)) for run in runs])
    np.testing.assert_allclose(trace(found["success"], me)["y"], ratio.mean(axis=0), rtol=1e-4)
    hours = np.array([run.clock_s for run in runs]) / 60
    np.testing.assert_allclose(trace(found["time"], me)["y"], hours.mean(axis=0), rtol=1e-4)
    regret = np.array([run.regret(0.5) for run in runs])
    np.testing.assert_allclose(trace(found["regret"], me)["y"], regret.mean(axis=0), rtol=1e-4)
    backlog = np.array([run.backlog().largest for run in runs])
    y = trace(found["backlog-max"], me)["y"]
    np.testing.assert_allclose(y, backlog.mean(axis=0), rtol=1e-4)


def test_the_moving_ratio_covers_full_windows_only(charts, runs):
    found, order = charts
    line = trace(found["success-moving"], order["e3cs-0.5"])
    window = N_ROUNDS // 20
    assert line["x"] == list(range(window, N_ROUNDS + 1))
    t = 30
    parts = [slice(run.offsets[t - window], run.offsets[t]) for run in runs]
    ratios = [run.completed[part].mean() for run, part in zip(runs, parts, strict=True)]
    assert line["y"][t - window] == pytest.approx(np.mean(ratios), rel=1e-4)


def test_the_bound_is_drawn_for_selectors_that_have_one(charts):
    found, order = charts
    traces = plotly_chart(found["bound"])["traces"]
    bounds = [one for one in traces if one["meta"]["role"] == "bound"]
    assert {one["meta"]["selector"] for one in bounds} == {order["e3cs-0"], order["e3cs-0.5"]}
    # Theorem 1, arXiv Eq. (23): eta sum(k - K sigma) + K / eta ln K with eta = quota = 0.5
    expected = 0.5 * COHORT * 0.5 * N_ROUNDS + N_CLIENTS / 0.5 * np.log(N_CLIENTS)
    one = trace(found["bound"], order["e3cs-0.5"], "bound")
    assert one["y"][-1] == pytest.approx(expected, rel=1e-4)


def test_boxes_are_quartiles_of_counts_by_class(charts, runs):
    found, order = charts
    box = trace(found["counts"], order["e3cs-0.5"], "box")
    assert box["x"] == ["0.1", "0.3", "0.6", "0.9"]
    classes = e3cs_world(N_CLIENTS).classes
    counts = np.array([run.counts for run in runs])[:, classes == 2]
    cuts = [box[name][2] for name in ("lowerfence", "q1", "median", "q3", "upperfence")]
    np.testing.assert_allclose(cuts, np.percentile(counts, (0, 25, 50, 75, 100)), rtol=1e-4)
    layout = plotly_chart(found["counts"])["layout"]
    assert layout["xaxis"]["title"]["text"] == "success rate"


def unpacked(text, n_rows):
    return np.frombuffer(base64.b64decode(text), np.uint8).reshape(n_rows, -1) / 255.0


def test_the_map_holds_who_was_chosen_when(charts, runs):
    maps = plotly_maps(charts[0]["map"])
    assert [one["name"] for one in maps["maps"]] == list(LABELS)
    mine = next(one for one in maps["maps"] if one["name"] == "e3cs-0.5")
    assert list(mine["runs"]) == ["seed 0", "mean of 3 seeds"]
    chosen = np.zeros((N_CLIENTS, N_ROUNDS))
    rounds = np.repeat(np.arange(N_ROUNDS), np.diff(runs[0].offsets))
    chosen[runs[0].clients, rounds] = 1.0
    np.testing.assert_array_equal(unpacked(mine["runs"]["seed 0"], N_CLIENTS), chosen)
    assert maps["rows"][7] == "client 7"
    assert maps["columns"][0] == "round 1"
    assert maps["x"] == list(range(1, N_ROUNDS + 1))
    quarter = N_CLIENTS // 4
    assert maps["groups"][1] == {"name": "0.3", "first": quarter, "last": 2 * quarter - 1}


def test_the_map_groups_clients_by_class(tmp_path):
    cell = run_cell(tmp_path, "e3cs-0", n_rounds=20)
    classes = np.arange(N_CLIENTS) % 4  # neighbours are of different classes
    change_arrays(cell / "selections.npz", class_of=classes)
    maps = plotly_maps(charts_of(tmp_path)[0]["map"])
    assert maps["rows"][:3] == ["client 0", "client 4", "client 8"]
    assert maps["rows"][10] == "client 1"
    assert [group["first"] for group in maps["groups"]] == [0, 10, 20, 30]
    shares = unpacked(maps["maps"][0]["runs"]["seed 0"], N_CLIENTS)
    counts = simulated("e3cs-0", 0, n_rounds=20)[0].counts
    clients = [int(row.removeprefix("client ")) for row in maps["rows"]]
    np.testing.assert_array_equal(shares.sum(axis=1), counts[clients])


def test_a_large_run_is_binned(tmp_path):
    run_cell(tmp_path, "random", n_rounds=600, n_clients=250, cohort_size=50)
    found, _ = charts_of(tmp_path)
    maps = plotly_maps(found["map"])
    assert (len(maps["rows"]), len(maps["columns"]), len(maps["x"])) == (N_ROWS, N_COLUMNS, 125)
    assert maps["rows"][0] == "clients 0-2"
    assert maps["columns"][-1] == "rounds 597-600"
    shares = unpacked(maps["maps"][0]["runs"]["seed 0"], N_ROWS)
    # 50 of 250 are chosen each round; bytes round to 1/255
    assert shares.mean() == pytest.approx(0.2, abs=1 / 255)
    for chart in found.values():
        if not chart.is_menu:
            assert all(len(one["x"]) <= 2 * N_POINTS for one in plotly_chart(chart)["traces"])
    line = trace(found["cep"], 0)
    assert (line["x"][0], line["x"][-1], len(line["x"])) == (1, 600, N_POINTS)


def _is_of(trace, selector):
    return trace["meta"] == {"selector": selector, "role": "bar"}


def test_lorenz_and_bars_agree_with_the_gini_coefficient(charts, runs):
    found, order = charts
    me = order["e3cs-0.5"]
    line = trace(found["lorenz"], me)
    y, x = np.array(line["y"]), np.array(line["x"])
    area = np.sum((y[1:] + y[:-1]) / 2 * np.diff(x))
    of_me = [one for one in plotly_chart(found["fairness"])["traces"] if _is_of(one, me)]
    indices, shortfall = of_me
    gini = dict(zip(indices["x"], indices["y"], strict=True))["Gini"]
    assert (shortfall["x"], shortfall["yaxis"]) == (["shortfall"], "y2")  # an axis of its own
    # 101 points on 40 clients: the polygon is cut at corners by less than 1e-3
    assert 1 - 2 * area == pytest.approx(gini, abs=1e-3)
    assert trace(found["lorenz"], None, "reference")["y"] == [0, 1]


def test_round_times_have_words_of_their_own(charts, runs):
    found, order = charts
    tip = trace(found["round-time"], order["e3cs-0.5"], "tip")
    lengths = np.concatenate([run.length_s for run in runs])
    low, high = np.percentile(lengths, (5, 95))
    assert f"nine in ten {low:.4g} to {high:.4g} s" in tip["hovertemplate"][0]


def test_rounds_that_overlap_have_a_section_of_their_own(tmp_path):
    schedule = Buffered(3, 9)
    path = run_folder(tmp_path, "random", "fedcs", schedule=schedule, seeds=2, n_rounds=25)
    found, order = charts_of(path)
    own = ["staleness", "staleness-shares", "at-work", "wasted"]
    assert [key for key in found if key in own] == own
    assert not any(key.startswith("extra") for key in found)  # not twice
    runs = [cell.run for cell in read_cells([path])[0] if cell.settings.label == "random"]
    stale = np.concatenate([run.stale for run in runs])
    steps = trace(found["staleness-shares"], order["random"])
    bins = np.bincount(stale) / stale.size
    assert stale.max() > 1
    assert steps["y"][::2] == pytest.approx(bins.tolist(), abs=1e-4)
    assert trace(found["at-work"], order["random"])["y"][-1] == pytest.approx(9.0)
    lost = [(run.spent * (run.status != 0)).sum() / run.busy_s.sum() for run in runs]
    assert trace(found["wasted"], order["random"])["y"][-1] == pytest.approx(
        np.mean(lost), rel=1e-3
    )
    assert trace(found["wasted"], order["random"])["y"][-1] > 0


def test_accuracy_is_drawn_by_round_and_by_time(training):
    found, order = charts_of(training)
    keys = [key for key in found if key.startswith("extra")]
    assert keys == [f"extra-{number}{by}" for number in range(6) for by in ("", "-time")]
    assert [found[key].title for key in keys[:3]] == [
        "Accuracy by round", "Accuracy by time", "Loss by round",
    ]  # fmt: skip
    rounds = [rounds_of(training / "random" / f"seed-{seed}") for seed in (0, 1)]
    line = trace(found["extra-0"], order["random"])
    known = {x: y for x, y in zip(line["x"], line["y"], strict=True) if y is not None}
    assert list(known) == [5, 10, 15, 20, 25, 30, 35, 40]
    expected = np.mean([lines[9]["accuracy"] for lines in rounds])
    assert known[10] == pytest.approx(expected, rel=1e-4)
    timed = trace(found["extra-0-time"], order["random"])
    finals = [sum(line["length_s"] for line in lines) for lines in rounds]
    unit = {"s": 1, "min": 60}[found["extra-0-time"].panels[0].x.unit]
    assert timed["x"][-1] == pytest.approx(min(finals) / unit, rel=1e-4)
    # a step at every measurement: between the ends of round 10 and of round 15, that of round 10
    clocks = [np.cumsum([line["length_s"] for line in lines]) / unit for lines in rounds]
    start, end = max(clock[9] for clock in clocks), min(clock[14] for clock in clocks)
    held = [y for x, y in zip(timed["x"], timed["y"], strict=True) if start < x < end]
    assert held
    assert held == pytest.approx([expected] * len(held), rel=1e-4)


def test_a_world_with_batteries_has_energy_so_far_and_what_accuracy_costs(tmp_path):
    (tmp_path / "grid.csv").write_text("hour,north\n0,100\n1,400\n")
    energy = {"kind": "battery-on-grid", "path": str(tmp_path / "grid.csv"), "work_w": 6.0}
    timing = {"kind": "linear-contextual", "training_s": [60.0, 90.0, 120.0, 240.0]}
    made = Experiment(
        ["random", "e3cs"],
        n_clients=12,
        cohort_size=4,
        n_rounds=8,
        seeds=2,
        world={"timing": timing, "energy": energy},
        training={"source": "digits", "model": "logistic"},
    )
    run_experiment(made, tmp_path / "runs", n_jobs=1)
    found, order = charts_of(tmp_path / "runs")
    cells = [cell for cell in read_cells([tmp_path / "runs"])[0] if cell.settings.label == "e3cs"]
    spent = np.array([np.cumsum(cell.series["energy_j"]) / 1e3 for cell in cells])
    assert spent[:, -1].min() > 1.0
    line = trace(found["energy"], order["e3cs"])
    assert line["y"] == pytest.approx(spent.mean(axis=0), rel=1e-4)
    bought = trace(found["accuracy-energy"], order["e3cs"])
    assert bought["x"][-1] == pytest.approx(spent[:, -1].min(), rel=1e-4)
    ends = [np.flatnonzero(row <= spent[:, -1].min())[-1] for row in spent]
    accuracy = [cell.series["accuracy"][end] for cell, end in zip(cells, ends, strict=True)]
    assert bought["y"][-1] == pytest.approx(np.mean(accuracy), rel=1e-4)
    assert {"carbon", "available"} <= found.keys()
    titles = [chart.title for chart in found.values()]
    assert "Energy by round" not in titles  # as if it were learned


def test_worlds_without_batteries_have_none(charts):
    found, _ = charts
    assert not {"energy", "carbon", "accuracy-energy", "available"} & found.keys()


def test_a_bare_training_run_has_what_it_has(tmp_path):
    cell = run_cell(tmp_path, "random", n_rounds=8)
    change_json(cell / "config.json", classes=None)
    change_arrays(cell / "selections.npz", keep=("offsets", *PER_CHOICE, *PER_ROUND))
    text = (cell / "rounds.jsonl").read_text()
    (cell / "rounds.jsonl").write_text(text.replace('"regret"', '"other_number"'))
    found, _ = charts_of(tmp_path)
    assert "regret" not in found
    assert "backlog-mean" not in found
    assert found["extra-0"].title == "Other number by round"
    assert found["counts"].title == "Selections per client"
    assert plotly_maps(found["map"])["groups"] == []


def test_files_and_pages_have_the_same_colours():
    style = packaged("report.css")
    light = re.search(r":root \{(.*?)\}", style, re.DOTALL)[1]
    assert tuple(re.findall(r"--series-\d: (#\w+)", light)) == COLOURS
    swatches = re.findall(r"\.swatch\.([\w-]+)", packaged("live.css"))
    assert set(swatches) == {*MEANINGS, *THEME} - {"part"}  # whose bars need no legend
    for name, number in MEANINGS.items():
        if name in swatches:
            rule = rf"\.{name}[^}}]*\{{ color: var\(--series-(\d)\)"
            assert re.search(rule, packaged("live.css"))[1] == str(number)
    assert {name: re.search(rf"--{name}: (#\w+)", light)[1] for name in THEME} == THEME
