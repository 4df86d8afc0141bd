"""The runbook's situations, provoked: what one sees, and that what the page says to do helps."""

import contextlib
import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from tests.serve.conftest import client_of, create
from tests.serve.processes import PATIENCE_S, Server, free_port
from tests.serve.test_rounds import opened, outcomes, report
from turnout.cli import app
from turnout.serve import open_database, rounds, store
from turnout.serve.auth import make_token
from turnout.serve.backup import back_up, restore
from turnout.serve.database import writing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "runbook.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: part for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
}


def test_each_of_ten_situations_says_what_to_see_ask_and_do():
    assert len(SECTIONS) == 10
    for text in SECTIONS.values():
        places = [text.find(f"**{word}") for word in ("You see", "Ask", "Do")]
        assert places == sorted(places)
        assert min(places) >= 0


def test_every_alert_rule_leads_to_a_section():
    anchors = {"#" + title.lower().replace(" ", "-") for title in SECTIONS}
    for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert (
                f"**{rule['alert']}**" in PAGE
                or f"`{rule['alert']}`" in PAGE
                or (rule["alert"] in ("TurnoutShortRounds", "TurnoutAlert"))
            )
            assert rule["annotations"]["runbook"] in anchors


def metric(http, name, **labels):
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [one for family in families for one in family.samples if one.name == name]
    (found,) = [one.value for one in samples if labels.items() <= one.labels.items()]
    return found


@pytest.fixture
def at(monkeypatch):
    now = [1.8e9]
    monkeypatch.setattr(store.time, "time", lambda: now[0])
    return now


def test_a_silent_client_is_named_and_withdrawn(http):
    path = create(http, cohort_size=9, selector="random")
    alerts = []
    for t in range(7):
        chosen = opened(http, path)["clients"]
        report(http, path, t, [one for one in chosen if one != "c7"])
        report(http, path, t, ["c7"], status="silent") if "c7" in chosen else None
        alerts += http.get(f"{path}/rounds/{t}").json()["result"]["alerts"]
    assert any(text.startswith("c7 has failed 5 times in a row") for text in alerts)
    assert metric(http, "turnout_chosen_total", run="demo", status="silent") >= 5
    receipts = http.get(f"{path}/receipts/c7").json()["receipts"]
    told = [json.loads(one["statement"]) for one in receipts]
    assert {one["status"] for one in told} == {"silent"}
    http.post(f"{path}/clients/withdraw", json={"clients": ["c7"]})
    for t in range(7, 10):
        chosen = opened(http, path)["clients"]
        assert "c7" not in chosen
        report(http, path, t, chosen)
    http.put(f"{path}/clients", json={"clients": ["c7"]})
    assert http.get(path).json()["n_present"] == 10


def test_a_hanging_round_is_seen_and_closed(http, at):
    path = create(http, policy="reported")
    chosen = opened(http, path)
    report(http, path, 0, chosen["clients"][:4])
    at[0] += 7201.0
    assert rounds.close_overdue(http.app.state.store, at[0]) == 0
    assert metric(http, "turnout_open_round_seconds", run="demo") == 7201.0
    assert http.get(path).json()["open_round"] == 0
    shown = http.get(f"{path}/rounds/0").json()
    assert shown["closes_at"] is None
    assert set(shown["clients"]) - set(shown["reported"]) == {chosen["clients"][4]}
    assert http.post(f"{path}/rounds", json={"round": 1}).json()["type"] == "urn:turnout:round-open"
    ended = http.post(f"{path}/rounds/0/close").json()
    assert ended["result"]["counts"]["late"] == 1
    assert metric(http, "turnout_open_round_seconds", run="demo") == 0.0


