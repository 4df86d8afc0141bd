from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import turnout
from turnout import Bounds, StepAfter, data, training
from turnout import worlds as environments
from turnout import worlds as policies
from turnout.core import schedules
from turnout.core.errors import InvalidInput, MissingColumn
from turnout.core.files import read_npz
from turnout.core.selector import Selector
from turnout.core.types import RoundContext, Selection
from turnout.experiment import (
    Advance,
    ConfigError,
    Experiment,
    FolderError,
    Variant,
    estimate,
    paired_difference,
    parse_variant,
    read_cell,
    run_experiment,
    simulate,
)
from turnout.experiment.codec import FAMILIES, SCHEDULES, decode, decode_parameter, encode
from turnout.experiment.config import class_names, line_of, world_of
from turnout.results import metrics
from turnout.results.files import cell_folder, slug
from turnout.results.metrics import RunningRegret
from turnout.results.settings import first_difference, versions
from turnout.results.statistics import student_quantile
from turnout.worlds import WORLDS, Environment, Population, e3cs_world, rbcs_f_world

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "experiments.md"
BROKEN = "tests.experiment.test_experiment:Broken"


class Broken(Selector):
    """Fails in the middle of a run."""

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        if ctx.round == 5:
            raise RuntimeError("no more clients")
        return Selection(ctx.round, ctx.pool[: ctx.size])


class Deadly(Selector):
    """Ends the process it runs in, as the system does when memory is short."""

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        if ctx.round == 5:
            os._exit(9)
        return Selection(ctx.round, ctx.pool[: ctx.size])


def code_block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", HOWTO.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def small(*selectors: Any, **changes: Any) -> Experiment:
    given: dict[str, Any] = {"world": "e3cs", "n_clients": 12, "cohort_size": 3, "n_rounds": 60}
    return Experiment(list(selectors) or ["random", "e3cs"], **(given | {"seeds": 2} | changes))


def cell_of(folder: Path, label: str, seed: int) -> Path:
    return cell_folder(folder, label, seed)


def contents(cell: Path) -> dict[str, bytes]:
    names = ("config.json", "rounds.jsonl", "selections.npz", "state.npz")
    return {name: (cell / name).read_bytes() for name in names}


# configuration ---------------------------------------------------------------------------------


def test_the_howto_file_and_python_give_the_same_experiment(tmp_path: Path) -> None:
    file = tmp_path / "sticky-failures.toml"
    file.write_text(code_block("toml"), encoding="utf-8")
    from_file = Experiment.from_toml(file)
    from_python = Experiment(
        [
            Variant("random"),
            Variant("e3cs", "E3CS-inc", {"quota": StepAfter(30, 0.0, 1.0)}),
            Variant("rbcs-f", "RBCS-F(20)", {"penalty": 20.0}),
        ],
        name="sticky-failures",
        world=environments.Environment(
            40,
            availability=environments.Bernoulli(0.9),
            volatility=environments.Markov((0.2, 0.9), 0.8),
            timing=environments.LinearContextual(),
        ),
        cohort_size=8,
        n_rounds=120,
        seeds=[1, 2, 3],
        policy=policies.OverSelect(policies.FirstK(seconds=30), 1.25),
    )
    assert from_file == from_python
    assert from_file.digest == from_python.digest
    grid = run_experiment(from_file, tmp_path / "run", n_jobs=1)
    assert grid.failed == ()
    assert grid.estimate("success_ratio")["E3CS-inc"].n == 3


def test_the_howto_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code_block("python"), "howto", "exec"), {})
    assert (tmp_path / "runs/sticky/e3cs-inc/seed-2/summary.json").exists()


def test_a_resolved_experiment_reads_back() -> None:
    made = small("random", "e3cs:quota=0.8", policy="first-k", world="volatile")
    again = Experiment.from_table(json.loads(json.dumps(made.table(), allow_nan=False)))
    assert again == made
    assert again.digest == made.digest
    assert again.policy == policies.FirstK()


def test_named_worlds_are_the_papers() -> None:
    made = Experiment(["random"], world="e3cs")
    assert made.environment(7) == e3cs_world(seed=7)
    assert (made.n_clients, made.cohort_size, made.n_rounds) == (100, 20, 2500)
    made = Experiment(["random"], world="rbcs-f")
    assert made.environment(7) == rbcs_f_world(seed=7)
    assert (made.n_clients, made.cohort_size, made.n_rounds) == (40, 8, 500)


