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


def test_hostile_vectors_and_claims():
    everyone, sizes = np.arange(100), {"update_sketch": 8, "update_norm": None}

    def told(behaviour, round):
        world = reliability.world_of(behaviour, 0.1, 3)
        return world.hostile, world.reports(round, everyone, sizes)

    hostile, true = told("honest", 5)
    for behaviour, is_fixed in (("turning update", False), ("balanced update", True)):
        _, lies = told(behaviour, 5)
        np.testing.assert_array_equal(lies["update_norm"], true["update_norm"])
        sketch = lies["update_sketch"]
        np.testing.assert_array_equal(sketch[~hostile], true["update_sketch"][~hostile])
        lengths = np.linalg.norm(sketch, axis=1)
        np.testing.assert_allclose(lengths, true["update_norm"])  # as long as the honest ones
        assert not np.allclose(sketch[hostile], true["update_sketch"][hostile])
        later = told(behaviour, 6)[1]["update_sketch"][hostile]
        unit = sketch[hostile] / lengths[hostile, None]
        assert np.allclose(unit, later / np.linalg.norm(later, axis=1)[:, None]) == is_fixed
    assert (told("balanced update", 5)[1]["update_sketch"][hostile].std(axis=1) < 1e-12).all()

    asked = ("label_counts", "availability_forecast")
    usual, labels, gone = (
        reliability.world_of(behaviour, 0.1, 3).context(0, 5, columns=asked)
        for behaviour in ("honest", "all labels", "soon gone")
    )
    counts, claimed = usual.column("label_counts"), labels.column("label_counts")
    np.testing.assert_allclose(claimed.sum(axis=1), counts.sum(axis=1))
    assert (np.ptp(claimed[hostile], axis=1) == 0).all()
    np.testing.assert_array_equal(claimed[~hostile], counts[~hostile])
    assert (gone.column("availability_forecast")[hostile] == 0).all()
    assert (gone.column("availability_forecast")[~hostile] > 0).all()


@pytest.mark.parametrize(
    ("selector", "behaviour", "is_seen"),
    [
        ("divfl", "turning update", True),
        ("ocs", "turning update", False),
        ("hics-fl", "balanced update", True),
        ("fed-cbs", "all labels", True),
        ("hics-fl", "all labels", False),
        ("refl", "soon gone", True),
        ("tifl", "slow", True),
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
    with monkeypatch.context() as changed:  # another form of some behaviour
        liar = reliability.Behaviour(loss=2.0)
        changed.setitem(reliability.BEHAVIOURS, "small loss", liar)
        reliability.measure(path, ["random"])
        assert json.loads(path.read_text())["cells"][key] == "kept"
        changed.setitem(reliability.BEHAVIOURS, "honest", liar)
        reliability.measure(path, ["random"])
        assert json.loads(path.read_text())["cells"][key] != "kept"
    monkeypatch.setattr(reliability, "N_ROUNDS", 50)
    reliability.measure(path, ["random"])
    assert json.loads(path.read_text())["cells"][key] != "kept"


def test_the_page_is_made_from_the_results():
    paths = (pages.RESULTS, pages.FAULTS)
    made = pages.page_part(*(json.loads(path.read_text(encoding="utf-8")) for path in paths))
    assert pages.PAGE.read_text(encoding="utf-8").endswith(made)


def test_every_row_of_faults_is_kept_with_the_tests_that_are_there():
    saved = json.loads(pages.FAULTS.read_text(encoding="utf-8"))
    assert list(saved) == [row.fault for row in faults.ROWS]
    for row in faults.ROWS:
        assert saved[row.fault]["tests"] == list(row.tests)
        for test in row.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / "tests" / file).read_text(
                encoding="utf-8"
            )


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
    assert (figures["tries"], figures["failed"], figures["long"]) == (10, 2, False)


def test_rows_are_run_one_at_a_time_and_those_that_are_kept_are_not_run_again(
    tmp_path, monkeypatch
):
    rows = (faults.Row("one", "", ("a.py",), is_kill=True), faults.Row("two", "", ("b.py",)))
    monkeypatch.setattr(faults, "ROWS", rows)
    ran = []

    def play(row, is_long):
        ran.append((row.fault, is_long))
        return faults.figures(row, [], is_long) | {"tries": 5}

    def main(*more):
        monkeypatch.setattr(sys, "argv", ["faults.py", "--out", str(tmp_path / "kept.json"), *more])
        with pytest.raises(SystemExit):
            faults.main()
        return json.loads((tmp_path / "kept.json").read_text())

    monkeypatch.setattr(faults, "played", play)
    saved = main("--only", "two", "--long")
    assert [row["tries"] for row in saved.values()] == [0, 5]
    saved = main()
    assert ran == [("two", True), ("one", False)]  # two has been tried more often than asked
    text = "\n".join(pages.faults_part(saved))
    assert "**5 kills at random moments** are counted below, in 1 rows" in text
    main("--long")
    assert ran[2:] == [("one", True)]


def test_the_page_says_what_was_not_tried_yet():
    row = faults.Row("one", "fine", ("a.py",), is_kill=True)
    text = "\n".join(pages.faults_part({"one": faults.figures(row, [], False)}))
    assert "| one | not tried yet | - | fine | `a.py` |" in text
    assert "in 0 rows" in text


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
