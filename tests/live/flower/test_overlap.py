"""Rounds that overlap in Flower, on a fake grid: models, staleness, restarts, refusals."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
)

from tests.live.flower.fake import Fate, by_name, federation, model
from turnout import InvalidInput, Status, simulate
from turnout.live import AlertRules, Follower, Guard, VirtualWorld
from turnout.live.flower import SelectingStrategy
from turnout.live.flower.client import describe
from turnout.live.flower.stale import StaleSteps
from turnout.live.receipts import Receipts, check_receipt
from turnout.results.answers import read_open
from turnout.worlds import (
    Answers,
    Bernoulli,
    Buffered,
    ByClass,
    ConstantWeight,
    DeviationWeight,
    Environment,
    FirstK,
    FixedDeadline,
    HeavyTail,
    LinearContextual,
    PolynomialWeight,
    SemiSynchronous,
    Synchronous,
)

COMPLETED, LATE, FAILED, SILENT = (int(status) for status in Status)
SETTINGS = {"start_s": 5.0, "wait_for_clients_s": 2.0, "ask_s": 5.0, "poll_s": 0.25, "seed": 4}


def strategy_of(schedule, inner=None, selector="random", **given):
    inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
    given = {"cohort_size": 3, "policy": FixedDeadline(20.0), **SETTINGS} | given
    return SelectingStrategy(inner, selector, schedule=schedule, **given)


def slow_and_fast(n=8, **kwargs):
    """Return a grid in which client i takes 0.5 (1 + i) seconds."""
    grid = federation(n, **kwargs)
    for i, node in enumerate(sorted(grid.nodes.values(), key=lambda node: node.name)):
        node.delay = 0.5 * (1 + i)
    return grid


def weighed(run, t):
    """Return the rows of a round that counted."""
    at = np.arange(run.offsets[t], run.offsets[t + 1])
    return at[run.status[at] == COMPLETED]


@pytest.mark.parametrize("inner", [FedAvg, FedProx, FedAvgM])
def test_a_round_adds_the_steps_from_the_models_that_clients_got(ticking, inner):
    """Client i always adds i, so each model is known from the records alone."""
    more = {"proximal_mu": 0.1} if inner is FedProx else {}
    strategy = strategy_of(Buffered(3, 6), inner(fraction_evaluate=0.0, **more))
    result = strategy.start(slow_and_fast(), model(), num_rounds=12)
    run = strategy.run
    assert run.staleness.max() >= 2
    value = 0.0
    for t in range(run.n_rounds):
        rows = weighed(run, t)
        assert rows.size == 3
        client = np.array([int(strategy.roster.id_of(int(c))[-3:]) for c in run.clients[rows]])
        examples = client + 1.0
        steps = client / np.sqrt(1.0 + run.staleness[rows])
        value += float((examples * steps).sum() / examples.sum())
    for array in result.arrays.to_numpy_ndarrays():
        np.testing.assert_allclose(array, value, rtol=1e-12)


def test_a_buffer_of_one_keeps_its_staleness_weight(ticking):
    """A factor on the weight of FedAvg would cancel."""
    results = {}
    for rule in (ConstantWeight(), PolynomialWeight(2.0)):
        strategy = strategy_of(Buffered(1, 4, staleness=rule))
        results[rule] = strategy.start(slow_and_fast(), model(), num_rounds=10)
        assert strategy.run.staleness.max() > 0
    first, second = (x.arrays.to_numpy_ndarrays()[0][0] for x in results.values())
    assert second < 0.8 * first


@pytest.mark.parametrize("inner", [FedAvg, FedAdam, FedYogi, FedAdagrad, FedAvgM])
def test_equal_times_are_synchronous_training_bit_for_bit(ticking, inner):
    def run(schedule, **given):
        strategy = strategy_of(schedule, inner(fraction_evaluate=0.0), "e3cs", **given)
        found = strategy.start(federation(9), model(1.0), num_rounds=6)
        return [a.tobytes() for a in found.arrays.to_numpy_ndarrays()], strategy.run

    plain, sync = run(None)
    buffered, overlapping = run(Buffered(3, 3))
    assert plain == buffered
    for name in ("clients", "status", "duration", "probability"):
        np.testing.assert_array_equal(getattr(sync, name), getattr(overlapping, name))
    late, _ = run(Synchronous(late="use"))
    assert plain == late


def test_records_have_the_columns_of_a_simulated_run(ticking, tmp_path):
    strategy = strategy_of(Buffered(3, 6), records=tmp_path / "run")
    strategy.start(slow_and_fast(), model(), num_rounds=8)
    cell = tmp_path / "run" / "random" / "seed-4"
    with np.load(cell / "selections.npz") as columns:
        for name in ("choice", "staleness", "began_s", "busy_s", "measured.models_kept"):
            assert name in columns.files
        assert columns["measured.models_kept"].max() <= 6 + 1
    lines = [json.loads(line) for line in (cell / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert all(0.0 < line["at_work"] <= 6.0 for line in lines)
    answers = [json.loads(line) for line in (cell / "answers.jsonl").read_text().splitlines()]
    assert {"id", "status", "staleness"} <= answers[-1]["chosen"][0].keys()
    summary = json.loads((cell / "summary.json").read_text())
    assert summary["staleness"] > 0.0
    config = json.loads((cell / "config.json").read_text())
    assert config["schedule"]["kind"] == "buffered"
    assert config["cohort_size"] == 3


def test_the_open_round_shows_who_is_at_work(ticking, tmp_path):
    grid, seen = slow_and_fast(), []
    names = by_name(grid)
    folder, pull = tmp_path / "run" / "random" / "seed-4", grid.pull_messages

    def watched(message_ids):
        seen.append(read_open(folder))
        return pull(message_ids)

    grid.pull_messages = watched
    strategy_of(Buffered(3, 6), records=tmp_path / "run").start(grid, model(), num_rounds=8)
    shown = [each for each in seen if each is not None]
    assert {each.round for each in shown} >= set(range(1, 8))
    assert {len(each.names) for each in shown} == {6}
    assert all(each.replies.keys() <= set(names) for each in shown)


@pytest.mark.parametrize(
    "schedule", [Buffered(3, 6), SemiSynchronous(2.0), Synchronous(late="use")], ids=str
)
@pytest.mark.parametrize("inner", [FedAvg, FedAdam])
def test_a_killed_server_gives_the_work_in_flight_out_again(ticking, tmp_path, schedule, inner):
    class Killed(Exception):
        pass

    def start(grid, num_rounds, kill_at=None):
        given = {"checkpoint": tmp_path / f"run-{id(grid)}.npz", "policy": FixedDeadline(3.0)}
        if not isinstance(schedule, Synchronous):
            given["policy"] = FixedDeadline(20.0)
        strategy = strategy_of(schedule, inner(fraction_evaluate=0.0), "e3cs", **given)

        def evaluate(number, arrays):
            if number == kill_at:
                raise Killed

        return strategy, strategy.start(grid, model(), num_rounds, evaluate_fn=evaluate)

    grid = slow_and_fast()
    with pytest.raises(Killed):
        start(grid, 10, kill_at=4)
    names = {node.name: node.trained for node in grid.nodes.values()}
    grid._open.clear()  # the SuperLink refuses what comes for a run that has failed
    ticking.at += 500.0
    strategy, _ = start(grid, 10)
    run = strategy.run
    assert run.n_rounds == 10
    pieces = list(zip(run.choice.tolist(), run.clients.tolist(), strict=True))
    assert len(set(pieces)) == len(pieces)  # no work has counted twice
    assert (run.status == COMPLETED).all()
    # The clock of the run stood still, so nobody was given up.
    assert run.length_s.max() < 20.0
    assert sum(node.trained for node in grid.nodes.values()) > sum(names.values())
    assert run.staleness.max() > 0


def test_a_resumed_run_trains_each_client_on_the_model_that_it_got(ticking, tmp_path):
    """Client i adds i to what it got, so a wrong model would show in the result."""
    grid = slow_and_fast()
    for stop in (5, 9, 14):
        strategy = strategy_of(Buffered(2, 5), checkpoint=tmp_path / "run.npz")
        result = strategy.start(grid, model(), num_rounds=stop)
        grid._open.clear()
    run, value = strategy.run, 0.0
    for t in range(run.n_rounds):
        rows = weighed(run, t)
        client = np.array([int(strategy.roster.id_of(int(c))[-3:]) for c in run.clients[rows]])
        steps = client / np.sqrt(1.0 + run.staleness[rows])
        value += float(((client + 1.0) * steps).sum() / (client + 1.0).sum())
    np.testing.assert_allclose(result.arrays.to_numpy_ndarrays()[0], value, rtol=1e-12)


def test_failed_lost_and_silent_nodes_free_their_places(ticking):
    grid = slow_and_fast(6)
    nodes = by_name(grid)
    nodes["client-000"].plan = {0: Fate(code=2), 1: Fate(code=5)}
    nodes["client-001"].plan = {0: Fate(is_lost=True)}
    nodes["client-002"].plan = {1: Fate(delay=30.0)}
    strategy = strategy_of(Buffered(3, 5), policy=FixedDeadline(10.0))
    strategy.start(grid, model(), num_rounds=12)
    assert set(strategy.run.status.tolist()) == {COMPLETED, LATE, FAILED, SILENT}
    # The answer that came 20 s after its deadline was refused and counted.
    session = strategy._run.session
    assert sum(session.flights.n_refused.values()) <= 2


def test_a_node_that_answers_nothing_does_not_hold_up_the_others(ticking):
    grid = slow_and_fast(6)
    by_name(grid)["client-005"].plan = dict.fromkeys(range(50), Fate(is_lost=True))
    strategy = strategy_of(Buffered(2, 4))
    strategy.start(grid, model(), num_rounds=15)
    assert (strategy.run.length_s < 6.0).all()


def test_a_reply_of_another_shape_is_dropped_and_recorded(ticking):
    def other(reply):
        reply.content["arrays"] = ArrayRecord([np.zeros(7), np.zeros((1, 1))])
        return reply

    grid = slow_and_fast(6)
    by_name(grid)["client-000"].plan = {0: Fate(forge=other), 2: Fate(forge=other)}
    strategy = strategy_of(Buffered(3, 5))
    strategy.start(grid, model(), num_rounds=8)
    assert (strategy.run.status == FAILED).sum() == 2


def test_the_inner_strategy_knows_the_present_model_when_it_aggregates(ticking):
    """All nodes are at work when a round begins: nothing has been written to any."""
    seen = []

    class Watched(FedAdam):
        averages_replies = True

        def aggregate_train(self, server_round, replies):
            seen.append(self.current_arrays["0"].copy())
            arrays, metrics = super().aggregate_train(server_round, replies)
            seen.append(arrays["0"].numpy())
            return arrays, metrics

    strategy = strategy_of(Buffered(1, 3), Watched(fraction_evaluate=0.0))
    strategy.start(federation(3), model(), num_rounds=6)
    for after, before in zip(seen[1:-1:2], seen[2::2], strict=True):
        np.testing.assert_array_equal(after, before)


def test_evaluation_goes_on_between_rounds(ticking):
    strategy = strategy_of(Buffered(2, 3), FedAvg())
    result = strategy.start(slow_and_fast(6), model(), num_rounds=5)
    assert sorted(result.evaluate_metrics_clientapp) == [1, 2, 3, 4, 5]
    assert sorted(result.train_metrics_clientapp) == [1, 2, 3, 4, 5]


def test_receipts_guards_alerts_and_followers_work_as_in_synchronous_rounds(ticking, tmp_path):
    class Seen(Follower):
        def __init__(self):
            self.opened_at, self.ended_at, self.alerts = [], [], []

        def opened(self, run, round, people):
            self.opened_at.append(round)

        def ended(self, run, ended, numbers):
            self.ended_at.append(ended.round)
            self.alerts += ended.alerts

    key = tmp_path / "key.pem"
    kinds = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    private = ed25519.Ed25519PrivateKey.generate()
    key.write_bytes(private.private_bytes(*kinds, serialization.NoEncryption()))
    grid, seen = slow_and_fast(8), Seen()
    by_name(grid)["client-002"].plan = dict.fromkeys(range(60), Fate(code=2))
    strategy = strategy_of(
        Buffered(2, 4),
        selector="pace",
        guard=Guard(floor=0.5, cap=4.0),
        records=tmp_path / "run",
        receipt_key=key,
        alerts=AlertRules(failures=3),
        followers=[seen],
    )
    strategy.start(grid, model(), num_rounds=30)
    run, ids = strategy.run, strategy.roster.ids
    assert seen.ended_at == list(range(30))
    assert set(seen.opened_at) <= set(range(30))
    assert {alert.client for alert in seen.alerts if alert.kind == "failing"} == {"client-002"}
    (path,) = (tmp_path / "run").glob("*/seed-4/receipts.jsonl")
    receipts = [json.loads(line) for line in path.read_text().splitlines()]
    public = Receipts(key).public_key
    stated = [check_receipt(receipt, public) for receipt in receipts]
    assert [one["client"] for one in stated] == [ids[i] for i in run.clients]
    counted = [one["counted"] for one in stated]
    assert counted == (run.status == COMPLETED).tolist()


# --------------------------------------------------------------------------------------------------
# Replies as steps.
# --------------------------------------------------------------------------------------------------


def replies_of(rng, n, dtype=np.float32):
    from flwr.app import Message, RecordDict

    models, messages = [], []
    for i in range(n):
        base = {"w": rng.normal(size=(3, 2)), "bn.running_var": rng.uniform(1, 2, size=2)}
        models.append(ArrayRecord({k: _array(x.astype(dtype)) for k, x in base.items()}))
        own = {k: (x + rng.normal(size=x.shape) * 0.1).astype(dtype) for k, x in base.items()}
        arrays = {k: _array(x) for k, x in own.items()} | {"n": _array(np.array(i + 4))}
        models[-1]["n"] = _array(np.array(3))
        content = {"arrays": ArrayRecord(arrays), "m": MetricRecord({"num-examples": i + 1})}
        messages.append(Message(RecordDict(content), dst_node_id=2, message_type="train"))
    return models, messages


def _array(values):
    from flwr.app import Array

    return Array(values)


def answers_of(staleness, rule, times=None, mixes=False):
    n = len(staleness)
    stale, ones = np.array(staleness), np.ones(n, dtype=np.int64)
    chance = np.full(n, np.nan)
    times = ones if times is None else np.array(times)
    return Answers(ones, ones, ones, stale, rule.of(stale), rule, chance, times, mixes)


@pytest.mark.parametrize("rule", [PolynomialWeight(), DeviationWeight(), ConstantWeight()], ids=str)
def test_the_mean_of_rewritten_replies_is_what_training_computes(identity, rule):
    import torch

    from turnout.training.aggregate import MeanReturned, aggregate
    from turnout.training.versions import deviations

    rng = np.random.default_rng(3)
    models, messages = replies_of(rng, 5, np.float64)
    present, staleness, times = models[0], [0, 2, 0, 1, 5], [1, 2, 1, 1, 1]
    bases = [present, models[1], present, models[3], models[4]]
    examples = np.arange(1.0, 6.0)

    def flat(record):
        return torch.from_numpy(record["w"].numpy().ravel())

    local = [flat(next(iter(one.content.array_records.values()))) for one in messages]
    old = [None if s == 0 else flat(base) for s, base in zip(staleness, bases, strict=True)]
    answers = answers_of(staleness, rule, times)
    factor = rule.of_updates(
        answers.staleness, lambda: deviations(flat(present), local, old, local[0].numel())
    )
    coefficients = factor * MeanReturned().coefficients(examples, None, 100, answers.times)
    expected = aggregate(flat(present), local, coefficients, 1.0, old).numpy()
    moments = [
        next(iter(one.content.array_records.values()))["bn.running_var"].numpy() for one in messages
    ]
    share = factor * examples * times / (factor * examples * times).sum()

    rewritten = StaleSteps(present, bases, answers, examples).rewrite(messages)
    assert len(rewritten) == 6  # the one that was drawn twice counts twice
    arrays, _ = FedAvg().aggregate_train(1, rewritten)
    np.testing.assert_allclose(arrays["w"].numpy().ravel(), expected, rtol=1e-12)
    np.testing.assert_allclose(arrays["bn.running_var"].numpy(), share @ np.array(moments))
    # Counters are averaged as they come.
    counts = np.array([4.0, 5.0, 6.0, 7.0, 8.0])
    weights = examples * times
    np.testing.assert_allclose(arrays["n"].numpy(), weights @ counts / weights.sum())


def test_fedasync_mixes_the_reply_with_the_present_model(identity):
    models, messages = replies_of(np.random.default_rng(5), 2, np.float64)
    present, base = models
    own = messages[0].content["arrays"]["w"].numpy()
    answers = answers_of([3], PolynomialWeight(1.0), mixes=True)
    rewritten = StaleSteps(present, [base], answers, np.array([7.0])).rewrite(messages[:1])
    inner = FedAvgM(server_learning_rate=0.6)
    inner.current_arrays = present  # as its configure_train does
    arrays, _ = inner.aggregate_train(1, rewritten)
    alpha = 0.6 / 4
    expected = (1 - alpha) * present["w"].numpy() + alpha * own
    np.testing.assert_allclose(arrays["w"].numpy(), expected, rtol=1e-12)


def test_a_fresh_reply_stays_as_it_came(identity):
    models, messages = replies_of(np.random.default_rng(0), 1)
    before = {k: x.data for k, x in messages[0].content["arrays"].items()}
    answers = answers_of([0], PolynomialWeight())
    StaleSteps(models[0], [models[0]], answers, np.array([3.0])).rewrite(messages)
    assert {k: x.data for k, x in messages[0].content["arrays"].items()} == before


# --------------------------------------------------------------------------------------------------
# What is refused.
# --------------------------------------------------------------------------------------------------

CANNOT = {
    "FedMedian": FedMedian(),
    "FedTrimmedAvg": FedTrimmedAvg(),
    "Krum": Krum(num_malicious_nodes=0),
    "MultiKrum": MultiKrum(num_malicious_nodes=0, num_nodes_to_select=1),
    "Bulyan": Bulyan(num_malicious_nodes=0),
    "QFedAvg": QFedAvg(client_learning_rate=0.1),
    "FedXgbBagging": FedXgbBagging(),
    "FedXgbCyclic": FedXgbCyclic(),
}
PRIVATE = {
    DifferentialPrivacyServerSideFixedClipping: {"clipping_norm": 1.0},
    DifferentialPrivacyClientSideFixedClipping: {"clipping_norm": 1.0},
    DifferentialPrivacyServerSideAdaptiveClipping: {},
    DifferentialPrivacyClientSideAdaptiveClipping: {},
}


@pytest.mark.parametrize("name", CANNOT)
def test_strategies_that_cannot_take_stale_replies_are_refused_by_name(name):
    with pytest.raises(InvalidInput, match=f"{name} cannot be used with Buffered: .* Use") as error:
        strategy_of(Buffered(3, 6), CANNOT[name])
    assert error.value.field == "schedule"


@pytest.mark.parametrize("kind", PRIVATE)
def test_privacy_wrappers_are_refused(kind):
    wrapped = kind(FedAvg(), noise_multiplier=1.0, num_sampled_clients=100, **PRIVATE[kind])
    with pytest.raises(InvalidInput, match=f"{kind.__name__} cannot be used .* privacy"):
        strategy_of(SemiSynchronous(5.0), wrapped, cohort_size=100)
    strategy_of(Synchronous(), wrapped, cohort_size=100)  # rounds that do not overlap are fine


def test_an_own_strategy_says_whether_it_averages():
    class Own(FedAvg):
        def aggregate_train(self, server_round, replies):
            return super().aggregate_train(server_round, replies)

    with pytest.raises(InvalidInput, match=r"Own cannot .* averages_replies = True"):
        strategy_of(Buffered(3, 6), Own())
    Own.averages_replies = True
    strategy_of(Buffered(3, 6), Own())

    class Configured(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 0.1**server_round
            return super().configure_train(server_round, arrays, config, grid)

    strategy_of(Buffered(3, 6), Configured())


def test_what_does_not_go_together_is_refused_before_the_first_round(ticking):
    grid = federation(4)
    for given, match in (
        ({"selector": "divfl"}, "cannot fill single places"),
        ({"policy": FirstK(2)}, "policy must be FixedDeadline"),
        ({"guard": {"min_gap": 3}}, "limits participation"),
    ):
        strategy = strategy_of(Buffered(2, 3), **given)
        with pytest.raises(InvalidInput, match=match):
            strategy.start(grid, model(), num_rounds=2)
    assert grid.sent == []
    with pytest.raises(InvalidInput, match="shadow needs synchronous"):
        strategy_of(Buffered(2, 3), shadow=["e3cs"])


def test_the_configuration_of_a_strategy_goes_with_every_choice(ticking):
    class Configured(FedAvg):
        def configure_train(self, server_round, arrays, config, grid):
            config["lr"] = 1.0 / server_round
            return super().configure_train(server_round, arrays, config, grid)

    strategy = strategy_of(Buffered(2, 4), Configured(fraction_evaluate=0.0))
    grid = slow_and_fast(6)
    strategy.start(grid, model(), num_rounds=6, train_config=ConfigRecord({"epochs": 2}))
    sent = [m.content["config"] for m in grid.contents if m.metadata.message_type == "train"]
    assert all(one["epochs"] == 2 for one in sent)
    assert len({one["server-round"] for one in sent}) > 4


# --------------------------------------------------------------------------------------------------
# In a virtual world: as the simulator, with clients that really train.
# --------------------------------------------------------------------------------------------------

WORLD = Environment(
    12, 5, Bernoulli(0.8), ByClass((0.4, 0.9)), HeavyTail(LinearContextual()), reports_failure=True
)
SCHEDULES = [Buffered(3, 7), SemiSynchronous(3.0), Synchronous(late="use")]


def in_a_world(schedule, selector, policy, n_rounds=12, *, delay=0.5, **given):
    """Return a strategy that has played; client i adds i in some real time."""
    world = VirtualWorld(WORLD, [f"client-{i:03d}" for i in range(12)], synthetic_losses=True)
    grid = given.pop("grid", None) or federation(12, delay=delay)
    strategy = strategy_of(
        schedule, selector=selector, world=world, policy=policy, cohort_size=4, **given
    )
    strategy.start(grid, model(), num_rounds=n_rounds)
    return strategy


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("selector", ["random", "e3cs", "pace", "oort"])
@pytest.mark.parametrize("seconds", [12.0, None])
def test_a_world_gives_the_records_of_the_simulator(ticking, schedule, selector, seconds):
    policy = FixedDeadline() if seconds is None else FixedDeadline(seconds)
    strategy = in_a_world(schedule, selector, policy)
    ours = strategy.run
    bounds = strategy.settings.bounds.clone()
    theirs = simulate(
        selector, WORLD, cohort_size=4, n_rounds=12, seed=4, policy=policy, schedule=schedule,
        bounds=bounds,
    )  # fmt: skip
    columns = ("clients", "status", "choice", "staleness", "offsets", "probability", "n_available")
    for name in (*columns, "began_s", "busy_s", "length_s", "duration", "spent"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: type(s).__name__)
def test_a_world_resumes_bit_for_bit_with_work_in_flight(ticking, tmp_path, schedule):
    policy = FixedDeadline(4.0 if isinstance(schedule, Synchronous) else np.inf)
    whole = in_a_world(schedule, "pace", policy)
    for stop in (3, 7, 12):
        path = tmp_path / "run.npz"
        parts = in_a_world(schedule, "pace", policy, stop, checkpoint=path)
    for name in ("clients", "status", "choice", "staleness", "began_s", "busy_s", "length_s"):
        np.testing.assert_array_equal(getattr(parts.run, name), getattr(whole.run, name))
    one, two = (x._run.arrays.to_numpy_ndarrays()[0] for x in (parts, whole))
    np.testing.assert_array_equal(one, two)
    assert whole.run.staleness.max() > 0


def test_a_client_that_really_fails_in_a_world_has_failed(ticking):
    grid = federation(12)
    by_name(grid)["client-003"].plan = dict.fromkeys(range(50), Fate(code=2))
    strategy = in_a_world(Buffered(3, 7), "random", FixedDeadline(), grid=grid)
    run, ids = strategy.run, strategy.roster.ids
    mine = run.clients == ids.index("client-003")
    assert mine.any()
    assert COMPLETED not in run.status[mine].tolist()
    value = 0.0
    for t in range(run.n_rounds):
        rows = weighed(run, t)
        client = run.clients[rows]
        steps = client / np.sqrt(1.0 + run.staleness[rows])
        value += float(((client + 1.0) * steps).sum() / (client + 1.0).sum())
    np.testing.assert_allclose(strategy._run.arrays.to_numpy_ndarrays()[0], value, rtol=1e-12)


def test_the_example_of_the_how_to_runs(ticking):
    page = (Path(__file__).parents[3] / "docs" / "howto" / "overlap.md").read_text()
    (example,) = (
        block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "flwr" in block
    )
    found = {}
    exec(compile(example, "overlap.md", "exec"), found)
    strategy = found["strategy"]
    strategy.start(slow_and_fast(35), model(), num_rounds=6)
    run = strategy.run
    assert run.overlaps
    assert run.n_rounds == 6
    assert run.concurrency == pytest.approx(30.0, rel=0.1)


def test_a_reply_that_is_the_very_record_that_was_sent_changes_no_model(ticking):
    """A grid in this process may hand over the server's own arrays."""

    def run(*, hands_back):
        grid = slow_and_fast()
        if hands_back:
            app = ClientApp()
            describe(app, stable_id="client-000", num_examples=1)

            @app.train()
            def train(message, context):
                metrics = {"num-examples": 1, "loss": 1.0, "duration": 0.25, "loss_std": 0.1}
                metrics |= {"loss_rms": 2.0, "norm_bit": 1.0, "train_loss": 0.5}
                arrays = message.content["arrays"]
                content = RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)})
                return Message(content, reply_to=message)

            by_name(grid)["client-000"].app = app
        by_name(grid)["client-000"].delay = 1.75  # stale, and others still work on its model
        strategy = strategy_of(Buffered(2, 6))
        found = strategy.start(grid, model(), num_rounds=10)
        assert strategy.run.staleness[strategy.run.clients == 0].max() > 0
        return [array.tobytes() for array in found.arrays.to_numpy_ndarrays()]

    assert run(hands_back=True) == run(hands_back=False)
