"""NVFlare's simulator: a server and client processes, with every accident there is."""

import json
import os
import re
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

import turnout
from tests.live.nvflare.simulate import MODEL
from turnout.core.errors import InvalidInput
from turnout.live.checkpoint import read_checkpoint
from turnout.live.receipts import Receipts, check_receipt
from turnout.results import read_cells
from turnout.results.shadows import read_shadows
from turnout.worlds import Environment

pytestmark = pytest.mark.deployment

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "nvflare-volatile"
#: A job that takes longer for a step, or writes nothing for so long, hangs.
LONGEST_S, SILENT_S = 300, 90
#: NVFlare's simulator starts its clients from threads that race. One may connect to the port of
#: another before that is opened, two may choose the same port, or two clients get the same name,
#: because the threads write it to the same table. Then a client is missing from the start. These
#: are the signs, and all jobs are started again, so many times, with a warning that has the end of
#: the log. Whatever happens after all clients have started is ours.
SIGNS = (
    "Address already in use",
    "Communication error with client",
    "Failed to get_task from server",
)
STARTED = re.compile(r"identity=([\w-]+), .*client runner started")
TRIES = 3
SEED = 7

E3CS = {"selector": "e3cs", "cohort_size": 2, "num_rounds": 5, "seed": SEED}
FOUR = [f"site-{i}" for i in (1, 2, 3, 4)]
SHADOW = ["random", "e3cs:quota=0.9"]
SHADOW_LABELS = ["random", "e3cs quota=0.9"]

#: What each client does, by round. A letter each would be shorter, but nobody could read it.
ACCIDENTS = {
    "site-2": {"0": "sleep 20"},
    "site-3": {"0": "raise", "1": "fail", "2": "nothing", "3": "empty"},
    "site-4": {"0": "nan", "1": "shape", "2": "keys", "3": "text"},
    "site-5": {"0": "boast", "1": "die"},
    "site-6": {"0": "steps", "*": "boast"},
    "site-7": {"0": "freeze 25"},
}
EVERYONE = {
    "selector": "random",
    "cohort_size": 7,
    "num_rounds": 4,
    "policy": {"kind": "fixed-deadline", "seconds": 12.0},
    "late_s": 120.0,
    "wait_for_clients_s": 3.0,
}

#: The example without faults, by a selector that wants to know sizes and losses before it chooses.
POLLING = {"selector": "pow-d", "clients": 4, "cohort": 2, "rounds": 3, "deadline": 120}
POLLING |= {"crash": 0.0, "sleep": 0.0}


class ClientMissing(Exception):
    """NVFlare's simulator has started too few clients."""


