"""Who is who, and what selectors get to know: identity, columns, polls, reproducible cohorts."""

import math

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

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
)
from turnout import MissingColumn, Roster, Selection, Selector
from turnout.live import MissingMetric
from turnout.live.flower import SelectingStrategy
from turnout.worlds import FixedDeadline


def selecting(selector="random", **given):
    given = {
        "cohort_size": 4,
        "policy": FixedDeadline(10.0),
        "start_s": 0.0,
        "wait_for_nodes_s": 0.0,
    } | given
    return SelectingStrategy(FedAvg(fraction_evaluate=0.0), selector, **given)


class Looking(Selector):
    """Takes everyone and keeps what it was shown."""

    uses_columns = frozenset({"num_samples", "features", "context", "expected_duration"})

    def __init__(self):
        self.contexts = []

    def select(self, ctx, rng):
        self.contexts.append(ctx)
        return Selection(ctx.round, ctx.pool[: ctx.size])


@pytest.mark.parametrize("selector", ["random", "e3cs", "ucb-cs", "pow-d", "oort", "round-robin"])
def test_cohorts_depend_on_seed_and_stable_ids_only(ticking, selector):
    def run(node_seed, seed):
        grid = federation(12, seed=node_seed, loss=lambda message, context: 0.5)
        by_name(grid)["client-004"].plan = {t: Fate(code=2) for t in range(0, 9, 2)}
        strategy = selecting(selector, seed=seed)
        strategy.start(grid, model(), num_rounds=8)
        return cohorts(strategy), [node.node_id for node in grid.nodes.values()]

    (first, ids), (second, other_ids) = run(node_seed=0, seed=7), run(node_seed=1, seed=7)
    assert set(ids).isdisjoint(other_ids)
    assert first == second
    if selector != "round-robin":
        assert run(node_seed=0, seed=8)[0] != first


def test_a_given_roster_fixes_the_order_whoever_comes_first(ticking):
    names = [f"client-{i:03d}" for i in range(6)]

    def run(first_here):
        grid = federation(6)
        nodes = by_name(grid)
        for name in names:
            nodes[name].is_online = name in first_here
        given = Roster(names)
        strategy = selecting(Looking(), cohort_size=2, roster=given)

        def arrive(server_round, arrays):
            for node in nodes.values():
                node.is_online = server_round >= 1 or node.is_online

        strategy.start(grid, model(), num_rounds=3, evaluate_fn=arrive)
        assert given.ids == tuple(names)
        return strategy

    for here in (names[:3], names[3:]):
        strategy = run(here)
        assert strategy.roster.ids == tuple(names)
        # Round 2 asks the newcomers who they are. Round 3: all are there, and the first two of the
        # roster are taken.
        assert cohorts(strategy)[2] == names[:2]


def test_newcomers_get_new_indices_and_the_selector_grows(ticking):
    grid = federation(5)
    nodes = by_name(grid)
    nodes["client-000"].is_online = nodes["client-003"].is_online = False
    strategy = selecting("e3cs", cohort_size=2)

    def arrive(server_round, arrays):
        if server_round == 2:
            nodes["client-000"].is_online = nodes["client-003"].is_online = True

    strategy.start(grid, model(), num_rounds=4, evaluate_fn=arrive)
    order = ("client-001", "client-002", "client-004", "client-000", "client-003")
    assert strategy.roster.ids == order
    assert strategy.selector.n_clients == 5


def test_a_node_that_restarts_under_another_id_is_the_same_client(ticking):
    grid = federation(3)
    old = by_name(grid)["client-001"]
    strategy = selecting(Looking(), cohort_size=3, wait_for_nodes_s=5.0)

    def restart(server_round, arrays):
        if server_round == 1:
            old.is_online = False
            grid.nodes[777] = Node("client-001", 777, old.app)

    strategy.start(grid, model(), num_rounds=2, evaluate_fn=restart)
    assert len(strategy.roster) == 3
    assert cohorts(strategy)[1] == ["client-000", "client-001", "client-002"]
    assert grid.nodes[777].trained == 1


