"""The how-to pages: their code runs as printed."""

import dataclasses
import inspect
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg

from tests.live.flower.fake import FakeGrid, Node, federation, model
from turnout.live import LiveSettings
from turnout.live.flower import SelectingStrategy

DOCS = Path(__file__).parents[3] / "docs"


def blocks(name):
    text = (DOCS / "howto" / f"flower-{name}.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("name", ["selection", "deadlines", "resume"])
def test_strategies_of_the_pages_run(ticking, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    names = {"SelectingStrategy": SelectingStrategy, "FedAvg": FedAvg, "FedAdam": FedAdam}
    names |= {"grid": federation(24), "arrays": model()}
    assert blocks(name)
    for block in blocks(name):
        exec(compile(block.replace("num_rounds=200", "num_rounds=2"), name, "exec"), names)
        strategy = names["strategy"]
        if strategy._world is None and not strategy.rounds_done:
            strategy.start(federation(24), model(), num_rounds=2)
            assert strategy.rounds_done == 2


def test_every_parameter_stands_on_the_page():
    page = (DOCS / "howto" / "flower-selection.md").read_text(encoding="utf-8")
    arguments = set(inspect.signature(SelectingStrategy.__init__).parameters) - {"self", "options"}
    for name in arguments | {field.name for field in dataclasses.fields(LiveSettings)}:
        assert f"`{name}`" in page


@pytest.fixture
def client(identity):
    (block,) = blocks("client")
    names = {}
    exec(compile(block, "flower-client.md", "exec"), names)
    return names["app"]


def test_the_client_of_the_page_trains_and_reports(client):
    net = torch.nn.Linear(5, 2)
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "config": ConfigRecord({})})
    message = Message(content, 5, MessageType.TRAIN)
    context = Context(1, 5, {"partition-id": 3}, RecordDict(), {})
    reply = client(message, context).content
    metrics = reply["metrics"]
    assert set(metrics) == {"num-examples", "loss", "loss_std", "loss_rms", "duration"}
    assert 0.0 < metrics["loss"] <= metrics["loss_rms"]
    assert list(reply["arrays"]) == ["weight", "bias"]


@pytest.mark.parametrize("selector", ["ucb-cs", "oort", "pow-d", "cpow-d", "rbcs-f", "nccb"])
def test_the_client_of_the_page_serves_every_selector(ticking, client, selector):
    import turnout

    parameters = {"rbcs-f": {"rate": 0.2}, "nccb": {"clusters": 2, "width": 4}}.get(selector, {})
    nodes = [Node(f"n{i}", 100 + i, client, config={"partition-id": i}) for i in range(6)]
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0), turnout.make(selector, **parameters), cohort_size=2
    )
    net = torch.nn.Linear(5, 2)
    result = strategy.start(FakeGrid(nodes), ArrayRecord(net.state_dict()), num_rounds=3)
    assert strategy.run.completed.all()
    assert strategy.run.clients.size == 6
    assert np.isfinite(result.arrays["weight"].numpy()).all()


def test_the_statuses_of_the_page_are_those_of_the_code():
    from turnout.live.flower.transport import NO_ANSWER

    page = (DOCS / "howto" / "flower-deadlines.md").read_text(encoding="utf-8")
    assert sorted(NO_ANSWER) == [3, 4, 5]
    assert "| silent | error 3, 4, 5:" in page
    assert "| failed | error 0, 1, 2, 6, 7, 8:" in page