class Job:
    """A job in a folder, as a process."""

    def __init__(self, folder, command):
        self.folder, self.trace, self.log = folder, folder / "trace", folder / "log.txt"
        self._log = open(self.log, "a")  # noqa: SIM115
        self._log_before, self._started_at = self._log.tell(), time.time()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @classmethod
    def of(cls, folder, controller, clients, acts=None):
        """Start a job of actors."""
        (folder / "trace").mkdir(parents=True, exist_ok=True)
        paths = {"checkpoint": str(folder / "run.npz"), "records": str(folder / "records")}
        plan = {"controller": controller | paths, "clients": clients, "acts": acts or {}}
        plan |= {"trace": str(folder / "trace"), "metrics": str(folder / "turnout.prom")}
        (folder / "plan.json").write_text(json.dumps(plan))
        return cls(folder, ["-m", "tests.live.nvflare.simulate", str(folder / "plan.json")])

    @classmethod
    def example(cls, folder, **told):
        """Start the example's job."""
        folder.mkdir()
        options = [text for name, value in told.items() for text in (f"--{name}", str(value))]
        return cls(folder, [str(EXAMPLE / "job.py"), "--out", str(folder), *options])

    @property
    def is_over(self):
        return self.process.poll() is not None

    def ended(self):
        """Wait for the end, and return the job."""
        self._wait_until(lambda: self.is_over)
        self.kill()
        assert self.process.returncode == 0, self._tail()
        return self

    def wait_for_all(self, n_clients):
        """Wait until all clients run, or the job is over."""

        def are_there():
            text = self.log.read_text()[self._log_before :]
            names = STARTED.findall(text)
            if len(set(names)) >= n_clients:
                return True
            if len(set(names)) < len(names) or any(sign in text for sign in SIGNS):
                raise ClientMissing(self._tail())
            return False

        self._wait_until(lambda: self.is_over or are_there())

    def wait_for(self, n_rounds):
        """Wait until so many rounds are saved."""
        path = self.folder / "run.npz"
        self._wait_until(
            lambda: (
                path.exists() and read_checkpoint(path, "turnout-nvflare").rounds_done >= n_rounds
            )
        )

    def wait_for_training(self, t):
        """Wait until somebody trains in a round."""
        self._wait_until(lambda: any(number == t for _, number in self.trained))

    def kill(self):
        """Let the server and all clients die at once."""
        if not self.is_over:
            me = psutil.Process(self.process.pid)
            for process in [*me.children(recursive=True), me]:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
        self.process.wait()
        self._log.close()

    def _wait_until(self, happens):
        until = time.time() + LONGEST_S
        while True:
            was_over = self.is_over
            if happens():
                return
            assert not was_over, self._tail()
            last_word = max(self._started_at, self.log.stat().st_mtime)
            assert time.time() < min(until, last_word + SILENT_S), self._tail()
            time.sleep(0.1)

    def _tail(self):
        return self.log.read_text()[-20_000:]

    @property
    def answers(self):
        """What became of everyone, as lists by round."""
        (path,) = (self.folder / "records").glob("*/*/answers.jsonl")
        return [json.loads(line)["chosen"] for line in path.read_text().splitlines()]

    @property
    def cohorts(self):
        return [[one["id"] for one in chosen] for chosen in self.answers]

    @property
    def model(self):
        return np.load(self.folder / MODEL)

    @property
    def trained(self):
        """How often each round was trained by each client."""
        texts = [path.read_text() for path in self.trace.glob("*.jsonl")]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        return Counter((one["client"], one["round"]) for one in lines)


def key_in(folder):
    """Write a key for receipts."""
    path = folder / "receipts.pem"
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    key = ed25519.Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    return path


def played(root):
    """Play four jobs side by side; one is killed after two rounds, and starts again."""
    hang = {name: {"2": "sleep 600"} for name in FOUR}
    watched = E3CS | {"shadow": SHADOW, "receipt_key": str(key_in(root))}
    seven = [*FOUR, "site-5", "site-6", "site-7"]
    started = {}
    try:
        started["accidents"] = Job.of(root / "accidents", EVERYONE, seven, ACCIDENTS)
        started["whole"] = Job.of(root / "whole", watched, FOUR)
        started["killed"] = Job.of(root / "killed", watched, FOUR, hang)
        started["example"] = Job.example(root / "example", **POLLING)
        for name, job in started.items():
            job.wait_for_all(7 if name == "accidents" else 4)
        started["killed"].wait_for(2)
        started["killed"].wait_for_training(2)
        started["killed"].kill()
        started["resumed"] = Job.of(root / "killed", watched, FOUR)
        started["resumed"].wait_for_all(4)
        return {name: job.ended() for name, job in started.items() if name != "killed"}
    finally:
        for job in started.values():
            job.kill()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """The jobs, at their end."""
    for _ in range(TRIES - 1):
        try:
            return played(tmp_path_factory.mktemp("nvflare"))
        except ClientMissing as error:
            warnings.warn(f"NVFlare's simulator was started again: {error}", stacklevel=1)
    return played(tmp_path_factory.mktemp("nvflare"))


def test_no_accident_ends_the_run_or_reaches_the_model(jobs):
    by_round = [{one["id"]: one for one in chosen} for chosen in jobs["accidents"].answers]
    assert len(by_round) == 4
    status = [{name: one["status"] for name, one in chosen.items()} for chosen in by_round]
    assert [chosen["site-1"] for chosen in status] == ["completed"] * 4
    assert status[0]["site-2"] == "late"
    assert "site-2" not in status[1]  # it is still busy
    assert [chosen["site-3"] for chosen in status] == ["failed"] * 4
    assert [chosen["site-4"] for chosen in status] == ["failed"] * 4
    assert [chosen["site-5"] for chosen in status[:2]] == ["completed", "late"]
    assert status[0]["site-6"] == "failed"
    assert {chosen["site-6"] for chosen in status[1:] if "site-6" in chosen} == {"completed"}
    assert [chosen["site-7"] for chosen in status[:2]] == ["completed", "silent"]
    reasons = [chosen["site-4"]["reason"] for chosen in by_round]
    words = ["not finite", "shape", "no array", "no numbers"]
    assert all(word in reason for word, reason in zip(words, reasons, strict=True))
    model = jobs["accidents"].model
    assert model.shape == (3,)
    assert (np.abs(model) < 10.0).all()


