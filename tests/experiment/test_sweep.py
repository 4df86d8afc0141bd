"""Sweeps: what they expand to, what they run, what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from turnout import open_runs
from turnout.cli import app
from turnout.core.errors import InvalidInput
from turnout.experiment import ConfigError, Experiment, Sweep, run_sweep

SMALL = ("--rounds", "6", "--clients", "10", "--cohort", "3", "--seeds", "2", "--jobs", "1")
TABLE = """\
n_clients = 10
cohort_size = 3
n_rounds = 6
seeds = 2
selectors = ["random", "e3cs:eta=0.3"]

[sweep]
world.volatility.rates = [[0.2], [0.8]]
"selectors.e3cs.quota" = [0.0, 0.5]

[world]
volatility = { kind = "by-class" }
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def experiment(*selectors: str, **changes: Any) -> Experiment:
    sizes = {"n_clients": 10, "cohort_size": 3, "n_rounds": 6, "seeds": 2}
    return Experiment(list(selectors), **{**sizes, **changes})


# selectors -------------------------------------------------------------------------------------


def test_a_list_of_values_is_a_variant_for_each() -> None:
    made = experiment("random", "E=e3cs:quota=[0,0.5],eta=[0.1,0.2]", "e3cs:quota=[0.3]")
    assert made.labels == (
        "random",
        "E quota=0, eta=0.1",
        "E quota=0, eta=0.2",
        "E quota=0.5, eta=0.1",
        "E quota=0.5, eta=0.2",
        "e3cs quota=0.3",
    )
    assert made.selectors[3].parameters == {"quota": 0.5, "eta": 0.1}
    assert Experiment.from_table(made.table()) == made


def test_a_table_is_swept_as_a_text_is() -> None:
    table = {"name": "e3cs", "quota": [0, 0.5]}
    assert experiment(table).selectors == experiment("e3cs:quota=[0,0.5]").selectors  # type: ignore[arg-type]


def test_an_empty_list_and_a_wrong_value_are_named_by_their_key() -> None:
    with pytest.raises(ConfigError, match=r"quota: is an empty list") as caught:
        experiment("e3cs:quota=[]")
    assert caught.value.key == ("quota",)
    with pytest.raises(ConfigError, match=r"selectors\[1\]\.quota: .* got 2"):
        experiment("random", {"name": "e3cs", "quota": [0, 2]})  # type: ignore[arg-type]


# experiments -----------------------------------------------------------------------------------


def test_points_differ_only_in_what_is_swept() -> None:
    world = {"preset": "volatile", "volatility": "reliable"}
    sweep = Sweep(experiment("random", training={})).over(
        {
            "training": {"partition.alpha": [0.1, 1.0]},
            "world": ["reliable", world],
            "policy.seconds": [20],
        }
    )
    points = sweep.points()
    assert [dict(point.settings) for point in points[:2]] == [
        {"training.partition.alpha": 0.1, "world": "reliable", "policy.seconds": 20},
        {"training.partition.alpha": 0.1, "world": "volatile-reliable", "policy.seconds": 20},
    ]
    assert sweep.n_cells == len(points) * 2 == 8
    assert len({point.experiment.world_id for point in points}) == 4
    assert len({point.folder(Path("x")) for point in points}) == 4
    first, last = points[0].experiment, points[-1].experiment
    assert first.training is not None
    assert last.training is not None
    assert (first.training.partition.alpha, last.training.partition.alpha) == (0.1, 1.0)  # type: ignore[attr-defined]
    assert last.world == experiment("random", world=world).world
    assert first.n_rounds == last.n_rounds == 6


def test_a_kind_replaces_what_was_there() -> None:
    base = experiment("random", policy={"kind": "fixed-deadline", "seconds": 5}, training={})
    points = Sweep(base).over(
        {"policy.kind": ["first-k"], "training.local.steps": [3], "world.preset": ["reliable"]}
    )
    (point,) = points.points()
    recipe = point.experiment.training
    assert recipe is not None
    assert (recipe.local.steps, recipe.local.epochs) == (3, None)
    assert point.experiment.world == experiment("random", world="reliable").world
    assert type(point.experiment.policy).__name__ == "FirstK"


def test_a_file_has_both_kinds() -> None:
    Path("s.toml").write_text(TABLE, encoding="utf-8")
    sweep = Sweep.from_toml("s.toml")
    assert sweep.base.labels == ("random", "e3cs eta=0.3 quota=0.0", "e3cs eta=0.3 quota=0.5")
    assert [*sweep.axes] == ["world.volatility.rates"]
    with pytest.raises(InvalidInput, match=r"s\.toml, line 7: sweep: makes several"):
        Experiment.from_toml("s.toml")


def test_without_a_sweep_it_is_the_experiment_in_the_folder_itself() -> None:
    sweep = Sweep(experiment("random"))
    (grid,) = run_sweep(sweep, "plain", n_jobs=1)
    kept = json.loads(Path("plain", "experiment.json").read_text(encoding="utf-8"))
    assert Experiment.from_table(kept) == sweep.base
    assert grid.folder == Path("plain")
    assert sweep.digest == sweep.base.digest
    assert not list(Path("plain").rglob("sweep.json"))


