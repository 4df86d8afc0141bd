"""Which nodes are chosen, and that everything else is left to the inner strategy."""

import random

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
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
    FedXgbCyclic,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

import turnout
from tests.live.flower.fake import by_name, cohorts, federation, model, value_of
from turnout.core.errors import InvalidInput
from turnout.core.selector import Selector
from turnout.core.types import Selection
from turnout.live.flower import SelectingStrategy, UnsuitableStrategy
from turnout.worlds import FirstK, FixedDeadline, OverSelect

INNERS = {
    "FedAvg": lambda: FedAvg(fraction_train=0.1, min_train_nodes=5, min_available_nodes=7),
    "FedProx": lambda: FedProx(proximal_mu=0.1),
    "FedAdam": FedAdam,
    "FedAdagrad": FedAdagrad,
    "FedYogi": FedYogi,
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": lambda: FedTrimmedAvg(beta=0.25),
    "Krum": lambda: Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: Bulyan(num_malicious_nodes=0),
    "QFedAvg": lambda: QFedAvg(q=0.2, client_learning_rate=0.1, train_loss_key="train_loss"),
    "DP server fixed": lambda: DifferentialPrivacyServerSideFixedClipping(
        FedAvg(min_train_nodes=9), 0.0, 1e6, 5
    ),
    "DP client fixed": lambda: DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.0, 1e6, 5),
    "DP server adaptive": lambda: DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), 0.0, 5),
    "DP client adaptive": lambda: DifferentialPrivacyClientSideAdaptiveClipping(FedAdam(), 0.0, 5),
}


def selecting(inner=None, selector="random", **given):
    given = {"cohort_size": 5, "policy": FixedDeadline(10.0), "seed": 3} | given
    return SelectingStrategy(FedAvg() if inner is None else inner, selector, **given)


@pytest.mark.parametrize("name", INNERS)
def test_every_inner_strategy_gets_exactly_the_chosen_and_does_the_rest(ticking, name):
    grid, inner = federation(9), INNERS[name]()
    settings = dict(vars(inner))
    strategy = selecting(inner)
    result = strategy.start(grid, model(), num_rounds=3)
    assert isinstance(strategy, Strategy)
    for t, chosen in enumerate(cohorts(strategy)):
        sent = [who for who, kind, at in grid.sent if kind == "train" and at == t + 1]
        assert sorted(sent) == chosen
        assert len(chosen) == 5
    assert value_of(result.arrays) != value_of(model())
    assert set(result.train_metrics_clientapp) == {1, 2, 3}
    assert set(result.evaluate_metrics_clientapp) == {1, 2, 3}
    for setting in ("fraction_train", "min_train_nodes", "min_available_nodes"):
        for layer in (inner, getattr(inner, "strategy", inner)):
            if setting in settings:
                assert getattr(layer, setting) == settings[setting]


def test_what_the_inner_strategy_makes_of_the_replies_is_its_own_business(ticking):
    # FedAvg: the mean of number, weighted by number + 1, is added in every round.
    grid = federation(9)
    strategy = selecting()
    result = strategy.start(grid, model(1.0), num_rounds=2)
    expected = 1.0
    for chosen in cohorts(strategy):
        numbers = np.array([int(who[-3:]) for who in chosen])
        expected += np.average(numbers, weights=numbers + 1)
    assert value_of(result.arrays)[0] == pytest.approx([expected] * 3, rel=1e-12)
    assert value_of(result.arrays)[1] == [pytest.approx([expected], rel=1e-12)]


class DrawnTwice(Selector):
    """Nodes 1 and 2 every round, node 2 drawn three times."""

    may_underfill = True

    def select(self, ctx, rng):
        memo = {"multiplicity": np.array([1, 3])}
        return Selection(ctx.round, ctx.pool[1:3], memo=memo)


def test_a_node_drawn_three_times_counts_three_times(ticking):
    strategy = selecting(selector=DrawnTwice())
    result = strategy.start(federation(9), model(1.0), num_rounds=1)
    numbers = np.array([int(who[-3:]) for who in cohorts(strategy)[0]])
    weights = (numbers + 1) * [1, 3]  # nodes weigh number + 1 and add their number
    assert value_of(result.arrays)[0] == pytest.approx(
        [1.0 + np.average(numbers, weights=weights)] * 3
    )
    assert np.average(numbers, weights=weights) != np.average(numbers, weights=numbers + 1)


