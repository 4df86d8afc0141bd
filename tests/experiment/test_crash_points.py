"""A process that dies anywhere: started again, it ends with the same numbers, bit for bit.

Every command that writes files dies at each of its operations on files (a sample of them in CI),
and at random moments. See ``tests/experiment/dying.py``.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import turnout
from tests.experiment.dying import Dying, ended, forked
from tests.live.history import DEADLINE, FakePort, History, Step
from tests.live.ticking import Ticking
from turnout.cli import app
from turnout.experiment import Experiment, run_experiment
from turnout.live import LiveSettings, Session
from turnout.live.driver import HostRun
from turnout.results.files import read_arrays
from turnout.worlds import FixedDeadline

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="forks")

#: Imported here, so that no child has to.
for _module in (
    "torch",
    *(f"matplotlib.backends.backend_{form}" for form in ("agg", "pdf", "svg")),
):
    importlib.import_module(_module)


@pytest.fixture(scope="module", autouse=True)
def _known_here() -> None:
    """What turnout computes once in a process, computed here, so that no child has to."""
    made = Experiment(["random", "e3cs"], n_clients=12, cohort_size=3, n_rounds=1, seeds=1)
    run_experiment(made, n_jobs=1)


SIZES = ("--clients", "12", "--cohort", "3")
TWO = ("random", "e3cs", *SIZES, "--jobs", "1", "--seeds", "1")


def command(*arguments: str) -> Callable[[], int]:
    """Return what runs a command of turnout in the working folder."""
    return lambda: CliRunner().invoke(app, arguments).exit_code


def experiment() -> int:
    """A cell with many checkpoints."""
    made = Experiment(["e3cs"], n_clients=12, cohort_size=3, n_rounds=24, seeds=1)
    run_experiment(made, "out", n_jobs=1, checkpoint_every=6)
    return 0


class Calm(History):
    """Everybody answers, after as many seconds before a restart as after it."""

    def step(self, client: int, number: int) -> Step:
        return Step("ok", 1.0 + client / 4)


def session() -> int:
    """A live run over a port that answers on a virtual clock."""
    with pytest.MonkeyPatch.context() as patches:
        Ticking.installed(patches)
        settings = LiveSettings(
            3,
            FixedDeadline(DEADLINE),
            seed=5,
            start_s=5.0,
            wait_for_clients_s=2.0,
            ask_s=5.0,
            poll_s=0.5,
            checkpoint=Path("out/run.npz"),
            records=Path("out/records"),
        )
        run = Session(settings, turnout.make("e3cs"))
        host = HostRun(run, FakePort(Calm(0, n=8, churn=0.0)), "test", 8, {})
        for _ in range(host.resume({}), 8):
            chosen = host.choose(3, "model")
            host.train(["work"] * len(chosen))
            host.end_round()
        host.finish()
    return 0


#: How many rounds are played in a framework.
FRAMEWORK_ROUNDS = 12


def flower() -> int:
    """Flower's strategy over nodes in memory, of which one always fails."""
    from flwr.serverapp.strategy import FedAdam
    from flwr.supercore.task_identity import TaskIdentity

    from tests.live.flower import fake
    from turnout.live.flower import SelectingStrategy

    with pytest.MonkeyPatch.context() as patches:
        for name in ("_task_id", "_run_id", "_node_id"):
            patches.setattr(TaskIdentity, name, 1)
        Ticking.installed(patches)
        grid = fake.federation(9, seed=os.getpid())  # other addresses after each start
        for number, (_, node) in enumerate(sorted(fake.by_name(grid).items())):
            node.delay = 1.0 + number / 4
        failures = {number: fake.Fate(code=2) for number in range(FRAMEWORK_ROUNDS)}
        fake.by_name(grid)["client-001"].plan = failures
        strategy = SelectingStrategy(
            FedAdam(),
            "e3cs",
            cohort_size=4,
            policy=FixedDeadline(DEADLINE),
            seed=5,
            poll_s=0.125,  # sums of it are exact, from whatever time the clock starts
            checkpoint=Path("out/run.npz"),
            records=Path("out/records"),
        )
        ended = strategy.start(grid, fake.model(), num_rounds=FRAMEWORK_ROUNDS)
    Path("out/model.json").write_text(json.dumps(fake.value_of(ended.arrays)))
    return 0


