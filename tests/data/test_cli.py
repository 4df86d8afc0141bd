import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from turnout.cli import app as whole_app
from turnout.cli.data import app, show_partition
from turnout.core.errors import InvalidInput
from turnout.data import DataMissing
from turnout.data.files import DownloadFailed

from .makers import images, write_jsonl


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("TURNOUT_DATA", str(tmp_path))


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.exception or result.output
    return result.stdout


def run_json(*arguments):
    return json.loads(run(*arguments, "--json"))


def failure(*arguments):
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code != 0
    return result.exception


def femnist(folder):
    x, y = images(40, n_classes=62)
    writer = np.repeat(np.arange(4), [4, 6, 10, 20])
    np.savez(folder / "femnist.npz", x_train=x, y_train=y, x_test=x, y_test=y, writer_train=writer)


def test_list_tells_what_is_there_and_what_is_missing(tmp_path):
    femnist(tmp_path)
    rows = {row["name"]: row for row in run_json("list")}
    assert rows["digits"]["status"] == "embedded"
    assert rows["femnist"]["status"] == "found"
    assert rows["femnist"]["path"] == str(tmp_path / "femnist.npz")
    assert rows["cifar10"]["status"] == "missing"
    assert "turnout data get cifar10" in rows["cifar10"]["get_it"]
    assert rows["array-file"]["status"] == "own"
    assert "NOT the images" in rows["emnist-letters-features"]["about"]
    assert len(rows) == 16
    text = run("list")
    assert "embedded" in text
    assert "missing" in text
    assert "superuser.com.7z" in text


def test_list_without_a_data_directory(monkeypatch):
    monkeypatch.delenv("TURNOUT_DATA")
    rows = {row["name"]: row["status"] for row in run_json("list")}
    assert set(rows.values()) == {"embedded", "missing", "own"}


@pytest.mark.slow
def test_the_example_in_help_works():
    found = re.search(r"Example: \[bold\]turnout data (.+?)\[/\]", show_partition.__doc__)
    text = run(*found.group(1).split())
    assert "digits, dirichlet (alpha 0.3)" in text
    assert "skew" in text


def test_show_prints_a_line_for_each_client_and_the_numbers():
    text = run("show", "digits", "--partition", "shards", "--clients", "10", "--hold-out", "0.1")
    assert len(re.findall(r"^│ +\d+ │ +1[23]\d │", text, re.MULTILINE)) == 10
    assert "0 1 2 3 4 5 6 7 8 9" in text
    assert re.search(r"examples to train / to hold out / to test .* 1298 / 140 / 359", text)


def test_shades_follow_the_shares():
    text = run("show", "digits", "--partition", "primary-label:share=1.0", "--clients", "20")
    lines = [line for line in text.splitlines() if re.match(r"│ +\d+ │ +71 │", line)]
    assert len(lines) == 20
    assert all(line.split("│")[5].split() == ["█"] for line in lines)


def test_show_as_json_has_every_count():
    content = run_json(
        "show", "digits", "--partition", "dirichlet", "--param", "alpha=0.3", "--clients", "9"
    )
    assert content["partition"]["kind"] == "dirichlet"
    assert content["partition"]["alpha"] == 0.3
    assert content["sizes"] == [159] * 9
    counts = np.array(content["label_counts"])
    assert counts.shape == (9, 10)
    assert counts.sum(axis=1).tolist() == content["sizes"]
    assert len(content["skew"]) == 9
    again = run_json(
        "show", "digits", "--partition", "dirichlet:alpha=0.3", "--clients", "9", "--seed", "1"
    )
    assert again["label_counts"] != content["label_counts"]


def test_owners_are_the_default_where_there_are_some(tmp_path):
    femnist(tmp_path)
    content = run_json("show", "femnist:classes=all", "--param", "min_samples=6")
    assert content["partition"]["kind"] == "natural"
    assert content["sizes"] == [6, 10, 20]
    assert run_json("show", "synthetic:n_clients=5")["n_clients"] == 5


def test_many_clients_are_shown_in_part():
    text = run("show", "digits", "--partition", "iid", "--clients", "100")
    assert "24 of 100 clients: evenly, ordered by main label." in text


def test_texts_are_shown_by_size_and_name(tmp_path):
    write_jsonl(tmp_path / "shakespeare.jsonl", {f"role {n}": ["a b c"] * n for n in range(2, 40)})
    text = run("show", "shakespeare")
    assert "ordered by size" in text
    assert "role 39" in text
    assert "different next words of a client" in text
    assert "label_counts" not in run_json("show", "shakespeare")


@pytest.mark.slow
def test_show_writes_a_figure(tmp_path):
    text = run("show", "digits", "--clients", "5", "--out", "partition.png")
    assert "Figure: partition.png" in text
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("show", "digit"), InvalidInput, "Did you mean 'digits'"),
        (("show", "digits", "--partition", "iidd"), InvalidInput, "Did you mean 'iid'"),
        (("show", "digits", "--param", "sample=3"), InvalidInput, "Did you mean 'samples'"),
        (("show", "digits", "--clients", "2000"), InvalidInput, "no data"),
        (("show", "digits", "--out", "a.gif"), InvalidInput, "path must end in"),
        (("show", "cifar10"), DataMissing, "turnout data get cifar10"),
        (("get", "yelp"), InvalidInput, "data list"),
    ],
)
def test_mistakes_say_the_fix(arguments, error, message):
    problem = failure(*arguments)
    assert isinstance(problem, error)
    assert message in str(problem)


def test_get_tells_where_the_files_are(tmp_path, monkeypatch):
    def fetched(name, *, show_progress):
        assert not show_progress  # the output of a test is no terminal
        return [tmp_path / name / "file.gz"]

    monkeypatch.setattr("turnout.cli.data.download", fetched)
    assert "file.gz" in run("get", "fashion-mnist").replace("\n", "")


def test_get_may_make_the_data_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNOUT_DATA", "")
    monkeypatch.setattr("turnout.cli.data.download", lambda name, show_progress: [])
    new, other = str(tmp_path / "new"), str(tmp_path / "file")
    assert (
        CliRunner().invoke(whole_app, ["--data-dir", new, "data", "get", "cifar10"]).exit_code == 0
    )
    Path(other).write_text("")
    for arguments in (["data", "get", "cifar10"], ["list"]):
        folder = other if arguments[0] == "data" else new
        result = CliRunner().invoke(whole_app, ["--data-dir", folder, *arguments])
        assert result.exit_code != 0
        assert "is not a folder" in f"{result.output}{result.exception}"


def test_get_without_a_network(monkeypatch):
    def offline(name, *, show_progress):
        raise DownloadFailed("no way")

    monkeypatch.setattr("turnout.cli.data.download", offline)
    assert isinstance(failure("get", "fashion-mnist"), DownloadFailed)
