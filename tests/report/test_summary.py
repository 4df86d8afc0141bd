import json
import math

import numpy as np
import pytest
import scipy.stats

from tests.report.folders import LABELS, run_cell, run_folder
from turnout.report import write_report
from turnout.report.page import summary_rows
from turnout.results.catalogue import shown_in
from turnout.results.groups import gather
from turnout.results.reader import read_cells
from turnout.results.statistics import estimate, student_quantile


def rows_of(path):
    (world,), _ = gather(read_cells([path])[0])
    return {row.name: row for row in summary_rows(world, shown_in("report"))}


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 19, 29, 99, 999])
def test_quantiles_are_students(freedom):
    assert student_quantile(freedom) == pytest.approx(scipy.stats.t.ppf(0.975, freedom), rel=1e-6)


def test_estimate_is_the_textbook_interval():
    values = [0.3, 0.5, 0.4, 0.9]
    low, high = scipy.stats.t.interval(0.95, 3, np.mean(values), scipy.stats.sem(values))
    mean, _, half_width, n_seeds = estimate(values)
    assert (mean - half_width, mean + half_width) == pytest.approx((low, high), rel=1e-6)
    assert n_seeds == 4
    assert math.isnan(estimate([1.0]).half_width)


def test_rows_are_means_of_the_summaries(experiment):
    rows = rows_of(experiment)
    assert tuple(rows) == LABELS
    for label, row in rows.items():
        folders = sorted((experiment / label).iterdir())
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
        assert row.n_seeds == 3
        for key in ("success_ratio", "cep", "regret", "gini_of_counts", "wasted_s"):
            values = [summary[key] for summary in summaries]
            assert row.estimates[key].mean == pytest.approx(np.mean(values))


def test_what_the_summary_lacks_is_computed_from_the_rounds(experiment, tmp_path):
    folder = run_cell(tmp_path, "e3cs-0.5", seed=1)
    (folder / "summary.json").write_text('{"seconds": 1.0, "cep": null, "regret": "?"}')
    computed = rows_of(tmp_path)["e3cs-0.5"].estimates
    written = rows_of(experiment / "e3cs-0.5" / "seed-1")["e3cs-0.5"].estimates
    assert computed.keys() == written.keys()
    for key, one in written.items():
        assert computed[key].mean == pytest.approx(one.mean), key


def test_the_best_of_each_column_is_marked(experiment):
    rows = rows_of(experiment)
    for column in shown_in("report"):
        means = {
            name: row.estimates[column.key].mean
            for name, row in rows.items()
            if column.key in row.estimates
        }
        if not means:
            continue
        if column.key == "regret":  # each selector's is measured at its own quota
            assert not any("regret" in row.best | row.tied for row in rows.values())
            continue
        wanted = max(means.values()) if column.better == "higher" else min(means.values())
        marked = {name for name, row in rows.items() if column.key in row.best}
        assert marked == {name for name, mean in means.items() if mean == pytest.approx(wanted)}
    assert "success_ratio" in rows["fedcs"].best  # it knows the true rates
    assert "jain_of_counts" in rows["round-robin"].best


def test_ties_are_judged_by_paired_differences(tmp_path):
    values = {
        "e3cs-0.5": [10.0, 20.0, 30.0],
        "random": [9.0, 21.5, 29.0],  # differences 1, -1.5, 1: may be zero
        "fedcs": [9.0, 19.1, 28.9],  # differences 1, 0.9, 1.1: surely worse
    }
    run_folder(tmp_path, *values, n_rounds=3)
    for label, by_seed in values.items():
        for seed, cep in enumerate(by_seed):
            summary = tmp_path / label / f"seed-{seed}" / "summary.json"
            summary.write_text(json.dumps({"cep": cep, "wasted_s": 5.0}))
    rows = rows_of(tmp_path)
    assert "cep" in rows["e3cs-0.5"].best
    assert "cep" in rows["random"].tied
    assert "cep" not in rows["fedcs"].best | rows["fedcs"].tied
    # the unpaired intervals of all three overlap widely
    assert rows["fedcs"].estimates["cep"].half_width > 10
    # where all are equal nobody is best
    assert all("wasted_s" not in row.best | row.tied for row in rows.values())


def test_a_single_selector_is_not_called_best(experiment):
    (row,) = rows_of(experiment / "random").values()
    assert row.best == row.tied == frozenset()


def test_the_last_accuracy_is_a_column(training, tmp_path):
    rows = rows_of(training)
    cells = [training / "random" / f"seed-{seed}" for seed in (0, 1)]
    lines = [(cell / "rounds.jsonl").read_text().splitlines()[-1] for cell in cells]
    expected = [json.loads(line)["accuracy"] for line in lines]
    assert rows["random"].estimates["accuracy"].mean == pytest.approx(np.mean(expected))
    page = write_report([training], tmp_path / "r.html").path.read_text()
    assert ">Accuracy<" in page
