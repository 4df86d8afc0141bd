"""Who follows a Flower run: metrics, trackers and traces; alerts are kept in its folder."""

import json
import socket

import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import FedAvg
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.live.flower.fake import Fate, by_name, federation, model
from tests.live.test_followers import Notes, sample
from turnout import InvalidInput
from turnout.live import AlertRules, Prometheus
from turnout.live.flower import SelectingStrategy
from turnout.worlds import FixedDeadline


def selecting(**given):
    given = {"cohort_size": 4, "policy": FixedDeadline(10.0), "label": "session"} | given
    return SelectingStrategy(FedAvg(), "random", **given)


def evaluate(server_round, arrays):
    return MetricRecord({"accuracy": server_round / 10})


def test_flower_runs_are_followed(ticking):
    metrics, notes = Prometheus(port=0), Notes()
    strategy = selecting(followers=[metrics, notes])
    strategy.start(federation(6), model(), num_rounds=3, evaluate_fn=evaluate)
    assert sample(metrics, "rounds_total") == 3
    assert sample(metrics, "chosen_total", status="completed") == 12
    assert sample(metrics, "model", metric="accuracy") == pytest.approx(0.3)
    assert notes.told[0][1]["selector"] == "random"
    assert notes.told[-1] == ("end",)
    accuracy = {t: v["accuracy"] for t, v in notes.told[1:-1] if "accuracy" in v}
    assert accuracy == {0: 0.1, 1: 0.2, 2: pytest.approx(0.3)}


def test_a_port_that_is_taken_stops_the_run_before_it_writes_anything(ticking, tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        strategy = selecting(
            followers=[Prometheus(other.getsockname()[1])],
            records=tmp_path / "records",
            checkpoint=tmp_path / "run.npz",
        )
        with pytest.raises(InvalidInput, match="cannot be opened for metrics"):
            strategy.start(federation(6), model(), num_rounds=3)
    assert not list(tmp_path.iterdir())


def test_followers_end_when_the_run_fails(ticking):
    def evaluate(server_round, arrays):
        raise RuntimeError("no test data")

    metrics, notes = Prometheus(port=0), Notes()
    with pytest.raises(RuntimeError, match="no test data"):
        selecting(followers=[metrics, notes]).start(
            federation(6), model(), num_rounds=3, evaluate_fn=evaluate
        )
    assert notes.told[-1] == ("end",)


def test_alerts_of_a_flower_run_are_kept_in_its_folder(ticking, tmp_path):
    grid = federation(4)
    by_name(grid)["client-002"].plan = {i: Fate(code=5) for i in range(9)}
    strategy = selecting(records=tmp_path, alerts=AlertRules(failures=2))
    strategy.start(grid, model(), num_rounds=4)
    (path,) = tmp_path.rglob("alerts.jsonl")
    (line,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (line["kind"], line["client"], line["round"]) == ("failing", "client-002", 1)


def test_flower_rounds_are_traced(ticking, monkeypatch, tmp_path):
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    selecting(checkpoint=tmp_path / "run.npz").start(federation(6), model(), num_rounds=2)
    spans = exporter.get_finished_spans()
    rounds = [span.context.span_id for span in spans if span.name == "turnout.round"]
    assert len(rounds) == 2
    parts = ["wait", "ask", "choose", "train", "learn", "aggregate", "save"]
    for parent in rounds:
        names = [span.name for span in spans if span.parent and span.parent.span_id == parent]
        assert names == [f"turnout.{name}" for name in parts]
