import dataclasses
import json
import math
import shutil

import numpy as np
import pytest

from tests.report.folders import (
    N_CLIENTS,
    RECIPE,
    change_arrays,
    change_json,
    change_rounds,
    run_cell,
)
from turnout.report import write_report
from turnout.report.charts import N_POINTS, sections
from turnout.report.page import summary_rows, target_table
from turnout.report.to_plotly import plotly_chart, plotly_maps
from turnout.results.catalogue import at_targets, shown_in
from turnout.results.groups import gather
from turnout.results.reader import read_cells
from turnout.results.run import AVAILABLE_AT, AVAILABLE_BITS, PER_CHOICE, REPORTED
from turnout.results.tables import targets_of
from turnout.training import Mlp


def rising(pace):
    """Accuracy that grows by 1 % times ``pace`` a round."""
    return lambda t: {"accuracy": 0.01 * pace * (t + 1)}


def end_early(cell, n_rounds):
    """Cut a complete run as if it had reached its target after so many rounds."""
    change_rounds(cell, rising(1.0), n_rounds)
    with np.load(cell / "selections.npz") as file:
        arrays = dict(file)
    ends = dict.fromkeys(PER_CHOICE, arrays["offsets"][n_rounds])
    ends |= dict.fromkeys(("offsets", AVAILABLE_AT), n_rounds + 1) | {"class_of": None}
    if AVAILABLE_AT in arrays:
        ends[AVAILABLE_BITS] = arrays[AVAILABLE_AT][n_rounds]
    ends |= {name: arrays["offsets"][n_rounds] for name in arrays if name.startswith(REPORTED)}
    cut = {name: values[: ends.get(name, n_rounds)] for name, values in arrays.items()}
    np.savez(cell / "selections.npz", **cut)
    change_json(cell / "summary.json", rounds_run=n_rounds)


def world_of(path):
    (world,), problems = gather(read_cells([path])[0])
    return world, problems


def charts_of(world):
    order = {variant.name: number for number, variant in enumerate(world.variants)}
    return {c.key: c for section in sections(world, order) for c in section.charts}, order


def lines_of(chart, selector):
    return [
        one
        for one in plotly_chart(chart)["traces"]
        if one["meta"].get("selector") == selector and one["meta"]["role"] == "line"
    ]


# rounds to an accuracy -------------------------------------------------------------------------


def set_paces(root, **paces):
    for label, of_seeds in paces.items():
        for seed, pace in enumerate(of_seeds):
            cell = root / label.replace("e3cs", "e3cs-0.5") / f"seed-{seed}"
            change_rounds(cell, rising(pace))
            targets = [metric.key for metric in at_targets([0.3, 0.5])]
            change_json(cell / "summary.json", **dict.fromkeys(targets))


def target_rows(world):
    return {row.name: row for row in summary_rows(world, at_targets(targets_of(world.cells)))}


def first_to(target, rows):
    return [name for name, row in rows.items() if f"rounds_to_{target}" in row.best]


def test_rounds_and_time_to_each_target(trained):
    set_paces(trained, random=(1.0, 2.0), e3cs=(2.0, 2.5), fedcs=(0.5, 1.0))
    world, _ = world_of(trained)
    assert targets_of(world.cells) == [0.3, 0.5]
    rows = target_rows(world)
    rounds = {name: row.estimates.get("rounds_to_0.3") for name, row in rows.items()}
    assert rounds["random"].mean == pytest.approx((30 + 15) / 2)
    assert rounds["random"].n == 2
    assert rounds["e3cs-0.5"].mean == pytest.approx((15 + 12) / 2)
    clocks = []
    for seed in (0, 1):
        lines = (trained / "random" / f"seed-{seed}" / "rounds.jsonl").read_text().splitlines()
        clocks.append(np.cumsum([json.loads(line)["length_s"] for line in lines]))
    seconds = rows["random"].estimates["time_to_0.3_s"]
    assert seconds.mean == pytest.approx((clocks[0][29] + clocks[1][14]) / 2)
    # one seed of fedcs ends at 0.2: it counts with the 40 rounds that it was run
    assert rounds["fedcs"].mean == (30 + 40) / 2
    assert (rows["fedcs"].n_reached["rounds_to_0.3"], rows["fedcs"].n_seeds) == (1, 2)
    assert first_to(0.3, rows) == ["e3cs-0.5"]
    assert "rounds_to_0.5" not in rows["fedcs"].estimates
    # only its second seed gets there
    assert rows["random"].estimates["rounds_to_0.5"].mean == (25 + 40) / 2
    assert first_to(0.5, rows) == []  # only one selector got there whole


