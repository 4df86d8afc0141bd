"""Live rounds as OpenTelemetry traces."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.live.history import FakePort
from tests.live.test_session import answered, calm, play_round, present, session_of
from turnout.live import Kind, Live
from turnout.live.driver import HostRun


@pytest.fixture
def spans(monkeypatch):
    """What was exported, with a provider that only this test sees."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter.get_finished_spans


def inside(spans, parent):
    return [s for s in spans if s.parent and s.parent.span_id == parent.context.span_id]


def parts_of(spans, parent):
    return [span.name for span in inside(spans, parent)]


def test_a_round_is_a_span_and_its_parts_are_children(ticking, spans, tmp_path):
    session = session_of("pow-d", label="mine", checkpoint=tmp_path / "run.npz")
    host = HostRun(session, FakePort(calm()), "test", 3, {})
    host.resume({})
    for _ in range(2):
        host.train(["work"] * len(host.choose(4, "model")))
        host.end_round()
    host.finish()
    rounds = [span for span in spans() if span.name == "turnout.round"]
    assert [dict(span.attributes) for span in rounds] == [
        {
            "turnout.run": "mine",
            "turnout.round": t,
            "turnout.chosen": 4,
            "turnout.completed": 4,
            "turnout.void": False,
        }
        for t in range(2)
    ]
    parts = ["wait", "ask", "choose", "train", "learn", "save"]
    for span in rounds:
        assert parts_of(spans(), span) == [f"turnout.{name}" for name in parts]
        ends = [one.end_time for one in inside(spans(), span)]
        assert all(span.start_time <= one.start_time for one in inside(spans(), span))
        assert span.end_time >= max(ends)


def test_a_session_that_is_driven_by_hand_has_spans_too(ticking, spans):
    session = session_of("random")
    present(session)
    for _ in range(2):
        answered(session, session.open(), *[Kind.ANSWERED] * 4)
        session.close()
    assert len([span for span in spans() if span.name == "turnout.round"]) == 1
    session.end()
    session.end()
    rounds = [span for span in spans() if span.name == "turnout.round"]
    assert [parts_of(spans(), span) for span in rounds] == [["turnout.choose", "turnout.learn"]] * 2


def test_a_part_that_fails_is_marked_in_the_trace(ticking, spans, monkeypatch):
    live = Live(session_of("random"), FakePort(calm()))
    monkeypatch.setattr(live.port, "send", None)
    with pytest.raises(TypeError):
        play_round(live)
    live.session.end()
    marks = {span.name: span.status.is_ok for span in spans()}
    assert marks["turnout.train"] is False
    assert marks["turnout.wait"] is True


def test_without_the_library_nothing_happens(ticking, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    live = Live(session_of("random"), FakePort(calm()))
    assert len(play_round(live)[2].answers) == 4
    live.session.end()
