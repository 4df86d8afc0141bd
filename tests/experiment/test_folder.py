"""What a run folder holds is reused only if it is what would be run now; the rest is run."""

import importlib
import json
import os
import subprocess
import sys

import pytest

import turnout
from turnout.core.errors import StateFileError
from turnout.experiment import Advance, Experiment, FolderError, run_experiment
from turnout.experiment import code as code_module
from turnout.experiment.code import _bare, code_of, files_of
from turnout.results.files import cell_folder, read_json, write_json
from turnout.selectors import Random
from turnout.training import LocalWork, Logistic, Training

PLUG_IN = """
from turnout.selectors import Random

class Mine(Random):
    pass
"""


class Younger(Random):
    """Got its parameter after cells had been written."""

    def __init__(self, *, pull: float = 0.5) -> None:
        self.pull = pull


def small(*selectors, **changes):
    sizes = {"world": "e3cs", "n_clients": 12, "cohort_size": 3, "n_rounds": 40, "seeds": 2}
    return Experiment(list(selectors) or ["random"], **(sizes | changes))


def contents(cell):
    names = ("config.json", "rounds.jsonl", "selections.npz", "state.npz")
    return {name: (cell / name).read_bytes() for name in names}


def statuses(grid):
    return [cell.status for cell in grid.runs]


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder of modules, forgotten afterwards."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    importlib.invalidate_caches()
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]


# code ------------------------------------------------------------------------------------------


def test_an_edited_selector_is_run_again_and_says_so(tmp_path):
    """From the command line, as people do it."""

    def compare(*more):
        command = ["compare", "agingloss:Aging", "random", "--seeds", "2", "--jobs", "1", "--json"]
        sizes = ["--clients", "10", "--cohort", "2", "--rounds", "8", "--out", "runs/x", *more]
        done = subprocess.run(
            [sys.executable, "-m", "turnout", *command, *sizes],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
            check=True,
        )
        means = {row["label"]: row["metrics"]["cep"]["mean"] for row in json.loads(done.stdout)}
        return means, done.stderr

    (tmp_path / "agingloss.py").write_text(
        "import turnout\n\nclass Aging(turnout.Selector):\n"
        "    def select(self, ctx, rng):\n"
        "        return turnout.Selection(ctx.round, ctx.pool[: ctx.size])\n"
    )
    first, said = compare()
    assert "note" not in said
    edited = (tmp_path / "agingloss.py").read_text().replace("[: ctx.size]", "[-ctx.size :]")
    (tmp_path / "agingloss.py").write_text(edited + "# and remembers\n")
    second, said = compare()
    assert "note: 2 cells reused, 2 run again (agingloss.py changed)." in said
    assert second["random"] == first["random"]
    assert second["Aging"] != first["Aging"]
    assert "note: 4 cells reused." in compare()[1]
    assert "note: 4 cells run again (as asked)." in compare("--fresh")[1]


@pytest.mark.parametrize(
    "edited", ["lab/mine.py", "lab/__init__.py", "lab/parts/deep.py", "rate.py"]
)
def test_what_a_plug_in_imports_from_beside_it_counts(edited, modules):
    (modules / "lab" / "parts").mkdir(parents=True)
    for name in ("lab/__init__.py", "lab/parts/__init__.py", "lab/parts/deep.py", "rate.py"):
        (modules / name).write_text("RATE = 1\n")
    (modules / "other.py").write_text("import json\n")
    source = (
        "import numpy\nfrom .parts import deep\ndef later():\n    from rate import RATE\n" + PLUG_IN
    )
    (modules / "lab" / "mine.py").write_text(source)
    made = small("lab.mine:Mine")
    before = code_of(made, made.selectors[0])
    assert set(before) == {
        *("lab/__init__.py", "lab/mine.py", "lab/parts/__init__.py"),
        *("lab/parts/deep.py", "rate.py"),
    }
    (modules / "other.py").write_text("# edited\n")
    assert code_of(made, made.selectors[0]) == before
    with (modules / edited).open("a") as file:
        file.write("# edited\n")
    after = code_of(made, made.selectors[0])
    assert [name for name in before if before[name] != after[name]] == [edited]