def nvflare() -> int:
    """NVFlare's controller over clients in memory."""
    from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

    from tests.live.nvflare import fake

    nvflare_fobs_initialize()
    folder = Path("out").resolve()
    told = {"checkpoint": folder / "run.npz", "records": folder / "records", "poll_s": 0.125}
    made = fake.Federation([fake.Site(f"site-{i + 1}", 1.0 + i / 4) for i in range(5)])
    with pytest.MonkeyPatch.context() as patches:
        ticks = Ticking.installed(patches)
        fake.play(made, ticks, selector="e3cs", num_rounds=FRAMEWORK_ROUNDS, seed=4, **told)
    Path("out/model.json").write_text(json.dumps(made.saved[-1]["weights"].tolist()))
    return 0


def cells(folder: Path) -> Any:
    """Return all choices of a run folder, and the lines of its rounds."""
    return {
        str(path.parent.relative_to(folder)): (
            {name: np.asarray(values).tobytes() for name, values in read_arrays(path).items()},
            (path.parent / "rounds.jsonl").read_bytes(),
        )
        for path in sorted(folder.rglob("selections.npz"))
    }


def saved_session(folder: Path) -> Any:
    """Return what a checkpoint and its records say, but for the time of day."""
    saved = read_arrays(folder / "out/run.npz")
    choices = {name: a.tobytes() for name, a in saved.items() if name.startswith(("run", "sel"))}
    (records,) = (folder / "out/records").glob("*/seed-*")
    lines = (records / "answers.jsonl").read_text().splitlines()
    ids = [[one["id"] for one in json.loads(line)["chosen"]] for line in lines]
    return choices, ids, (records / "roster.json").read_text()


def saved_framework(folder: Path) -> Any:
    """Return the same of a run in a framework, with each round once and the final model."""
    (rounds,) = (folder / "out/records").glob("*/seed-*/rounds.jsonl")
    numbers = [json.loads(line)["round"] for line in rounds.read_text().splitlines()]
    assert numbers == list(range(FRAMEWORK_ROUNDS))
    return saved_session(folder), (folder / "out/model.json").read_text()


@dataclass(frozen=True)
class Workload:
    """Something that writes files.

    Attributes:
        work: What runs it in the working folder, and returns its exit code.
        result: What must not change, from the folder.
        n_points: Operations at which it dies in CI.
        n_kills: How often it is killed at a random moment, in CI and in the long test.
        before: What stands in the folder before.
    """

    work: Callable[[], int]
    result: Callable[[Path], Any]
    n_points: int
    n_kills: tuple[int, int]
    before: Callable[[], int] | None = None


WORKLOADS = {
    "simulate": Workload(
        command("simulate", "e3cs", *SIZES, "--rounds", "300", "--out", "out"), cells, 3, (3, 50)
    ),
    "compare": Workload(
        command("compare", *TWO, "--rounds", "300", "--out", "out"), cells, 3, (6, 120)
    ),
    "checkpoints": Workload(experiment, cells, 6, (0, 0)),
    "train": Workload(
        command("compare", *TWO, "--train", "--data", "digits", "--rounds", "3", "--out", "out"),
        cells,
        2,
        (2, 30),
    ),
    "reproduce": Workload(
        command(
            *("reproduce", "rbcs-f", "--figure", "4", "--rounds", "20", "--seeds", "1"),
            *("--no-extras", "--jobs", "1", "--out", "out", "--results", "results"),
        ),
        lambda folder: (cells(folder), (folder / "results/rbcs-f.json").read_text()),
        1,
        (2, 60),
    ),
    "report": Workload(
        command("report", "runs", "--out", "page.html"),
        lambda folder: (folder / "page.html").read_bytes(),
        2,
        (3, 40),
        before=command("compare", *TWO, "--rounds", "20", "--out", "runs"),
    ),
    "session": Workload(session, saved_session, 6, (4, 140)),
    "flower": Workload(flower, saved_framework, 3, (4, 160)),
    "nvflare": Workload(nvflare, saved_framework, 3, (4, 130)),
}


