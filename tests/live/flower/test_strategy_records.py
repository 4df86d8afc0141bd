"""The run folder of a Flower run, as ``turnout report`` reads it."""

import json
from datetime import datetime

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg

from tests.live.flower.fake import Fate, by_name, cohorts, federation, model, training_app
from tests.live.test_receipts import key as key
from turnout.core.errors import InvalidInput
from turnout.core.types import Status
from turnout.live.flower import SelectingStrategy
from turnout.live.receipts import Receipts, check_receipt
from turnout.results.reader import read_cell, read_cells
from turnout.worlds import FixedDeadline, e3cs_world

COUNTS = ("completed", "late", "failed", "silent")


def selecting(folder, inner=None, selector="e3cs", **given):
    given = {"cohort_size": 3, "policy": FixedDeadline(10.0), "seed": 2} | given
    return SelectingStrategy(inner or FedAvg(), selector, records=folder, **given)


def lines_of(folder, label="e3cs", seed=2):
    path = folder / label / f"seed-{seed}" / "rounds.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_flower_run_is_a_complete_cell(ticking, tmp_path):
    grid = federation(5)
    by_name(grid)["client-001"].plan = {0: Fate(code=2), 1: Fate(delay=50.0)}
    strategy = selecting(tmp_path / "runs")
    strategy.start(grid, model(), num_rounds=6)
    cells, problems = read_cells([tmp_path / "runs"])
    assert problems == []
    (cell,) = cells
    assert cell.is_complete
    assert (cell.settings.kind, cell.settings.label, cell.settings.seed) == ("flower", "e3cs", 2)
    assert (cell.settings.n_clients, cell.settings.n_rounds) == (5, 6)
    assert cell.settings.policy == {"kind": "fixed-deadline", "seconds": 10.0, "force_stop": True}
    assert cell.choices.clients.tolist() == strategy.run.clients.tolist()
    back = read_cell(cell.path).run
    assert back.status.tolist() == strategy.run.status.tolist()
    np.testing.assert_array_equal(back.duration, strategy.run.duration)
    assert "flwr" in json.loads((cell.path / "versions.json").read_text())
    for t, line in enumerate(lines_of(tmp_path / "runs")):
        assert line["round"] == t
        assert line["chosen"] == len(cohorts(strategy)[t]) == sum(line[name] for name in COUNTS)
        assert line["length_s"] == pytest.approx(strategy.run.length_s[t])


def test_the_report_draws_it(ticking, tmp_path):
    from typer.testing import CliRunner

    from turnout.cli.app import app

    for selector in ("e3cs", "random"):
        strategy = selecting(tmp_path / "runs", selector=selector)
        strategy.start(federation(5), model(), num_rounds=4)
    target = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(target)])
    assert done.exit_code == 0, done.output
    assert "flower run" in target.read_text()


def test_accuracy_and_loss_stand_where_the_report_looks(ticking, tmp_path):
    # Client evaluation reports eval_acc and eval_loss, as Flower's quickstart does.
    result = selecting(tmp_path / "a").start(federation(5), model(), num_rounds=2)
    for t, line in enumerate(lines_of(tmp_path / "a")):
        evaluated = result.evaluate_metrics_clientapp[t + 1]
        assert line["accuracy"] == pytest.approx(evaluated["eval_acc"])
        assert line["loss"] == pytest.approx(evaluated["eval_loss"])
        trained = result.train_metrics_clientapp[t + 1]
        assert line["train_loss_rms"] == pytest.approx(trained["loss_rms"])

    def evaluate(server_round, arrays):
        return MetricRecord({"accuracy": 0.1 * server_round, "loss": float("nan"), "all": [1, 2]})

    selecting(tmp_path / "b").start(federation(5), model(), num_rounds=2, evaluate_fn=evaluate)
    lines = lines_of(tmp_path / "b")
    assert [line["accuracy"] for line in lines] == pytest.approx([0.1, 0.2])
    assert [line["loss"] for line in lines] == [None, None]
    summary = json.loads((tmp_path / "b" / "e3cs" / "seed-2" / "summary.json").read_text())
    assert summary["accuracy"] == pytest.approx(0.2)
    assert "loss" not in summary


def test_metrics_cannot_overwrite_what_the_record_says(ticking, tmp_path):
    def evaluate(server_round, arrays):
        return MetricRecord({"chosen": 99.0, "round": 7})

    selecting(tmp_path).start(federation(5), model(), num_rounds=1, evaluate_fn=evaluate)
    (line,) = lines_of(tmp_path)
    assert (line["chosen"], line["round"]) == (3, 0)