def test_worlds_policies_and_inner_selectors_count(modules):
    (modules / "worldly.py").write_text(
        "from dataclasses import dataclass\n"
        "from turnout.worlds import Markov\n"
        "from turnout.worlds import FixedDeadline\n"
        "@dataclass(frozen=True)\nclass Fog(Markov):\n    pass\n"
        "@dataclass(frozen=True)\nclass Slow(FixedDeadline):\n    pass\n"
    )
    (modules / "chooser.py").write_text(PLUG_IN)
    foggy = small("random", world={"volatility": {"kind": "worldly:Fog"}})
    assert list(code_of(foggy, foggy.selectors[0])) == ["worldly.py"]
    slow = small("random", policy={"kind": "worldly:Slow"})
    assert list(code_of(slow, slow.selectors[0])) == ["worldly.py"]
    inner = small("guarded:inner='chooser:Mine'")
    assert list(code_of(inner, inner.selectors[0])) == ["chooser.py"]
    built_in = small("guarded:inner=oort")
    assert code_of(built_in, built_in.selectors[0]) == {}


def test_an_edited_trace_is_run_again(tmp_path):
    trace = tmp_path / "sessions.csv"
    trace.write_text("client,start,end\na,0,900\nb,0,3000\n")
    world = {"availability": {"kind": "availability-file", "path": str(trace)}}
    made = small("random", seeds=1, world=world)
    first = run_experiment(made, tmp_path / "run", n_jobs=1)
    assert run_experiment(made, tmp_path / "run", n_jobs=1).notes == ("1 cell reused.",)
    trace.write_text("client,start,end\na,0,300\nb,0,3000\n")
    grid = run_experiment(made, tmp_path / "run", n_jobs=1)
    assert grid.notes == (f"1 cell run again ({trace} changed).",)
    assert grid.scores.values("random", "cep") != first.scores.values("random", "cep")


def test_an_edited_built_in_selector_is_run_again(tmp_path, monkeypatch):
    made = small("guarded:inner=oort", "random", seeds=1)
    oort, random = (files_of(made, variant) for variant in made.selectors)
    assert {f"turnout/selectors/{name}.py" for name in ("guarded", "oort", "_oort_rules")} <= set(
        oort
    )
    assert "turnout/sampling/allocation.py" in oort
    assert not {name for name in oort if "e3cs" in name or name.endswith("selectors/__init__.py")}
    assert "turnout/selectors/oort.py" not in random
    by_path = small("turnout.selectors:Random")
    assert "turnout/selectors/random.py" in files_of(by_path, by_path.selectors[0])
    run_experiment(made, tmp_path, n_jobs=1)
    monkeypatch.setattr(
        code_module,
        "files_of",
        lambda *task: (
            {**files_of(*task)}
            | ({"turnout/selectors/oort.py": "edited"} if "oort" in str(task) else {})
        ),
    )
    assert run_experiment(small("random", seeds=1), tmp_path, n_jobs=1).notes == ("1 cell reused.",)
    again = run_experiment(small("guarded:inner=oort", seeds=1), tmp_path, n_jobs=1)
    assert again.notes == ("1 cell run again (turnout/selectors/oort.py changed).",)


def test_cells_that_do_not_know_their_files_are_reused(tmp_path):
    run_experiment(small(seeds=1), tmp_path, n_jobs=1)
    for file in tmp_path.rglob("versions.json"):
        write_json(file, {k: v for k, v in read_json(file).items() if k != "files"})
    grid = run_experiment(small(seeds=1), tmp_path, n_jobs=1)
    assert set(statuses(grid)) == {"skipped"}


@pytest.mark.parametrize(
    ("edited", "is_same"),
    [
        (
            '"""Others say."""\n\nX = 1  # more\n\n\ndef f():\n    """Do."""\n    return "# no"\n',
            True,
        ),
        ('"""Says."""\nX = 2\ndef f():\n    return "# no"\n', False),
        ('"""Says."""\nX = 1\ndef f():\n    return "# yes"\n', False),
        ('"""Says."""\nX = 1\ndef f():\n  return "# no"\n', False),
    ],
)
def test_comments_and_docstrings_of_turnout_do_not_count(edited, is_same):
    source = '"""Says."""\nX = 1\ndef f():\n    return "# no"  # so\n'
    assert (_bare(edited.encode()) == _bare(source.encode())) == is_same


def test_a_cell_of_an_old_format_is_named_with_the_fix(tmp_path):
    run_experiment(small("random", seeds=1), tmp_path, n_jobs=1)
    file = cell_folder(tmp_path, "random", 0) / "config.json"
    write_json(file, {**read_json(file), "format": 0})
    (cell,) = run_experiment(small("random", seeds=1), tmp_path, n_jobs=1).failed
    assert "format is 0 in the folder and 1 in the experiment" in cell.message
    assert "(--out), or run all again (--fresh)." in cell.message
    assert not run_experiment(small("random", seeds=1), tmp_path, n_jobs=1, fresh=True).failed