def test_a_table_may_start_from_a_named_world() -> None:
    table = {"preset": "e3cs", "availability": {"kind": "bernoulli", "rate": 0.5}}
    made = Experiment(["random"], world=table).environment(3)
    expected = dataclasses.replace(e3cs_world(seed=3), availability=environments.Bernoulli(0.5))
    assert made == expected


def test_the_demo_world_has_what_every_selector_needs() -> None:
    world = world_of({}, 10)
    assert world.n_clients == 10
    columns = WORLDS["volatile"].example.columns
    for name in turnout.list_selectors():
        assert turnout.make(name).needs_columns <= columns


BAD = {
    "unknown key": (
        'selectors = ["random"]\nn_roundz = 4\n',
        ["line 2", "n_roundz", "'n_rounds'", "cohort_size"],
    ),
    "more than there are": (
        'selectors = ["random"]\nn_clients = 12\ncohort_size = 13\n',
        ["line 3", "cohort_size", "n_clients = 12", "13"],
    ),
    "unknown parameter": (
        '[[selectors]]\nname = "random"\n[[selectors]]\nname = "e3cs"\nquotta = 1\n',
        ["line 5", "selectors[1].quotta", "'quota'", "estimate"],
    ),
    "parameter out of its domain": (
        '[[selectors]]\nname = "e3cs"\nquota = 1.5\n',
        ["line 3", "selectors[0].quota", "1.5", "<= 1.0"],
    ),
    "parameter whose name begins with another's": (
        '[[selectors]]\nname = "oort"\nexplore = 0.9\nexplore_decay = 1.5\n',
        ["line 4", "selectors[0].explore_decay:", "1.5"],
    ),
    "field whose name begins with another's": (
        'selectors = ["random"]\n[training]\ntrainer = "fast"\n'
        "evaluate_every = 1\nevaluate_clients_every = -1\n",
        ["line 5", "training.evaluate_clients_every:", "-1"],
    ),
    "unknown selector": (
        '[[selectors]]\nname = "e3cz"\n',
        ["line 2", "selectors[0].name", "'e3cs'", "rbcs-f"],
    ),
    "unknown schedule": (
        '[[selectors]]\nname = "e3cs"\nquota = { schedule = "step-aftr" }\n',
        ["line 3", "quota.schedule", "'step-after'", "lemma1"],
    ),
    "unknown field of a schedule": (
        '[[selectors]]\nname = "e3cs"\nquota = { schedule = "step-after", roundz = 5 }\n',
        ["line 3", "quota.roundz", "'rounds'", "before"],
    ),
    "unknown kind": (
        'selectors = ["random"]\n[world]\navailability = { kind = "bernouli" }\n',
        ["line 3", "world.availability.kind", "'bernoulli'", "phone-trace"],
    ),
    "unknown field of a model": (
        'selectors = ["random"]\n[world]\navailability = { kind = "bernoulli", rat = 1 }\n',
        ["line 3", "world.availability.rat", "'rate'"],
    ),
    "unknown part of a world": (
        'selectors = ["random"]\n[world]\navailabilty = { kind = "always" }\n',
        ["line 3", "world.availabilty", "'availability'", "timing"],
    ),
    "model out of its domain": (
        'selectors = ["random"]\n[world.availability]\nkind = "bernoulli"\nrate = 1.5\n',
        ["line 4", "world.availability.rate", "1.5"],
    ),
    "kind of another family": (
        'selectors = ["random"]\n[world]\ntiming = { kind = "bernoulli" }\n',
        ["line 3", "world.timing.kind", "linear-contextual"],
    ),
    "missing kind": (
        'selectors = ["random"]\n[world]\ntiming = { seconds = 1.0 }\n',
        ["line 3", "world.timing.kind", "fixed-time"],
    ),
    "unknown world": ('world = "e3cz"\nselectors = ["random"]\n', ["line 1", "'e3cs'", "volatile"]),
    "inner policy": (
        'selectors = ["random"]\n[policy]\nkind = "over-select"\n[policy.inner]\n'
        'kind = "first-k"\nshar = 0.5\n',
        ["line 6", "policy.inner.shar", "'share'"],
    ),
    "same label twice": ('selectors = ["random", "random"]\n', ["line 1", "folder 'random'"]),
    "many lines of selectors": (
        'selectors = [\n  { name = "random" },\n  { name = "e3cs", quotta = 1 },\n]\n',
        ["line 3", "selectors[1].quotta"],
    ),
    "no selectors": ('name = "x"\n', ["selectors", "at least one"]),
    "no seeds": ('selectors = ["random"]\nseeds = 0\n', ["line 2", "seeds", ">= 1"]),
    "seed twice": ('selectors = ["random"]\nseeds = [1, 1]\n', ["line 2", "different"]),
    "no clients": ('selectors = ["random"]\nn_clients = 0\n', ["line 2", "n_clients", ">= 1"]),
    "text for a number": ('selectors = ["random"]\nn_rounds = "9"\n', ["line 2", "'9'"]),
    "not TOML": ('selectors = ["random"\n', ["not TOML"]),
}