@pytest.mark.slow
def test_a_full_disk_changes_nothing_and_needs_room_only(tmp_path):
    """A disk of 3 MB of its own, in a namespace; it is filled by another program."""
    disk, port = tmp_path / "disk", free_port()
    disk.mkdir()
    command = f"mount -t tmpfs -o size=3m none {disk} && exec {sys.executable} -m turnout serve "
    command += f"--database sqlite:///{disk}/t.db --port {port} --no-auth"
    if subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    log = tmp_path / "log"
    with log.open("w") as said:
        process = subprocess.Popen(
            ["unshare", "-rm", "sh", "-c", command], stderr=said, stdout=said
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    http.get("/ready").raise_for_status()
                    break
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            path = create(http)
            filler = Path(f"/proc/{process.pid}/root{disk}/filler")
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
            n_rounds, failed = 0, None
            while failed is None:
                answer = http.post(f"{path}/rounds", json={"round": n_rounds})
                if answer.is_success:
                    body = outcomes(answer.json()["clients"])
                    answer = http.post(f"{path}/rounds/{n_rounds}/outcomes", json=body)
                if answer.is_success:
                    n_rounds += 1
                else:
                    failed = answer
            assert (failed.status_code, failed.json()["title"]) == (503, "Database failed")
            before = http.get(path).json()  # reading goes on
            assert http.get("/ready").is_success
            assert before["n_rounds"] == n_rounds
            filler.unlink()
            chosen = http.post(f"{path}/rounds", json={"round": n_rounds}).json()["clients"]
            http.post(
                f"{path}/rounds/{n_rounds}/outcomes", json=outcomes(chosen)
            ).raise_for_status()
            assert http.get(path).json()["n_rounds"] == n_rounds + 1
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE_S)
    assert "database or disk is full" in log.read_text()


@pytest.mark.slow
def test_a_lost_database_is_restored_and_goes_on_as_before(tmp_path):
    url = f"sqlite:///{tmp_path}/t.db"
    server = Server(url)
    server.wait()
    history = []
    with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as http:
        path = create(http)
        for t in range(4):
            if t == 2:
                ran("--database", url, "backup", f"{tmp_path}/b.db")
            history.append(opened(http, path)["clients"])
            report(http, path, t, history[-1])
        server.kill()
        for file in tmp_path.glob("t.db*"):
            file.unlink()
        assert ran("--database", url, "migrate").endswith("before: empty.\n")
        ran("--database", url, "restore", f"{tmp_path}/b.db")
        server.start()
        server.wait()
        answer = http.post(f"{path}/rounds", json={"round": 4})
        assert answer.json()["type"] == "urn:turnout:wrong-round"
        assert "must be 2" in answer.json()["detail"]
        for t in (2, 3):
            assert opened(http, path)["clients"] == history[t]
            report(http, path, t, history[t])
    server.kill()