def test_only_what_is_missing_is_run() -> None:
    sweep = Sweep(experiment("random")).over({"cohort_size": [2, 3]})
    run_sweep(sweep, "s", n_jobs=1)
    wider = Sweep(experiment("random")).over({"cohort_size": [2, 3, 4]})
    grids = run_sweep(wider, "s", n_jobs=1)
    assert [cell.status for grid in grids for cell in grid.runs] == ["skipped"] * 4 + [
        "complete"
    ] * 2
    assert json.loads(Path("s/cohort_size-4/sweep.json").read_text()) == {"cohort_size": 4}
    assert [world.settings.cohort_size for world in open_runs("s").worlds] == [2, 3, 4]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"n_clients": []}, r"sweep\.n_clients: is an empty list"),
        ({"n_clients": 5}, r"sweep\.n_clients: must be a list of values, got 5"),
        ({"n_clients": [20, 20]}, r"sweep\.n_clients: has a value twice: 20, 20"),
        ({"n_clientz": [20]}, r"sweep\.n_clientz: with n_clientz=20: .*Did you mean 'n_clients'"),
        ({"seeds": [1, 2]}, r"sweep\.seeds: seeds=1 and seeds=2 have the same world"),
        ({"policy.second": [1]}, r"sweep\.policy\.second: .*Did you mean 'seconds'"),
        ({"policy.seconds.x": [1]}, r"sweep\.policy\.seconds\.x: .*no table 'seconds'"),
        ({"training.server_lr": [1]}, r"sweep\.training\.server_lr: .*--train"),
        ({"selectors.e3cz.quota": [1]}, r"sweep\.selectors\.e3cz\.quota: .*mean 'e3cs'"),
        ({"selectors.e3cs.quota": [2]}, r"sweep\.selectors\.e3cs\.quota: .*got 2"),
        ({"selectors": [2]}, r"sweep\.selectors: .*LABEL\.PARAMETER"),
        ({"cohort_size": [3, 30]}, r"sweep\.cohort_size: with cohort_size=30: .*at most"),
    ],
)
def test_what_does_not_fit_is_named_by_its_key(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Sweep(experiment("random", "e3cs")).over(table).points()


# command line ----------------------------------------------------------------------------------


def test_several_worlds_are_a_sweep() -> None:
    command = ("compare", "random", "e3cs:quota=[0,1]", "--world", "e3cs", "--world", "volatile")
    result = run(*command, *SMALL, "--out", "s")
    assert result.exit_code == 0, result.output
    assert "compare, world=e3cs: 6 rounds" in result.output
    assert "Over 2 worlds" in result.output
    rows = json.loads(run(*command, *SMALL, "--out", "s", "--json").stdout)
    assert [(row["sweep"]["world"], row["label"]) for row in rows] == [
        (world, label)
        for world in ("e3cs", "volatile")
        for label in ("random", "e3cs quota=0", "e3cs quota=1")
    ]
    assert {row["folder"] for row in rows} == {"s/world-e3cs", "s/world-volatile"}
    assert run("show", "s").exit_code == 0


def test_the_same_command_goes_on_in_its_own_folder() -> None:
    command = ("compare", "random", "--sweep", "n_clients=[8,9]", *SMALL)
    for _ in range(2):
        result = run(*command)
        assert result.exit_code == 0, result.output
    assert "2 cells reused" in result.output
    (folder,) = Path("runs").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["n_clients-8", "n_clients-9"]
    run("compare", "random", *SMALL)
    assert len(list(Path("runs").iterdir())) == 2


def test_a_world_in_a_file_is_called_as_the_file() -> None:
    Path("mine.toml").write_text('volatility = "reliable"\n', encoding="utf-8")
    command = ("compare", "random", "--world", "mine.toml", "--world", "e3cs", *SMALL)
    rows = json.loads(run(*command, "--json").stdout)
    assert [row["sweep"] for row in rows] == [{"world": "mine"}, {"world": "e3cs"}]
    assert rows[0]["metrics"]["success_ratio"]["mean"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "random", "--world", "e3cs", "--world", "e3cs"), "one world twice"),
        (("compare", "random", "--sweep", "n_clients"), "write key=[value,...]"),
        (("compare", "random", "--sweep", "n_clients=[5"), "--sweep n_clients=[5: values=[5"),
        (
            (
                "compare",
                "random",
                *("--world", "e3cs", "--world", "volatile"),
                "--sweep",
                "world=[a]",
            ),
            "sweep.world: is swept twice",
        ),
        (
            ("compare", "random", "--sweep", "n_clients=[5]", "--sweep", "n_clients=[6]"),
            "n_clients twice",
        ),
        (("compare", "random", "--seeds", "1001"), "1,001 runs, more than 1,000: give --yes"),
        (("simulate", "random", "--world", "e3cs", "--world", "volatile"), "compare takes several"),
        (("train", "random", "--world", "e3cs", "--world", "volatile"), "compare takes several"),
        (
            ("compare", "rbcs-f", "--world", "volatile", "--world", "e3cs"),
            "needs the column 'context'",
        ),
    ],
)
def test_bad_sweeps_are_refused_before_anything_is_written(
    arguments: tuple[str, ...], message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert list(Path().iterdir()) == []


def test_a_great_many_runs_are_run_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnout.cli.options._MOST_CELLS", 3)
    command = ("compare", "random", "--sweep", "n_clients=[8,9]", *SMALL)
    assert run(*command).exit_code == 2
    assert run(*command, "--yes").exit_code == 0