@pytest.mark.parametrize("case", BAD)
def test_configuration_errors_name_line_key_and_what_is_allowed(case: str, tmp_path: Path) -> None:
    text, expected = BAD[case]
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as raised:
        Experiment.from_toml(file)
    for part in ("bad.toml", *expected):
        assert part in str(raised.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere\.toml cannot be read"):
        Experiment.from_toml(tmp_path / "nowhere.toml")


def test_lines_of_keys() -> None:
    text = textwrap.dedent("""\
        name = "a"           # a = 1
        [[selectors]]
        name = "random"
        [[selectors]]
        name = "e3cs"
        quota = { schedule = "linear", start = 0.0 }
        [world.availability]
        kind = "always"
    """)
    assert line_of(text, ("name",)) == 1
    assert line_of(text, ("selectors", 0, "name")) == 3
    assert line_of(text, ("selectors", 1, "name")) == 5
    assert line_of(text, ("selectors", 1, "quota", "start")) == 6
    assert line_of(text, ("selectors", 1, "quota", "end")) == 6
    assert line_of(text, ("world", "availability", "kind")) == 8
    assert line_of(text, ("world", "availability", "rate")) == 7
    assert line_of(text, ("elsewhere",)) is None
    assert line_of('model = "mlpp"\nsource = { kind = "digits" }\n', ("model", "kind")) == 1


@pytest.mark.parametrize(
    ("text", "name", "label", "parameters"),
    [
        ("random", "random", "random", {}),
        ("e3cs:quota=0.8", "e3cs", "e3cs quota=0.8", {"quota": 0.8}),
        (
            "E3CS-0.8=e3cs:quota=0.8,draw=dependent-rounding",
            "e3cs",
            "E3CS-0.8",
            {"quota": 0.8, "draw": "dependent-rounding"},
        ),
        (
            "RBCS-F(5)=rbcs-f:penalty=5,clip=false",
            "rbcs-f",
            "RBCS-F(5)",
            {"penalty": 5, "clip": False},
        ),
        (
            'inc=e3cs:quota={schedule="step-after",rounds=5},eta=theorem-1,horizon=9',
            "e3cs",
            "inc",
            {"quota": {"schedule": "step-after", "rounds": 5}, "eta": "theorem-1", "horizon": 9},
        ),
        (
            "turnout.selectors.e3cs:E3CS:quota=1",
            "turnout.selectors.e3cs:E3CS",
            "E3CS quota=1",
            {"quota": 1},
        ),
        (f"mine={BROKEN}", BROKEN, "mine", {}),
    ],
)
def test_selectors_as_text(text: str, name: str, label: str, parameters: dict[str, Any]) -> None:
    assert parse_variant(text) == Variant(name, label, parameters)


@pytest.mark.parametrize("text", ["e3cs:quota", "e3cs:quota=", "e3cs:quota=0.5,,", "", "a="])
def test_text_that_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises((ConfigError, turnout.UnknownSelector)):
        parse_variant(text)


def test_slugs_are_folder_names() -> None:
    assert slug("E3CS-0.5") == "e3cs-0.5"
    assert slug("../RBCS-F (50)") == "rbcs-f-50"
    assert slug("///") == "selector"


FITTED = [
    getattr(environments, f"Fitted{part}")
    for part in ("Availability", "Population", "Success", "Times")
]


@pytest.mark.parametrize(
    ("base", "cls"), [(base, cls) for base, kinds in FAMILIES.items() for cls in kinds.values()]
)
def test_every_model_survives_a_table(base: type, cls: type) -> None:
    needed: dict[type, dict[str, Any]] = {
        environments.Environment: {"n_clients": 3},
        data.ArrayFile: {"path": "mine.npz"},
        data.TextFile: {"path": "mine.jsonl"},
        environments.AvailabilityFile: {"path": "sessions.csv"},
        environments.BatteryOnGrid: {"path": "grid.csv"},
        **{kind: {"path": "mine.npz"} for kind in FITTED},
        environments.DeviceFile: {"path": "devices.csv"},
        data.CsvFile: {"path": "mine.csv"},
        data.ImageFolder: {"path": "photos"},
        data.Examples: {"path": "mine:sets"},
        training.Custom: {"path": "module:factory", "parameters": {"width": 3}},
        training.PerClient: {"values": (1, 2, 3)},
    }
    model = cls(**needed.get(cls, {}))
    table = json.loads(json.dumps(encode(model), allow_nan=False))
    assert decode(table, base) == model


def test_every_schedule_survives_a_table() -> None:
    made = (
        schedules.Constant(0.5),
        schedules.Linear(0.0, 1.0, 9),
        StepAfter(3),
        schedules.Lemma1(1.0, 2.0, 3.0),
        schedules.StepDecay(0.05, at=(300, 600)),
        schedules.ExponentialDecay(0.002, 0.9993),
    )
    assert {type(one) for one in made} == set(SCHEDULES.values())
    for one in made:
        table = json.loads(json.dumps(encode(one), allow_nan=False))
        assert decode_parameter(table, ()) == one


def test_classes_are_named_after_what_divides_them() -> None:
    markov = environments.Markov((0.2, 0.9))
    shifted = environments.Environment(8, volatility=environments.Shifting(markov))
    assert class_names(shifted) == {"names": ["0.2", "0.9"], "what": "success rate"}
    expected = {"names": ["1 s", "2 s", "3 s", "4 s"], "what": "training time"}
    assert class_names(rbcs_f_world()) == expected
    plain = environments.Environment(8, volatility=environments.Reliable())
    assert class_names(plain) is None


# statistics ------------------------------------------------------------------------------------


def test_student_quantiles() -> None:
    for degrees in (*range(1, 31), 31, 40, 60, 100, 1000):
        exact = float(scipy.stats.t.ppf(0.975, degrees))
        # six digits in the table; above it the series leaves out terms of order degrees**-3
        assert student_quantile(degrees) == pytest.approx(
            exact, rel=2e-6 if degrees <= 30 else 1e-4
        )


def test_estimates_are_those_of_scipy() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0]
    found = estimate(values)
    low, high = scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values))
    assert (found.mean, found.n) == (2.8, 5)
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-6)
    assert estimate([*values, math.nan]) == found


