"""The report of a live run: clients by name, waits, void rounds, fair shares while there."""

import html
import json
import math
import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.report.live_folders import HOSTILE, LiveFolder, large_folder, live_folder
from turnout.cli.app import app
from turnout.cli.output import console
from turnout.core.types import Status
from turnout.report import write_report
from turnout.report.figure import Bars, Heatmap
from turnout.report.live import MOST_BEST, MOST_WORST, LiveRun, LiveView, Seen, seconds, spelled
from turnout.report.to_matplotlib import drawn as by_matplotlib
from turnout.report.to_plotly import plotly_chart as by_plotly
from turnout.results.answers import read_answers, read_open
from turnout.results.reader import read_cells


def run_of(folder):
    (cell,), _ = read_cells([folder])
    return LiveRun.of(cell)


def page_of(folder, out):
    text = write_report([folder], out / "report.html").path.read_text(encoding="utf-8")
    body = text[text.index("<body>") : text.index('<script type="application/json"')]
    return text, body


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Twelve clients with accidents, one of them called by a script; read only."""
    return live_folder(tmp_path_factory.mktemp("live") / "site", names=[HOSTILE])


@pytest.fixture(scope="module")
def run(folder):
    return run_of(folder)


@pytest.fixture(scope="module")
def page(folder, tmp_path_factory):
    return page_of(folder, tmp_path_factory.mktemp("out"))[1]


@pytest.fixture
def copy(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "copy" / "e3cs" / "seed-3")


def lines_of(folder):
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


def test_counts_by_client_are_those_in_the_answers(folder, run):
    counted = {}
    for line in lines_of(folder):
        for one in line["chosen"]:
            counted.setdefault(one["id"], {}).setdefault(one["status"], 0)
            counted[one["id"]][one["status"]] += 1
    assert run.names[0] == HOSTILE
    for name, counts in zip(run.names, run.counts, strict=True):
        wanted = counted.get(name, {})
        assert counts.tolist() == [wanted.get(status.name.lower(), 0) for status in Status]
    assert len(run.names) == 12


def test_the_map_agrees_with_choices_availability_and_busy_clients(folder, run):
    everyone = np.arange(len(run.names))
    table = run.seen(everyone)
    rounds = lines_of(folder)
    assert {int(kind) for kind in np.unique(table)} == set(map(int, Seen))  # all of them occur
    for t, line in enumerate(rounds):
        chosen = {one["id"]: one["status"] for one in line["chosen"]}
        free = run.run.available_in(t)
        for client, name in enumerate(run.names):
            seen = Seen(int(table[client, t]))
            if name in chosen:
                assert int(seen) == int(Status[chosen[name].upper()])
                assert free[client]
            elif name in line["busy"]:
                assert seen is Seen.BUSY
                assert not free[client]
            else:
                assert seen is (Seen.NOT_CHOSEN if free[client] else Seen.AWAY)


def test_whoever_is_late_is_busy_next_unless_it_left_or_answered(run):
    table = run.seen(np.arange(len(run.names)))
    after_late = [row[t + 1] for row in table for t in np.flatnonzero(row[:-1] == Seen.LATE)]
    assert Seen.BUSY in after_late
    before_busy = [row[t - 1] for row in table for t in np.flatnonzero(row == Seen.BUSY) if t]
    assert set(before_busy) <= {Seen.LATE, Seen.BUSY, Seen.AWAY, Seen.SILENT}


def test_fair_shares_count_only_rounds_in_which_a_client_was_free(run):
    fair, free = np.zeros(12), np.zeros(12, dtype=int)
    chosen = np.zeros(12, dtype=int)
    for t in range(run.n_rounds):
        available = run.run.available_in(t)
        places = min(4, int(available.sum()))
        fair[available] += places / available.sum()
        free += available
        chosen[run.run.chosen_in(t)] += 1
    np.testing.assert_allclose(run.shares.fair, fair)
    assert run.shares.free.tolist() == free.tolist()
    assert run.shares.chosen.tolist() == chosen.tolist()
    np.testing.assert_allclose(run.shares.ratio, chosen / fair)


def test_who_was_hardly_there_is_not_called_neglected(tmp_path, ticking):
    """In the counts of the whole run the late-comer is far behind; while it was there it is not."""
    live = LiveFolder(tmp_path / "runs", n=6, n_rounds=30, seed=1, selector="round-robin")
    live.history.churn, live.history.kinds = 0.0, ("ok",)
    live.history._is_on[:] = [True] * 5 + [False]
    live.play(24)
    live.history._is_on[:] = True
    run = run_of(live.play(6).finish().path)
    last = run.names.index("client-005")
    assert run.counts[last].sum() < 0.3 * run.counts[:5].sum(axis=1).mean()
    n_free = int(run.shares.free[last])
    assert 4 <= n_free <= 6
    assert run.shares.ratio[last] == pytest.approx(run.counts[last].sum() / (n_free * 4 / 6))
    assert run.shares.ratio[last] >= 1.0
    assert (run.seen([last])[0, :24] == Seen.AWAY).all()


def test_waits_and_void_rounds(folder, run):
    rounds = lines_of(folder)
    np.testing.assert_allclose(
        run.waited_s, [max(0.0, line["wall_s"] - line["length_s"]) for line in rounds]
    )
    assert run.waited_s[0] >= 0.5  # the question who they are
    for t, line in enumerate(rounds):
        in_time = [one for one in line["chosen"] if one["status"] == "completed"]
        assert run.answers.is_void[t] == (len(in_time) < 2)
    assert run.min_answers == 2


def test_the_page_speaks_of_clients_waits_and_void_rounds(page, run):
    for client in run.names[1:]:
        assert client in page
    for words in ("not there", "not chosen", "busy", "in time", "late", "failed", "silent"):
        assert words in page
    assert "made garbled for the test" in page
    assert "no reply in time" in page
    assert "a round needs 2 replies" in page
    void = spelled(np.flatnonzero(run.answers.is_void) + 1)
    assert f"rounds {void}" in page
    assert "Training and waiting by round" in page
    assert "Got of it" in page


def test_no_words_of_simulations_and_no_queues_of_other_methods(folder, tmp_path):
    text, body = page_of(folder, tmp_path)
    data = text[text.index('id="report-data"') :][:2_000_000]
    for part in (body, data[: data.index("</script>")]):
        assert "irtual" not in part
        assert "backlog" not in part.lower()
    assert "Lorenz" not in body
    assert "Minimum rate" not in body


def test_the_queues_of_a_method_that_promises_a_rate_are_shown(tmp_path):
    folder = large_folder(tmp_path / "runs", n=90, n_rounds=9, promised=0.1)
    _, body = page_of(folder, tmp_path)
    assert "Fairness queues" in body
    assert "irtual" not in body


def test_names_and_reasons_are_inert(copy, tmp_path):
    changed = (copy / "answers.jsonl").read_text().replace("made failed", "<img src=x onerror=1>&")
    (copy / "answers.jsonl").write_text(changed)
    _, body = page_of(copy, tmp_path)
    assert "<script" not in body
    assert "&lt;script&gt;document.title=" in body
    assert "<img" not in body
    assert "&lt;img src=x onerror=1&gt;&amp;" in body


def test_alerts_are_shown_newest_first(copy, tmp_path):
    alerts = [{"round": t, "at": "now", "kind": "behind", "text": f"late-{t}"} for t in range(30)]
    (copy / "alerts.jsonl").write_text("\n".join(map(json.dumps, alerts)) + "\n")
    _, body = page_of(copy, tmp_path)
    assert body.index("late-29") < body.index("late-11")
    assert "late-9<" not in body
    assert "The last 20 of 30." in body
    shown = CliRunner().invoke(app, ["show", str(copy)], env={"COLUMNS": "200"})
    assert "Alert after round 30, behind: late-29" in shown.output
    (row,) = json.loads(CliRunner().invoke(app, ["show", str(copy), "--json"]).output)
    assert len(row["live"][0]["alerts"]) == 30


def test_terminal_codes_in_a_name_do_not_reach_the_terminal(tmp_path):
    folder = live_folder(tmp_path / "runs", 3, names=["\x1b[2Jbad\u202e", "[bold]x[/]"])
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert shown.exit_code == 0, shown.output
    assert "\x1b" not in shown.output
    assert "\u202e" not in shown.output
    assert "[bold]x[/]" in shown.output


def test_a_large_run_shows_the_worst_and_the_best_and_sums_the_rest(tmp_path):
    run = run_of(large_folder(tmp_path / "runs", n=1100, n_rounds=450))
    view = LiveView(run, "x", "large")
    status, answers, *_ = view.charts
    assert status.panels[0].marks[0].values.shape == (MOST_WORST + MOST_BEST, 400)
    assert len(view.rows) == MOST_WORST + MOST_BEST + 1
    trouble = dict(zip(run.names, run.trouble.tolist(), strict=True))
    shown = [trouble[row.name] for row in view.rows[:-1]]
    assert shown[0] == max(trouble.values())
    assert shown[:MOST_WORST] == sorted(shown[:MOST_WORST], reverse=True)
    assert set(shown[MOST_WORST:]) == {min(trouble.values())}
    numbers = [[int(text.replace(",", "")) for text in row.cells[:5]] for row in view.rows]
    assert np.sum(numbers, axis=0)[1:].tolist() == run.counts.sum(axis=0).tolist()
    assert view.rows[-1].name == f"{1100 - MOST_WORST - MOST_BEST:,} others together"
    assert "The last 400 of 450 rounds" in status.caption
    bars = [mark for mark in answers.panels[0].marks if isinstance(mark, Bars)]
    assert {bar.y.size for bar in bars} == {150}
    np.testing.assert_allclose(sum(bar.y.sum() for bar in bars) * 3, run.counts.sum())
    assert "A bar is the mean of up to 3 rounds." in answers.caption
    _, body = page_of(tmp_path / "runs", tmp_path)
    assert len(body) < 600_000


def test_two_live_runs_are_on_one_page_however_many_clients_came(tmp_path):
    live_folder(tmp_path / "runs", 6, n=8, selector="random")
    live_folder(tmp_path / "runs", 6, n=12)
    _, body = page_of(tmp_path / "runs", tmp_path)
    assert "random, as it ran" in body
    assert "e3cs, as it ran" in body
    assert "Difference to" in body
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "runs"), "--json"])
    rows = json.loads(shown.output)
    assert {len(row["live"][0]["clients"]) for row in rows} <= {8, 12}
    assert [row["label"] for row in rows] == ["e3cs", "random"]


def test_a_run_with_a_world_keeps_the_report_of_simulations(copy, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    config["world"] = {"availability": {"kind": "always"}}
    (copy / "config.json").write_text(json.dumps(config))
    _, body = page_of(copy, tmp_path)
    assert "as it ran" not in body
    assert "Lorenz" in body


def test_a_run_that_still_writes_is_read_as_far_as_it_is(copy):
    (copy / "summary.json").unlink()
    lines = (copy / "answers.jsonl").read_text().splitlines()
    (copy / "answers.jsonl").write_text("\n".join(lines[:20]) + '\n{"round": 20, "cho')
    run = run_of(copy)
    assert run.n_rounds == 20
    assert run.seen([0, 1]).shape == (2, 20)
    (copy / "selections.npz").unlink()
    run = run_of(copy)
    assert run.shares is None
    assert Seen.AWAY not in run.seen([0, 1])
    assert LiveView(run, "x", "y").fairness == ""


@pytest.mark.parametrize("roster", [None, "torn {", '{"ids": 7}'])
def test_without_a_roster_the_names_in_the_answers_remain(copy, roster):
    if roster is None:
        (copy / "roster.json").unlink()
    else:
        (copy / "roster.json").write_text(roster)
    run = run_of(copy)
    assert sorted(run.names) == sorted([HOSTILE, *(f"client-{i:03d}" for i in range(1, 12))])
    assert run.counts.sum() == run.answers.clients.size


def test_lines_that_make_no_sense_are_left_out(tmp_path):
    answers = tmp_path / "answers.jsonl"
    answers.write_text(
        '{"round": 0, "wall_s": "x", "chosen": [{"id": {"a": 1}, "status": "late"}, 7,'
        ' {"id": "b", "status": "odd"}, {"id": [1, "c"], "status": "failed",'
        ' "reason": {"x": 1}}]}\n'
        '{"round": 1, "chosen": null, "busy": "all", "void": 1, "length_s": 1e400}\n[1]\n'
        '{"round": 3}\n'
    )
    read = read_answers(tmp_path)
    assert read.n_rounds == 2
    assert len(read.names) == 2
    assert read.status.tolist() == [Status.LATE, Status.FAILED]
    assert np.isnan(read.wall_s).all()
    assert read.is_void.tolist() == [False, False]


def test_a_pipe_in_place_of_the_answers_blocks_nobody(copy):
    (copy / "answers.jsonl").unlink()
    os.mkfifo(copy / "answers.jsonl")
    (cell,), _ = read_cells([copy])
    assert not cell.is_live


def test_the_open_round_is_written_and_goes_when_it_is_closed(tmp_path, ticking):
    live = LiveFolder(tmp_path / "runs", n_rounds=5).play(2)
    assert read_open(live.path) is None
    chosen = live.choose()
    now = read_open(live.path)
    assert (now.round, now.names, now.replies) == (2, chosen.ids, {})
    assert now.deadline_s == 10.0
    live.train(chosen)
    replies = read_open(live.path).replies
    assert replies
    assert set(replies) <= set(chosen.ids)
    assert set(replies.values()) & {"answered", "made failed for the test"}
    live.records.open(live.session.journal, resumed=True)
    assert read_open(live.path) is None


def test_show_prints_clients_by_name(folder, run, monkeypatch):
    monkeypatch.setattr(console, "_width", 200)  # COLUMNS may have been read before
    shown = CliRunner().invoke(app, ["show", str(folder)])
    assert shown.exit_code == 0, shown.output
    for words in ("client-011", "made garbled for the test", "Void", "Wait per round"):
        assert words in shown.output
    assert "irtual" not in shown.output
    assert "Jain of counts" not in shown.output
    (row,) = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).output)
    (live,) = row["live"]
    assert [one["client"] for one in live["clients"]] == list(run.names)
    assert sum(one["times"] for one in live["complaints"]) == int(run.trouble.sum())
    assert live["void_rounds"] == (np.flatnonzero(run.answers.is_void) + 1).tolist()


def test_the_drawings_of_a_live_run_can_be_drawn_by_all_renderers(run):
    charts = list(LiveView(run, "x", "y").charts)
    assert [chart.key for chart in charts] == ["status", "answers", "waits", "shares"]
    for chart in charts:
        (panel,) = chart.panels
        drawn = [mark for mark in panel.marks if isinstance(mark, Bars | Heatmap)]
        assert len(by_plotly(chart)["traces"]) == len(drawn)
        assert by_matplotlib(chart).axes[0].has_data()


def test_the_map_names_clients_and_kinds(run):
    chart = LiveView(run, "x", "y").charts[0]
    (trace,) = by_plotly(chart)["traces"]
    order = run.worst_first()[::-1]
    assert trace["z"] == run.seen(order).tolist()
    assert [name for name, _ in trace["meta"]["kinds"]] == [kind.words for kind in Seen]
    assert trace["meta"]["rows"] == [html.escape(run.names[i]) for i in order]
    names = by_matplotlib(chart).legends[0].get_texts()
    assert [text.get_text() for text in names] == [kind.words for kind in Seen]


def test_bars_on_top_of_others_tell_their_own_height(run):
    chart = LiveView(run, "x", "y").charts[1]
    for trace in by_plotly(chart)["traces"]:
        assert trace["customdata"] == trace["y"]
        assert "customdata" in trace["hovertemplate"]


def test_numbers_are_spelled_as_runs():
    assert spelled(np.array([3, 17, 18, 19, 41])) == "3, 17-19, 41"
    assert spelled(np.arange(0, 100, 2)).startswith("…, 76, 78")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.04, "0.0 s"),
        (12.4, "12 s"),
        (250.0, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (math.nan, "\N{EN DASH}"),
    ],
)
def test_seconds_as_people_read_them(value, text):
    assert seconds(value) == text