def test_who_lost_a_seed_is_not_the_first(trained):
    set_paces(trained, random=(2.0, 2.0), e3cs=(1.0, 1.0), fedcs=(2.0, 0.5))
    rows = target_rows(world_of(trained)[0])
    rounds = {name: row.estimates["rounds_to_0.3"].mean for name, row in rows.items()}
    assert rounds["fedcs"] == (15 + 40) / 2
    assert rounds["random"] == 15
    assert first_to(0.3, rows) == ["random"]


def test_the_table_counts_the_seeds(trained, tmp_path):
    set_paces(trained, random=(1.0, 2.0), e3cs=(2.0, 2.5), fedcs=(0.5, 1.0))
    world, _ = world_of(trained)
    table = target_table(world.scores, at_targets(targets_of(world.cells)))
    assert [heading.title for heading in table.headings[::2]] == ["Rounds to 0.3", "Rounds to 0.5"]
    remarks = {name: [entry.remark for entry in entries] for name, entries in table.rows}
    assert remarks == {
        "e3cs-0.5": ["≈ best", "≈ best", "", ""],  # two seeds: the lead may be chance
        "fedcs": ["≈ best, 1 of 2 seeds"] * 2 + ["0 of 2 seeds"] * 2,
        "random": ["≈ best"] * 2 + ["1 of 2 seeds"] * 2,
    }
    page = write_report([trained], tmp_path / "page.html").path.read_text(encoding="utf-8")
    assert "Rounds and time to an accuracy" in page
    assert "partition shards (per client 2)" in page


def test_runs_without_targets_are_judged_at_what_they_reach(trained):
    cell = trained / "random" / "seed-0"
    change_json(cell / "config.json", training={})
    change_rounds(cell, rising(1.6))  # up to 0.64
    world, _ = world_of(cell)
    assert targets_of(world.cells) == [0.4, 0.5, 0.6]


@pytest.mark.parametrize("given", ["0.9", True, [None, "x"], {}, [2.0, -1], None])
def test_targets_that_are_none_do_no_harm(given, small):
    cell = small / "random" / "seed-0"
    change_json(cell / "config.json", training={"target_accuracy": given})
    world, _ = world_of(cell)
    assert targets_of(world.cells) == []
    assert target_table(world.scores, at_targets(targets_of(world.cells))) is None


# losses of clients -----------------------------------------------------------------------------


def test_the_histogram_counts_clients(trained):
    rng = np.random.default_rng(0)
    losses = {seed: rng.random(N_CLIENTS) for seed in (0, 1)}
    losses[0][:2] = (math.nan, 50.0)  # unknown; far above the rest
    for seed in (0, 1):
        change_arrays(trained / f"random/seed-{seed}/client_scores.npz", loss=losses[seed])
    world, _ = world_of(trained / "random")
    charts, _ = charts_of(world)
    (steps,) = lines_of(charts["local-loss"], 0)
    x, y = np.array(steps["x"]).reshape(-1, 2), np.array(steps["y"]).reshape(-1, 2)
    assert (y[:, 0] == y[:, 1]).all()
    assert y[:, 0].sum() == pytest.approx(1.0, abs=1e-4)
    known = np.concatenate((losses[0][1:], losses[1]))
    inside = (known >= x[3, 0]) & (known < x[3, 1])
    # edges are written with five digits, so one client may change sides
    assert y[3, 0] == pytest.approx(inside.mean(), abs=1.5 / known.size)
    assert y[-1, 0] >= 0.99 / known.size  # the far one is counted in the last step
    assert x[-1, 1] < 2.0


def test_without_scores_there_is_no_histogram(trained):
    assert "local-loss" in charts_of(world_of(trained)[0])[0]
    for scores in trained.glob("*/*/client_scores.npz"):
        scores.unlink()
    assert "local-loss" not in charts_of(world_of(trained)[0])[0]


@pytest.mark.parametrize(
    "losses", [np.ones(3), np.array(["x"] * N_CLIENTS)], ids=["length", "text"]
)
def test_scores_that_do_not_fit_are_damage(losses, trained):
    cell = trained / "random" / "seed-0"
    change_arrays(cell / "client_scores.npz", loss=losses)
    cells, problems = read_cells([cell])
    assert cells == []
    assert "client_scores.npz: loss is not one number for each" in problems[0].message