def test_followers_of_a_job_count_its_rounds(jobs):
    text = (jobs["whole"].folder / "turnout.prom").read_text()
    assert 'turnout_rounds_total{run="e3cs"} 5.0' in text
    assert 'turnout_chosen_total{run="e3cs",status="completed"} 10.0' in text


def test_the_cohorts_are_those_of_a_simulation(jobs):
    world = Environment(n_clients=4, volatility=turnout.worlds.Reliable())
    run = turnout.simulate("e3cs", world, n_rounds=5, cohort_size=2, seed=SEED)
    assert jobs["whole"].cohorts == [[FOUR[i] for i in run.chosen_in(t)] for t in range(5)]
    assert set(jobs["whole"].trained.values()) == {1}


def test_a_killed_server_goes_on_with_the_same_cohorts_and_model(jobs):
    assert jobs["resumed"].cohorts == jobs["whole"].cohorts
    assert jobs["resumed"].model.tobytes() == jobs["whole"].model.tobytes()
    twice = {t for (_, t), n in jobs["resumed"].trained.items() if n > 1}
    assert twice == {2}  # the round in which the server died


@pytest.mark.parametrize("name", ["whole", "resumed"])
def test_each_answer_has_one_receipt_that_can_be_checked(jobs, name):
    """The key is in the folder above; a round that is played again is signed once."""
    job = jobs[name]
    public_key = Receipts(job.folder.parent / "receipts.pem").public_key
    (path,) = (job.folder / "records").glob("*/*/receipts.jsonl")
    receipts = [json.loads(line) for line in path.read_text().splitlines()]
    stated = [check_receipt(receipt, public_key) for receipt in receipts]
    assert [(one["round"], one["client"]) for one in stated] == [
        (t, client) for t, cohort in enumerate(job.cohorts) for client in cohort
    ]
    assert all(one["counted"] and one["status"] == "completed" for one in stated)
    assert len({one["run_began_at"] for one in stated}) == 1
    changed = {
        **receipts[0],
        "statement": receipts[0]["statement"].replace('"round":0', '"round":1'),
    }
    with pytest.raises(InvalidInput, match="signature"):
        check_receipt(changed, public_key)


def test_shadows_choose_in_every_round_also_after_a_kill(jobs):
    """The cohorts of both jobs are those of a simulation without them, as another test says."""
    wishes = []
    for name in ("whole", "resumed"):
        ((cell,), _) = read_cells([jobs[name].folder / "records"])
        found = read_shadows(cell.path, cell.run)
        assert list(found) == SHADOW_LABELS
        for each in found.values():
            assert each.n_rounds == cell.run.n_rounds == 5
            assert np.isfinite(each.chance).all()
        wishes.append([each.clients.tolist() for each in found.values()])
    assert wishes[0] == wishes[1]


def test_the_example_answers_questions_and_learns(jobs):
    """Its clients use NVFlare's Client API."""
    job = jobs["example"]
    assert [len(names) for names in job.cohorts] == [2, 2, 2]
    assert {one["status"] for chosen in job.answers for one in chosen} == {"completed"}
    (path,) = (job.folder / "records").glob("*/*/rounds.jsonl")
    measured = [json.loads(line) for line in path.read_text().splitlines()]
    assert measured[-1]["train_accuracy"] > measured[0]["train_accuracy"] + 0.2
    assert np.abs(np.load(job.folder / MODEL)).max() > 0.0


def test_the_example_can_be_exported(tmp_path):
    command = [sys.executable, str(EXAMPLE / "job.py"), "--export", str(tmp_path)]
    subprocess.run(command, check=True, cwd=tmp_path, timeout=LONGEST_S)
    (config,) = tmp_path.glob("volatile/**/config_fed_server.json")
    assert json.loads(config.read_text())["workflows"][0]["args"]["selector"] == "e3cs"
