"""What Flower's example apps do: mods, late attributes, loops of their own, other models."""

import json

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as shipped
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
    FedXgbBagging,
)
from typer.testing import CliRunner

import turnout
from tests.live.flower.fake import (
    FakeGrid,
    Fate,
    Node,
    by_name,
    cohorts,
    federation,
    model,
    training_app,
    value_of,
)
from turnout import MissingColumn
from turnout.cli.app import app
from turnout.live import Quorum, TooFewAnswers
from turnout.live.flower import SelectingStrategy
from turnout.live.flower.client import describe
from turnout.report.watch import State, Watcher
from turnout.results.files import FolderError
from turnout.worlds import FixedDeadline

N = 4


def selecting(inner=None, selector="random", **given):
    given = {"cohort_size": N, "policy": FixedDeadline(10.0), "start_s": 0.0} | given
    inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
    return SelectingStrategy(inner, selector, **given)


def reads_the_round(message, context, call_next):
    """A mod of somebody who has only training in mind."""
    assert message.content["config"]["server-round"] > 0
    return call_next(message, context)


def modded(number, mods, add=1.0):
    """A client with app-level mods, which answers everything that a selector can ask."""
    app = ClientApp(mods=mods)
    describe(
        app,
        stable_id=f"client-{number:03d}",
        num_examples=number + 1,
        context=lambda message, context: [1.0, 2.0],
        loss=lambda message, context: 0.5,
    )

    @app.train()
    def train(message, context):
        arrays = [array + add for array in message.content["arrays"].to_numpy_ndarrays()]
        metrics = MetricRecord({"num-examples": 1, "loss": 0.5})
        content = {"arrays": ArrayRecord(arrays), "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


MODS = {
    "fixed": (fixedclipping_mod, DifferentialPrivacyClientSideFixedClipping),
    "adaptive": (adaptiveclipping_mod, DifferentialPrivacyClientSideAdaptiveClipping),
    "local": (LocalDpMod(1.0, 0.1, 1.0, 0.1), None),
    "size": (message_size_mod, None),
    "arrays": (arrays_size_mod, None),
    "own": (reads_the_round, None),
}


def test_every_mod_that_flower_ships_is_tried():
    tried = {getattr(mod, "__name__", type(mod).__name__) for mod, _ in MODS.values()}
    assert tried - {"reads_the_round"} == set(shipped.__all__)


def wrapped_by(name):
    inner, private = FedAvg(fraction_evaluate=0.0), MODS[name][1]
    if name == "fixed":
        return private(inner, 0.0, 1.0, N)
    return inner if private is None else private(inner, 0.0, N)


@pytest.mark.parametrize("name", MODS)
def test_mods_do_not_break_our_questions_and_still_see_the_training(ticking, name):
    seen = []

    def watching(message, context, call_next):
        seen.append(message.metadata.message_type)
        return MODS[name][0](message, context, call_next)

    nodes = [Node(f"client-{i:03d}", 50 + i, modded(i, [watching])) for i in range(N)]
    grid = FakeGrid(nodes)
    selector = turnout.make("pow-d", candidates=N)
    strategy = selecting(wrapped_by(name), selector)
    result = strategy.start(grid, model(), num_rounds=2)
    assert strategy.roster.ids == tuple(f"client-{i:03d}" for i in range(N))
    assert (strategy.run.status == 0).all()
    assert seen == ["train"] * (2 * N)
    change = np.array(value_of(result.arrays)[0])
    if name in ("fixed", "adaptive"):  # a step of [1, 1, 1, 1] is clipped to length 1 or less
        assert (change < 2.0).all()
    elif name != "local":
        np.testing.assert_allclose(change, 2.0)


def test_registering_leaves_the_mods_of_the_app_as_they_were():
    app = ClientApp(mods=[message_size_mod])
    describe(app, stable_id="me")
    assert app._mods == [message_size_mod]


class Advanced(FedAvg):
    """As in Flower's advanced-pytorch: an attribute is born late, the learning rate decays."""

    def set_save_path_and_run_dir(self, path, run_dir):
        self.save_path, self.run_dir = path, run_dir

    def configure_train(self, server_round, arrays, config, grid):
        config["lr"] = config["lr"] * 0.5 if server_round > 1 else config["lr"]
        config.pop("first", None)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        mean = float(arrays.to_numpy_ndarrays()[0].mean())
        if mean > getattr(self, "best_acc_so_far", -1.0):
            self.best_acc_so_far = mean
        return arrays, metrics


def test_attributes_born_late_and_changed_configurations_resume(ticking, tmp_path):
    def run(path, n_rounds, momentum=0.1):
        inner, rates = Advanced(fraction_evaluate=0.0), {}

        def metrics(number, message):
            sent = message.content["config"]
            rates[sent["server-round"]] = sent["lr"]
            return {"num-examples": 1}

        grid = federation(N, metrics=metrics)
        config = ConfigRecord({"lr": 0.4, "momentum": momentum, "first": True, "raw": b"x"})
        strategy = selecting(inner, checkpoint=tmp_path / path)
        result = strategy.start(grid, model(), num_rounds=n_rounds, train_config=config)
        return inner, rates, value_of(result.arrays), config

    whole, rates, arrays, config = run("whole.npz", 4)
    assert rates == {1: 0.4, 2: 0.2, 3: 0.1, 4: 0.05}
    run("run.npz", 2)
    again, later, resumed, restored = run("run.npz", 4)
    assert later == {3: 0.1, 4: 0.05}
    assert resumed == arrays
    assert again.best_acc_so_far == whole.best_acc_so_far
    assert dict(restored) == dict(config)
    assert "first" not in restored
    changed = run("run.npz", 5, momentum=0.9)[3]  # what nobody changed on the way may be set anew
    assert (changed["momentum"], changed["lr"]) == (0.9, 0.025)


def test_what_the_wrapper_does_not_have_is_the_inner_strategys():
    strategy = selecting(Advanced(fraction_evaluate=0.0))
    strategy.set_save_path_and_run_dir("here", "there")
    assert strategy.inner.save_path == strategy.save_path == "here"
    with pytest.raises(AttributeError, match="nothing"):
        strategy.nothing  # noqa: B018


def test_the_log_counts_rounds_on_after_a_restart(ticking, tmp_path, caplog):
    def run(n_rounds):
        caplog.clear()
        with caplog.at_level("INFO", logger="flwr"):
            selecting(checkpoint=tmp_path / "run.npz").start(
                federation(N), model(), num_rounds=n_rounds
            )
        return [line for line in caplog.messages if line.startswith("[ROUND")]

    caplog.handler.setLevel("INFO")
    assert run(2) == ["[ROUND 1/2]", "[ROUND 2/2]"]
    assert run(4) == ["[ROUND 3/4]", "[ROUND 4/4]"]


@pytest.mark.parametrize("selector", ["oort", "pow-d", "ucb-cs"])
def test_the_number_of_examples_may_come_with_the_replies(ticking, selector):
    grid = federation(8, num_examples=None, loss=lambda message, context: 0.5)
    strategy = selecting(selector=selector)
    strategy.start(grid, model(), num_rounds=3)
    assert strategy.rounds_done == 3
    columns = strategy._running.session.members.columns
    trained = [i for i in range(8) if columns.number("num_samples", i) > 0.0]
    assert set(trained) == set(strategy.run.clients.tolist())


def test_a_number_of_examples_that_never_comes_is_named_in_the_second_round(ticking):
    class Unweighted(FedAvg):
        def __init__(self):
            super().__init__(fraction_evaluate=0.0, weighted_by_key="weight")

    grid = federation(N, num_examples=None, metrics=lambda n, m: {"weight": 1, "loss_rms": 0.5})
    strategy = selecting(Unweighted(), "oort")
    with pytest.raises(MissingColumn, match="num_examples=len"):
        strategy.start(grid, model(), num_rounds=3)
    assert strategy.rounds_done == 1


def test_everything_that_is_missing_is_named_at_once(ticking):
    grid = federation(N, num_examples=None)
    with pytest.raises(MissingColumn) as caught:
        selecting(selector="nccb").start(grid, model(), num_rounds=1)
    for part in ("'features'", "features=SimHash", "report.add(loss", "'loss_rms'"):
        assert part in str(caught.value)


def test_a_run_in_which_everybody_fails_ends_with_an_error(ticking, tmp_path):
    grid = federation(N)
    for node in grid.nodes.values():
        node.plan = {t: Fate(code=2) for t in range(9)}
    files = {"checkpoint": tmp_path / "run.npz", "records": tmp_path / "records"}
    watcher = Watcher(tmp_path / "records", 300.0)
    strategy = selecting(quorum=Quorum(max_empty_rounds=3), **files)
    with pytest.raises(TooFewAnswers, match="3 rounds in a row"):
        strategy.start(grid, model(), num_rounds=9)
    assert strategy.rounds_done == 3
    assert watcher.look().state is State.FAILED
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "records")], env={"COLUMNS": "200"})
    assert "after round 3, stopped: the run was stopped: TooFewAnswers: 3 rounds" in shown.output
    for node in grid.nodes.values():
        node.plan = {}
    later = selecting(quorum=Quorum(max_empty_rounds=3), **files)
    later.start(grid, model(), num_rounds=5)
    assert later.rounds_done == 5
    assert watcher.look().state is State.ENDED
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "records")], env={"COLUMNS": "200"})
    assert "after round 3, stopped" in shown.output  # it is part of what happened


