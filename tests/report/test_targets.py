import json
import math

import numpy as np
import pytest

from tests.report.folders import N_CLIENTS, config_of, learning, run_of, write_cell
from turnout.report import write_report
from turnout.report.charts import sections
from turnout.report.curves import N_POINTS
from turnout.report.groups import gather
from turnout.report.reading import read_cells
from turnout.report.summary import summary_rows
from turnout.report.targets import reached, targets_of
from turnout.report.views import target_table

RECIPE = {
    "source": {"kind": "digits", "test_share": 0.2},
    "partition": {"kind": "shards", "per_client": 2},
    "model": {"kind": "mlp", "hidden": [64]},
    "target_accuracy": [0.3, 0.5],
}


def trained(label, seed, *, n_rounds=40, training=RECIPE, **changes):
    more = {"kind": "training", "world_id": "aaaaaaaaaaaa", "training": training}
    return config_of(label, seed, n_rounds=n_rounds, **more, **changes)


def rising(pace, every=1):
    """Accuracy that grows by 1 % times ``pace`` a round, measured in some rounds only."""

    def extra(t):
        is_measured = t % every == every - 1
        return {"accuracy": 0.01 * pace * (t + 1)} if is_measured else {}

    return extra


def world_of(path):
    (world,), problems = gather(read_cells([path])[0])
    return world, problems


def charts_of(world):
    order = {variant.name: number for number, variant in enumerate(world.variants)}
    return {c.key: c for section in sections(world, order) for c in section.charts}, order


def lines_of(chart, selector):
    return [
        one
        for one in chart.traces
        if one["meta"].get("selector") == selector and one["meta"]["role"] == "line"
    ]


# rounds to an accuracy -------------------------------------------------------------------------


def write_paces(root, paces):
    for label, of_seeds in paces.items():
        for seed, pace in enumerate(of_seeds):
            write_cell(root, trained(label, seed), extra=rising(pace))


def test_rounds_and_time_to_each_target(tmp_path):
    write_paces(tmp_path, {"random": (1.0, 2.0), "e3cs-0.5": (2.0, 2.5), "fedcs": (0.5, 1.0)})
    world, _ = world_of(tmp_path)
    assert targets_of(world) == [0.3, 0.5]
    found = reached(world, 0.3)
    assert found["random"].rounds.mean == pytest.approx((30 + 15) / 2)
    assert found["random"].rounds.n == 2
    assert found["e3cs-0.5"].rounds.mean == pytest.approx((15 + 12) / 2)
    clocks = [run_of(trained("random", seed))[0].clock_s for seed in (0, 1)]
    assert found["random"].seconds.mean == pytest.approx((clocks[0][29] + clocks[1][14]) / 2)
    # one seed of fedcs ends at 0.2: its mean is over the other, and it is never the best
    assert found["fedcs"].rounds.mean == 30
    assert (found["fedcs"].rounds.n, found["fedcs"].n_seeds) == (1, 2)
    assert [name for name, one in found.items() if one.is_first] == ["e3cs-0.5"]
    high = reached(world, 0.5)
    assert high["fedcs"].rounds.n == 0
    assert high["random"].rounds.mean == 25  # only its second seed gets there
    assert not any(one.is_first for one in high.values())  # only one selector got there whole


def test_who_lost_a_seed_is_not_the_first(tmp_path):
    write_paces(tmp_path, {"random": (2.0, 2.0), "e3cs-0.5": (1.0, 1.0), "fedcs": (2.0, 0.5)})
    found = reached(world_of(tmp_path)[0], 0.3)
    assert found["fedcs"].rounds.mean == found["random"].rounds.mean == 15
    assert [name for name, one in found.items() if one.is_first] == ["random"]


def test_the_table_counts_the_seeds(tmp_path):
    write_paces(tmp_path, {"random": (1.0, 2.0), "e3cs-0.5": (2.0, 2.5), "fedcs": (0.5, 1.0)})
    world, _ = world_of(tmp_path)
    table = target_table(world)
    assert [heading.title[:11] for heading in table.headings[::2]] == ["0.3, rounds", "0.5, rounds"]
    remarks = {name: [entry.remark for entry in entries] for name, entries in table.rows}
    assert remarks == {
        "e3cs-0.5": ["fewest rounds", "", "", ""],
        "fedcs": ["1 of 2 seeds", "", "0 of 2 seeds", "0 of 2 seeds"],
        "random": ["", "", "1 of 2 seeds", ""],
    }
    page = write_report([tmp_path], tmp_path / "page.html").path.read_text(encoding="utf-8")
    assert "Rounds and time to an accuracy" in page
    assert "partition shards (per client 2)" in page


def test_runs_without_targets_are_judged_at_what_they_reach(tmp_path):
    write_cell(tmp_path, trained("random", 0, training={}), extra=rising(1.6))  # up to 0.64
    world, _ = world_of(tmp_path)
    assert targets_of(world) == [0.4, 0.5, 0.6]


@pytest.mark.parametrize("given", ["0.9", True, [None, "x"], {}, [2.0, -1], None])
def test_targets_that_are_none_do_no_harm(given, tmp_path):
    write_cell(tmp_path, trained("random", 0, training={"target_accuracy": given}))
    world, _ = world_of(tmp_path)
    assert targets_of(world) == []
    assert target_table(world) is None


# losses of clients -----------------------------------------------------------------------------


