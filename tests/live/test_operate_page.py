"""docs/howto/operate.md: its code and its commands run as they are printed."""

import sys
from pathlib import Path
from types import SimpleNamespace

from opentelemetry import trace
from typer.testing import CliRunner

from tests.docs.test_docs import blocks, commands
from tests.live.test_session import answered, session_of
from turnout.cli.app import app
from turnout.live import Follower, Identity, Kind, Prometheus, Reply
from turnout.live.alerts import KINDS
from turnout.live.checkpoint import write_checkpoint

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "operate.md").read_text()


def test_the_code_runs_as_printed(monkeypatch, tmp_path, capsys):
    stub = SimpleNamespace(SummaryWriter=None)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", stub)
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: provider.shutdown())
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in blocks(PAGE, "python"):
        exec(compile(example, "operate.md", "exec"), names)
    assert names["strategy"].settings.label == "hospitals"
    assert issubclass(names["Page"], Follower)
    ended = SimpleNamespace(alerts=[SimpleNamespace(text="a is behind")])
    names["Page"]().ended("mine", ended, None)
    assert capsys.readouterr().out == "mine: a is behind\n"


def test_the_commands_run_as_printed(ticking, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    session = session_of("random")
    for i, name in enumerate(["phone-7", "ward-7-new", "ward-8", "ward-9"]):
        session.identify(i, Reply(content=Identity(name)))
    session.sync(range(4))
    answered(session, session.open(), *[Kind.ANSWERED] * 4)
    session.close()
    Path("state").mkdir()
    write_checkpoint("state/run.npz", session.state({}), "turnout-flower")
    printed = commands(PAGE)
    assert len(printed) == 4
    for words in printed:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
    assert '"merged_into": "ward-7"' in result.output


def test_the_page_names_every_metric_alert_and_number(ticking):
    metrics = Prometheus()
    for family in metrics.registry.collect():
        assert f"`{family.name}" in PAGE, family.name
    for kind in KINDS:
        assert f"`{kind}`" in PAGE