def test_whatever_stops_a_run_is_kept_in_its_own_folder_only(ticking, tmp_path):
    def evaluate(server_round, arrays):
        if server_round == 2:
            raise KeyboardInterrupt
        return None

    first = selecting(records=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        first.start(federation(N), model(), num_rounds=3, evaluate_fn=evaluate)
    (error,) = tmp_path.rglob("error.txt")
    assert error.read_text().endswith("KeyboardInterrupt\n")
    (alerts,) = tmp_path.rglob("alerts.jsonl")
    told = [json.loads(line) for line in alerts.read_text().splitlines()]
    assert [(one["kind"], one["round"]) for one in told] == [("stopped", 1)]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(FolderError, match="already holds a run"):
        selecting(records=tmp_path).start(federation(N), model(), num_rounds=3)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_too_few_answers_do_not_become_the_model(ticking):
    grid = federation(N)
    for number in (0, 1, 2):
        by_name(grid)[f"client-{number:03d}"].plan = {0: Fate(code=2)}
    strategy = selecting(quorum=Quorum(min_answers=2))
    first = strategy.start(grid, model(7.0), num_rounds=1)
    assert value_of(first.arrays) == value_of(model(7.0))


class OwnLoop(FedAvg):
    """A strategy with its own ``start``, which copies its messages before it sends them."""

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, **more):
        arrays = initial_arrays
        for server_round in range(1, num_rounds + 1):
            config = more.get("train_config") or ConfigRecord()
            written = self.configure_train(server_round, arrays, config, grid)
            replies = grid.send_and_receive(tuple(reversed(list(written))), timeout=timeout)
            found, _ = self.aggregate_train(server_round, replies)
            arrays = arrays if found is None else found
        return arrays