def test_torn_scores_are_damage(trained):
    scores = trained / "random" / "seed-0" / "client_scores.npz"
    whole = scores.read_bytes()
    scores.write_bytes(whole[: len(whole) // 2])
    assert "client_scores.npz is not a complete .npz" in read_cells([trained])[1][0].message


def test_columns_about_clients_come_from_the_summary_or_the_rounds(trained):
    cell = trained / "random" / "seed-0"
    change_rounds(cell, lambda t: {"jain_of_losses": 0.5 + t / 100, "worst_accuracy": t / 40})
    change_json(cell / "summary.json", worst_accuracy=None, jain_of_losses=0.25)
    (row,) = summary_rows(world_of(cell)[0], shown_in("report"))
    assert row.estimates["worst_accuracy"].mean == pytest.approx(39 / 40)
    assert row.estimates["jain_of_losses"].mean == 0.25


# unequal lengths, rare measurements ------------------------------------------------------------


@pytest.fixture
def stopped(trained):
    """Two runs that stopped at their target, and two that did not reach it."""
    shutil.rmtree(trained / "e3cs-0.5")
    end_early(trained / "random" / "seed-0", 31)
    end_early(trained / "random" / "seed-1", 22)
    return trained


def test_runs_that_stopped_are_complete_and_say_so(stopped, tmp_path):
    cells, problems = read_cells([stopped])
    assert problems == []
    assert [cell.has_stopped for cell in cells] == [False, False, True, True]
    world, remarks = world_of(stopped)
    assert world.n_rounds == 40
    assert not world.is_partial
    assert any("2 of 4 runs stopped at their target" in one.message for one in remarks)
    write_report([stopped], tmp_path / "page.html")


def test_a_run_that_stops_by_itself_is_complete(tmp_path):
    easy = dataclasses.replace(RECIPE, target_accuracy=(0.15,), stop_at_target=True)
    cell = run_cell(tmp_path, "fedcs", training=easy, n_rounds=40)
    (read,), problems = read_cells([cell])
    assert problems == []
    assert read.has_stopped
    assert read.n_rounds % 5 == 0
    assert read.n_rounds < 40


def test_a_line_ends_with_the_first_run_that_stops(stopped):
    world, _ = world_of(stopped)
    charts, order = charts_of(world)
    for key in ("extra-0", "cep", "success", "regret", "time", "backlog-mean"):
        (stopped,) = lines_of(charts[key], order["random"])
        (whole,) = lines_of(charts[key], order["fedcs"])
        assert stopped["x"][-1] == 22, key
        assert whole["x"][-1] == 40, key
    shares = plotly_maps(charts["map"])["maps"]
    assert len(shares) == 2


def test_a_stopped_run_that_lost_rounds_is_damage(trained):
    cell = trained / "random" / "seed-0"
    end_early(cell, 30)
    change_rounds(cell, rising(1.0), 27)
    assert "holds 27 rounds in a row of 30" in read_cells([cell])[1][0].message


def test_numbers_that_are_measured_rarely_are_all_drawn(tmp_path):
    # 600 rounds are more than a line has points, and every tenth is measured
    cell = run_cell(tmp_path, "random", n_rounds=600)
    change_rounds(cell, lambda t: {"accuracy": 0.001 * t} if t % 10 == 9 else {})
    world, _ = world_of(cell)
    charts, _ = charts_of(world)
    (line,) = lines_of(charts["extra-0"], 0)
    assert line["x"] == list(range(10, 601, 10))
    assert None not in line["y"]
    (dense,) = lines_of(charts["cep"], 0)
    assert len(dense["x"]) == N_POINTS


def test_broken_answers_are_remarked(trained):
    for seed in (0, 1):
        change_json(trained / "random" / f"seed-{seed}" / "summary.json", broken_answers=3)
    _, remarks = world_of(trained)
    assert any("not finite" in one.message and "random: 6" in one.message for one in remarks)


def test_different_recipes_are_named(training, tmp_path):
    other = dataclasses.replace(RECIPE, model=Mlp((8,)))
    run_cell(tmp_path / "b", "random", n_rounds=40, training=other)
    with pytest.raises(ValueError, match=r"training.model.kind is"):
        write_report([training, tmp_path / "b"], tmp_path / "page.html")
