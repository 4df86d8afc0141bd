from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from turnout.cli import app
from turnout.cli.output import console
from turnout.cli.simulate import train
from turnout.results.files import cell_folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console, "_width", 100)  # COLUMNS may have been read before


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def run_json(*arguments: str, exit_code: int = 0) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


SMALL = ("--clients", "10", "--cohort", "4", "--rounds", "6", "--model", "logistic")
SMALL = (*SMALL, "--local", "epochs=1,batch_size=20,lr=0.1")
COMPARED = ("compare", "random", "E3CS-0.5=e3cs:quota=0.5", "--train", "--world", "e3cs", *SMALL)
COMPARED = (*COMPARED, "--seeds", "2", "--jobs", "1")


# train -----------------------------------------------------------------------------------------


def test_help_has_an_example_that_works() -> None:
    text = run("train", "--help")
    assert text.exit_code == 0
    assert "--stop-at-target" in text.stdout
    found = re.search(r"Example: \[bold\]turnout (.+?)\[/\]", train.__doc__ or "")
    assert found is not None
    result = run(*found.group(1).split())
    assert result.exit_code == 0
    assert "Share of the test set that the global model" in result.stdout


def test_train_shows_what_it_came_to_and_keeps_it() -> None:
    command = ("train", "e3cs", *SMALL, "--target", "0.2", "--target", "0.99", "--seed", "3")
    result = run(*command)
    assert result.exit_code == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("train-")
    assert f"Run folder: {folder}" in result.stdout
    cell = cell_folder(folder, "e3cs", 3)
    summary = json.loads((cell / "summary.json").read_text())
    assert f"{summary['accuracy']:.4f}" in result.stdout
    assert re.search(r"Rounds to 0.99 +│ +not reached", result.stdout)
    before = (cell / "summary.json").stat().st_mtime_ns
    row = run_json(*command)[0]
    assert (cell / "summary.json").stat().st_mtime_ns == before  # it was complete
    assert row["accuracy"] == summary["accuracy"]
    assert (row["n_clients"], row["seed"], row["folder"]) == (10, 3, str(folder))


def test_a_run_may_stop_at_its_target() -> None:
    command = ("train", "random", *SMALL, "--rounds", "60", "--target", "0.5", "--stop-at-target")
    result = run(*command)
    assert result.exit_code == 0
    row = run_json(*command)[0]
    assert row["stopped_at_target"] is True
    assert row["rounds_run"] == row["rounds_to_0.5"] < 60
    assert f"stopped at its target after {row['rounds_run']} rounds" in result.stdout


def test_options_reach_the_recipe() -> None:
    schedule = 'schedule="linear",start=0.1,end=0.0,rounds=9'
    options = (
        ("--data", "synthetic:alpha=0.5,n_clients=10"),
        ("--partition", "natural:min_samples=5"),
        ("--model", "mlp:hidden=[7]"),
        ("--local", f"steps=3,batch_size=none,proximal=0.5,lr={{{schedule}}}"),
        ("--aggregation", "mean-returned:by=equal"),
        ("--server-lr", "0.5"),
        ("--hold-out", "0.2"),
        ("--evaluate-every", "2"),
        ("--trainer", "reference"),
        ("--device", "cpu"),
    )
    flat = [part for pair in options for part in pair]
    row = run_json("train", "random", *SMALL[:6], *flat, "--out", "kept")[0]
    assert row["folder"] == "kept"
    config = json.loads((cell_folder(Path("kept"), "random", 0) / "config.json").read_text())
    training = config["training"]
    assert training["source"]["alpha"] == 0.5
    assert training["partition"] == {
        "kind": "natural",
        "min_samples": 5,
        "max_samples": None,
        "choose": "random",
    }
    assert training["model"] == {"kind": "mlp", "hidden": [7]}
    local = training["local"]
    assert (local["epochs"], local["steps"], local["batch_size"]) == (None, 3, None)
    assert local["lr"] == {"schedule": "linear", "start": 0.1, "end": 0.0, "rounds": 9}
    assert training["aggregation"] == {"kind": "mean-returned", "by": "equal"}
    assert (training["server_lr"], training["hold_out"]) == (0.5, 0.2)
    assert (training["evaluate_every"], training["trainer"]) == (2, "reference")