def test_of_two_nodes_with_one_stable_id_the_second_stays_out(ticking, logged):
    grid = federation(3)
    old = by_name(grid)["client-001"]
    double = Node("double", 10**10, training_app(8, stable_id="client-001"))

    def arrive(server_round, arrays):
        if server_round == 1:
            grid.nodes[double.node_id] = double
        if server_round == 3:
            assert not [line for line in logged if "is excluded" in line]  # it may have come back
            ticking.at += 130.0
        if server_round == 5:
            old.is_online = False

    strategy = selecting(Looking())
    strategy.start(grid, model(), num_rounds=7, evaluate_fn=arrive)
    assert [len(chosen) for chosen in cohorts(strategy)] == [3] * 7
    assert (old.trained, double.trained) == (5, 2)  # it takes over when the first has left
    assert sum("client 'client-001' is still connected" in line for line in logged) == 1
    told = [line for line in logged if "is excluded" in line]
    assert len(told) == 1
    assert "stable id 'client-001'" in told[0]


def test_two_doubles_that_come_together_are_told_apart_the_same_way_each_time(ticking):
    apps = [training_app(i, stable_id="twin") for i in (0, 1)]
    for order in ((50, 60), (60, 50)):
        grid = FakeGrid([Node(f"node-{one}", one, apps[i]) for i, one in enumerate(order)])
        strategy = selecting(Looking())
        strategy.start(grid, model(), num_rounds=1)
        assert grid.nodes[50].trained == 1
        assert grid.nodes[60].trained == 0


def test_nodes_are_asked_who_they_are_once(ticking):
    grid = federation(4)
    selecting(Looking()).start(grid, model(), num_rounds=3)
    for node in grid.nodes.values():
        assert node.asked == ["query.turnout_describe", *["train"] * 3]


def test_clients_without_the_handler_go_by_their_node_id(ticking, logged):
    grid = federation(3, describes=False)
    strategy = selecting(Looking())
    strategy.start(grid, model(), num_rounds=2)
    assert {len(chosen) for chosen in cohorts(strategy)} == {3}
    assert set(strategy.roster.ids) == {f"node:{one}" for one in grid.nodes}
    assert sum("did not identify itself" in line for line in logged) == 3


def test_clients_without_the_handler_can_be_left_out(ticking):
    grid = federation(3)
    unknown = Node("unknown", 5, training_app(9, describes=False))
    grid.nodes[5] = unknown
    strategy = selecting(Looking(), unidentified="exclude")
    strategy.start(grid, model(), num_rounds=2)
    assert {len(chosen) for chosen in cohorts(strategy)} == {3}
    assert unknown.trained == 0


def test_a_node_that_is_slow_to_say_who_it_is_joins_when_it_has(ticking):
    grid = federation(3)
    slow = by_name(grid)["client-001"]
    plain = grid._deliver

    def deliver(name, node, message):
        is_slow = node is slow and message.metadata.message_type.startswith("query")
        node.delay = 12.0 if is_slow else 4.0
        plain(name, node, message)

    grid._deliver = deliver
    strategy = selecting(Looking(), ask_s=5.0)
    strategy.start(grid, model(), num_rounds=4)
    # Asked at 0 s, round 1 starts at 5 s, 2 at 9 s, 3 at 13 s.
    here = [("client-001" in chosen) for chosen in cohorts(strategy)]
    assert here == [False, False, True, True]
    assert slow.asked.count("query.turnout_describe") == 1


@pytest.mark.parametrize("bad", [b"bytes", 1.5, "x" * 300, True, ["a"], ""])
def test_identities_that_cannot_be_used_are_no_identities(ticking, bad):
    grid = federation(2)
    odd = Node("odd", 5, training_app(9))
    plain = odd.app

    def forged(message, context):
        reply = plain(message, context)
        if "identity" in reply.content:
            reply.content["identity"] = ConfigRecord({"stable-id": bad})
        return reply

    odd.app = forged
    grid.nodes[5] = odd
    strategy = selecting(Looking())
    strategy.start(grid, model(), num_rounds=1)
    assert set(strategy.roster.ids) == {"client-000", "client-001", "node:5"}


def test_columns_reach_the_selector_by_client(ticking):
    grid = federation(
        3,
        features=np.array([1, 0, 1], dtype=np.uint8),
        context=[0.5, 1.0, 2.0],
        columns={"expected_duration": 12.0},
    )
    strategy = selecting(Looking())
    strategy.start(grid, model(), num_rounds=1)
    columns = strategy.selector.contexts[0].columns
    assert columns["num_samples"].tolist() == [1.0, 2.0, 3.0]
    assert columns["features"].tolist() == [[1.0, 0.0, 1.0]] * 3
    assert columns["context"].tolist() == [[0.5, 1.0, 2.0]] * 3
    assert columns["expected_duration"].tolist() == [12.0] * 3
    # Plain values travel with the identity: nobody is asked again.
    assert not [one for one in grid.sent if one[1] == "query.turnout_columns"]