@pytest.mark.parametrize("key", ["num-examples", "one"])
def test_a_draw_by_size_needs_a_weight_of_one(key, ticking):
    """By num-examples size counts twice: in the draw, and in the mean."""
    inner = FedAvg(fraction_evaluate=0.0, weighted_by_key=key)
    strategy = selecting(inner, selector="data-weighted")
    grid = federation(9, metrics=lambda number, message: {"num-examples": number + 1, "one": 1})
    result = strategy.start(grid, model(1.0), num_rounds=1)
    numbers = np.array([int(who[-3:]) for who in cohorts(strategy)[0]])
    weights = numbers + 1 if key == "num-examples" else np.ones(numbers.size)
    expected = 1.0 + np.average(numbers, weights=weights)
    assert value_of(result.arrays)[0] == pytest.approx([expected] * 3, rel=1e-12)


def test_with_differential_privacy_everybody_counts_once(ticking):
    inner = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1e6, 5)
    strategy = selecting(inner, selector=DrawnTwice())
    result = strategy.start(federation(9), model(1.0), num_rounds=1)
    numbers = np.array([int(who[-3:]) for who in cohorts(strategy)[0]])
    expected = 1.0 + np.average(numbers, weights=numbers + 1)
    assert value_of(result.arrays)[0] == pytest.approx([expected] * 3)


def test_configurations_of_the_inner_strategy_reach_the_clients(ticking):
    grid = federation(6)
    inner = DifferentialPrivacyClientSideFixedClipping(FedProx(proximal_mu=0.3), 0.0, 2.5, 3)
    config = ConfigRecord({"lr": 0.01})
    selecting(inner, cohort_size=3).start(grid, model(), num_rounds=1, train_config=config)
    sent = [m.content["config"] for m in grid.contents if m.metadata.message_type == "train"]
    assert len(sent) == 3
    for one in sent:
        assert (one["lr"], one["proximal-mu"], one["server-round"]) == (0.01, 0.3, 1)
        assert one["clipping_norm"] == 2.5


def test_an_xgboost_cycle_works_one_node_at_a_time(ticking):
    strategy = selecting(FedXgbCyclic(), cohort_size=1)
    strategy.start(federation(4), model(), num_rounds=3)
    assert [len(chosen) for chosen in cohorts(strategy)] == [1, 1, 1]


def test_selectors_come_by_name_or_as_objects(ticking):
    by_object = selecting(selector=turnout.make("e3cs", quota=0.2))
    by_object.start(federation(9), model(), num_rounds=4)
    named = selecting(selector="e3cs")
    named.start(federation(9), model(), num_rounds=4)
    assert by_object.selector.quota == 0.2
    assert named.selector.quota == 0.5
    assert by_object.rounds_done == named.rounds_done == 4


def test_the_learned_state_is_that_of_the_simulator_for_the_same_outcomes(ticking):
    # Everybody answers: E3CS by hand over the same streams must choose the same cohorts.
    strategy = selecting(selector="e3cs", seed=11)
    strategy.start(federation(8), model(), num_rounds=6)
    selector = turnout.make("e3cs")
    selector.prepare(8, 11)
    expected = []
    for t in range(6):
        ctx = turnout.RoundContext(t, 5, np.ones(8, dtype=bool), 10.0)
        selection = selector.select(ctx, turnout.stream(11, turnout.Purpose.SELECT, t))
        expected.append([f"client-{i:03d}" for i in selection.clients])
        n = selection.clients.size
        selector.observe(selection, turnout.Outcome([0] * n, [0.5] * n))
    assert cohorts(strategy) == expected


class Picky(FedAvg):
    """Samples by itself."""

    def __init__(self, clients_per_round):
        super().__init__()
        self.clients_per_round = clients_per_round

    def configure_train(self, server_round, arrays, config, grid):
        nodes = random.sample(list(grid.get_node_ids()), self.clients_per_round)
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, MessageType.TRAIN) for node in nodes]


class Patient(FedAvg):
    """Waits for nodes that were not chosen."""

    def __init__(self, min_clients):
        super().__init__()
        self.min_clients = min_clients

    def configure_train(self, server_round, arrays, config, grid):
        while len(list(grid.get_node_ids())) < self.min_clients:
            pass
        return super().configure_train(server_round, arrays, config, grid)