def test_a_single_seed_has_no_interval() -> None:
    found = estimate([2.0])
    assert found.mean == found.low == found.high == 2.0
    assert math.isnan(found.half_width)
    assert estimate([]).n == 0


def test_paired_differences_use_the_same_seeds() -> None:
    found = paired_difference([11.0, 22.0, 33.0], [10.0, 20.0, 30.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3))
    with pytest.raises(InvalidInput, match="same seeds"):
        paired_difference([1.0], [1.0, 2.0])


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 0.5, 0.8, 1.0, None]),
)
def test_running_regret_is_the_metric(
    sizes: tuple[int, int], batches: list[int], seed: int, quota: float | None
) -> None:
    (n, k), total = sizes, sum(batches)
    rng = np.random.default_rng(seed)
    success = rng.random((total, n)) < 0.5
    share = rng.random(total) if quota is None else np.full(total, quota)
    played = np.zeros((total, n))
    for row in played:
        row[rng.permutation(n)[:k]] = 1.0
    gained = np.sum(played * success, axis=1)
    running, found = RunningRegret(n, k), []
    for start, stop in zip(np.cumsum([0, *batches]), np.cumsum(batches), strict=False):
        fresh = RunningRegret(n, k)
        fresh.load_state(running.state())
        running = fresh
        found.append(running.add(success[start:stop], gained[start:stop], share[start:stop]))
    expected = metrics.regret(success, played, k, share)
    np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-12, atol=1e-9)


# runs ------------------------------------------------------------------------------------------


def test_a_cell_is_the_simulation(tmp_path: Path) -> None:
    made = small("e3cs:quota=0.8", world="volatile", policy="first-k")
    grid = run_experiment(made, tmp_path, n_jobs=1)
    cell = read_cell(cell_of(tmp_path, "e3cs quota=0.8", 1))
    expected = simulate(
        turnout.make("e3cs", quota=0.8),
        made.environment(1),
        cohort_size=3,
        n_rounds=60,
        policy=policies.FirstK(),
        keep_fates=True,
    )
    for name in ("offsets", "clients", "status", "duration", "spent", "probability", "length_s"):
        np.testing.assert_array_equal(getattr(cell.run, name), getattr(expected, name))
    np.testing.assert_array_equal(cell.run.n_available, expected.n_available)
    np.testing.assert_allclose(cell.curves["regret"], expected.regret(0.8), atol=1e-9)
    np.testing.assert_array_equal(cell.curves["backlog_mean"], expected.backlog().mean)
    summary = grid.runs[1].summary
    assert summary is not None
    assert summary == cell.summary
    assert summary["success_ratio"] == expected.success_ratio
    assert summary["cep"] == expected.cep[-1]
    assert summary["total_time_s"] == pytest.approx(expected.length_s.sum())
    assert summary["regret_bound"] is None  # the theorem knows no availability


