"""``turnout watch``: what it sees of folders that are written, damaged, missing or gone."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.live.ticking import Ticking
from tests.report.folders import interrupt_folder, run_folder
from tests.report.live_folders import HOSTILE, LiveFolder, large_folder, live_folder
from turnout import InvalidInput
from turnout.cli.app import app
from turnout.report.page import templates
from turnout.report.watch import State, Watcher, WatchServer, page_view


@pytest.fixture
def ticking(monkeypatch):
    return Ticking.installed(monkeypatch)


@contextmanager
def serving(path, **given):
    with WatchServer(path, **given) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, path="", **headers):
    request = urllib.request.Request(server.address + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def part_of(path, key="", stalled_s=300.0):
    """The part of the page that changes, as text, and its view."""
    watcher = Watcher(Path(path), stalled_s)
    view = page_view(watcher.look(), str(path), key, stalled_s)
    return templates().get_template("part.html").render(view=view), view


def files_of(folder):
    return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_a_live_run_from_before_it_is_there_to_its_end(tmp_path, ticking):
    root = tmp_path / "runs"
    watcher = Watcher(root, 300.0)
    assert watcher.look().state is State.ABSENT
    root.mkdir()
    assert watcher.look().state is State.EMPTY
    live = LiveFolder(root, n_rounds=4)
    first = watcher.look()
    assert first.state is State.RUNNING
    live.play(2)
    second = watcher.look()
    assert second.state is State.RUNNING
    assert second.version != first.version
    assert watcher.look().version == second.version
    live.play(2)
    live.finish()
    assert watcher.look().state is State.ENDED
    shutil.rmtree(root)
    assert watcher.look().state is State.GONE
    root.mkdir()
    assert watcher.look().state is State.EMPTY


def test_the_open_round_its_cohort_and_what_was_heard(tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=7, names=[HOSTILE]).play(6)
    chosen = live.choose()
    text, view = part_of(tmp_path / "runs")
    assert view.opened.round + 1 == 7
    assert [name for name, _ in view.opened.clients] == list(chosen.ids)
    assert view.opened.n_replies == 0
    assert "Round 7 is open" in text
    assert text.count("no reply yet") == len(chosen.ids)
    assert "6 of 7 rounds are done" in text
    assert "<script" not in text
    ended = live.train(chosen)
    _, view = part_of(tmp_path / "runs")
    assert view.opened.n_replies > 0
    live.record(ended)
    assert part_of(tmp_path / "runs")[1].opened is None  # until the next one
    live.finish()
    assert part_of(tmp_path / "runs")[1].state == "ended"


def test_names_reasons_and_alerts_are_inert(tmp_path):
    folder = live_folder(tmp_path / "runs", 8, names=[HOSTILE])
    alerts = [
        {"round": 3, "at": "2026-11-17T05:00:00+00:00", "kind": "behind", "text": "<b>x</b> waits"},
        {"kind": "<i>", "text": {"odd": 1}, "round": "7"},
    ]
    lines = "\n".join(map(json.dumps, alerts)) + '\n{"round": 9, "tor'
    (folder / "alerts.jsonl").write_text(lines)
    text, view = part_of(tmp_path / "runs")
    assert [alert.round for alert in view.detail.alerts] == [0, 4]  # newest first
    assert "&lt;b&gt;x&lt;/b&gt; waits" in text
    assert "after round 4" in text
    assert "<script" not in text
    assert "<i>" not in text
    assert "&lt;script&gt;" in text
    assert "made garbled for the test" in text
    assert "Accuracy by round" in text


def test_no_style_or_script_that_the_policy_would_stop(tmp_path):
    """Attributes of style and handlers are blocked by the browser; so there must be none."""
    text, _ = part_of(live_folder(tmp_path / "runs", 8))
    assert not re.search(r"<[^>]* (style|on\w+)=", text)


def test_watching_changes_and_locks_nothing(tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=6).play(3)
    before = files_of(tmp_path)
    part_of(tmp_path / "runs")
    part_of(live.path)
    assert files_of(tmp_path) == before
    live.play(3)
    live.finish()
    assert part_of(tmp_path / "runs")[1].state == "ended"


def test_a_torn_last_line_is_not_yet_a_round(tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=9).play(4)
    for name in ("answers.jsonl", "rounds.jsonl"):
        with (live.path / name).open("a") as file:
            file.write('{"round": 4, "chos')
    text, view = part_of(tmp_path / "runs")
    assert "4 of 9 rounds are done" in text
    assert view.problems == []


def test_silence_is_told(tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=9).play(2)
    for path in live.path.iterdir():
        os.utime(path, (1.0e9, 1.0e9))
    text, view = part_of(tmp_path / "runs", stalled_s=60.0)
    assert view.state == "stalled"
    assert "No news for more than 60 s" in text
    live.play(1)
    assert part_of(tmp_path / "runs", stalled_s=60.0)[1].state == "running"


def test_a_long_round_is_not_silence(tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=9).play(2)
    live.choose()
    opened = live.path / "open.jsonl"
    line = json.loads(opened.read_text())
    for began, state in ((time.time() - 500.0, "running"), (time.time() - 900.0, "stalled")):
        stamp = datetime.fromtimestamp(began, UTC).isoformat()
        opened.write_text(json.dumps(line | {"began": stamp, "deadline_s": 600.0}) + "\n")
        for path in live.path.iterdir():
            os.utime(path, (began, began))
        assert part_of(tmp_path / "runs", stalled_s=100.0)[1].state == state


def test_experiments_beside_each_other_are_kept_apart(tmp_path):
    for name in ("a", "b"):
        run_folder(tmp_path / "runs" / name, "random", seeds=1, n_rounds=4, name=name)
    _, view = part_of(tmp_path / "runs")
    assert [row.name for row in view.rows] == ["a: random, seed 0", "b: random, seed 0"]
    assert list(view.curves[0].names) == ["a: random", "b: random"]
    assert view.title == "a, b"
    assert view.words == "Ended: 2 of 2 runs have ended."
    _, view = part_of(tmp_path / "runs" / "a" / "random" / "seed-0")  # a cell alone
    assert view.words == "Ended: 4 of 4 rounds are done."


def test_a_comparison_in_progress(tmp_path):
    done = {("random", 0): 12, ("random", 1): 12, ("e3cs-0.5", 0): 5, ("e3cs-0.5", 1): 12}
    root = tmp_path / "runs"
    interrupt_folder(root, "e3cs-0.5", "random", n_rounds_done=done, seeds=2, n_rounds=12)
    text, view = part_of(root)
    assert [row.name for row in view.rows] == [
        "e3cs-0.5, seed 0",
        "e3cs-0.5, seed 1",
        "random, seed 0",
        "random, seed 1",
    ]
    assert [row.state for row in view.rows] == ["failed", "ended", "ended", "ended"]
    assert [(row.done, row.planned) for row in view.rows] == [(5, 12), (12, 12), (12, 12), (12, 12)]
    assert view.state == "failed"
    assert "1 of 4 runs failed" in text
    assert view.curves[0].title == "Replies in time so far"
    assert view.detail is None
    text, view = part_of(root, "random/seed-1")
    assert view.chosen == "random/seed-1"
    assert "random, seed 1" in view.detail.name
    assert "Virtual time of a round" in text
    assert "by name" not in text
    assert "Training and waiting" not in text


def test_runs_that_are_planned_are_waited_for(tmp_path):
    root = run_folder(tmp_path / "runs", "random", "e3cs-0.5", seeds=1, n_rounds=6)
    shutil.rmtree(root / "random")
    _, view = part_of(root)
    assert view.state == "running"
    assert view.words == "Running: 1 of 2 runs have ended."


def test_only_what_changed_is_read_again(tmp_path, monkeypatch):
    root = run_folder(tmp_path / "runs", "random", "e3cs-0.5", seeds=1, n_rounds=6)
    watcher = Watcher(root, 300.0)
    watcher.look()
    read = []
    from turnout.report import watch as module

    monkeypatch.setattr(module, "read_cells", lambda paths: read.extend(paths) or ([], []))
    watcher.look()
    assert read == []
    os.utime(root / "random" / "seed-0" / "summary.json")
    watcher.look()
    assert read == [root / "random" / "seed-0"]


@pytest.mark.parametrize("name", ["answers.jsonl", "open.jsonl", "alerts.jsonl", "rounds.jsonl"])
def test_a_pipe_in_the_folder_blocks_nobody(tmp_path, name):
    folder = live_folder(tmp_path / "runs", 6)
    (folder / "summary.json").unlink()
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    text, view = part_of(tmp_path / "runs")
    assert view.state == "running"
    if name == "rounds.jsonl":
        assert "not a regular file" in text


def test_a_damaged_folder_is_named(tmp_path):
    folder = live_folder(tmp_path / "runs", 4)
    (folder / "config.json").write_text("{")
    text, view = part_of(tmp_path / "runs")
    assert "config.json is not readable JSON" in text
    assert view.detail is None


def test_many_clients_and_rounds_stay_a_small_page(tmp_path):
    large_folder(tmp_path / "runs", n=1000, n_rounds=150)
    text, _ = part_of(tmp_path / "runs")
    assert len(text) < 600_000


def test_the_server_answers_the_page_its_parts_and_the_report(tmp_path):
    live_folder(tmp_path / "runs", 6)
    with serving(tmp_path / "runs") as server:
        assert server.address.startswith("http://127.0.0.1:")
        for path, kind in (("", "html"), ("watch.js", "javascript"), ("watch.css", "css")):
            status, headers, _ = get(server, path)
            assert (status, headers.get_content_subtype()) == (200, kind)
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
        status, _, text = get(server, "news")
        news = json.loads(text)
        assert "6 of 6 rounds are done" in news["html"]
        again = json.loads(get(server, f"news?version={news['version']}")[2])
        assert "html" not in again
        assert again["version"] == news["version"]
        status, _, report = get(server, "report")
        assert status == 200
        assert "as it ran" in report
        assert get(server, "../etc/passwd")[0] == 404
        assert get(server, "news?run=../../etc")[0] == 200  # no such run: the usual one


def test_other_names_and_methods_are_refused(tmp_path):
    with serving(tmp_path) as server:
        assert get(server, "news", Host="evil.example")[0] == 403
        assert get(server, "news", Host="[::1")[0] == 403
        assert get(server, "news", Host="localhost:9000")[0] == 200  # a tunnel
        request = urllib.request.Request(server.address, data=b"x", method="POST")
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=30)
        assert error.value.code == 501
        error.value.close()
        assert get(server, "report")[0] == 409  # nothing to report on yet


def test_what_cannot_be_watched(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    os.mkfifo(tmp_path / "pipe")
    for path in (file, tmp_path / "pipe"):
        with pytest.raises(InvalidInput, match="is not a folder: give a run folder"):
            WatchServer(path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"--port: {port} is not available"):
            WatchServer(tmp_path, port)
    for port in (-1, 65_536):
        shown = CliRunner().invoke(app, ["watch", str(tmp_path), f"--port={port}", "--no-browser"])
        assert shown.exit_code == 2
        assert "port must be" in shown.output


def test_ctrl_c_ends_it_cleanly(tmp_path):
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from turnout.__main__ import main; main()"
    )
    command = [sys.executable, "-c", code, "watch", str(tmp_path / "later"), "--no-browser"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        first = process.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", first)
        assert address is not None, first
        with urllib.request.urlopen(f"{address[0]}news", timeout=30) as answer:
            assert "does not exist yet" in json.load(answer)["html"]
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Stopped watching; the run continues." in rest
    assert errors == ""
