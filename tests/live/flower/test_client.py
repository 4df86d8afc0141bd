"""The client's helpers: who I am, what I report."""

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from turnout import InvalidInput
from turnout.data.features import SimHash
from turnout.live.flower.client import LossReport, describe


@pytest.fixture(autouse=True)
def _identity(identity):
    pass


def ask(app, action, content=None, **config):
    message = Message(content or RecordDict(), 5, f"query.{action}")
    context = Context(1, 5, config, RecordDict(), {})
    return app(message, context).content


def test_plain_values_travel_with_the_identity():
    app = ClientApp()
    code = SimHash(bits=8).of_text("the cat sat on the mat")
    describe(
        app,
        stable_id="phone-a",
        num_examples=np.int64(40),
        features=code,
        context=(0.5, 1, np.float32(2.0)),
        columns={"expected_duration": 7},
    )
    answer = ask(app, "turnout_describe")
    assert dict(answer["identity"]) == {"stable-id": "phone-a", "every-round": []}
    assert answer["columns"] == {
        "num_samples": 40.0,
        "features": code.astype(float).tolist(),
        "context": [0.5, 1.0, 2.0],
        "expected_duration": 7.0,
    }


def test_functions_get_what_handlers_get():
    app, seen = ClientApp(), []

    def number(message, context):
        seen.append(message.metadata.message_type)
        return np.int32(context.node_config["partition-id"])

    describe(app, stable_id=number, num_examples=number, context=lambda m, c: [number(m, c), 1.0])
    answer = ask(app, "turnout_describe", **{"partition-id": 3})
    assert dict(answer["identity"]) == {"stable-id": 3, "every-round": ["context"]}
    assert answer["columns"] == {"num_samples": 3.0}
    assert seen == ["query.turnout_describe"] * 2
    later = ask(app, "turnout_columns", **{"partition-id": 4})
    assert later["columns"] == {"context": [4.0, 1.0]}


def test_the_loss_of_the_current_model_can_be_asked_for():
    import torch

    app = ClientApp()

    def loss(message, context):
        (weights,) = message.content["arrays"].to_numpy_ndarrays()
        scale = {"all": 1.0, "mini-batch": 10.0}[message.content["config"]["poll-data"]]
        return torch.tensor(scale * weights.sum())

    describe(app, stable_id=1, loss=loss)
    for data, expected in (("all", 6.0), ("mini-batch", 60.0)):
        content = RecordDict(
            {"arrays": ArrayRecord([np.arange(4.0)]), "config": ConfigRecord({"poll-data": data})}
        )
        assert ask(app, "turnout_loss", content)["columns"] == {"loss": expected}


def test_without_a_loss_function_there_is_no_handler():
    app = ClientApp()
    describe(app, stable_id=1)
    with pytest.raises(ValueError, match="No query function registered with name 'turnout_loss'"):
        ask(app, "turnout_loss")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stable_id": None}, "stable_id must be"),
        ({"stable_id": 1, "loss": 0.5}, "loss must be a function"),
        ({"stable_id": 1, "num_examples": "many"}, "num_examples must be numbers"),
        ({"stable_id": 1, "features": [[1.0], [2.0]]}, "features must be a number or a list"),
        ({"stable_id": 1, "context": [1.0, "x"]}, "context must be numbers"),
    ],
)
def test_mistakes_are_told_when_the_app_is_made(given, message):
    with pytest.raises(InvalidInput, match=message):
        describe(ClientApp(), **given)


@pytest.mark.parametrize("value", [None, "", 1.5, True, b"x"])
def test_a_stable_id_must_be_a_text_or_an_integer(value):
    app = ClientApp()
    describe(app, stable_id=lambda message, context: value)
    with pytest.raises(InvalidInput, match="stable_id must be a text or an integer"):
        ask(app, "turnout_describe")


def test_mean_spread_and_root_mean_square_of_mini_batches():
    rng = np.random.default_rng(1)
    batches = [rng.gamma(2.0, size=size) for size in (32, 32, 7)]
    exact, rough = LossReport(), LossReport()
    for batch in batches:
        exact.add(batch)
        rough.add(batch.mean(), n=batch.size)
    means = np.array([batch.mean() for batch in batches])
    everyone = np.concatenate(batches)
    found = exact.metrics()
    assert found["loss"] == pytest.approx(means.mean(), rel=1e-12)
    assert found["loss_std"] == pytest.approx(means.std(), rel=1e-12)
    assert found["loss_rms"] == pytest.approx(np.sqrt(np.square(everyone).mean()), rel=1e-12)
    sizes = [batch.size for batch in batches]
    expected = np.sqrt(np.average(np.square(means), weights=sizes))
    assert rough.metrics()["loss_rms"] == pytest.approx(expected, rel=1e-12)
    assert rough.metrics()["loss"] == pytest.approx(means.mean(), rel=1e-12)


def test_a_torch_training_loop_reports_what_a_record_takes():
    import torch

    torch.manual_seed(0)
    x, y = torch.randn(24, 3), torch.randint(0, 2, (24,))
    net = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    report, seen = LossReport(), []
    for start in range(0, 24, 8):
        rows = slice(start, start + 8)
        losses = torch.nn.functional.cross_entropy(net(x[rows]), y[rows], reduction="none")
        report.add(losses)
        seen.append(losses.detach().numpy().astype(np.float64))
        optimizer.zero_grad()
        losses.mean().backward()
        optimizer.step()
    record = MetricRecord({"num-examples": 24, **report.metrics()})  # refuses numpy's types
    assert record["loss"] == pytest.approx(np.mean([one.mean() for one in seen]))
    assert record["loss_rms"] == pytest.approx(np.sqrt(np.square(np.concatenate(seen)).mean()))
    assert record["duration"] > 0.0


def test_a_report_of_nothing_has_the_same_keys():
    empty, full = LossReport(), LossReport()
    full.add(1.0)
    empty.add([])
    assert empty.metrics().keys() == full.metrics().keys()
    assert np.isnan([empty.metrics()[key] for key in ("loss", "loss_std", "loss_rms")]).all()


def test_a_loss_that_is_not_finite_is_reported_as_it_is():
    report = LossReport()
    report.add(float("nan"))
    report.add(1.0)
    assert np.isnan(report.metrics()["loss"])


def test_a_batch_has_at_least_one_example():
    with pytest.raises(InvalidInput, match="n must be an integer >= 1"):
        LossReport().add(1.0, n=0)


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("module", ["", ".client", ".strategy"])
def test_without_flower_the_extra_is_named(module):
    code = f"""
import sys
sys.modules["flwr"] = None
from turnout.errors import MissingExtra
try:
    import turnout.live.flower{module}
except MissingExtra as error:
    print(error)
"""
    done = run(code)
    assert "pip install 'turnout[flower]'" in done.stdout, done.stderr


def test_the_clients_side_does_not_load_the_servers():
    code = """
import sys
import turnout.live.flower.client
print([name for name in sys.modules if name.startswith("turnout.live.flower.")])
"""
    done = run(code)
    assert "turnout.live.flower.strategy" not in done.stdout
    assert "turnout.live.flower.client" in done.stdout, done.stderr


def test_names_of_the_package():
    import turnout.live.flower as package

    for name in package.__all__:
        assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018
