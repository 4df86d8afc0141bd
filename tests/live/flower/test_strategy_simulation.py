"""On the real package: Flower's simulation engine, small, with nobody sleeping but one."""

import difflib
from pathlib import Path

import numpy as np
import pytest

from tests.live.flower.simulations import APPS, N_NODES, in_a_process
from turnout import Status

HOWTO = Path(__file__).parents[3] / "docs" / "howto" / "flower-selection.md"


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return in_a_process("first", tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return in_a_process("second", tmp_path_factory.mktemp("second"))


def test_cohorts_and_models_are_the_same_whatever_the_node_ids(first, second):
    assert set(first["nodes"]).isdisjoint(second["nodes"])
    assert first["selectors"] == second["selectors"]


def test_who_raises_has_failed_and_everybody_else_completed(first):
    for name, one in first["selectors"].items():
        assert [len(chosen) for chosen in one["cohorts"]] == [4, 4, 4], name
        for ended in one["ended"]:
            for client, status in ended.items():
                is_broken = client == "client-003"
                assert status == (Status.FAILED if is_broken else Status.COMPLETED)
    # UCB-CS tries everybody once before it comes back to anybody.
    one, two, _ = first["selectors"]["ucb-cs"]["cohorts"]
    assert [*one, *two].count("client-003") == 1


def test_a_run_in_two_parts_is_the_run_in_one(first):
    parts, whole = first["resumed"]
    assert parts == whole


def test_a_late_client_is_left_behind_and_left_alone(second):
    late = second["late"]
    assert late["ended"][0]["client-005"] == Status.LATE
    # Its error races with the last answer that the round needs.
    assert late["ended"][0]["client-003"] in (Status.FAILED, Status.LATE)
    in_time = [client for client, status in late["ended"][0].items() if status == Status.COMPLETED]
    assert len(in_time) == N_NODES - 2
    assert "client-005" not in late["cohorts"][1]


def test_rounds_overlap_in_the_simulation_engine_and_over_a_restart(tmp_path):
    """Client i adds i to the model that it got, so the model tells which one that was."""
    found = in_a_process("overlapping", tmp_path)
    columns = ("clients", "status", "choice", "staleness", "offsets")
    clients, status, choice, staleness, offsets = (np.array(found[name]) for name in columns)
    number = np.array([int(name[-3:]) for name in found["ids"]])[clients]
    assert offsets.size == 7
    assert len(set(zip(choice.tolist(), clients.tolist(), strict=True))) == clients.size
    assert set(status[number == 3].tolist()) <= {Status.FAILED}
    assert max(found["kept"]) <= 5 + 1
    value = 0.0
    for t in range(6):
        rows = np.arange(offsets[t], offsets[t + 1])
        rows = rows[status[rows] == Status.COMPLETED]
        assert rows.size == 3
        steps = number[rows] / np.sqrt(1.0 + staleness[rows])
        value += float(((number[rows] + 1) * steps).sum() / (number[rows] + 1).sum())
    np.testing.assert_allclose(found["model"], value, rtol=1e-9)


def changed_lines(name):
    """Return the lines of the difference that were added or removed."""
    plain = (APPS / f"plain_{name}.py").read_text().splitlines()
    ours = (APPS / f"selecting_{name}.py").read_text().splitlines()
    marks = ("+ ", "- ")
    return [line for line in difflib.ndiff(plain, ours) if line.startswith(marks)]


def test_at_most_five_lines_of_an_existing_app_change():
    added = [
        [line for line in changed_lines(name) if line[0] == "+"] for name in ("server", "client")
    ]
    assert [len(lines) for lines in added] == [2, 2]  # one of the server's replaces a line


def test_the_how_to_shows_exactly_this_difference():
    page = HOWTO.read_text().splitlines()
    for name in ("server", "client"):
        for line in changed_lines(name):
            assert f"{line[0]}{line[2:]}" in page


def test_the_app_runs_before_and_after_the_change(tmp_path):
    models = in_a_process("quickstart", tmp_path)
    plain, ours = (np.array(models[name]) for name in ("plain_server", "selecting_server"))
    assert np.isfinite(plain).all()
    assert np.isfinite(ours).all()
    # Clients pull the weights towards their number: the mean of all eight, or of three in a round.
    assert 0.0 < plain.mean() < 7.0
    assert 0.0 < ours.mean() < 7.0
    assert plain.tolist() != ours.tolist()