def begun(workload: Workload, folder: Path) -> Path:
    """Return a new folder with what stands there before the work."""
    first = folder.with_name("first")
    if not first.exists():
        first.mkdir()
        assert workload.before is None or ended(forked(workload.before, first)) == 0
    return Path(shutil.copytree(first, folder))


def assert_ends_well(workload: Workload, folder: Path, code: int, expected: Any) -> None:
    """Start the work again, and compare."""
    assert ended(forked(workload.work, folder)) == code
    assert_whole(workload, folder, expected)


def assert_whole(workload: Workload, folder: Path, expected: Any) -> None:
    """The numbers are as expected, and nothing else is left."""
    assert workload.result(folder) == expected
    left = [path.name for path in folder.rglob("*") if path.name.startswith((".", "previous-"))]
    assert left == []


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power-cut"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_it_may_die_at_every_operation_on_files(name, power, tmp_path, n_tries):
    workload = WORKLOADS[name]
    whole = begun(workload, tmp_path / "whole")
    code = ended(forked(workload.work, whole, Dying()))
    assert code in (0, 1)
    expected, n = workload.result(whole), int((tmp_path / "whole.counted").read_text())
    assert n >= 4
    n_points = n_tries(min(n, workload.n_points), n)
    middles = (np.arange(n_points) + (0.75 if power else 0.25)) * n / n_points
    n_died = 0
    for at in (1 + middles.astype(int)).tolist():
        folder = begun(workload, tmp_path / f"died-{at}")
        last = ended(forked(workload.work, folder, Dying(at, power=power)))
        n_died += last == -signal.SIGKILL  # a log is written now and then: some have less to do
        assert last in (-signal.SIGKILL, code), at
        assert_ends_well(workload, folder, code, expected)
        shutil.rmtree(folder)
    assert n_died >= 0.9 * n_points - 1


@pytest.mark.parametrize("name", [name for name in WORKLOADS if WORKLOADS[name].n_kills[0]])
def test_kills_at_random_moments_change_no_number(name, tmp_path, n_tries):
    workload = WORKLOADS[name]
    whole = begun(workload, tmp_path / "whole")
    started = time.monotonic()
    code = ended(forked(workload.work, whole))
    seconds = time.monotonic() - started
    expected, rng = workload.result(whole), np.random.default_rng(13)
    folder, n_killed, n_kills = begun(workload, tmp_path / "out"), 0, n_tries(*workload.n_kills)
    while n_killed < n_kills:
        child = forked(workload.work, folder)
        time.sleep(rng.uniform(0.05, 0.9) * seconds)
        os.kill(child, signal.SIGKILL)
        was_killed = ended(child) == -signal.SIGKILL
        n_killed += was_killed
        if not was_killed:  # what it went on with after the kills before
            assert_whole(workload, folder, expected)
            seconds *= 0.5  # the machine is less busy than it was
        elif rng.random() < 0.3:
            assert_ends_well(workload, folder, code, expected)
        else:
            continue
        shutil.rmtree(folder)
        begun(workload, folder)
    assert_ends_well(workload, folder, code, expected)


def test_what_was_not_synced_is_lost_when_the_power_goes(tmp_path):
    def work() -> int:
        with Path("synced").open("wb") as file:
            file.write(b"1234")
            file.flush()
            os.fsync(file.fileno())
            file.write(b"5678")
        Path("unsynced").write_text("12345678")
        os.mkdir("last")
        return 0

    for power, sizes in ((False, (8, 8)), (True, (4, 0))):
        folder = tmp_path / str(power)
        folder.mkdir()
        assert ended(forked(work, folder, Dying())) == 0
        n = int(folder.with_suffix(".counted").read_text())
        assert n == 5
        (folder / "last").rmdir()
        assert ended(forked(work, folder, Dying(n, power=power))) == -signal.SIGKILL
        assert ((folder / "synced").stat().st_size, (folder / "unsynced").stat().st_size) == sizes
        assert ended(forked(work, folder, Dying(1))) == -signal.SIGKILL
        assert (folder / "synced").read_bytes() == b"12"  # half of the first write