class Stubborn(FedAvg):
    """Writes to everybody it knows, chosen or not."""

    def __init__(self, known):
        super().__init__()
        self.known = known

    def configure_train(self, server_round, arrays, config, grid):
        return [Message(RecordDict({"arrays": arrays}), node, "train") for node in self.known]


def test_an_inner_strategy_that_samples_is_refused_with_its_setting(ticking):
    grid = federation(6)
    with pytest.raises(UnsuitableStrategy, match=r"Picky samples by itself.*clients_per_round = 3"):
        selecting(Picky(3)).start(grid, model(), num_rounds=2)
    assert not [kind for _, kind, _ in grid.sent if kind == "train"]


def test_an_inner_strategy_that_waits_is_refused_with_its_setting(ticking):
    with pytest.raises(UnsuitableStrategy, match=r"Patient waits.*min_clients = 6"):
        selecting(Patient(6)).start(federation(6), model(), num_rounds=2)


def test_an_inner_strategy_that_writes_to_others_is_refused(ticking):
    grid = federation(6)
    with pytest.raises(UnsuitableStrategy, match="6 messages, to 5 of them"):
        selecting(Stubborn(list(grid.nodes))).start(grid, model(), num_rounds=1)


def test_a_cycle_with_more_than_one_node_is_refused(ticking):
    with pytest.raises(UnsuitableStrategy, match="FedXgbCyclic samples by itself"):
        selecting(FedXgbCyclic(), cohort_size=2).start(federation(4), model(), num_rounds=1)


def accounted(n):
    inner = DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, n)
    inner.accountant = object()
    return inner


