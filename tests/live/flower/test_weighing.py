"""Aggregation that knows who took part, in Flower: equal to training, saved, refused by name."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from tests.live.flower.fake import (
    Fate,
    by_name,
    cohorts,
    federation,
    model,
    outcomes,
    value_of,
)
from tests.live.flower.test_resume import Killed, continued, kill_when
from turnout import StateFileError
from turnout.core.errors import InvalidInput
from turnout.core.types import Status
from turnout.live import Quorum
from turnout.live.flower import SelectingStrategy
from turnout.training import (
    InverseProbability,
    KeepGlobal,
    LastUpdates,
    MeanReturned,
    OnlineWeights,
    RunningRates,
)
from turnout.training.aggregate import Answered
from turnout.worlds import Buffered, FixedDeadline

ROUNDS = 8
RULES = (
    MeanReturned(),
    KeepGlobal(),
    InverseProbability(),
    InverseProbability(normalise=True, most=4.0),
    RunningRates(),
    RunningRates(normalise=False, most=3.0),
    OnlineWeights(cutoff=3),
    LastUpdates(),
)


def selecting(rule, inner=None, **given):
    given = {"cohort_size": 4, "policy": FixedDeadline(10.0), "seed": 5} | given
    return SelectingStrategy(inner or FedAvg(), "e3cs", aggregation=rule, **given)


def flaky(n=9):
    grid = federation(n)
    for number in (1, 2, 4, 7):
        fates = {0: Fate(code=2), 2: Fate(code=5)}
        by_name(grid)[f"client-{number:03d}"].plan = fates
    return grid


def models(strategy, grid, n_rounds=ROUNDS, **given):
    """Return the models after each round, flat, from the first on."""
    seen = []
    strategy.start(
        grid,
        model(),
        num_rounds=n_rounds,
        evaluate_fn=lambda t, arrays: seen.append(flat(arrays)),
        **given,
    )
    return seen


def flat(arrays):
    return np.concatenate([array.ravel() for array in arrays.to_numpy_ndarrays()])


def trained(rule, strategy, n):
    """Play the history of a strategy with the functions of training."""
    weights, memory = torch.zeros(4, dtype=torch.float64), rule.start(n, 4)
    sizes = np.arange(1, n + 1)
    run, ids, seen = strategy.run, strategy.roster.ids, [np.zeros(4)]
    place = np.array([int(name.removeprefix("client-")) for name in ids])
    for t in range(run.n_rounds):
        part = slice(run.offsets[t], run.offsets[t + 1])
        used = run.status[part] == Status.COMPLETED
        clients = place[run.clients[part][used]]
        if clients.size:
            updates = torch.stack([weights + float(number) for number in clients])
            chance = run.probability[part][used]
            times = np.ones(clients.size, dtype=np.int64)
            answered = Answered(clients, sizes[clients], chance, times, sizes)
            weights = rule.combined(weights, updates, answered, memory, 1.0)
        rule.remember(memory, np.isin(np.arange(n), clients))
        seen.append(weights.numpy())
    return seen


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_models_are_those_of_training_on_the_same_history(ticking, rule):
    strategy = selecting(rule)
    ours = models(strategy, flaky())
    statuses = {status for t in range(ROUNDS) for status in outcomes(strategy, t).values()}
    assert len(statuses) > 1  # somebody failed
    theirs = trained(rule, strategy, 9)
    assert len(ours) == len(theirs) == ROUNDS + 1
    for own, other in zip(ours, theirs, strict=True):
        assert own == pytest.approx(other, rel=1e-6, abs=1e-6)


def test_without_a_rule_the_inner_strategy_weighs(ticking):
    plain, mean = (models(selecting(rule), flaky()) for rule in (None, MeanReturned()))
    assert plain[-1] == pytest.approx(mean[-1])
    rates = models(selecting(RunningRates()), flaky())
    assert rates[-1] != pytest.approx(plain[-1])


def test_adaptive_strategies_go_on_from_the_weighed_mean(ticking):
    """With momentum 0 and a learning rate of 2, FedAvgM takes twice the step of the rule."""
    once = models(selecting(OnlineWeights()), flaky(), 1)
    twice = models(selecting(OnlineWeights(), FedAvgM(server_learning_rate=2.0)), flaky(), 1)
    assert twice[-1] == pytest.approx(2.0 * once[-1])
    assert np.isfinite(models(selecting(OnlineWeights(), FedAdam()), flaky(), 3)[-1]).all()


def test_metrics_and_buffers_stay_those_of_the_clients(ticking):
    first = ArrayRecord(
        {"w": _array(np.zeros(2)), "bn.running_var": _array(np.ones(1)), "n": _array(np.array([3]))}
    )

    def plain(rule):
        strategy, grid = selecting(rule), federation(4)
        for node in grid.nodes.values():
            node.app = _keyed(int(node.name.removeprefix("client-")))
        result = strategy.start(grid, first, num_rounds=1)
        return result.arrays, result.train_metrics_clientapp

    (own, metrics), (usual, usual_metrics) = plain(KeepGlobal()), plain(None)
    assert metrics == usual_metrics
    for key in ("bn.running_var", "n"):
        assert own[key].numpy() == pytest.approx(usual[key].numpy())
    assert own["w"].numpy() == pytest.approx(usual["w"].numpy())  # all four returned
    assert [own[key].numpy().dtype for key in own] == [usual[key].numpy().dtype for key in usual]


def _array(values):
    return ArrayRecord([values])["0"]


def _keyed(number):
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from turnout.live.flower.client import describe

    app = ClientApp()
    describe(app, stable_id=f"client-{number:03d}", num_examples=number + 1)

    @app.train()
    def train(message, context):
        arrays = {k: _array(v.numpy() + number) for k, v in message.content["arrays"].items()}
        metrics = MetricRecord({"num-examples": number + 1, "loss": 0.5 + number})
        content = RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics})
        return Message(content, reply_to=message)

    return app


@pytest.mark.parametrize("rule", [RunningRates(), OnlineWeights(cutoff=3), LastUpdates()], ids=repr)
def test_a_killed_run_remembers_who_took_part(ticking, tmp_path, rule):
    whole = models(selecting(rule), flaky())
    path, grid = tmp_path / "run.npz", flaky()
    kill_when(grid, "train", 5)
    with pytest.raises(Killed):
        models(selecting(rule, checkpoint=path), grid)
    after = continued(flaky(), grid)
    for who, kind, at in grid.sent:  # the messages of round 5 were delivered, and are forgotten
        by_name(after)[who].trained -= kind == "train" and at == 5
    seen = models(selecting(rule, checkpoint=path), after)
    assert seen[-1].tolist() == whole[-1].tolist()


def test_a_checkpoint_of_another_rule_is_refused(ticking, tmp_path):
    path = tmp_path / "run.npz"
    models(selecting(RunningRates(), checkpoint=path), federation(9), 2)
    for other in (None, OnlineWeights(), RunningRates(prior=9.0)):
        with pytest.raises(StateFileError, match="aggregation"):
            models(selecting(other, checkpoint=path), federation(9), 3)
    plain = tmp_path / "plain.npz"
    models(selecting(None, checkpoint=plain), federation(9), 2)
    with pytest.raises(StateFileError, match="aggregation"):
        models(selecting(RunningRates(), checkpoint=plain), federation(9), 3)
    assert len(models(selecting(None, checkpoint=plain), federation(9), 3)) == 1  # round 3


@pytest.mark.parametrize("rule", [RunningRates(), OnlineWeights(), LastUpdates()], ids=repr)
def test_a_client_that_joins_counts_from_then_on(ticking, rule):
    grid = federation(9)
    late = by_name(grid)["client-008"]
    late.is_online = False
    strategy = selecting(rule)

    def join(t, arrays):
        late.is_online = late.is_online or t == 4
        assert np.isfinite(flat(arrays)).all()

    strategy.start(grid, model(), num_rounds=20, evaluate_fn=join)
    assert any("client-008" in chosen for chosen in cohorts(strategy))
    if isinstance(rule, RunningRates):
        memory = strategy._run._weighing._memory
        at = strategy.roster.index_of("client-008")
        assert memory["n_rounds"].max() == 20
        assert 14 <= memory["n_rounds"][at] <= 16


def test_a_round_with_too_few_answers_changes_nothing_and_counts(ticking):
    grid = federation(4)
    for node in grid.nodes.values():
        node.plan = {0: Fate(code=2)}
    strategy = selecting(OnlineWeights(), quorum=Quorum(min_answers=2))
    seen = models(strategy, grid, 1)
    assert seen[0].tolist() == seen[1].tolist()
    assert strategy._run._weighing._memory["open_interval"].tolist() == [1.0] * 4


def test_a_rule_may_be_written_as_in_a_recipe():
    assert selecting("online-weights").aggregation == OnlineWeights()
    table = {"kind": "running-rates", "prior": 2.0}
    assert selecting(table).aggregation == RunningRates(prior=2.0)
    with pytest.raises(InvalidInput, match="online-weights"):
        selecting("online-weight")


@pytest.mark.parametrize(
    "inner",
    [
        FedMedian(),
        FedTrimmedAvg(),
        Krum(num_malicious_nodes=0),
        MultiKrum(num_malicious_nodes=0, num_nodes_to_select=2),
        Bulyan(num_malicious_nodes=0),
        QFedAvg(client_learning_rate=0.1, train_loss_key="train_loss"),
        FedXgbBagging(),
        DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, 1e6, 4),
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_strategies_without_a_weighted_mean_are_refused_by_name(inner):
    with pytest.raises(InvalidInput, match=type(inner).__name__) as caught:
        selecting(RunningRates(), inner)
    assert caught.value.field == "aggregation"


def test_a_strategy_that_is_no_average_and_a_selector_without_chances_are_refused():
    class Own(Strategy):
        configure_train = aggregate_train = configure_evaluate = aggregate_evaluate = summary = (
            lambda *_: None
        )

    with pytest.raises(InvalidInput, match="Own"):
        selecting(RunningRates(), Own())
    with pytest.raises(InvalidInput, match="InverseProbability needs inclusion probabilities"):
        SelectingStrategy(FedAvg(), "pace", cohort_size=4, aggregation=InverseProbability())


def test_rounds_that_overlap_are_refused():
    with pytest.raises(InvalidInput, match="synchronous rounds") as caught:
        selecting(RunningRates(), schedule=Buffered(size=2, concurrency=4))
    assert caught.value.field == "aggregation"


def test_the_values_are_as_flower_writes_them(ticking):
    strategy = selecting(MeanReturned())
    result = strategy.start(federation(9), model(), num_rounds=2)
    assert [np.shape(x) for x in value_of(result.arrays)] == [(3,), (1, 1)]


def other_arrays(reply):
    """Return the reply with a model of other keys."""
    reply.content["arrays"] = ArrayRecord({"other": Array(np.ones(2))})
    return reply


@pytest.mark.parametrize("n", [2, 4])
def test_replies_that_are_no_such_model_are_dropped_even_if_there_are_no_others(ticking, n):
    """A rule takes the model from the replies, so the form of the only reply is not the usual."""
    grid = federation(n)
    for node in grid.nodes.values():
        node.plan = {1: Fate(forge=other_arrays)}
    strategy = selecting("online-weights", cohort_size=n, start_s=0.0, wait_for_clients_s=0.0)
    seen = models(strategy, grid, 3)
    assert set(outcomes(strategy, 1).values()) == {int(Status.FAILED)}
    np.testing.assert_array_equal(seen[1], seen[2])
    assert not np.array_equal(seen[2], seen[3])