def test_the_folder_is_as_agreed(tmp_path: Path) -> None:
    made = small("e3cs")
    run_experiment(made, tmp_path, n_jobs=1)
    cell = cell_of(tmp_path, "e3cs", 0)
    config = json.loads((cell / "config.json").read_text())
    keys = "format kind experiment label selector parameters seed n_clients cohort_size n_rounds"
    assert list(config) == [*keys.split(), "world", "world_id", "policy", "classes"]
    assert config["parameters"] == {
        "eta": 0.5,
        "quota": 0.5,
        "draw": "exact",
        "estimate": "loss",
        "horizon": None,
        "share": 0.0,
    }
    assert config["world_id"] == made.world_id
    lines = [json.loads(line) for line in (cell / "rounds.jsonl").read_text().splitlines()]
    back = read_cell(str(cell))
    run, columns = back.run, back.curves
    assert [line["round"] for line in lines] == list(range(60))
    assert sum(line["completed"] for line in lines) == run.cep[-1]
    assert sum(line["wasted_s"] for line in lines) == pytest.approx(run.wasted_s)
    assert [line["regret"] for line in lines] == columns["regret"].tolist()
    statuses = ("completed", "late", "failed", "silent")
    assert all(sum(line[name] for name in statuses) == line["chosen"] for line in lines)
    assert back.class_of is not None
    assert back.class_of.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert columns["bound"].shape == columns["backlog_max"].shape == (60,)
    expected = metrics.theorem1_bound(0.5, 60, 3, 12, 0.5)
    np.testing.assert_array_equal(columns["bound"], expected)
    summary = json.loads((cell / "summary.json").read_text())
    assert summary["regret_bound"] == expected[-1]
    resolved = json.loads((tmp_path / "experiment.json").read_text())
    assert Experiment.from_table(resolved) == made
    known = {"turnout", "numpy", "python", "platform", "git", "dirty", "code", "files"}
    assert json.loads((cell / "versions.json").read_text()).keys() == known


def test_git_state_is_null_outside_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turnout.results.settings._PACKAGE", tmp_path)
    assert versions()["git"] is None
    assert versions()["dirty"] is None


def test_a_selector_may_have_its_own_cohort(tmp_path: Path) -> None:
    wide = {"label": "wide", "name": "random", "cohort_size": 9}
    run_experiment(small("random", wide), tmp_path, n_jobs=1)
    narrow, wider = (read_cell(cell_of(tmp_path, label, 0)) for label in ("random", "wide"))
    assert set(np.diff(narrow.run.offsets)) == {3}
    assert set(np.diff(wider.run.offsets)) == {9}
    assert narrow.settings.world_id == wider.settings.world_id


def test_a_cohort_is_at_most_everyone(tmp_path: Path) -> None:
    assert Experiment(["random"], n_clients=7).cohort_size == 7  # usually 20
    too_wide = small("random", {"label": "wide", "name": "random", "cohort_size": 13})
    with pytest.raises(InvalidInput, match="cohort_size must be at most n_clients = 12, got 13"):
        run_experiment(too_wide, tmp_path, n_jobs=1)
    assert not list(tmp_path.glob("random/*"))


def test_order_and_number_of_processes_change_nothing(tmp_path: Path) -> None:
    run_experiment(small("random", "e3cs", "oort", world="volatile"), tmp_path / "a", n_jobs=1)
    seen: list[Advance] = []
    other = small("oort", "e3cs", "random", world="volatile", seeds=[1, 0])
    grid = run_experiment(other, tmp_path / "b", n_jobs=2, progress=seen.append)
    assert grid.failed == ()
    assert seen[-1] == Advance(360, 360, 6, 6)
    assert [cell.seed for cell in grid.runs] == [1, 0, 1, 0, 1, 0]
    for label in other.labels:
        for seed in (0, 1):
            first, second = (cell_of(tmp_path / name, label, seed) for name in "ab")
            assert contents(first) == contents(second)