def test_rounds_are_written_as_they_end(ticking, tmp_path):
    seen = []

    def evaluate(server_round, arrays):
        if server_round:
            seen.append([line["round"] for line in lines_of(tmp_path)])

    selecting(tmp_path).start(federation(5), model(), num_rounds=3, evaluate_fn=evaluate)
    assert seen == [[0], [0, 1], [0, 1, 2]]
    cells, problems = read_cells([tmp_path])
    assert len(cells) == 1
    assert problems == []


def test_a_run_that_is_not_over_can_be_read(ticking, tmp_path):
    grid = federation(5)

    def stop(server_round, arrays):
        if server_round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        selecting(tmp_path).start(grid, model(), num_rounds=5, evaluate_fn=stop)
    (cell,), problems = read_cells([tmp_path])
    assert [problem.kind for problem in problems] == ["incomplete"]
    assert not cell.is_complete
    assert cell.settings.n_rounds == 5


def test_clients_that_join_later_are_counted(ticking, tmp_path):
    grid = federation(4)
    late = by_name(grid)["client-003"]
    late.is_online = False

    def arrive(server_round, arrays):
        late.is_online = True

    selecting(tmp_path, start_s=0.0).start(grid, model(), num_rounds=3, evaluate_fn=arrive)
    (cell,), _ = read_cells([tmp_path])
    assert cell.settings.n_clients == 4


def test_labels_and_selectors_without_a_name(ticking, tmp_path):
    selecting(tmp_path, label="E3CS (0.5)").start(federation(4), model(), num_rounds=1)
    assert (tmp_path / "e3cs-0.5" / "seed-2" / "summary.json").exists()


def test_a_virtual_world_is_described_with_its_classes(ticking, tmp_path):
    grid = federation(8)
    for i, node in enumerate(sorted(grid.nodes.values(), key=lambda one: one.name)):
        node.app = training_app(i, stable_id=i)
    world = e3cs_world(n_clients=8, seed=4)
    strategy = selecting(tmp_path, world=world, policy=None)
    strategy.start(grid, model(), num_rounds=3)
    (cell,), problems = read_cells([tmp_path])
    assert problems == []
    assert cell.settings.world
    assert cell.class_of.tolist() == world.classes.tolist()
    assert cell.settings.classes["names"]


def answers_of(folder, label="e3cs", seed=2):
    path = folder / label / f"seed-{seed}" / "answers.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_clients_stand_in_the_records_by_name_with_time_status_and_reason(ticking, tmp_path):
    grid = federation(3)
    by_name(grid)["client-001"].plan = {0: Fate(code=2)}
    by_name(grid)["client-002"].plan = {0: Fate(is_lost=True)}
    strategy = selecting(tmp_path / "runs", FedAvg(fraction_evaluate=0.0))
    strategy.start(grid, model(), num_rounds=1)
    (line,) = answers_of(tmp_path / "runs")
    assert [one["status"] for one in line["chosen"]] == ["completed", "failed", "late"]
    assert [one["id"] for one in line["chosen"]] == ["client-000", "client-001", "client-002"]
    assert line["chosen"][1]["reason"] == "error 2, made for the test"
    assert line["chosen"][0]["seconds"] == pytest.approx(0.5)
    assert line["chosen"][2]["seconds"] == pytest.approx(10.0)  # it was stopped at the deadline
    assert line["length_s"] == 10.0
    assert line["wall_s"] >= 10.5  # the questions who they are took half a second
    assert line["began"] < line["closed"]
    assert line["began"].endswith("+00:00")
    roster = json.loads((tmp_path / "runs" / "e3cs" / "seed-2" / "roster.json").read_text())
    assert roster["ids"] == ["client-000", "client-001", "client-002"]


def test_answers_of_a_resumed_run_go_on_where_they_were(ticking, tmp_path):
    given = {"checkpoint": tmp_path / "run.npz"}
    selecting(tmp_path / "runs", **given).start(federation(5), model(), num_rounds=2)
    path = tmp_path / "runs" / "e3cs" / "seed-2" / "answers.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"round": 2, "torn')  # a crash in the round after the checkpoint
    selecting(tmp_path / "runs", **given).start(federation(5), model(), num_rounds=4)
    assert path.read_text().startswith(whole)
    assert [line["round"] for line in answers_of(tmp_path / "runs")] == [0, 1, 2, 3]