@pytest.mark.parametrize(
    ("inner", "given", "message"),
    [
        (lambda: FedAvg(fraction_train=0.0), {}, "fraction_train is 0.0"),
        (lambda: Krum(num_malicious_nodes=2), {}, "cohort_size must be at least 7 for Krum"),
        (lambda: Bulyan(num_malicious_nodes=1), {}, "cohort_size must be at least 7 for Bulyan"),
        (lambda: MultiKrum(num_nodes_to_select=6), {}, "num_nodes_to_select is 6"),
        (
            lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 1.0, 1.0, 4),
            {},
            "num_sampled_clients is 4 .* cohort_size is 5",
        ),
        (lambda: accounted(5), {"policy": OverSelect(FirstK(seconds=9.0))}, "selects 7 nodes"),
        (lambda: "FedAvg", {}, "inner must be a strategy"),
        (lambda: SelectingStrategy(FedAvg(), "random", cohort_size=2), {}, "inner must be a str"),
        (FedAvg, {"cohort_size": 0}, "cohort_size must be"),
        (FedAvg, {"seed": -1}, "seed must be"),
        (FedAvg, {"durations": "both"}, "durations must be one of"),
        (FedAvg, {"unidentified": "guess"}, "unidentified must be one of"),
        (FedAvg, {"wait_for_nodes_s": -1.0}, "wait_for_clients_s must be"),
        (FedAvg, {"ask_s": 0.0}, "ask_s must be"),
        (FedAvg, {"late_s": float("nan")}, "late_s must be"),
        (FedAvg, {"evaluate_s": 0.0}, "evaluate_s must be"),
        (FedAvg, {"poll_s": 0.0}, "poll_s must be"),
        (FedAvg, {"quorom": None}, "unknown setting 'quorom'. Did you mean 'quorum'"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_sent(inner, given, message):
    with pytest.raises(InvalidInput, match=message):
        selecting(inner(), **given)


@pytest.mark.parametrize("given", [{"timeout": 0.0}, {"num_rounds": -1}])
def test_bad_arguments_of_start(ticking, given):
    with pytest.raises(InvalidInput, match=next(iter(given))):
        selecting().start(federation(6), model(), **given)


def test_a_wrapper_around_the_selecting_strategy_is_refused(ticking):
    outer = DifferentialPrivacyServerSideFixedClipping(selecting(), 0.0, 1.0, 5)
    with pytest.raises(InvalidInput, match="must be the outermost"):
        outer.start(federation(6), model(), num_rounds=1)


class WithItsOwnLoop(FedAvg):
    """As Flower's advanced examples do: a loop of its own that keeps the best model."""

    best = None

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, **more):
        arrays, self.rounds = initial_arrays, 0
        for server_round in range(1, num_rounds + 1):
            messages = self.configure_train(server_round, arrays, ConfigRecord(), grid)
            replies = grid.send_and_receive(messages=messages, timeout=timeout)
            new, _ = self.aggregate_train(server_round, replies)
            arrays = new if new is not None else arrays
            self.best = max(self.best or 0.0, value_of(arrays)[0][0])
            self.rounds += 1
        return arrays


def test_an_inner_strategy_with_its_own_loop_keeps_it(ticking):
    inner = WithItsOwnLoop()
    strategy = selecting(inner)
    arrays = strategy.start(federation(9), model(), num_rounds=3)
    assert isinstance(arrays, ArrayRecord)
    assert inner.rounds == strategy.rounds_done == 3
    assert inner.best == value_of(arrays)[0][0] > 0.0
    assert "configure_train" not in vars(inner)  # nobody stands in afterwards
    plain = selecting()
    plain.start(federation(9), model(), num_rounds=3)
    assert cohorts(plain) == cohorts(strategy)


class PushesByItself(WithItsOwnLoop):
    def start(self, grid, initial_arrays, num_rounds=3, **more):
        messages = self.configure_train(1, initial_arrays, ConfigRecord(), grid)
        grid.push_messages(list(messages))
        self.aggregate_train(1, [])


def test_a_loop_that_does_not_send_by_the_grid_is_refused(ticking):
    with pytest.raises(UnsuitableStrategy, match="must send the messages of configure_train by"):
        selecting(PushesByItself()).start(federation(9), model(), num_rounds=1)


def test_evaluation_takes_the_share_that_the_inner_strategy_wants(ticking):
    grid = federation(10)
    selecting(FedAvg(fraction_evaluate=0.3)).start(grid, model(), num_rounds=4)
    asked = [[who for who, kind, at in grid.sent if kind == "evaluate" and at == r] for r in (1, 2)]
    assert [len(set(one)) for one in asked] == [3, 3]
    again = federation(10, seed=5)
    selecting(FedAvg(fraction_evaluate=0.3)).start(again, model(), num_rounds=4)
    kinds = ("evaluate",)
    drawn = [sorted(one for one in g.sent if one[1] in kinds) for g in (grid, again)]
    assert drawn[0] == drawn[1]  # by the seed, not by the global generator


def test_evaluation_can_be_switched_off(ticking):
    grid = federation(6)
    result = selecting(FedAvg(fraction_evaluate=0.0)).start(grid, model(), num_rounds=2)
    assert result.evaluate_metrics_clientapp == {}
    assert "evaluate" not in {kind for _, kind, _ in grid.sent}


def test_evaluation_does_not_wait_for_nodes_that_left(ticking):
    grid = federation(6)
    inner = FedAvg(min_evaluate_nodes=6, min_available_nodes=6)
    nodes = by_name(grid)

    def leave(server_round, arrays):
        for name in ("client-001", "client-002", "client-003", "client-004", "client-005"):
            nodes[name].is_online = False

    result = selecting(inner, wait_for_nodes_s=1.0).start(
        grid, model(), num_rounds=2, evaluate_fn=leave
    )
    asked = [one for one in grid.sent if one[1] == "evaluate"]
    assert {who for who, _, _ in asked} == {"client-000"}
    assert set(result.evaluate_metrics_clientapp) == {1, 2}


def test_results_of_the_servers_own_evaluation_are_kept(ticking):
    from flwr.app import MetricRecord

    seen = []

    def evaluate(server_round, arrays):
        seen.append((server_round, value_of(arrays)[0][0]))
        return MetricRecord({"accuracy": server_round / 10})

    result = selecting().start(federation(6), model(), num_rounds=2, evaluate_fn=evaluate)
    assert [server_round for server_round, _ in seen] == [0, 1, 2]
    assert seen[0][1] == 0.0 < seen[1][1] < seen[2][1]
    got = {r: one["accuracy"] for r, one in result.evaluate_metrics_serverapp.items()}
    assert got == {0: 0.0, 1: 0.1, 2: 0.2}


def test_no_rounds_at_all(ticking):
    result = selecting().start(federation(6), model(2.0), num_rounds=0)
    assert value_of(result.arrays) == value_of(model(2.0))