class Stop(BaseException):
    """Interrupts a run, as Ctrl-C does."""


def interrupt_at(n_rounds: int) -> Any:
    def look(advance: Advance) -> None:
        if advance.rounds_done >= n_rounds:
            raise Stop

    return look


@pytest.mark.filterwarnings("ignore:penalty")  # of rbcs-f about this world
@pytest.mark.parametrize("name", turnout.list_selectors())
def test_an_interrupted_run_ends_as_if_it_had_not_been(name: str, tmp_path: Path) -> None:
    made = small(name, world="volatile", n_rounds=40, seeds=1, policy="adaptive-deadline")
    run_experiment(made, tmp_path / "whole", n_jobs=1, checkpoint_every=10)
    with pytest.raises(Stop):
        run_experiment(
            made, tmp_path / "cut", n_jobs=1, checkpoint_every=10, progress=interrupt_at(20)
        )
    cell = cell_of(tmp_path / "cut", name, 0)
    assert not (cell / "summary.json").exists()
    with (cell / "rounds.jsonl").open("a") as log:
        log.write('{"round": 20}\n{"round": 21, "avai')  # rounds behind the checkpoint, torn
    grid = run_experiment(made, tmp_path / "cut", n_jobs=1, checkpoint_every=10)
    assert grid.runs[0].status == "resumed"
    assert contents(cell) == contents(cell_of(tmp_path / "whole", name, 0))


#: Some of its clients hold so much data that nobody believes it.
UNEQUAL = Environment(12, population=Population(tail=0.7))


def test_bounds_of_an_experiment_are_those_of_simulate(tmp_path: Path) -> None:
    made = small("data-weighted", world=UNEQUAL, n_rounds=15, seeds=1, bounds={"history": False})
    (cell,) = run_experiment(made, tmp_path, n_jobs=1).runs
    saved = read_cell(cell_of(tmp_path, cell.label, 0)).run
    sizes = {"cohort_size": made.cohort_size, "n_rounds": 15}
    bounded = turnout.simulate("data-weighted", UNEQUAL, bounds=Bounds(history=False), **sizes)
    believed = turnout.simulate("data-weighted", UNEQUAL, **sizes)
    np.testing.assert_array_equal(saved.clients, bounded.clients)
    assert saved.clients.tolist() != believed.clients.tolist()


def test_an_interrupted_run_with_bounds_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    made = small("ucb-cs", world=UNEQUAL, n_rounds=40, seeds=1, bounds=True)
    run_experiment(made, tmp_path / "whole", n_jobs=1, checkpoint_every=10)
    for_now = {"n_jobs": 1, "checkpoint_every": 10}
    with pytest.raises(Stop):
        run_experiment(made, tmp_path / "cut", **for_now, progress=interrupt_at(20))
    (cell,) = run_experiment(made, tmp_path / "cut", **for_now).runs
    assert cell.status == "resumed"
    whole, cut = (cell_of(tmp_path / name, "ucb-cs", 0) for name in ("whole", "cut"))
    assert contents(cut) == contents(whole)
    state = read_npz(cut / "progress.npz")
    assert np.isfinite(state["bounds.reported_"]).any()  # there was something to save