def test_half_a_run_of_edited_code_is_started_again(modules, tmp_path):
    (modules / "half.py").write_text(PLUG_IN)
    made = small("mine=half:Mine", seeds=1)

    def stop(advance: Advance) -> None:
        if advance.rounds_done >= 20:
            raise KeyboardInterrupt

    folder = tmp_path / "run"
    cases = {
        "": ("resumed", "1 cell resumed."),
        "# edited\n": ("complete", "1 cell run again (half.py changed)."),
    }
    for edit, (status, note) in cases.items():
        with pytest.raises(KeyboardInterrupt):
            run_experiment(made, folder, n_jobs=1, checkpoint_every=10, progress=stop, fresh=True)
        with (modules / "half.py").open("a") as file:
            file.write(edit)
        grid = run_experiment(made, folder, n_jobs=1)
        assert (statuses(grid), grid.notes) == ([status], (note,))


def test_code_that_is_in_no_file_is_run_again(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "typed_in", module := type(sys)("typed_in"))
    module.Mine = type("Mine", (Random,), {"__module__": "typed_in"})
    made = small("mine=typed_in:Mine", seeds=1)
    run_experiment(made, tmp_path, n_jobs=1)
    assert run_experiment(made, tmp_path, n_jobs=1).notes == (
        "1 cell run again (typed_in changed).",
    )


def test_cells_from_before_digests_are_reused_with_a_remark(modules, tmp_path):
    (modules / "early.py").write_text(PLUG_IN)
    made = small("mine=early:Mine", "random")
    run_experiment(made, tmp_path / "run", n_jobs=1)
    for label in ("mine", "random"):
        for seed in (0, 1):
            file = cell_folder(tmp_path / "run", label, seed) / "versions.json"
            write_json(file, {k: v for k, v in read_json(file).items() if k != "code"})
    grid = run_experiment(made, tmp_path / "run", n_jobs=1)
    assert grid.notes == (
        "4 cells reused.",
        "2 cells were made before turnout kept digests of plug-ins: reused as they are.",
    )


def test_cells_of_a_version_with_the_same_numbers_are_reused(tmp_path):
    run_experiment(small(), tmp_path, n_jobs=1)
    file = cell_folder(tmp_path, "random", 1) / "versions.json"
    write_json(file, {**read_json(file), "turnout": "0.1.0"})
    assert run_experiment(small(), tmp_path, n_jobs=1).notes == ("2 cells reused.",)


def test_cells_of_another_version_are_refused_unless_all_are_run_again(tmp_path):
    run_experiment(small(), tmp_path, n_jobs=1)
    file = cell_folder(tmp_path, "random", 1) / "versions.json"
    write_json(file, {**read_json(file), "turnout": "0.0.9"})
    with pytest.raises(FolderError, match=r"seed-1 was made by turnout 0\.0\.9, .*--fresh"):
        run_experiment(small(seeds=3), tmp_path, n_jobs=1)
    assert read_json(tmp_path / "experiment.json")["seeds"] == [0, 1]
    grid = run_experiment(small(), tmp_path, n_jobs=1, fresh=True)
    assert statuses(grid) == ["complete", "complete"]
    assert read_json(file)["turnout"] == turnout.__version__


# growth ----------------------------------------------------------------------------------------


def test_a_folder_grows_by_seeds_and_selectors(tmp_path):
    run_experiment(small("random"), tmp_path / "grown", n_jobs=1)
    more = small("e3cs", "random", seeds=3)
    grid = run_experiment(more, tmp_path / "grown", n_jobs=1)
    assert statuses(grid) == ["complete"] * 3 + ["skipped"] * 2 + ["complete"]
    assert grid.notes == ("2 cells reused.",)
    run_experiment(more, tmp_path / "whole", n_jobs=1)
    for label in ("random", "e3cs"):
        for seed in range(3):
            grown, whole = (
                cell_folder(tmp_path / name, label, seed) for name in ("grown", "whole")
            )
            assert contents(grown) == contents(whole)
    resolved = read_json(tmp_path / "grown" / "experiment.json")
    assert [table["label"] for table in resolved["selectors"]] == ["random", "e3cs"]
    assert resolved["seeds"] == [0, 1, 2]
    few = run_experiment(small("random", seeds=1), tmp_path / "grown", n_jobs=1)
    assert statuses(few) == ["skipped"]
    assert read_json(tmp_path / "grown" / "experiment.json") == resolved


