import os
import re
import ssl
import subprocess
import sys
import tomllib

import numpy as np
import pytest

from tests.live.flower.example import EXAMPLE, finished_run, load, recorded
from turnout import Status
from turnout.experiment import simulate
from turnout.worlds import FixedDeadline, e3cs_world

LIMIT_S = 300.0  # against hanging


def test_every_setting_is_declared_and_used():
    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    sources = [path.read_text() for path in EXAMPLE.glob("flower_volatile/*_app.py")]
    used = {name for text in sources for name in re.findall(r'settings\["([\w-]+)"\]', text)}
    assert used == config["config"].keys()
    readme = (EXAMPLE / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in used)
    for component in config["components"].values():
        module = component.split(":")[0].replace(".", "/")
        assert (EXAMPLE / f"{module}.py").exists()


@pytest.fixture
def faults(monkeypatch):
    module = load("flower_volatile.faults")
    slept = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    module.slept = slept
    return module


def test_faults_strike_as_the_script_says(faults):
    script = "1:crash@2 2:sleep30@3 2:sleep4.5@3"
    for client in range(3):
        for server_round in range(1, 5):
            if (client, server_round) == (1, 2):
                with pytest.raises(RuntimeError, match="client 1 crashes in round 2"):
                    faults.strike(script, client, server_round, 0)
            else:
                faults.strike(script, client, server_round, 0)
    assert faults.slept == [30.0, 4.5]
    faults.strike("", 0, 1, 0)


def test_random_faults_strike_at_their_rate_and_are_repeatable(faults):
    def sleepers(script, seed):
        faults.slept.clear()
        struck = []
        for server_round in range(1, 101):
            for client in range(20):
                before = len(faults.slept)
                faults.strike(script, client, server_round, seed)
                struck.append(len(faults.slept) > before)
        return np.array(struck)

    struck = sleepers("*:sleep1@30%", 5)
    assert struck.mean() == pytest.approx(0.3, abs=0.05)  # five sigma of 2,000 draws
    np.testing.assert_array_equal(sleepers("*:sleep1@30%", 5), struck)
    assert (sleepers("*:sleep1@30%", 6) != struck).any()
    assert not sleepers("*:sleep1@0%", 5).any()
    assert sleepers("*:sleep1@100%", 5).all()


@pytest.mark.parametrize("script", ["1:crash", "crash@2", "1:burn@2", "1:sleep@x", "-1:crash@2"])
def test_an_unreadable_script_is_refused(faults, script):
    with pytest.raises(ValueError, match="faults"):
        faults.strike(script, 0, 1, 0)


def test_the_task_learns_from_all_clients():
    task = load("flower_volatile.task")
    n_clients = 5
    weights = task.initial_weights(0)
    before = task.test(weights)
    examples = [task.examples_of(i, n_clients) for i in range(n_clients)]
    assert all(len(one.x) == len(one.y) > 0 for one in examples)
    for server_round in range(15):
        trained = [
            task.train(weights, one, epochs=2, lr=0.1, seed=server_round) for one in examples
        ]
        weights = [np.mean(parts, axis=0) for parts in zip(*(w for w, _ in trained), strict=True)]
    after = task.test(weights)
    assert before["accuracy"] < 0.3
    assert after["accuracy"] > 0.8  # 0.9 and more with this seed
    assert after["loss"] < before["loss"]
    for one, (local, report) in zip(examples, trained, strict=True):
        assert report["loss"] > 0.0
        assert report["loss_rms"] >= report["loss"] * (1.0 - 1e-6)
        assert task.mean_loss(local, one) < task.mean_loss(task.initial_weights(0), one)


def test_certificates_are_for_this_machine_only(tmp_path):
    certificates = load("certificates")
    certificates.make_certificates(tmp_path)
    trust = ssl.create_default_context(cafile=tmp_path / "ca.pem")
    assert len(trust.get_ca_certs()) == 1
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        tmp_path / "server.pem", tmp_path / "server.key"
    )
    key = certificates.make_key(tmp_path / "node-0")
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "server.key").stat().st_mode & 0o777 == 0o600
    content = key.read_bytes()
    assert certificates.make_key(tmp_path / "node-0").read_bytes() == content  # kept
    assert key.with_suffix(".pub").read_text().startswith("ecdsa-sha2-nistp384 ")


def test_no_process_outlives_its_starter(tmp_path):
    module = load("processes")
    processes = module.Processes(tmp_path)
    # a process that starts a child in a session of its own, as Flower does, and will not end
    child = "import time; time.sleep(600)"
    parent = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True); "
        "print('started', flush=True); time.sleep(600)"
    )
    processes.start("stubborn", ["python", "-c", parent], dict(os.environ))
    module.wait_until(lambda: "started" in processes.log("stubborn"), 60, "the start")
    assert len(list(processes.of("stubborn"))) == 2
    processes.kill("stubborn")
    assert list(processes.of()) == []
    assert not processes.is_running("stubborn")


@pytest.mark.deployment
def test_flwr_run_in_a_virtual_world_repeats_our_simulator(tmp_path):
    records = tmp_path / "runs"
    settings = {
        "world": "e3cs",
        "num-clients": 6,
        "cohort-size": 2,
        "num-rounds": 10,
        "seed": 3,
        "records": str(records),
        "checkpoint": str(tmp_path / "checkpoint.npz"),
    }
    engine = "num-supernodes=6 client-resources-num-cpus=1 init-args-num-cpus=2"
    with load("loopback").Loopback(tmp_path, simulation=True) as link:
        run = link.run(EXAMPLE, settings, "--federation-config", engine)
        status = link.wait(run, LIMIT_S)
        assert status == "finished:completed", link.processes.log("superlink")[-3000:]
    done = finished_run(records)
    expected = simulate(
        "e3cs", e3cs_world(6, 3), cohort_size=2, n_rounds=10, seed=3, policy=FixedDeadline(60.0)
    )
    for name in ("offsets", "clients", "status", "probability", "length_s"):
        np.testing.assert_array_equal(getattr(done, name), getattr(expected, name))
    rounds = recorded(records)
    assert rounds[9]["accuracy"] > rounds[0]["accuracy"]


@pytest.mark.deployment
def test_the_deployment_script_tells_its_story(tmp_path):
    command = [sys.executable, str(EXAMPLE / "deploy.py"), "--folder", str(tmp_path)]
    command += ["--nodes", "2", "--rounds", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    run = finished_run(tmp_path / "runs")
    assert run.n_rounds == 4
    ends = [set(run.status[run.offsets[t] : run.offsets[t + 1]].tolist()) for t in range(4)]
    assert Status.FAILED in ends[0]
    assert ends[1] & {Status.LATE, Status.SILENT}
    assert "Exit Code: 305" in done.stdout
    assert (tmp_path / "report.html").stat().st_size > 10_000