def test_a_context_that_changes_is_asked_for_in_every_round(ticking):
    def context(message, context):
        config = message.content["config"]
        return [float(config["server-round"]), float(not config["took-part"])]

    grid = federation(4, context=context)
    strategy = selecting(Looking(), cohort_size=2)
    strategy.start(grid, model(), num_rounds=3)
    seen = [ctx.columns["context"].tolist() for ctx in strategy.selector.contexts]
    # The first two are always chosen: from round 2 on they took part in the round before.
    assert seen[0] == [[1.0, 1.0]] * 4
    assert seen[1] == [[2.0, 0.0], [2.0, 0.0], [2.0, 1.0], [2.0, 1.0]]
    assert seen[2] == [[3.0, 0.0], [3.0, 0.0], [3.0, 1.0], [3.0, 1.0]]


def test_columns_that_the_selector_does_not_look_at_cost_nothing(ticking):
    grid = federation(4, context=lambda message, context: [1.0])
    selecting("random").start(grid, model(), num_rounds=2)
    assert not [one for one in grid.sent if one[1] == "query.turnout_columns"]


def test_rbcs_f_works_on_reported_contexts(ticking):
    def context(message, context):
        took_part = message.content["config"]["took-part"]
        return [1.0, 0.0 if took_part else 1.0, 0.5]

    grid = federation(8, context=context)
    selector = turnout.make("rbcs-f", rate=0.2)
    strategy = selecting(selector, cohort_size=3)
    strategy.start(grid, model(), num_rounds=20)
    counts = np.bincount(strategy.run.clients, minlength=8)
    assert counts.min() >= 0.2 * 20 - 2  # the guaranteed rate, but for the last queue
    assert np.abs(selector.theta_).max() > 0.0  # it has learned from durations


def test_pow_d_polls_the_current_model_and_takes_the_highest_losses(ticking):
    polled = []

    def loss(number):
        def evaluate(message, context):
            config = message.content["config"]
            arrays = message.content["arrays"].to_numpy_ndarrays()
            polled.append((config["server-round"], config["poll-data"], arrays[0][0]))
            return np.float32(number)

        return evaluate

    grid = federation(6)
    for i, node in enumerate(sorted(grid.nodes.values(), key=lambda one: one.name)):
        node.app = training_app(i, loss=loss(i))
    strategy = selecting(turnout.make("pow-d", candidates=6), cohort_size=2)
    strategy.start(grid, model(), num_rounds=2)
    assert cohorts(strategy) == [["client-004", "client-005"]] * 2
    assert {one[:2] for one in polled} == {(1, "all"), (2, "all")}
    assert {one[2] for one in polled if one[0] == 1} == {0.0}
    expected = (4 * 5 + 5 * 6) / 11
    later = [one[2] for one in polled if one[0] == 2]
    assert later == pytest.approx([expected] * 6)


def test_cpow_d_asks_for_a_mini_batch(ticking):
    asked = []

    def loss(message, context):
        asked.append(message.content["config"]["poll-data"])
        return 1.0

    selecting("cpow-d", cohort_size=2).start(federation(5, loss=loss), model(), num_rounds=1)
    assert set(asked) == {"mini-batch"}


def test_candidates_that_do_not_answer_a_poll_rank_last(ticking):
    grid = federation(4)
    for i, node in enumerate(sorted(grid.nodes.values(), key=lambda one: one.name)):
        node.app = training_app(i, loss=lambda m, c, i=i: 1 / 0 if i == 3 else float(i))
    strategy = selecting(turnout.make("pow-d", candidates=4), cohort_size=2)
    strategy.start(grid, model(), num_rounds=1)
    assert cohorts(strategy) == [["client-001", "client-002"]]


def test_a_poll_that_nobody_can_answer_names_the_line_to_add(ticking):
    with pytest.raises(MissingMetric, match=r"describe\(app, stable_id=..., loss=evaluate\)"):
        selecting("pow-d").start(federation(5), model(), num_rounds=1)


def test_nccb_chooses_by_reported_codes(ticking):
    grid = federation(8)
    for i, node in enumerate(sorted(grid.nodes.values(), key=lambda one: one.name)):
        node.app = training_app(i, features=[i % 2, 1 - i % 2, 1, 0])
    selector = turnout.make("nccb", clusters=2, threshold=1, width=8, steps=2)
    strategy = selecting(selector, cohort_size=2)
    strategy.start(grid, model(), num_rounds=5)
    parities = [{int(name[-1]) % 2 for name in chosen} for chosen in cohorts(strategy)]
    assert parities[0] == {0, 1}  # one member of each unexplored cluster
    assert selector.reward_.size == 10