@pytest.mark.filterwarnings("ignore:penalty")  # of rbcs-f about this world
@pytest.mark.parametrize("name", turnout.list_selectors())
def test_more_rounds_are_as_if_they_had_been_planned(name, tmp_path):
    sizes = {"world": "volatile", "seeds": 1, "policy": "adaptive-deadline"}
    run_experiment(small(name, n_rounds=15, **sizes), tmp_path / "grown", n_jobs=1)
    longer = small(name, n_rounds=40, **sizes)
    grid = run_experiment(longer, tmp_path / "grown", n_jobs=1)
    assert statuses(grid) == ["resumed"]
    whole = run_experiment(longer, tmp_path / "whole", n_jobs=1)
    grown, planned = (cell_folder(tmp_path / where, name, 0) for where in ("grown", "whole"))
    assert contents(grown) == contents(planned)
    for key, value in whole.runs[0].summary.items():
        if not key.startswith("seconds"):
            assert grid.runs[0].summary[key] == value, key


@pytest.mark.slow
@pytest.mark.parametrize(("n_before", "status"), [(6, "resumed"), (5, "complete")])
def test_more_rounds_of_training_are_as_if_they_had_been_planned(n_before, status, tmp_path):
    """Where a longer run would not have measured the round that was the last, it is run again."""
    local = LocalWork(epochs=1, batch_size=20, lr=0.1)
    recipe = Training(model=Logistic(), local=local, evaluate_every=2, evaluate_clients_every=3)
    sizes = {"training": recipe, "seeds": 1}
    run_experiment(small(n_rounds=n_before, **sizes), tmp_path / "grown", n_jobs=1)
    longer = small(n_rounds=12, **sizes)
    grid = run_experiment(longer, tmp_path / "grown", n_jobs=1)
    assert statuses(grid) == [status]
    what = "resumed" if status == "resumed" else "run again (round 5 was measured as the last one)"
    assert grid.notes == (f"1 cell {what}.",)
    run_experiment(longer, tmp_path / "whole", n_jobs=1)
    grown, planned = (cell_folder(tmp_path / name, "random", 0) for name in ("grown", "whole"))
    assert contents(grown) == contents(planned)
    assert (grown / "model.npz").read_bytes() == (planned / "model.npz").read_bytes()


def test_other_settings_under_the_same_label_are_named(tmp_path):
    run_experiment(small("mine=e3cs:quota=0.5"), tmp_path, n_jobs=1)
    wanted = r"selectors\.mine\.quota is 0\.5 in the folder and 0\.8 .*--out"
    with pytest.raises(FolderError, match=wanted):
        run_experiment(small("mine=e3cs:quota=0.8", seeds=3), tmp_path, n_jobs=1)


def test_more_rounds_do_not_touch_another_run(tmp_path):
    run_experiment(small("mine=e3cs:quota=0.5", seeds=1), tmp_path, n_jobs=1)
    before = contents(cell_folder(tmp_path, "mine", 0))
    (tmp_path / "experiment.json").unlink()
    grid = run_experiment(small("mine=e3cs:quota=0.8", seeds=1, n_rounds=50), tmp_path, n_jobs=1)
    assert statuses(grid) == ["damaged"]
    assert contents(cell_folder(tmp_path, "mine", 0)) == before


# parameters ------------------------------------------------------------------------------------


def test_a_parameter_that_is_younger_than_a_cell_has_its_default(tmp_path):
    name = f"mine={__name__}:Younger"
    run_experiment(small(name), tmp_path, n_jobs=1)
    for seed in (0, 1):
        file = cell_folder(tmp_path, "mine", seed) / "config.json"
        write_json(file, {**read_json(file), "parameters": {}})
    assert statuses(run_experiment(small(name), tmp_path, n_jobs=1)) == ["skipped"] * 2
    (tmp_path / "experiment.json").unlink()
    other = run_experiment(small(f"{name}:pull=0.7"), tmp_path, n_jobs=1)
    assert statuses(other) == ["damaged"] * 2
    assert "parameters.pull is 0.5 in the folder and 0.7" in other.runs[0].message


def test_a_state_without_a_younger_parameter_is_loaded(tmp_path, monkeypatch):
    with monkeypatch.context() as early:
        early.setattr(Younger, "parameter_names", classmethod(lambda cls: ()))
        selector = Younger()
        selector.prepare(4)
        turnout.save(selector, tmp_path / "state.npz")
    now, other = Younger(), Younger(pull=0.7)
    now.prepare(4)
    other.prepare(4)
    assert turnout.load(tmp_path / "state.npz", into=now) is now
    with pytest.raises(StateFileError, match=r"pull = 0\.5, .* has 0\.7"):
        turnout.load(tmp_path / "state.npz", into=other)