def test_who_is_late_is_busy_in_the_next_round_and_the_open_round_is_written(ticking, tmp_path):
    grid = federation(4)
    by_name(grid)["client-002"].plan = {0: Fate(delay=15.0)}
    folder, seen = tmp_path / "runs" / "e3cs" / "seed-2", []
    send = grid.push_messages

    def watched(messages):
        if (folder / "open.jsonl").exists():
            seen.append(json.loads((folder / "open.jsonl").read_text().splitlines()[0])["chosen"])
        return send(messages)

    grid.push_messages = watched
    inner = FedAvg(fraction_evaluate=0.0)
    selecting(tmp_path / "runs", inner, cohort_size=4).start(grid, model(), num_rounds=2)
    first, second = answers_of(tmp_path / "runs")
    assert first["busy"] == []
    assert second["busy"] == ["client-002"]
    assert "client-002" not in [one["id"] for one in second["chosen"]]
    assert seen == [[one["id"] for one in line["chosen"]] for line in (first, second)]
    assert not (folder / "open.jsonl").exists()
    config = json.loads((folder / "config.json").read_text())
    assert config["quorum"]["min_answers"] == 1


def test_with_a_key_every_counted_answer_has_a_receipt(ticking, tmp_path, key):
    grid = federation(5)
    by_name(grid)["client-001"].plan = {0: Fate(code=2), 1: Fate(delay=50.0)}
    strategy = selecting(tmp_path / "runs", receipt_key=key, checkpoint=tmp_path / "run.npz")
    strategy.start(grid, model(), num_rounds=3)
    again = selecting(tmp_path / "runs", receipt_key=key, checkpoint=tmp_path / "run.npz")
    again.start(grid, model(), num_rounds=6)  # resumed
    folder = tmp_path / "runs" / "e3cs" / "seed-2"
    receipts = [json.loads(line) for line in (folder / "receipts.jsonl").read_text().splitlines()]
    told = [check_receipt(one, Receipts(key).public_key) for one in receipts]
    run, ids = again.run, again.roster.ids
    rounds = np.repeat(np.arange(run.n_rounds), np.diff(run.offsets))
    expected = [
        (t, ids[i], Status(int(status)).name.lower())
        for t, i, status in zip(rounds.tolist(), run.clients, run.status, strict=True)
    ]
    assert [(one["round"], one["client"], one["status"]) for one in told] == expected
    assert [one["counted"] for one in told] == [status == "completed" for *_, status in expected]
    assert {one["run"] for one in told} == {"e3cs"}
    # Also where the run has resumed, they say when it began, which no other run did.
    answers = (folder / "answers.jsonl").read_text().splitlines()
    began = datetime.fromisoformat(json.loads(answers[0])["began"]).timestamp()
    assert {one["run_began_at"] for one in told} == {began}
    other = selecting(tmp_path / "others", receipt_key=key)
    other.start(federation(5), model(), num_rounds=1)
    lines = (tmp_path / "others" / "e3cs" / "seed-2" / "receipts.jsonl").read_text().splitlines()
    others = [check_receipt(json.loads(one), Receipts(key).public_key) for one in lines]
    assert {(one["run"], one["run_began_at"] > began) for one in others} == {("e3cs", True)}


def test_receipts_need_records(key):
    with pytest.raises(InvalidInput, match="a folder for records") as error:
        selecting(None, receipt_key=key)
    assert error.value.field == "receipt_key"


def test_shadows_of_a_flower_run_are_recorded_and_judged(ticking, tmp_path):
    """From the strategy's argument to the table of ``turnout show`` and to a replay."""
    from typer.testing import CliRunner

    from turnout.cli import app
    from turnout.twin import replay

    grid = federation(8)
    strategy = selecting(tmp_path / "runs", selector="random", shadow=["pace", "e3cs"])
    strategy.start(grid, model(), num_rounds=30)
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "runs")])
    assert shown.exit_code == 0, shown.output
    assert "Shadows, which were not followed" in shown.output
    found = replay(tmp_path / "runs", ["pace", "e3cs"])
    assert [each.origin for each in found.candidates] == ["recorded in shadow"] * 2
    told = CliRunner().invoke(app, ["recommend", "--from", str(tmp_path / "runs"), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["in_charge"] == "random"
