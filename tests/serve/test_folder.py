"""A federation as a run folder: what commands on run folders say about rounds of a server."""

import json
import random
from itertools import pairwise

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.serve.conftest import client_of, create
from tests.serve.test_replay import play
from turnout.cli import app
from turnout.core.errors import InvalidInput
from turnout.core.participation import Participation
from turnout.results import read_cells
from turnout.results.answers import read_answers
from turnout.results.privacy import participations
from turnout.serve import rounds, write_folder
from turnout.serve.store import Store

GUARD = {"floor": 0.0, "cap": 4, "min_gap": 3, "max_times": 4}


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result.output


def certificate(folder, code=0):
    (found,) = json.loads(run("audit", folder, "--privacy", "--json", code=code))
    return found


def play_round(http, path, rng=None):
    opened = http.post(f"{path}/rounds").json()
    for client in opened["clients"]:
        status = "completed" if rng is None else rng.choice(["completed", "failed"])
        outcome = {"client": client, "status": status, "seconds": 1.5, "reason": "out\nof memory"}
        http.post(f"{path}/rounds/{opened['round']}/outcomes", json={"outcomes": [outcome]})
    http.post(f"{path}/rounds/{opened['round']}/close")
    return opened["clients"]


def test_the_certificate_is_that_of_a_run_folder_and_survives_a_restart(http, engine, tmp_path):
    path = create(http, n_clients=14, cohort_size=3, guard=GUARD, selector="random")
    cohorts = [play_round(http, path) for _ in range(7)]
    later = client_of(engine, http.portal)  # the first was killed
    cohorts += [play_round(later, path) for _ in range(7)]
    assert write_folder(Store(engine), "demo", tmp_path / "runs") == 14
    found = certificate(tmp_path / "runs")
    assert found["promised"] == {"min_gap": 3, "max_times": 4}
    assert (found["too_early"], found["too_often"]) == ([], [])
    times = {}
    for t, clients in enumerate(cohorts):
        for client in clients:
            times.setdefault(client, []).append(t)
    assert found["max_times"] == max(map(len, times.values()))
    gaps = [b - a for ts in times.values() for a, b in pairwise(ts)]
    assert found["min_gap"] == min(gaps)
    assert found["n_rounds"] == 14
    session = http.app.state.store
    with session.read("demo") as tx:
        own = participations(tx.federation.session.journal.run, 3, 4)
    assert found["chance_bounds"] == own.numbers()["chance_bounds"]
    assert certificate_with(tmp_path / "runs", min_gap=5)["too_early"]


def certificate_with(folder, min_gap):
    shown = run("audit", folder, "--privacy", "--min-gap", min_gap, "--json", code=1)
    return json.loads(shown)[0]


def test_the_ledger_follows_a_renamed_client_to_another_federation(http, tmp_path):
    path = create(http, n_clients=8, cohort_size=2, guard=GUARD, selector="random")
    cohorts = [play_round(http, path) for _ in range(3)]
    file = tmp_path / "state.npz"
    file.write_bytes(http.get(f"{path}/state").content)
    run("clients", file, "--rename", f"{cohorts[-1][0]}=renamed")
    copy = create(http, "copy", 0, cohort_size=2, guard=GUARD, selector="random")
    assert http.put(f"{copy}/state", content=file.read_bytes()).status_code == 200
    for _ in range(2):
        assert "renamed" not in play_round(http, copy)  # it took part in the last round
    for _ in range(8):
        play_round(http, copy)
    write_folder(http.app.state.store, "copy", tmp_path / "runs")
    found = certificate(tmp_path / "runs")
    assert (found["too_early"], found["too_often"]) == ([], [])
    (cell,) = read_cells([tmp_path / "runs"])[0]
    answers = read_answers(cell.path)
    who = answers.names.index("renamed")
    mine = answers.round_of[answers.clients == who]
    assert (np.diff(mine) >= 3).all()
    assert mine.size <= 4
    assert mine[0] <= 2  # rounds under the former name are its own


def test_a_limit_that_was_broken_is_named(http, tmp_path):
    path = create(http, n_clients=4, cohort_size=3)
    for _ in range(4):
        play_round(http, path)
    write_folder(http.app.state.store, "demo", tmp_path / "runs")
    (cell,) = read_cells([tmp_path / "runs"])[0]
    limits = Participation(2, None)
    found = participations(cell.run, limits.min_gap, limits.max_times)
    assert found.is_close.sum() == len(certificate_with(tmp_path / "runs", 2)["too_early"]) > 0


def test_commands_read_the_folder_shadows_included(http, tmp_path):
    path = create(http, n_clients=30, shadow=["pace", "oort"], cohort_size=6)
    rng = random.Random(1)
    for _ in range(12):
        play_round(http, path, rng)
    folder = tmp_path / "runs"
    write_folder(http.app.state.store, "demo", folder)
    (cell,), problems = read_cells([folder])
    assert not problems
    assert cell.settings.kind == "serve"
    assert "pace" in run("show", folder)
    run("report", folder, "--out", tmp_path / "report.html")
    assert "Shadow" in (tmp_path / "report.html").read_text()
    run("audit", folder, "--floor", "0", "--cap", "inf")
    run("replay", folder, "--selectors", "pace,random", "--json")
    run("fit", folder, "--out", tmp_path / "twin.toml")


def test_what_is_no_longer_kept_is_written_without_times(http, tmp_path):
    path = create(http, n_clients=8, cohort_size=3)
    for _ in range(3):
        play_round(http, path)
    store = http.app.state.store
    write_folder(store, "demo", tmp_path / "before")
    assert rounds.forget_old(store, 4e9) == 3
    play_round(http, path)
    write_folder(store, "demo", tmp_path / "after")
    before, after = (
        read_answers(read_cells([tmp_path / name])[0][0].path) for name in ("before", "after")
    )
    assert (before.clients == after.clients[: before.clients.size]).all()
    assert (before.status == after.status[: before.status.size]).all()
    assert after.began[:3] == ("", "", "")
    assert after.began[3]


def test_the_policy_reported_and_all_kinds_of_rounds(http, tmp_path):
    path = create(http, policy="reported")
    http.post(f"{path}/rounds", json={"cohort_size": 2, "deadline_s": 5.0})
    http.post(f"{path}/rounds/0/close")
    write_folder(http.app.state.store, "demo", tmp_path / "runs")
    (cell,), problems = read_cells([tmp_path / "runs"])
    assert (cell.run.n_rounds, problems) == (1, [])
    other = create(http, "other", selector="pace")
    play(http, other, random.Random(2), 40)
    write_folder(http.app.state.store, "other", tmp_path / "runs")
    cells, problems = read_cells([tmp_path / "runs"])
    assert (len(cells), problems) == (2, [])


def test_what_cannot_be_written(http, demo, tmp_path):
    store = http.app.state.store
    with pytest.raises(InvalidInput, match="no closed round yet"):
        write_folder(store, "demo", tmp_path / "runs")
    with pytest.raises(InvalidInput, match="no federation 'none'"):
        write_folder(store, "none", tmp_path / "runs")
    play_round(http, demo)
    write_folder(store, "demo", tmp_path / "runs")
    with pytest.raises(Exception, match="already holds a run"):
        write_folder(store, "demo", tmp_path / "runs")


def test_the_command(http, demo, engine, tmp_path):
    play_round(http, demo)
    database = ["serve", "--database", str(engine.url)]
    assert "Wrote 1 rounds of demo" in run(*database, "export", "demo", tmp_path / "runs")
    assert "no federation" in run(*database, "export", "none", tmp_path / "other", code=2)
