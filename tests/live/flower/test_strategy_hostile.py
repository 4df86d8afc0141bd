"""Replies that would end the app, poison the model or fool the selector."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)
from flwr.serverapp.strategy.fedtrimmedavg import trim_mean

import turnout
from tests.live.flower.fake import Fate, by_name, cohorts, federation, model, outcomes, value_of
from turnout import Selection, Selector, Status
from turnout.core.bounds import Bounds
from turnout.live import MissingMetric
from turnout.live.checkpoint import read_checkpoint
from turnout.live.flower import SelectingStrategy, transport
from turnout.live.flower.inner import answers_needed
from turnout.worlds import FixedDeadline

COMPLETED, LATE, FAILED, SILENT = (int(status) for status in Status)


class Watching(Selector):
    """Takes everyone, wants the loss, keeps what it was told."""

    needs_metrics = frozenset({"loss"})

    def __init__(self):
        self.losses = []

    def select(self, ctx, rng):
        return Selection(ctx.round, ctx.pool[: ctx.size])

    def observe(self, selection, outcome):
        self.losses.append(outcome.metric("loss").tolist())


def selecting(inner=None, selector=None, **given):
    given = {
        "cohort_size": 4,
        "policy": FixedDeadline(10.0),
        "start_s": 0.0,
        "wait_for_nodes_s": 0.0,
    } | given
    inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
    return SelectingStrategy(inner, selector or Watching(), **given)


def with_arrays(*arrays, key="arrays"):
    def forge(reply):
        content = RecordDict(dict(reply.content))
        del content["arrays"]
        content[key] = ArrayRecord(list(arrays))
        reply.content = content
        return reply

    return forge


def with_metrics(change):
    def forge(reply):
        change(reply.content["metrics"].__dict__["_data"])
        return reply

    return forge


def extra_record(name, record):
    def forge(reply):
        reply.content[name] = record
        return reply

    return forge


def without(name):
    def forge(reply):
        del reply.content[name]
        return reply

    return forge


def raw_array(data, dtype="float64"):
    def forge(reply):
        broken = Array(dtype=dtype, shape=(3,), stype="numpy.ndarray", data=data)
        reply.content["arrays"]["0"] = broken
        return reply

    return forge


def huge_header():
    """An array that claims a petabyte."""
    good = Array(np.zeros(3)).data
    return good.replace(b"(3,)", b"(99999999999999,)").replace(b"          \n", b"\n", 1)


def reordered(reply):
    arrays = reply.content["arrays"]
    reply.content["arrays"] = ArrayRecord({key: arrays[key] for key in reversed(list(arrays))})
    return reply


def nothing(reply):
    reply.__dict__["_content"] = None
    return reply


HOSTILE = {
    "NaN in the model": with_arrays(np.array([1.0, math.nan, 1.0]), np.ones((1, 1))),
    "infinity in the model": with_arrays(np.ones(3), np.array([[math.inf]])),
    "another shape": with_arrays(np.ones(4), np.ones((1, 1))),
    "a shape that would broadcast": with_arrays(np.ones(1), np.ones((1, 1))),
    "fewer arrays": with_arrays(np.ones(3)),
    "no arrays": with_arrays(),
    "text for a model": with_arrays(np.array(["a", "b", "c"]), np.ones((1, 1))),
    "complex numbers": with_arrays(np.ones(3) * 1j, np.ones((1, 1))),
    "another record name": with_arrays(np.ones(3), np.ones((1, 1)), key="weights"),
    "bytes that are no array": raw_array(b"not an array"),
    "half an array": raw_array(Array(np.zeros(3)).data[:-5]),
    "a petabyte": raw_array(huge_header()),
    "a pickle": raw_array(b"\x80\x04N."),
    "arrays in another order": reordered,
    "two ArrayRecords": extra_record("more", ArrayRecord([np.ones(3)])),
    "two MetricRecords": extra_record("more", MetricRecord({"a": 1})),
    "no ArrayRecord": without("arrays"),
    "no MetricRecord": without("metrics"),
    "no content": nothing,
    "another metric key": with_metrics(lambda m: m.update(extra=1.0)),
    "a metric less": with_metrics(lambda m: m.pop("duration")),
    "no weight": with_metrics(lambda m: m.pop("num-examples")),
    "weight NaN": with_metrics(lambda m: m.update({"num-examples": math.nan})),
    "weight infinite": with_metrics(lambda m: m.update({"num-examples": math.inf})),
    "weight negative": with_metrics(lambda m: m.update({"num-examples": -5})),
    "weight huge": with_metrics(lambda m: m.update({"num-examples": 1e200})),
    "weight a list": with_metrics(lambda m: m.update({"num-examples": [1.0]})),
    "weight a text": with_metrics(lambda m: m.update({"num-examples": "7"})),
    "loss a list": with_metrics(lambda m: m.update(loss=[1.0, 2.0])),
    "loss a text": with_metrics(lambda m: m.update(loss="low")),
    "loss True": with_metrics(lambda m: m.update(loss=True)),
    "loss an integer beyond all floats": with_metrics(lambda m: m.update(loss=10**400)),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("make", [FedAvg, FedAdam, FedMedian])
def test_a_hostile_reply_is_dropped_and_the_federation_goes_on(ticking, logged, name, make):
    grid = federation(4)
    by_name(grid)["client-002"].plan = {0: Fate(forge=HOSTILE[name])}
    strategy = selecting(make(fraction_evaluate=0.0))
    result = strategy.start(grid, model(), num_rounds=2)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, COMPLETED, FAILED, COMPLETED]
    assert list(outcomes(strategy, 1).values()) == [COMPLETED] * 4
    assert np.isfinite(np.concatenate([a.ravel() for a in result.arrays.to_numpy_ndarrays()])).all()
    assert any(line.startswith("client-002: reply dropped") for line in logged)
    if make is FedAvg:
        first = (0 * 1 + 1 * 2 + 3 * 4) / 7
        second = (0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10
        assert value_of(result.arrays)[0] == pytest.approx([first + second] * 3)


IMPOSSIBLE = {"NaN": math.nan, "infinite": math.inf, "negative": -3.0, "huge": 1e200}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_impossible_loss_counts_as_not_reported(ticking, name):
    grid = federation(3)
    forge = with_metrics(lambda m: m.update(loss=IMPOSSIBLE[name]))
    by_name(grid)["client-001"].plan = {0: Fate(forge=forge)}
    strategy = selecting(selector=turnout.make("rpow-d"), cohort_size=3)
    strategy.start(grid, model(), num_rounds=2)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED] * 3  # its model is fine
    watching = selecting()
    by_name(grid)["client-001"].trained = 0
    watching.start(grid, model(), num_rounds=1)
    np.testing.assert_equal(watching.selector.losses[0], [1.0, math.nan, 1.0 / 3])


def test_one_hostile_and_one_honest_client_are_told_apart(ticking):
    # Two replies, two forms: the one with what is needed wins, whoever stands first.
    for number in (0, 1):
        grid = federation(2)
        hostile = by_name(grid)[f"client-00{number}"]
        hostile.plan = {0: Fate(forge=with_metrics(lambda m: (m.clear(), m.update(foo=1.0))))}
        strategy = selecting(cohort_size=2)
        strategy.start(grid, model(), num_rounds=1)
        expected = [COMPLETED, COMPLETED]
        expected[number] = FAILED
        assert list(outcomes(strategy, 0).values()) == expected


def test_a_majority_with_another_model_does_not_win(ticking):
    grid = federation(4)
    for number in (0, 1, 3):
        forge = with_arrays(np.full(5, 9.0), np.ones((1, 1)))
        by_name(grid)[f"client-00{number}"].plan = {0: Fate(forge=forge)}
    strategy = selecting()
    result = strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [FAILED, FAILED, COMPLETED, FAILED]
    assert value_of(result.arrays)[0] == [2.0] * 3


def test_clients_that_send_only_a_part_of_the_model_are_fine_if_all_do(ticking):
    # As with adapters: the arrays that come back are others than those that were sent.
    grid = federation(3)
    for node in grid.nodes.values():
        node.plan = {0: Fate(forge=with_arrays(np.full(2, 5.0)))}
    strategy = selecting()
    result = strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED] * 3
    assert value_of(result.arrays) == [[5.0, 5.0]]


def test_weights_that_are_all_zero_leave_the_model_as_it_is(ticking):
    grid = federation(3)
    for node in grid.nodes.values():
        node.plan = {0: Fate(forge=with_metrics(lambda m: m.update({"num-examples": 0})))}
    strategy = selecting()
    result = strategy.start(grid, model(), num_rounds=2)
    assert list(outcomes(strategy, 0).values()) == [FAILED] * 3
    assert list(outcomes(strategy, 1).values()) == [COMPLETED] * 3
    assert set(result.train_metrics_clientapp) == {2}


def test_one_weight_of_zero_is_allowed(ticking):
    grid = federation(3)
    forge = with_metrics(lambda m: m.update({"num-examples": 0}))
    by_name(grid)["client-002"].plan = {0: Fate(forge=forge)}
    strategy = selecting()
    result = strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED] * 3
    assert value_of(result.arrays)[0][0] == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 1.0, 3),
        lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 0.0, 3),
    ],
)
def test_a_model_that_comes_back_unchanged_does_not_end_a_clipping_strategy(ticking, wrap):
    # Client 0 adds 0 to the model: an update of length 0, by which these strategies would divide.
    strategy = selecting(wrap(FedAvg(fraction_evaluate=0.0)), cohort_size=3)
    strategy.start(federation(3), model(), num_rounds=2)
    for t in range(2):
        assert list(outcomes(strategy, t).values()) == [FAILED, COMPLETED, COMPLETED]


def test_a_round_without_usable_replies_does_not_reach_the_inner_strategy(ticking):
    # Adaptive clipping would divide by the number of replies.
    grid = federation(3)
    for node in grid.nodes.values():
        node.plan = {0: Fate(code=2)}
    inner = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(fraction_evaluate=0.0), 0.0, 3)
    strategy = selecting(inner, cohort_size=3)
    strategy.start(grid, model(), num_rounds=2)
    assert list(outcomes(strategy, 0).values()) == [FAILED] * 3


def test_robust_strategies_stay_robust(ticking):
    grid = federation(5)
    by_name(grid)["client-004"].plan = {
        0: Fate(forge=with_arrays(np.full(3, 1e6), np.ones((1, 1))))
    }
    inner = Krum(num_malicious_nodes=1, fraction_evaluate=0.0)
    result = selecting(inner, cohort_size=5).start(grid, model(), num_rounds=1)
    assert value_of(result.arrays)[0][0] < 4.0


@pytest.mark.parametrize("name", ["no MetricRecord", "no weight", "another metric key"])
def test_hostile_evaluations_are_dropped(ticking, logged, name):
    grid = federation(4)
    odd = by_name(grid)["client-001"]
    plain = odd.app

    def forged(message, context):
        reply = plain(message, context)
        is_evaluation = message.metadata.message_type == "evaluate"
        return HOSTILE[name](reply) if is_evaluation else reply

    odd.app = forged
    result = selecting(FedAvg()).start(grid, model(), num_rounds=1)
    # eval_loss is the number, weighted by number + 1.
    expected = (0 * 1 + 2 * 3 + 3 * 4) / 8
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(expected)
    assert any("an evaluation was dropped" in line for line in logged)


def test_evaluations_with_errors_are_left_out(ticking):
    grid = federation(3)
    odd = by_name(grid)["client-001"]
    plain = odd.app
    odd.app = lambda m, c: 1 / 0 if m.metadata.message_type == "evaluate" else plain(m, c)
    result = selecting(FedAvg()).start(grid, model(), num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["eval_loss"] == pytest.approx(2 * 3 / 4)


def test_a_metric_that_nobody_reports_is_named_with_the_line_to_add(ticking, tmp_path):
    grid = federation(4, metrics=lambda number, message: {"num-examples": 1, "train_loss": 0.5})
    strategy = selecting(selector="ucb-cs", checkpoint=tmp_path / "run.npz")
    with pytest.raises(MissingMetric) as caught:
        strategy.start(grid, model(), num_rounds=2)
    assert "UCBCS needs 'loss' and 'loss_std'" in str(caught.value)
    assert "report.add(loss, n=len(batch))" in str(caught.value)
    assert "**report.metrics()" in str(caught.value)
    assert "metric_keys={'loss': ..., 'loss_std': ...}" in str(caught.value)
    assert not (tmp_path / "run.npz").exists()


@pytest.mark.parametrize("utility", [0.5, 0.0])
def test_pace_works_with_an_unchanged_client_and_says_what_it_does_without(
    utility, ticking, logged
):
    """A Flower client that knows nothing of turnout: no identity, no losses."""
    grid = federation(6, describes=False, metrics=lambda number, message: {"num-examples": 1})
    strategy = selecting(selector=turnout.make("pace", utility=utility))
    strategy.start(grid, model(), num_rounds=4)
    assert [len(cohort) for cohort in cohorts(strategy)] == [4] * 4
    said = [line for line in logged if "loss_rms" in line]
    assert len(said) == (1 if utility else 0)  # once, and not if losses count for nothing
    if utility:
        assert "Pace can do without: it goes by times, answers and queues" in said[0]
        assert "report = LossReport()" in said[0]


def test_a_guarded_pace_can_do_without_losses_too(ticking, logged):
    grid = federation(6, metrics=lambda number, message: {"num-examples": 1})
    selector = turnout.make("guarded", inner="pace")
    selecting(selector=selector).start(grid, model(), num_rounds=2)
    assert any("Guarded can do without" in line for line in logged)


def test_a_client_with_losses_does_not_drive_out_those_without(ticking):
    """Flower averages replies with the same keys; those of the majority count."""

    def metrics(number, message):
        return {"num-examples": 1} | ({"loss_rms": 1.0} if number == 0 else {})

    strategy = selecting(selector="pace", cohort_size=6)
    strategy.start(federation(6, metrics=metrics), model(), num_rounds=2)
    for t in range(2):
        assert list(outcomes(strategy, t).values()).count(COMPLETED) == 5


@pytest.mark.parametrize("own", [{}, {"loss_rms": "loss-rms"}])
def test_clients_of_earlier_versions_wrote_hyphens(own, ticking):
    """Old and new clients in one federation: one spelling counts, none is dropped."""

    def metrics(number, message):
        rms, std = ("loss-rms", "loss-std") if number < 2 else ("loss_rms", "loss_std")
        return {"num-examples": 1, "loss": 1.0, rms: 1.0 + number, std: 0.5}

    strategy = selecting(selector="oort", metric_keys=own)
    result = strategy.start(federation(4, metrics=metrics), model(), num_rounds=1)
    assert result.train_metrics_clientapp[1]["loss_rms"] == pytest.approx(2.5)
    assert strategy.selector.utility_.min() > 0.0


def test_keys_of_your_own_can_be_named(ticking):
    grid = federation(3, metrics=lambda number, message: {"num-examples": 1, "train_loss": number})
    strategy = selecting(metric_keys={"loss": "train_loss"})
    strategy.start(grid, model(), num_rounds=1)
    assert strategy.selector.losses == [[0.0, 1.0, 2.0]]


def test_a_metric_that_was_there_once_may_be_missing_later(ticking):
    # Everybody leaves the loss out in round 2: the selector sees that it is missing, no error.
    def metrics(number, message):
        found = {"num-examples": 1, "loss": 1.0}
        if message.content["config"]["server-round"] == 2:
            del found["loss"]
        return found

    strategy = selecting()
    strategy.start(federation(3, metrics=metrics), model(), num_rounds=3)
    np.testing.assert_equal(strategy.selector.losses, [[1.0] * 3, [math.nan] * 3, [1.0] * 3])


def test_a_missing_metric_while_nobody_answers_is_no_error_yet(ticking):
    grid = federation(3, metrics=lambda number, message: {"num-examples": 1})
    for node in grid.nodes.values():
        node.plan = {0: Fate(code=2)}
    with pytest.raises(MissingMetric):
        selecting().start(grid, model(), num_rounds=2)
    assert {node.trained for node in grid.nodes.values()} == {2}


def test_a_missing_weight_is_named_too(ticking):
    grid = federation(3, metrics=lambda number, message: {"loss": 1.0})
    with pytest.raises(MissingMetric, match=r"needs 'num-examples'.*len\(train_set\)"):
        selecting().start(grid, model(), num_rounds=1)


def test_what_the_inner_strategy_itself_demands_of_all_is_its_own_error(ticking):
    # All replies lack the key of q-FedAvg: that is a mistake in the app, not a hostile client.
    from flwr.serverapp.exception import AggregationError

    grid = federation(3, metrics=lambda number, message: {"num-examples": 1, "loss": 1.0})
    inner = QFedAvg(q=0.1, client_learning_rate=0.1, train_loss_key="missing")
    with pytest.raises(AggregationError, match="missing"):
        selecting(inner).start(grid, model(), num_rounds=1)


class Bare(Strategy):
    """A strategy with rules of its own: no arrays, no metrics, a ConfigRecord only."""

    def __init__(self):
        self.got = []

    def configure_train(self, server_round, arrays, config, grid):
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, "train") for node in grid.get_node_ids()]

    def aggregate_train(self, server_round, replies):
        self.got.append(len(list(replies)))
        return None, None

    def configure_evaluate(self, server_round, arrays, config, grid):
        return []

    def aggregate_evaluate(self, server_round, replies):
        return None

    def summary(self):
        pass


def test_strategies_with_other_rules_get_replies_as_they_are(ticking):
    def bare(reply):
        return with_record(reply, RecordDict({"only": ConfigRecord({"x": 1})}))

    def with_record(reply, content):
        reply.content = content
        return reply

    grid = federation(3)
    for node in grid.nodes.values():
        node.plan = {t: Fate(forge=bare) for t in range(2)}
    inner = Bare()
    strategy = selecting(inner, selector="random")
    result = strategy.start(grid, model(3.0), num_rounds=2)
    assert inner.got == [3, 3]
    assert value_of(result.arrays) == value_of(model(3.0))
    assert [len(chosen) for chosen in cohorts(strategy)] == [3, 3]


def test_a_reply_that_cannot_be_unpacked_is_dropped_alone(ticking, logged):
    grid = federation(3)
    bad = by_name(grid)["client-001"].node_id
    plain = grid.pull_messages

    def pull_messages(message_ids):
        for name in message_ids:
            node, message, *_ = grid._open[name]
            is_training = message.metadata.message_type == "train"
            if is_training and node.node_id == bad and grid._look(name) is not None:
                raise ValueError("Unexpected set of `children`")
        return plain(message_ids)

    grid.pull_messages = pull_messages
    strategy = selecting()
    strategy.start(grid, model(), num_rounds=1)
    assert list(outcomes(strategy, 0).values()) == [COMPLETED, FAILED, COMPLETED]
    assert any("cannot be read" in line for line in logged)


def test_a_broken_connection_is_not_swallowed(ticking):
    grid = federation(3)

    def pull_messages(message_ids):
        raise ConnectionError("the SuperLink is gone")

    grid.pull_messages = pull_messages
    with pytest.raises(ConnectionError):
        selecting().start(grid, model(), num_rounds=1)


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0),
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.zeros((0, 4), dtype=np.float32),
        np.array(7, dtype=np.int64),
        np.array([True, False]),
        np.array([1 + 2j]),
        np.arange(3, dtype=">f4"),
        np.array(["a", "bc"]),
    ],
)
def test_arrays_are_read_as_flower_reads_them(values):
    array = Array(values)
    found = transport.read_array(array)
    np.testing.assert_array_equal(found, array.numpy())
    assert (found.dtype, found.shape) == (array.numpy().dtype, array.numpy().shape)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (6,)), ("int64", (3, 2)), ("nonsense", (6,)), ("float64", (7,))],
)
def test_what_an_array_claims_is_not_trusted(dtype, shape):
    true = Array(np.arange(6.0))
    lying = Array(dtype=dtype, shape=shape, stype="numpy.ndarray", data=true.data)
    np.testing.assert_array_equal(transport.read_array(lying), np.arange(6.0))


def test_arrays_of_another_kind_are_not_read():
    other = Array(dtype="float64", shape=(1,), stype="pickle", data=b"x")
    with pytest.raises(transport.UNREADABLE):
        transport.read_array(other)


def boasting(seed=0):
    grid = federation(8, seed=seed)
    forge = with_metrics(lambda metrics: metrics.update(loss=1e30))
    by_name(grid)["client-000"].plan = {t: Fate(forge=forge) for t in range(9)}
    return grid


@pytest.mark.parametrize("bounds", [turnout.Bounds(), None])
def test_a_huge_loss_reaches_the_selector_only_without_bounds(ticking, bounds):
    strategy = selecting(cohort_size=8, bounds=bounds)
    strategy.start(boasting(), model(), num_rounds=1)
    honest = [1.0 / (1 + number) for number in range(1, 8)]
    assert strategy.selector.losses[0] == [0.25 if bounds else 1e30, *honest]


def test_bounds_are_saved_and_each_run_has_its_own(ticking, tmp_path):
    path = tmp_path / "run.npz"
    for n_rounds in (1, 2):
        strategy = selecting(cohort_size=8, checkpoint=path)
        strategy.start(boasting(n_rounds), model(), num_rounds=n_rounds)
    state = read_checkpoint(path, "turnout-flower").arrays["bounds"]
    assert state["samples_"].shape == (8,)
    whole = selecting(cohort_size=8, checkpoint=tmp_path / "whole.npz")
    whole.start(boasting(), model(), num_rounds=2)
    for name, values in (
        read_checkpoint(tmp_path / "whole.npz", "turnout-flower").arrays["bounds"].items()
    ):
        np.testing.assert_array_equal(state[name], values)


def test_bounds_can_be_put_on_a_run_that_went_without(ticking, tmp_path):
    path = tmp_path / "run.npz"
    selecting(cohort_size=8, checkpoint=path, bounds=None).start(boasting(), model(), num_rounds=1)
    assert "bounds" not in read_checkpoint(path, "turnout-flower").arrays
    resumed = selecting(cohort_size=8, checkpoint=path)
    resumed.start(boasting(1), model(), num_rounds=2)
    assert resumed.selector.losses[-1][0] == 0.25


@pytest.mark.parametrize("bounds", [Bounds(), None])
def test_who_says_more_examples_than_before_does_not_take_over_the_model(ticking, logged, bounds):
    """A client of 4 examples says 10^9 in its reply: at most three times 4 weigh."""

    def metrics(number, message):
        return {"num-examples": 10**9 if number == 3 else number + 1}

    inner = FedAvg(fraction_evaluate=0.0)
    strategy = SelectingStrategy(inner, "random", cohort_size=6, bounds=bounds)
    result = strategy.start(federation(6, metrics=metrics), model(), num_rounds=1)
    weights = [1, 2, 3, 12 if bounds else 10**9, 5, 6]
    expected = np.average(np.arange(6), weights=weights)
    assert value_of(result.arrays)[0][0] == pytest.approx(expected)
    told = [line for line in logged if "the weight 1e+09 and claimed 4 before" in line]
    assert len(told) == (1 if bounds else 0)


def test_a_weight_that_is_no_number_of_examples_is_bounded_by_the_first_one(ticking, logged):
    """A strategy may weigh by a key of its own; what was said under it first counts."""
    rounds = []

    def metrics(number, message):
        t = message.content.config_records["config"]["server-round"]
        rounds.append(t)
        return {"share": 10.0**9 if number == 3 and t == 2 else number + 0.5}

    inner = FedAvg(fraction_evaluate=0.0, weighted_by_key="share")
    strategy = SelectingStrategy(inner, "random", cohort_size=6)
    result = strategy.start(federation(6, metrics=metrics), model(), num_rounds=2)
    first, second = ([0.5, 1.5, 2.5, weight, 4.5, 5.5] for weight in (3.5, 10.5))
    steps = [np.average(np.arange(6), weights=weights) for weights in (first, second)]
    assert value_of(result.arrays)[0][0] == pytest.approx(sum(steps))
    assert set(rounds) == {1, 2}
    assert sum("claimed 3.5 before: its weight is 10.5" in line for line in logged) == 1


def scaled(factor):
    """A reply whose arrays are multiplied, as a poisoned model would be."""

    def forge(reply):
        arrays = [factor * array for array in reply.content["arrays"].to_numpy_ndarrays()]
        reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return forge


def test_a_median_of_two_is_not_ruined(ticking, logged):
    """One reply of 1e30 and one of NaN in a cohort of three left a model at chance."""
    grid = federation(3)
    nodes = by_name(grid)
    nodes["client-001"].plan = {2: Fate(forge=with_arrays(np.full(3, math.nan), np.ones((1, 1))))}
    nodes["client-002"].plan = {2: Fate(forge=with_arrays(np.full(3, 1e30), np.ones((1, 1))))}
    strategy = selecting(FedMedian(fraction_evaluate=0.0), cohort_size=3)
    result = strategy.start(grid, model(), num_rounds=4)
    assert list(outcomes(strategy, 2).values()) == [COMPLETED, FAILED, FAILED]
    assert np.abs(value_of(result.arrays)[0]).max() < 100
    assert any("sent an update of impossible size: it was refused" in line for line in logged)
    assert any("FedMedian needs 3 answers to withstand 1 wrong" in line for line in logged)


def test_a_large_update_is_compared_with_the_others_also_after_a_restart(ticking, logged, tmp_path):
    checkpoint = tmp_path / "run.npz"
    grid = federation(5)
    for _ in range(2):
        strategy = selecting(cohort_size=5, checkpoint=checkpoint)
        strategy.start(grid, model(), num_rounds=1)
    for node in grid.nodes.values():  # only two of them answer, one with a model 1e5 times as large
        forged = scaled(1e5) if node.name == "client-003" else None
        lost = node.name in ("client-001", "client-002")
        node.plan = {node.trained: Fate(is_lost=lost, forge=forged)}
    strategy = selecting(cohort_size=5, checkpoint=checkpoint)
    strategy.start(grid, model(), num_rounds=2)
    assert outcomes(strategy, 1)["client-003"] == FAILED
    assert outcomes(strategy, 1)["client-000"] == COMPLETED


@pytest.mark.parametrize(
    ("inner", "needed"),
    [
        (FedAvg(), (1, 0)),
        (FedMedian(), (3, 1)),
        (FedTrimmedAvg(beta=0.2), (5, 1)),
        (FedTrimmedAvg(beta=0.0), (1, 0)),
        (Krum(num_malicious_nodes=2), (7, 2)),
        (MultiKrum(num_malicious_nodes=0, num_nodes_to_select=1), (1, 0)),
        (Bulyan(num_malicious_nodes=1), (7, 1)),
    ],
)
def test_how_many_answers_a_robust_strategy_needs(inner, needed):
    assert answers_needed(inner) == needed


def test_a_trimmed_mean_of_that_many_drops_one():
    """The table says 1 / beta: with one answer fewer, the wrong one is still in the mean."""
    wrong = np.array([[1e9]])
    for n, is_kept in ((5, False), (4, True)):
        array = np.concatenate([np.ones((n - 1, 1)), wrong])
        assert (trim_mean(array, 0.2)[0] > 2.0) == is_kept