def test_a_model_of_ones_own() -> None:
    Path("mine.py").write_text(
        "from torch import nn\n"
        "def small(example_shape, n_classes, width=4):\n"
        "    layers = nn.Flatten(), nn.Linear(64, width), nn.Linear(width, n_classes)\n"
        "    return nn.Sequential(*layers)\n"
        "def wrong():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n",
        encoding="utf-8",
    )
    row = run_json("train", "random", *SMALL, "--model", "mine:small:width=6")[0]
    assert row["accuracy"] > 0.0
    result = run("train", "random", *SMALL, "--model", "mine:wrong", "--out", "none")
    assert result.exit_code == 2
    assert "gives 3 scores per label but digits has 10 classes" in " ".join(result.output.split())
    assert not Path("none").exists()


def test_a_model_with_batch_normalisation() -> None:
    Path("normal.py").write_text(
        "from torch import nn\n"
        "def net(n_classes):\n"
        "    layers = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, n_classes)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n",
        encoding="utf-8",
    )
    command = ("train", "random", *SMALL, "--model", "normal:net")
    average = run_json(*command, "--out", "average")[0]
    local = run_json(*command, "--buffers", "local", "--out", "local")[0]
    assert average["local_loss"] != local["local_loss"]
    config = json.loads((cell_folder(Path("local"), "random", 0) / "config.json").read_text())
    assert config["training"]["buffers"] == "local"
    Path("again.toml").write_text(
        'selectors = ["random"]\nworld = "e3cs"\nn_clients = 10\ncohort_size = 4\nn_rounds = 6\n'
        'seeds = 1\n[training]\nmodel = "normal:net"\nbuffers = "local"\n'
        "[training.local]\nepochs = 1\nbatch_size = 20\nlr = 0.1\n",
        encoding="utf-8",
    )
    run_json("compare", "--config", "again.toml", "--out", "again")
    again = json.loads((cell_folder(Path("again"), "random", 0) / "config.json").read_text())
    assert again["training"] == config["training"]
    result = run(*command, "--buffers", "some", "--out", "none")
    assert result.exit_code == 2
    assert "buffers must be one of 'average', 'local', got 'some'" in result.output