def test_the_histogram_counts_clients(tmp_path):
    rng = np.random.default_rng(0)
    losses = {seed: rng.random(N_CLIENTS) for seed in (0, 1)}
    losses[0][:2] = (math.nan, 50.0)  # unknown; far above the rest
    for seed in (0, 1):
        scores = (losses[seed], np.ones(N_CLIENTS))
        write_cell(tmp_path, trained("random", seed), scores=scores)
    world, _ = world_of(tmp_path)
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


def test_without_scores_there_is_no_histogram(training):
    world, _ = world_of(training)
    assert "local-loss" not in charts_of(world)[0]


@pytest.mark.parametrize(
    "scores",
    [(np.ones(3), np.ones(3)), (np.array(["x"] * N_CLIENTS), np.ones(N_CLIENTS))],
    ids=["length", "text"],
)
def test_scores_that_do_not_fit_are_damage(scores, tmp_path):
    write_cell(tmp_path, trained("random", 0), scores=scores)
    cells, problems = read_cells([tmp_path])
    assert cells == []
    assert "client_scores.npz: loss is not one number for each" in problems[0].message


def test_torn_scores_are_damage(tmp_path):
    ones = np.ones(N_CLIENTS)
    folder = write_cell(tmp_path, trained("random", 0), scores=(ones, ones))
    whole = (folder / "client_scores.npz").read_bytes()
    (folder / "client_scores.npz").write_bytes(whole[: len(whole) // 2])
    assert "client_scores.npz is not a complete .npz" in read_cells([tmp_path])[1][0].message


def test_columns_about_clients_come_from_the_summary_or_the_rounds(tmp_path):
    def extra(t):
        return {"jain_of_losses": 0.5 + t / 100, "worst_accuracy": t / 40}

    folder = write_cell(tmp_path, trained("random", 0), extra=extra)
    (row,) = summary_rows(world_of(tmp_path)[0])
    assert row.estimates["worst_accuracy"].mean == pytest.approx(39 / 40)
    summary = json.loads((folder / "summary.json").read_text()) | {"jain_of_losses": 0.25}
    (folder / "summary.json").write_text(json.dumps(summary))
    (row,) = summary_rows(world_of(tmp_path)[0])
    assert row.estimates["jain_of_losses"].mean == 0.25


# unequal lengths, rare measurements ------------------------------------------------------------


def write_stopped(root):
    write_cell(root, trained("random", 0), extra=rising(1.0), rounds_run=31)
    write_cell(root, trained("random", 1), extra=rising(1.0), rounds_run=22)
    write_cell(root, trained("fedcs", 0), extra=rising(0.5))
    write_cell(root, trained("fedcs", 1), extra=rising(0.5))


def test_runs_that_stopped_are_complete_and_say_so(tmp_path):
    write_stopped(tmp_path)
    cells, problems = read_cells([tmp_path])
    assert problems == []
    assert [cell.has_stopped for cell in cells] == [False, False, True, True]
    world, remarks = world_of(tmp_path)
    assert world.n_rounds == 40
    assert not world.is_partial
    assert any("2 of 4 runs stopped at their target" in one.message for one in remarks)
    write_report([tmp_path], tmp_path / "page.html")


def test_a_line_ends_with_the_first_run_that_stops(tmp_path):
    write_stopped(tmp_path)
    world, _ = world_of(tmp_path)
    charts, order = charts_of(world)
    for key in ("extra-0", "cep", "success", "regret", "time", "backlog-mean"):
        (stopped,) = lines_of(charts[key], order["random"])
        (whole,) = lines_of(charts[key], order["fedcs"])
        assert stopped["x"][-1] == 22, key
        assert whole["x"][-1] == 40, key
    shares = charts["map"].maps["maps"]
    assert len(shares) == 2


def test_a_stopped_run_that_lost_rounds_is_damage(tmp_path):
    folder = write_cell(tmp_path, trained("random", 0), rounds_run=30)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join(lines[:-3]) + "\n")
    assert "holds 27 rounds in a row of 30" in read_cells([tmp_path])[1][0].message


def test_numbers_that_are_measured_rarely_are_all_drawn(tmp_path):
    # 600 rounds are more than a line has points, and every tenth is measured
    write_cell(tmp_path, trained("random", 0, n_rounds=600), extra=rising(0.1, every=10))
    world, _ = world_of(tmp_path)
    charts, _ = charts_of(world)
    (line,) = lines_of(charts["extra-0"], 0)
    assert line["x"] == list(range(10, 601, 10))
    assert None not in line["y"]
    (dense,) = lines_of(charts["cep"], 0)
    assert len(dense["x"]) == N_POINTS


def test_broken_answers_are_remarked(tmp_path):
    for seed in (0, 1):
        folder = write_cell(tmp_path, trained("random", seed), extra=learning(seed))
        summary = json.loads((folder / "summary.json").read_text()) | {"broken_answers": 3}
        (folder / "summary.json").write_text(json.dumps(summary))
    _, remarks = world_of(tmp_path)
    assert any("not finite" in one.message and "random: 6" in one.message for one in remarks)


def test_different_recipes_are_named(tmp_path):
    write_cell(tmp_path / "a", trained("random", 0))
    other = RECIPE | {"model": {"kind": "logistic"}}
    config = trained("random", 0, training=other) | {"world_id": "bbbbbbbbbbbb"}
    write_cell(tmp_path / "b", config)
    with pytest.raises(ValueError, match=r"training.model.kind is"):
        write_report([tmp_path], tmp_path / "page.html")