@pytest.mark.parametrize(
    ("selector", "line"),
    [
        ("data-weighted", "num_examples=len"),
        ("nccb", "features=SimHash"),
        ("rbcs-f", "context=lambda"),
    ],
)
def test_a_column_that_nobody_sends_names_the_line_to_add(ticking, selector, line):
    described = {"num_examples": None} if selector == "data-weighted" else {}
    grid = federation(5, **described)
    with pytest.raises(MissingColumn, match=line):
        selecting(selector).start(grid, model(), num_rounds=1)
    assert not [one for one in grid.sent if one[1] == "train"]


def test_the_number_of_examples_is_taken_from_replies_if_the_identity_does_not_say(ticking):
    grid = federation(3, num_examples=None)
    strategy = selecting(Looking(), cohort_size=2)
    strategy.start(grid, model(), num_rounds=2)
    assert "num_samples" not in strategy.selector.contexts[0].columns
    known = strategy.selector.contexts[1].columns["num_samples"]
    np.testing.assert_equal(known, [1.0, 2.0, math.nan])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_samples", -1.0),
        ("num_samples", math.nan),
        ("num_samples", 1e300),
        ("num_samples", [1.0, 2.0]),
        ("context", [1.0]),
        ("context", [math.inf, math.nan]),
        ("features", []),
    ],
)
def test_impossible_columns_count_as_unknown(ticking, name, value):
    grid = federation(3, context=[1.0, 2.0], features=[1.0])
    odd = by_name(grid)["client-002"]
    plain = odd.app

    def forged(message, context):
        reply = plain(message, context)
        if "identity" in reply.content:
            reply.content["columns"][name] = value
        return reply

    odd.app = forged
    strategy = selecting(Looking())
    strategy.start(grid, model(), num_rounds=1)
    columns = strategy.selector.contexts[0].columns
    assert np.isnan(columns[name][2]).all()
    assert not np.isnan(columns[name][:2]).any()


def test_hostile_records_in_a_query_reply_do_no_harm(ticking):
    grid = federation(3, context=lambda message, context: [1.0, 2.0])
    odd = by_name(grid)["client-000"]
    plain = odd.app

    def forged(message, context):
        reply = plain(message, context)
        for record in reply.content.metric_records.values():
            record.__dict__["_data"] = {"context": "text", "num_samples": {"a": 1}, 7: None}
        if "identity" in reply.content:
            reply.content["identity"]["every-round"] = "context"
        return reply

    odd.app = forged
    strategy = selecting(Looking())
    strategy.start(grid, model(), num_rounds=2)
    assert {len(chosen) for chosen in cohorts(strategy)} == {3}
    assert np.isnan(strategy.selector.contexts[1].columns["context"][0]).all()


def test_the_order_of_the_roster_does_not_depend_on_who_answers_first(ticking):
    # The first in the alphabet are the slowest, the fastest, or all start late, as under load.
    for answer_time in (lambda i: 40.0 - 3 * i, lambda i: 1.0 + 3 * i, lambda i: 120.0 - 3 * i):
        grid = federation(12)
        plain = grid._deliver

        def deliver(name, node, message, plain=plain, answer_time=answer_time):
            is_query = message.metadata.message_type.startswith("query")
            node.delay = answer_time(int(node.name[-3:])) if is_query else 0.5
            plain(name, node, message)

        grid._deliver = deliver
        strategy = selecting("e3cs", start_s=300.0, wait_for_nodes_s=60.0, ask_s=15.0)
        strategy.start(grid, model(), num_rounds=2)
        assert strategy.roster.ids == tuple(f"client-{i:03d}" for i in range(12))


def test_a_question_that_expired_is_asked_again_and_makes_nobody_a_stranger(ticking):
    grid = federation(4)
    plain, starts_at = grid._deliver, ticking.at + 120.0

    def deliver(name, node, message):  # nobody can answer before the engine has started
        node.delay = max(0.5, starts_at - ticking.at)
        plain(name, node, message)

    grid._deliver = deliver
    strategy = selecting("e3cs", cohort_size=2, start_s=300.0, wait_for_nodes_s=60.0, ask_s=5.0)
    strategy.start(grid, model(), num_rounds=2)
    assert strategy.roster.ids == tuple(f"client-{i:03d}" for i in range(4))
    for node in grid.nodes.values():  # a question is open for ten times 5 s
        assert node.asked.count("query.turnout_describe") == 3