def test_a_run_may_be_tracked(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[Any] = []
    stub = SimpleNamespace(
        set_experiment=lambda name: logged.append(name),
        start_run=lambda run_name: logged.append(run_name),
        log_params=lambda given: logged.append(given["training"]["model"]["kind"]),
        log_metrics=lambda values, step: logged.append((step, values["clock_s"])),
        end_run=lambda: logged.append("end"),
    )
    monkeypatch.setitem(sys.modules, "mlflow", stub)  # type: ignore[arg-type]
    row = run_json("train", "random", *SMALL, "--world", "e3cs", "--track", "mlflow", "--out", "a")[
        0
    ]
    assert logged[:3] == ["turnout", "random, seed 0 in a", "logistic"]
    assert logged[3:-1] == [(t, t + 1.0) for t in range(row["n_rounds"])]  # rounds of a second
    assert logged[-1] == "end"
    monkeypatch.setitem(sys.modules, "mlflow", None)  # type: ignore[arg-type]
    result = run("train", "random", *SMALL, "--track", "mlflow", "--out", "b")
    assert result.exit_code == 2
    assert "pip install mlflow" in result.output
    assert not Path("b").exists()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--model", "mlpp"), ["--model mlpp", "'mlp'"]),
        (("--model", "mlp:width=3"), ["--model mlp:width=3", "unknown key 'width'", "hidden"]),
        (("--model", "nowhere:net"), ["nowhere:net", "cannot be imported"]),
        (("--model", "emnist-cnn"), ["EmnistCnn needs images", "digits"]),
        (("--data", "digitz"), ["--data digitz", "'digits'"]),
        (("--data", "fashion-mnist"), ["fashion", "TURNOUT_DATA"]),
        (("--partition", "dirichlet:alpha=-1"), ["alpha must be", "-1"]),
        (("--partition", "natural"), ["Natural needs", "digits"]),
        (("--local", "lr=fast"), ["--local lr=fast", "lr must be"]),
        (("--local", "batch_size=4000"), ["batch_size is 4000", "no client has more than"]),
        (("--local", "steps=3,epochs=2"), ["epochs and steps"]),
        (("--aggregation", "median"), ["--aggregation median", "keep-global"]),
        (("--device", "cuda:9"), ["device 'cuda:9' cannot be used", "cpu"]),
        (("--target", "1.5"), ["target_accuracy", "1.5"]),
        (("--stop-at-target",), ["stop_at_target needs a target_accuracy"]),
        (("--track", "paper"), ["--track must be one of", "mlflow"]),
        (("--trainer", "slow"), ["trainer must be one of"]),
        (("--clients", "5000"), ["no data"]),
        (("--hold-out", "1.0"), ["hold_out must be"]),
        (("--server-lr", "0"), ["server_lr must be", "> 0.0, got 0.0"]),
        (("--data", "array-file:path=my data.npz"), ["not key=value", 'key="a b"']),
        (("--data", "array-file:path=../none.npz"), ["../none.npz does not exist"]),
        (("--model", "custom:factory=nets:good"), ["unknown key 'factory'", "path"]),
        (("--world", "mars"), ["mars"]),
        (("--param", "quotta=1"), ["quotta"]),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], parts: list[str]
) -> None:
    result = run("train", "random", *SMALL, *arguments)
    assert result.exit_code == 2, result.output
    message = " ".join(result.output.split())
    for part in parts:
        assert part in message
    assert "Traceback" not in result.output
    assert list(Path().iterdir()) == []


# compare ---------------------------------------------------------------------------------------


def test_compare_shows_accuracy_targets_and_differences() -> None:
    result = run(*COMPARED, "--target", "0.2", "--target", "0.99", "--explain")
    assert result.exit_code == 0, result.output
    for text in ("accuracy", "loss", "Jain, losses", "worst 10 %", "success", "rounds to 0.2"):
        assert text in result.stdout
    assert "time to 0.2" in result.stdout
    assert "- (0 of 2)" in result.stdout  # nobody reaches 0.99
    assert "Difference to random" in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 100


def test_compare_as_json_is_what_the_cells_say() -> None:
    rows = run_json(*COMPARED, "--target", "0.2")
    folder = Path(rows[0]["folder"])
    found = [
        json.loads((cell_folder(folder, "E3CS-0.5", seed) / "summary.json").read_text())
        for seed in (0, 1)
    ]
    for name in ("accuracy", "worst_accuracy", "jain_of_losses", "rounds_to_0.2"):
        known = [summary[name] for summary in found if summary[name] is not None]
        assert rows[1]["metrics"][name]["n"] == len(known)
        assert rows[1]["metrics"][name]["mean"] == pytest.approx(sum(known) / len(known))


def test_compare_from_a_file_with_options_over_it() -> None:
    Path("mine.toml").write_text(
        'world = "e3cs"\nn_clients = 10\ncohort_size = 4\nn_rounds = 3\nseeds = 1\n'
        'selectors = ["random"]\n[training]\nmodel = "logistic"\nlocal = { batch_size = 20 }\n',
        encoding="utf-8",
    )
    first = run_json("compare", "--config", "mine.toml", "--jobs", "1")
    config = json.loads(
        (cell_folder(Path(first[0]["folder"]), "random", 0) / "config.json").read_text()
    )
    assert config["training"]["model"]["kind"] == "logistic"
    assert config["training"]["local"]["epochs"] == 5  # what a file leaves out is the default
    second = run_json("compare", "--config", "mine.toml", "--jobs", "1", "--target", "0.1")
    assert "rounds_to_0.1" in second[0]["metrics"]
    assert first[0]["folder"] != second[0]["folder"]