def ran(*arguments):
    result = CliRunner().invoke(app, ["serve", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


def test_a_leaked_token_is_seen_in_the_audit_log_and_revoked_at_once(http, demo, engine):
    with writing(engine) as connection:
        tokens = [make_token(connection, name, "admin", None) for name in ("trainer", "mine")]
    leaked, mine = ({"Authorization": f"Bearer {token}"} for token in tokens)
    http.get(f"{demo}/state", headers=leaked)
    http.post(f"{demo}/tokens", json={"name": "backdoor", "scope": "admin"}, headers=leaked)
    http.post(f"{demo}/rounds", headers=mine)
    database = ["--database", f"sqlite:///{engine.url.database}"]
    shown = ran(*database, "audit", "--token", "trainer")
    assert "exported" in shown
    assert "backdoor" in shown  # the terminal may be narrow
    assert "opened" not in shown
    entries = json.loads(ran(*database, "audit", "--token", "trainer", "--json"))
    assert [entry["action"] for entry in entries] == ["made-token", "exported"]
    ran(*database, "revoke", "trainer")
    assert http.get(demo, headers=leaked).status_code == 401
    assert http.get(demo, headers=mine).status_code == 200


def test_a_clock_that_jumps_ends_rounds_early_and_then_not_by_deadline(http, at):
    path = create(http, policy={"kind": "fixed-deadline", "seconds": 60.0})
    here = http.app.state.store
    opened(http, path)
    assert metric(http, "turnout_clock_seconds") == at[0]
    at[0] += 3600.0  # ahead
    assert rounds.close_overdue(here, at[0]) == 1
    assert http.get(f"{path}/rounds/0").json()["result"]["counts"]["late"] == 5
    at[0] -= 3600.0  # and back again
    chosen = opened(http, path, json={"round": 1})["clients"]
    at[0] += 120.0
    assert rounds.close_overdue(here, at[0]) == 0  # its deadline is over an hour away
    report(http, path, 1, chosen)
    assert http.get(f"{path}/rounds/1").json()["result"]["counts"]["completed"] == len(chosen)
    opened(http, path)
    assert http.post(f"{path}/rounds/2/close").json()["state"] == "closed"
    at[0] += 3600.0  # the time of the wrong clock has passed
    opened(http, path)
    at[0] += 61.0
    assert rounds.close_overdue(here, at[0]) == 1


def test_memory_of_a_federation_is_known_and_given_back_with_it(http):
    """The history in memory has 41 bytes for each selected client, as the page says."""
    path = create(http, n_clients=100, cohort_size=50, selector="random")
    assert metric(http, "process_resident_memory_bytes") > 1e7
    sizes = []
    for t in range(20):
        report(http, path, t, opened(http, path)["clients"])
        with http.app.state.store.read("demo") as tx:
            columns = tx.federation.session.journal.columns()
        sizes.append(sum(values.nbytes for values in columns.values()))
    grown = (sizes[-1] - sizes[0]) / 19 / 50
    assert 30 < grown < 50
    assert len(http.app.state.store._federations) == 1
    http.delete(path)
    assert http.app.state.store._federations == {}
    assert 'run="demo"' not in http.get("/metrics").text


def test_after_a_move_everything_goes_on_as_on_the_old_host(http, demo, engine, tmp_path, portal):
    for t in range(3):
        report(http, demo, t, opened(http, demo)["clients"])
    chosen = opened(http, demo)["clients"]  # a round is open during the move
    back_up(engine, tmp_path / "move.db")
    target = open_database(f"sqlite:///{tmp_path}/new.db")
    restore(target, tmp_path / "move.db")
    new = client_of(target, portal)
    assert new.get(demo).json() == http.get(demo).json()  # its version, too
    for one in (http, new):
        report(one, demo, 3, chosen)
    assert opened(new, demo)["clients"] == opened(http, demo)["clients"]
    target.dispose()


def test_wrong_numbers_are_traced_to_their_report_and_cannot_be_changed(http, demo):
    chosen = opened(http, demo)["clients"]
    report(http, demo, 0, chosen[:1], metrics={"loss": 1e9})
    report(http, demo, 0, chosen[1:], metrics={"loss": 0.5})
    (receipt,) = http.get(f"{demo}/receipts/{chosen[0]}").json()["receipts"]
    assert json.loads(receipt["statement"])["report"]["metrics"] == {"loss": 1e9}
    body = outcomes(chosen[:1], metrics={"loss": 0.5})
    answer = http.post(f"{demo}/rounds/0/outcomes", json=body)
    assert (answer.status_code, answer.json()["title"]) == (409, "Contradiction")


def test_a_database_that_was_changed_by_hand_is_noticed(http, demo, engine, portal):
    opened(http, demo)
    with contextlib.closing(sqlite3.connect(engine.url.database)) as connection, connection:
        (text,) = connection.execute("SELECT chosen FROM round").fetchone()
        changed = json.loads(text)
        changed["clients"] = changed["clients"][::-1]
        connection.execute("UPDATE round SET chosen = ?", [json.dumps(changed)])
    answer = client_of(engine, portal).get(demo)  # a server that replays the log
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:turnout:diverged")
    assert "versions of turnout and numpy" in answer.json()["detail"]