@pytest.mark.parametrize(
    ("bounds", "problem"),
    [
        ("on", "bounds: must be true, false or a table of switches, got 'on'"),
        ({"loses": True}, "bounds.loses: unknown key 'loses'. Did you mean 'losses'?"),
        ({"losses": 1}, "bounds.losses must be"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(problem)):
        small("random", bounds=bounds)


def test_an_experiment_without_bounds_is_written_as_ever() -> None:
    assert "bounds" not in small("random").table()
    bounded = small("random", bounds=True)
    assert Experiment.from_table(bounded.table()) == bounded
    assert bounded.digest != small("random").digest


def test_a_killed_process_leaves_a_run_that_goes_on(tmp_path: Path) -> None:
    script = textwrap.dedent(f"""
        from turnout.experiment import Experiment, run_experiment
        made = Experiment(["e3cs"], world="rbcs-f", n_rounds=2000, seeds=1)
        run_experiment(made, {str(tmp_path / "cut")!r}, n_jobs=1, checkpoint_every=1)
    """)
    process = subprocess.Popen([sys.executable, "-c", script])
    cell = cell_of(tmp_path / "cut", "e3cs", 0)
    waited = time.monotonic() + 60.0
    while not (cell / "progress.npz").exists():
        assert process.poll() is None
        assert time.monotonic() < waited
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (cell / "summary.json").exists()
    made = Experiment(["e3cs"], world="rbcs-f", n_rounds=2000, seeds=1)
    grid = run_experiment(made, tmp_path / "cut", n_jobs=1)
    assert grid.runs[0].status == "resumed"
    run_experiment(made, tmp_path / "whole", n_jobs=1)
    assert contents(cell) == contents(cell_of(tmp_path / "whole", "e3cs", 0))


def test_complete_cells_are_skipped(tmp_path: Path) -> None:
    first = run_experiment(small(), tmp_path, n_jobs=1)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    second = run_experiment(small(), tmp_path, n_jobs=1)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {cell.status for cell in first.runs} == {"complete"}
    assert {cell.status for cell in second.runs} == {"skipped"}
    assert [cell.summary for cell in second.runs] == [cell.summary for cell in first.runs]
    assert before == after


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_rounds": 59}, "n_rounds is 60 in the folder and 59 in the experiment"),
        ({"n_clients": 13}, "n_clients is 12 in the folder and 13 in the experiment; use another"),
        ({"world": "volatile"}, "world.availability.kind"),
        ({"policy": "first-k"}, "policy.kind"),
    ],
)
def test_a_folder_of_another_experiment_is_refused(
    changes: dict[str, Any], named: str, tmp_path: Path
) -> None:
    run_experiment(small("random"), tmp_path, n_jobs=1)
    with pytest.raises(FolderError, match=named):
        run_experiment(small("random", **changes), tmp_path, n_jobs=1)


def test_other_parameters_under_the_same_label_are_refused(tmp_path: Path) -> None:
    run_experiment(small("mine=e3cs:quota=0.5"), tmp_path, n_jobs=1)
    with pytest.raises(FolderError, match=r"quota is 0.5 in the folder and 0.8 in the experiment"):
        run_experiment(small("mine=e3cs:quota=0.8"), tmp_path, n_jobs=1)
    (tmp_path / "experiment.json").unlink()
    grid = run_experiment(small("mine=e3cs:quota=0.8"), tmp_path, n_jobs=1)
    assert [cell.status for cell in grid.runs] == ["damaged", "damaged"]
    difference = "parameters.quota is 0.5 in the folder and 0.8 in the experiment"
    assert difference in grid.runs[0].message


def test_differences_are_found_in_depth() -> None:
    assert first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) is None
    assert first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == (
        "a[1].b is 2 in the folder and 3 in the experiment"
    )
    assert first_difference({}, {"a": 1}) == "a is nothing in the folder and 1 in the experiment"