class Direct(FakeGrid):
    """Answers ``send_and_receive`` at once, in the order of the nodes: one order, one sum."""

    def send_and_receive(self, messages, *, timeout=None):
        ordered = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        return [self.nodes[m.metadata.dst_node_id].app(m, None) for m in ordered]


def xgboost_app(number):
    app = ClientApp()
    describe(app, stable_id=f"client-{number:03d}")

    @app.train()
    def train(message, context):
        book = {
            "learner": {
                "gradient_booster": {
                    "model": {
                        "gbtree_model_param": {"num_trees": "1", "num_parallel_tree": "1"},
                        "tree_info": [0],
                        "trees": [{"id": 0, "of": number}],
                        "iteration_indptr": [0, 1],
                    }
                }
            }
        }
        arrays = ArrayRecord([np.frombuffer(json.dumps(book).encode(), dtype=np.uint8)])
        metrics = MetricRecord({"num-examples": number + 1})
        content = {"arrays": arrays, "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    return app


PATTERNS = {
    "quickstart": (lambda: FedAvg(fraction_evaluate=0.0), training_app, model),
    "own start loop": (lambda: OwnLoop(fraction_evaluate=0.0), training_app, model),
    "XGBoost": (
        lambda: FedXgbBagging(fraction_evaluate=0.0),
        xgboost_app,
        lambda: ArrayRecord([np.zeros(0, dtype=np.uint8)]),
    ),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_an_example_wrapped_and_unwrapped_gives_the_same_model(ticking, name):
    """Everybody takes part, so that who is drawn does not matter."""
    inner, app, initial = PATTERNS[name]

    def grid():
        return Direct([Node(f"client-{i:03d}", 50 + i, app(i)) for i in range(N)])

    def bytes_of(result):
        arrays = result if isinstance(result, ArrayRecord) else result.arrays
        return [array.tobytes() for array in arrays.to_numpy_ndarrays()]

    plain = inner().start(grid(), initial(), num_rounds=3)
    strategy = selecting(inner())
    wrapped = strategy.start(grid(), initial(), num_rounds=3)
    assert [len(chosen) for chosen in cohorts(strategy)] == [N] * 3
    assert bytes_of(wrapped) == bytes_of(plain) != bytes_of(initial())