def test_an_option_of_0_goes_over_the_file() -> None:
    Path("mine.toml").write_text(
        'world = "e3cs"\nn_clients = 10\ncohort_size = 4\nn_rounds = 1\nseeds = 1\n'
        'selectors = ["random"]\n[training]\nhold_out = 0.2\nmodel = "logistic"\n',
        encoding="utf-8",
    )
    row = run_json("compare", "--config", "mine.toml", "--jobs", "1", "--hold-out", "0")[0]
    config = json.loads((cell_folder(Path(row["folder"]), "random", 0) / "config.json").read_text())
    assert config["training"]["hold_out"] == 0.0


def test_data_that_has_changed_is_another_experiment() -> None:
    x = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    train = ("train", "random", *SMALL, "--data", "array-file:path=./own/mine.npz")
    Path("own").mkdir()
    np.savez("own/mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    arguments = (*train, "--partition", "iid", "--out", "a")
    assert run(*arguments).exit_code == 0
    before = Path("a/random/seed-0/summary.json").read_bytes()
    np.savez("own/mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)  # the same once more
    assert run(*arguments).exit_code == 0
    np.savez("own/mine.npz", x_train=x, y_train=1 - y, x_test=x, y_test=y)
    result = run(*arguments)
    assert result.exit_code == 2
    assert "data_sha256 is" in result.output
    assert Path("a/random/seed-0/summary.json").read_bytes() == before


def test_options_of_training_need_training() -> None:
    result = run("compare", "random", "--data", "digits")
    assert result.exit_code == 2
    assert "without --train" in result.output
    Path("plain.toml").write_text('selectors = ["random"]\n', encoding="utf-8")
    result = run("compare", "--config", "plain.toml", "--model", "mlp")
    assert result.exit_code == 2
    assert "without --train" in result.output


def test_broken_answers_are_noted() -> None:
    result = run("train", "random", *SMALL, "--local", "batch_size=20,lr=1e38")
    assert result.exit_code == 0
    message = " ".join(result.output.split())
    assert re.search(r"note: random, seed 0: \d+ answers were not finite", message)
    again = run("train", "random", *SMALL, "--local", "batch_size=20,lr=1e38")
    assert " ".join(again.output.split()).count("answers were not finite") == 1


def test_one_selector_has_no_differences() -> None:
    result = run("compare", "random", *SMALL, "--train", "--seeds", "1", "--jobs", "1")
    assert result.exit_code == 0, result.output
    assert "1 seed" in result.output
    assert "1 seeds" not in result.output
    assert "Difference to" not in result.output


def test_a_run_with_training_is_reported() -> None:
    folder = run_json(*COMPARED)[0]["folder"]
    result = run("report", folder, "--out", "page.html")
    assert result.exit_code == 0
    page = Path("page.html").read_text(encoding="utf-8")
    for text in ("Accuracy by round", "Accuracy by time", "Local losses at the end", "Worst 10 %"):
        assert text in page
    assert "Rounds and time to an accuracy" in page
    assert "A training run of 10 clients" in page


def test_training_with_another_number_of_threads_is_the_same_run() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = run_json("train", "e3cs", *SMALL, "--out", "one")[0]
        torch.set_num_threads(2)
        two = run_json("train", "e3cs", *SMALL, "--out", "two")[0]
    finally:
        torch.set_num_threads(threads)
    assert one["loss"] == pytest.approx(two["loss"], rel=1e-5)  # float32