@pytest.mark.parametrize("name", ["config.json", "summary.json", "selections.npz"])
@pytest.mark.parametrize("damage", [b"", b"\x00garbage", None])
def test_a_damaged_cell_is_named_and_the_others_stand(
    name: str, damage: bytes | None, tmp_path: Path
) -> None:
    made = small()
    run_experiment(made, tmp_path, n_jobs=1)
    broken = cell_of(tmp_path, "e3cs", 0) / name
    if damage is None:
        broken.write_bytes(broken.read_bytes()[: broken.stat().st_size // 2])
    else:
        broken.write_bytes(damage)
    grid = run_experiment(made, tmp_path, n_jobs=1)
    assert [cell.status for cell in grid.runs] == ["skipped", "skipped", "damaged", "skipped"]
    assert str(broken) in grid.runs[2].message
    assert "delete" in grid.runs[2].message
    assert grid.failed == (grid.runs[2],)
    assert grid.estimate("cep")["e3cs"].n == 1
    assert grid.difference("cep", "random")["e3cs"].estimate.n == 1


def interrupted(folder: Path) -> Path:
    made = small("e3cs", n_rounds=40, seeds=1)
    with pytest.raises(Stop):
        run_experiment(made, folder, n_jobs=1, checkpoint_every=10, progress=interrupt_at(20))
    return cell_of(folder, "e3cs", 0)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    cell = interrupted(tmp_path)
    (cell / "previous-progress.npz").unlink()
    (cell / "progress.npz").write_bytes(b"PK\x03\x04")
    grid = run_experiment(small("e3cs", n_rounds=40, seeds=1), tmp_path, n_jobs=1)
    assert grid.runs[0].status == "damaged"
    assert "progress.npz" in grid.runs[0].message


@pytest.mark.parametrize(
    ("torn", "status", "message"),
    [
        (["state.npz"], "resumed", "torn, so it went on from the one before"),
        (["selections.npz"], "resumed", "torn, so it went on from the one before"),
        (["progress.npz"], "resumed", "torn, so it went on from the one before"),
        (["state.npz", "previous-state.npz"], "complete", "torn, so it was started again"),
        (["rounds.jsonl"], "resumed", "rounds.jsonl was damaged and was written again"),
    ],
)
def test_a_torn_checkpoint_changes_no_number(
    torn: list[str], status: str, message: str, tmp_path: Path
) -> None:
    made = small("e3cs", n_rounds=40, seeds=1)
    run_experiment(made, tmp_path / "whole", n_jobs=1)
    cell = interrupted(tmp_path / "cut")
    for name in torn:
        content = (cell / name).read_bytes()[:-1]
        (cell / name).unlink()  # both generations may share a file
        (cell / name).write_bytes(content)
    grid = run_experiment(made, tmp_path / "cut", n_jobs=1)
    assert grid.runs[0].status == status
    assert message in grid.runs[0].message
    assert contents(cell) == contents(cell_of(tmp_path / "whole", "e3cs", 0))
    assert not [path for path in cell.iterdir() if path.name.startswith((".", "previous"))]


def test_a_crash_at_any_rename_costs_one_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also a crash right before a rename leaves nothing behind but the files of the run."""
    made = small("e3cs", n_rounds=40, seeds=1)
    run_experiment(made, tmp_path / "whole", n_jobs=1)
    rename, counts = os.replace, {"made": 0, "wanted": 0}

    def crash(source: Any, target: Any) -> None:
        counts["made"] += 1
        if counts["made"] == counts["wanted"]:
            raise Stop
        rename(source, target)

    def run(folder: Path) -> Any:
        return run_experiment(made, folder, n_jobs=1, checkpoint_every=10)

    monkeypatch.setattr(os, "replace", crash)
    run(tmp_path / "counted")
    n_renames = counts["made"]
    assert n_renames > 20
    for wanted in range(2, n_renames + 1):
        counts.update(made=0, wanted=wanted)
        folder = tmp_path / f"cut-{wanted}"
        with pytest.raises(Stop):
            run(folder)
        counts.update(wanted=-1)
        cell = cell_of(folder, "e3cs", 0)
        had_checkpoint = (cell / "progress.npz").exists()
        grid = run(folder)
        assert grid.runs[0].status == ("resumed" if had_checkpoint else "complete")
        assert contents(cell) == contents(cell_of(tmp_path / "whole", "e3cs", 0))
        assert not [path for path in cell.iterdir() if path.name.startswith((".", "previous"))]


def test_a_selector_that_fails_does_not_take_the_others_down(tmp_path: Path) -> None:
    made = small("broken=tests.experiment.test_experiment:Broken", "random")
    grid = run_experiment(made, tmp_path, n_jobs=1)
    statuses = [cell.status for cell in grid.runs]
    assert statuses == ["failed", "failed", "complete", "complete"]
    assert grid.runs[0].message == "RuntimeError: no more clients"


def test_a_process_that_dies_does_not_take_the_others_down(tmp_path: Path) -> None:
    made = small("deadly=tests.experiment.test_experiment:Deadly", "random", "e3cs", seeds=1)
    grid = run_experiment(made, tmp_path, n_jobs=2)
    assert grid.runs[0].status == "failed"
    assert "ended abruptly" in grid.runs[0].message
    assert [cell.summary is None for cell in grid.runs] == [True, False, False]


def test_a_selector_that_cannot_run_here_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(MissingColumn, match="context"):
        run_experiment(small("random", "rbcs-f"), tmp_path / "run", n_jobs=1)
    assert not (tmp_path / "run").exists()


def test_missing_data_are_reported_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TURNOUT_DATA", raising=False)
    made = small("random", world={"availability": "phone-trace"})
    with pytest.raises(environments.DataMissing):
        run_experiment(made, tmp_path / "run", n_jobs=1)
    assert not (tmp_path / "run").exists()


def test_some_labels_only(tmp_path: Path) -> None:
    grid = run_experiment(small(), tmp_path, n_jobs=1, labels=["e3cs"])
    assert grid.labels == ("e3cs",)
    assert not (tmp_path / "random").exists()
    with pytest.raises(InvalidInput, match="random, e3cs; got 'oort'"):
        run_experiment(small(), tmp_path, n_jobs=1, labels=["oort"])


def test_an_unfinished_cell_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="not complete"):
        read_cell(interrupted(tmp_path))
