"""The table of docs/reliability.md: a small form of it, and the page as made from the results."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

import turnout

ROOT = Path(__file__).parents[2]


def loaded(folder, name):
    spec = importlib.util.spec_from_file_location(name, ROOT / folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


faults = loaded("benchmarks", "faults")
reliability = loaded("benchmarks", "reliability")
pages = loaded("docs", "build_reliability")


@pytest.fixture
def small(monkeypatch):
    for name, value in {"N_CLIENTS": 40, "COHORT_SIZE": 8, "N_ROUNDS": 60, "LATER": 20}.items():
        monkeypatch.setattr(reliability, name, value)


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", ["huge data", "half honest", "NaN"])
@pytest.mark.parametrize("selector", ["data-weighted", "rpow-d"])
def test_bounds_and_guard_hold_what_the_page_says(small, selector, behaviour):
    gains = {m: reliability.gain(selector, behaviour, 0.1, m, 0) for m in reliability.MODES}
    assert gains["bounds"].hostile < 2.0
    fair = (60 - 20) * 0.2  # places that a client could expect
    assert gains["guarded"].hostile <= 2.0 + 1.0 / fair
    assert gains["guarded"].least_honest >= 0.5 - 2.0 / fair


def test_hostile_clients_do_what_their_behaviour_says():
    world = reliability.world_of("half honest", 0.1, 3)
    assert world.hostile.sum() == 10
    lying, telling = (world.context(t, 5, columns=("num_samples",)) for t in (0, 1))
    assert (lying.column("num_samples")[world.hostile] == turnout.core.types.LARGEST_REPORT).all()
    assert telling.column("num_samples").max() < 1e6
    assert (world.metrics(0)["loss"][world.hostile] == turnout.core.types.LARGEST_REPORT).all()
    dead = reliability.world_of("dead after 100 rounds", 0.1, 3)
    assert not dead.fate(100).survived[dead.hostile].any()
    assert dead.fate(99).survived[dead.hostile].any()
    assert np.isnan(dead.polled_loss(100)[dead.hostile]).all()
    slow, usual = (reliability.world_of(name, 0.1, 3) for name in ("slow", "honest"))
    ratio = slow.fate(0).duration / usual.fate(0).duration
    np.testing.assert_allclose(ratio, np.where(slow.hostile, 10.0, 1.0))


@pytest.mark.parametrize(
    ("selector", "behaviour", "is_seen"),
    [
        ("random", "huge loss", False),
        ("random", "honest", True),
        ("data-weighted", "huge data", True),
        ("data-weighted", "huge loss", False),
        ("pow-d", "triple loss", True),
        ("rbcs-f", "fast", True),
        ("e3cs", "silent", True),
        ("ucb-cs", "slow", False),
    ],
)
def test_behaviours_that_a_selector_cannot_see_have_no_cell(selector, behaviour, is_seen):
    assert any(cell[1] == behaviour for cell in reliability.cells(selector)) == is_seen


def test_what_the_file_has_is_not_run_again(small, monkeypatch, tmp_path):
    monkeypatch.setattr(reliability, "cells", lambda selector: [(selector, "honest", 0.1, "bare")])
    path = tmp_path / "reliability.json"
    reliability.measure(path, ["random"], n_seeds=1)
    first = json.loads(path.read_text())["cells"]
    reliability.measure(path, ["random"])
    saved = json.loads(path.read_text())
    (key,) = saved["cells"]
    assert np.shape(saved["cells"][key]) == (3, 3)
    assert saved["cells"][key][0] == first[key][0]
    assert saved["cells"][key][1] != first[key][0]
    saved["cells"][key] = "kept"
    path.write_text(json.dumps(saved))
    reliability.measure(path, ["random"])
    assert json.loads(path.read_text())["cells"][key] == "kept"
    monkeypatch.setattr(reliability, "N_ROUNDS", 50)
    reliability.measure(path, ["random"])
    assert json.loads(path.read_text())["cells"][key] != "kept"


def test_the_page_is_made_from_the_results():
    paths = (pages.RESULTS, pages.FAULTS)
    made = pages.page_part(*(json.loads(path.read_text(encoding="utf-8")) for path in paths))
    assert pages.PAGE.read_text(encoding="utf-8").endswith(made)


def test_every_row_of_faults_was_tried_with_the_tests_that_are_there():
    saved = json.loads(pages.FAULTS.read_text(encoding="utf-8"))
    assert list(saved) == [row.fault for row in faults.ROWS]
    for row in faults.ROWS:
        assert saved[row.fault]["tests"] == list(row.tests)
        for test in row.tests:
            file, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / "tests" / file).read_text(encoding="utf-8")


def test_tries_and_failures_of_a_fault_are_counted(tmp_path, monkeypatch):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_some.py").write_text(
        "import pytest\n"
        "def test_many(record_property): record_property('tries', 7)\n"
        "def test_once(): pass\n"
        "def test_wrong(): assert False\n"
        "def test_without_its_fixture(nowhere): pass\n"
        "@pytest.mark.skip\n"
        "def test_elsewhere(): pass\n"
    )
    monkeypatch.setattr(faults, "ROOT", tmp_path)
    figures = faults.played(faults.Row("a fault", "none", ("test_some.py",)), is_long=False)
    assert (figures["tries"], figures["failed"]) == (10, 2)


def test_the_page_names_every_cell_that_missed_a_goal():
    gains = {"bare": 4.0, "bounds": 2.5, "guarded": 1.9}
    cells = {
        ("oort", behaviour, share, mode): [[gain, 0.5, 3.0]] * 3
        for behaviour in ("honest", "huge loss")
        for share in pages.SHARES
        for mode, gain in gains.items()
    }
    text = "\n".join(pages.goals(cells, 0.5, 2.0))
    assert "true in 0 of 3 cells; bare in 0" in text
    assert text.count("| `oort` | huge loss | ") == 3
    assert "at most 1.90" in text


def test_the_page_says_what_was_not_measured():
    cells = {
        (name, "honest", "0.1", "bare"): [[1.0, 0.5, 2.0]] * (1 if name == "oort" else 3)
        for name in turnout.list_selectors(plugins=False)
        if name not in ("guarded", "nccb")
    }
    assert "Not measured yet: `nccb`;" in pages.not_measured(cells)
    assert "Fewer seeds so far: `oort` 1;" in pages.fewer_seeds(cells, 3)
    cells["nccb", "honest", "0.1", "bare"] = []
    assert pages.not_measured(cells) == pages.fewer_seeds({}, 3) == ""
