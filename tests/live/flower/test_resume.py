"""A killed run goes on at the next round, and nothing of it is lost."""

import json
import logging
import os
import signal

import numpy as np
import pytest
from flwr.app import MetricRecord
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedYogi,
)
from flwr.supercore.exit.signal_handler import register_signal_handlers
from flwr.supercore.telemetry import EventType

import turnout
from tests.experiment.dying import ended, forked
from tests.live.flower.fake import (
    Fate,
    Node,
    by_name,
    cohorts,
    federation,
    model,
    training_app,
    value_of,
)
from turnout import Roster, StateFileError
from turnout.live import checkpoint, clients
from turnout.live.flower import SelectingStrategy
from turnout.results.files import FolderError
from turnout.worlds import AdaptiveDeadline, FixedDeadline, e3cs_world

ROUNDS = 6


class Killed(Exception):
    """The process is gone."""


def evaluate(server_round, arrays):
    return MetricRecord({"accuracy": float(value_of(arrays)[0][0]), "at": server_round})


def selecting(path, inner=None, selector="e3cs", **given):
    given = {"cohort_size": 4, "policy": FixedDeadline(10.0), "seed": 5} | given
    return SelectingStrategy(
        FedAvg() if inner is None else inner, selector, checkpoint=path, **given
    )


def flaky(n=9, seed=0, **given):
    grid = federation(n, seed=seed, **given)
    for number in (1, 2, 4, 7):
        plan = {0: Fate(code=2), 2: Fate(code=5)}
        by_name(grid)[f"client-{number:03d}"].plan = plan if n > number else {}
    return grid


def kill_when(grid, kind, server_round):
    """Raise when the first message of that kind and round is pulled."""
    plain = grid.pull_messages

    def pull_messages(message_ids):
        for name in message_ids:
            if name not in grid._open:
                continue
            message = grid._open[name][1]
            config = message.content.config_records.get("config", {})
            if message.metadata.message_type == kind and config.get("server-round") == server_round:
                raise Killed
        return plain(message_ids)

    grid.pull_messages = pull_messages


def continued(grid, old):
    """Nodes as they are after a restart of the federation: other node ids, same clients."""
    trained = {node.name: node.trained for node in old.nodes.values()}
    for node in grid.nodes.values():
        node.trained = trained[node.name]
    return grid


INNERS = {
    "FedAvg": FedAvg,
    "FedAdam": lambda: FedAdam(beta_1=0.9, beta_2=0.99),
    "FedYogi": lambda: FedYogi(beta_1=0.9, beta_2=0.99),
    "FedAvgM": lambda: FedAvgM(server_momentum=0.9, server_learning_rate=0.5),
    "DP around FedAdam": lambda: DifferentialPrivacyClientSideAdaptiveClipping(
        FedAdam(beta_1=0.9, beta_2=0.9), 0.0, 4
    ),
}


@pytest.mark.parametrize("name", INNERS)
@pytest.mark.parametrize("killed_at", [("train", 4), ("evaluate", 3)])
def test_a_killed_run_ends_as_if_it_had_not_been_killed(ticking, tmp_path, name, killed_at):
    whole = selecting(tmp_path / "whole.npz", INNERS[name]())
    expected = whole.start(flaky(), model(), num_rounds=ROUNDS, evaluate_fn=evaluate)
    grid = flaky()
    kill_when(grid, *killed_at)
    with pytest.raises(Killed):
        selecting(tmp_path / "run.npz", INNERS[name]()).start(
            grid, model(), num_rounds=ROUNDS, evaluate_fn=evaluate
        )
    after = continued(flaky(seed=3), grid)
    if killed_at[0] == "train":  # the messages of round 4 were delivered, and are forgotten
        for who, kind, at in grid.sent:
            by_name(after)[who].trained -= kind == "train" and at == 4
    resumed = selecting(tmp_path / "run.npz", INNERS[name]())
    result = resumed.start(after, model(), num_rounds=ROUNDS, evaluate_fn=evaluate)
    assert {at for _, kind, at in after.sent if kind == "train"} == {4, 5, 6}
    assert cohorts(resumed) == cohorts(whole)
    assert resumed.run.status.tolist() == whole.run.status.tolist()
    assert value_of(result.arrays) == value_of(expected.arrays)
    assert result.train_metrics_clientapp == expected.train_metrics_clientapp
    assert result.evaluate_metrics_clientapp == expected.evaluate_metrics_clientapp
    assert result.evaluate_metrics_serverapp == expected.evaluate_metrics_serverapp
    assert resumed.selector.state().keys() == whole.selector.state().keys()
    for key, value in whole.selector.state().items():
        np.testing.assert_array_equal(resumed.selector.state()[key], value)


@pytest.mark.parametrize("selector", ["ucb-cs", "oort", "rbcs-f", "rpow-d", "pow-d"])
def test_learners_go_on_where_they_were(ticking, tmp_path, selector):
    def grid(seed=0):
        return flaky(
            seed=seed,
            context=lambda m, c: [1.0, float(m.content["config"]["took-part"]), 0.5],
            loss=lambda message, context: 0.25,
        )

    parameters = {"rate": 0.2} if selector == "rbcs-f" else {}

    def make():
        return turnout.make(selector, **parameters)

    whole = selecting(tmp_path / "whole.npz", selector=make())
    whole.start(grid(), model(), num_rounds=ROUNDS)
    old = grid()
    first = selecting(tmp_path / "run.npz", selector=make())
    first.start(old, model(), num_rounds=3)
    second = selecting(tmp_path / "run.npz", selector=make())
    second.start(continued(grid(seed=9), old), model(), num_rounds=ROUNDS)
    assert cohorts(second) == cohorts(whole)


def test_a_metric_that_was_seen_before_a_restart_may_be_missing_after_it(ticking, tmp_path):
    def run(n_rounds, reported):
        grid = federation(5, metrics=lambda number, message: {"num-examples": 1} | reported)
        strategy = selecting(tmp_path / "run.npz", selector="rpow-d")
        strategy.start(grid, model(), num_rounds=n_rounds)
        return strategy

    run(1, {"loss": 0.5})
    assert run(2, {}).rounds_done == 2


def test_policies_that_learn_go_on_where_they_were(ticking, tmp_path):
    def run(grid, path, n_rounds):
        policy = AdaptiveDeadline(quantile=0.5, start=30.0)
        strategy = selecting(path, policy=policy, late_s=0.0)
        strategy.start(grid, model(), num_rounds=n_rounds)
        return strategy

    def grid(seed=0):
        made = federation(9, seed=seed)
        for i, name in enumerate(sorted(by_name(made))):
            by_name(made)[name].plan = {t: Fate(delay=0.5 + i) for t in range(9)}
        return made

    whole = run(grid(), tmp_path / "whole.npz", ROUNDS)
    old = grid()
    run(old, tmp_path / "run.npz", 3)
    resumed = run(continued(grid(seed=4), old), tmp_path / "run.npz", ROUNDS)
    assert resumed.run.status.tolist() == whole.run.status.tolist()
    expected = pytest.approx(whole.run.length_s.tolist(), abs=0.11)  # one look for replies
    assert resumed.run.length_s.tolist() == expected


def test_late_nodes_stay_busy_over_a_restart(ticking, tmp_path):
    grid = federation(4)
    by_name(grid)["client-001"].plan = {0: Fate(is_lost=True)}
    given = {
        "cohort_size": 4,
        "selector": "random",
        "start_s": 0.0,
        "wait_for_nodes_s": 0.0,
        "late_s": 15.0,
    }
    selecting(tmp_path / "run.npz", **given).start(grid, model(), num_rounds=1)
    # 10 s are over; its message expires at 25 s.
    resumed = selecting(tmp_path / "run.npz", **given)
    resumed.start(federation(4, seed=2), model(), num_rounds=2)
    assert cohorts(resumed)[1] == ["client-000", "client-002", "client-003"]
    ticking.at += 15.0
    later = selecting(tmp_path / "run.npz", **given)
    later.start(federation(4, seed=8), model(), num_rounds=3)
    assert len(cohorts(later)[2]) == 4


def test_columns_of_clients_that_are_away_are_remembered(ticking, tmp_path):
    path = tmp_path / "run.npz"
    selecting(path, selector="data-weighted").start(federation(5), model(), num_rounds=1)
    grid = federation(5, seed=1)
    by_name(grid)["client-004"].is_online = False
    resumed = selecting(path, selector="data-weighted", wait_for_nodes_s=0.0)
    resumed.start(grid, model(), num_rounds=2)
    saved = checkpoint.read_checkpoint(path, "turnout-flower")
    assert saved.arrays["columns"]["num_samples"].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_finished_run_is_not_run_again(ticking, tmp_path):
    path = tmp_path / "run.npz"
    first = selecting(path).start(flaky(), model(), num_rounds=2, evaluate_fn=evaluate)
    grid = flaky(seed=1)

    def never(server_round, arrays):
        raise AssertionError("evaluated already")

    again = selecting(path).start(grid, model(), num_rounds=2, evaluate_fn=never)
    assert grid.sent == []
    assert value_of(again.arrays) == value_of(first.arrays)
    assert again.evaluate_metrics_serverapp == first.evaluate_metrics_serverapp
    longer = selecting(path)
    longer.start(flaky(seed=1), model(), num_rounds=3)
    assert longer.rounds_done == 3


def test_a_crash_while_saving_leaves_the_checkpoint_before(ticking, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    written = []

    def replace(source, target):
        written.append(target)
        if len(written) == 3:
            raise Killed
        return plain(source, target)

    plain = os.replace
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(Killed):
        selecting(path).start(flaky(), model(), num_rounds=5)
    monkeypatch.undo()
    assert checkpoint.read_checkpoint(path, "turnout-flower").rounds_done == 2
    assert [one.name for one in tmp_path.iterdir()] == ["run.npz"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_app_that_is_stopped_goes_on_and_says_from_where(ticking, tmp_path, number):
    """Flower's handlers of signals end the process in the middle of a round."""
    whole_grid = flaky()
    expected = selecting(tmp_path / "whole.npz").start(whole_grid, model(), num_rounds=ROUNDS)
    path, lines = tmp_path / "run.npz", tmp_path / "lines"
    grid = flaky()

    def server_app():
        logging.getLogger("turnout.live").addHandler(logging.FileHandler(lines))
        register_signal_handlers(EventType.PING)
        push = grid.push_messages

        def pushed(messages):
            ids = push(messages)
            config = messages[0].content.config_records.get("config", {})
            if config.get("server-round") == 4 and messages[0].metadata.message_type == "train":
                os.kill(os.getpid(), number)
            return ids

        grid.push_messages = pushed
        with pytest.raises(SystemExit):  # Flower's end of the process
            selecting(path).start(grid, model(), num_rounds=ROUNDS)
        return 7

    assert ended(forked(server_app, tmp_path)) == 7
    said = lines.read_text().splitlines()[-1]
    assert said == (
        f"stopped: {path} holds 3 rounds. Start the same run again to resume with round 4; "
        "replies received since then are lost."
    )
    assert checkpoint.read_checkpoint(path, "turnout-flower").rounds_done == 3
    after = flaky(seed=3)
    for node in after.nodes.values():  # each knows how often it was asked in these three rounds
        asked = [kind for name, kind, at in whole_grid.sent if name == node.name and (at or 0) <= 3]
        node.trained = asked.count("train")
    result = selecting(path).start(after, model(), num_rounds=ROUNDS)
    assert value_of(result.arrays) == value_of(expected.arrays)


def test_without_a_checkpoint_it_says_that_nothing_is_saved(ticking, logged):
    grid = flaky()
    kill_when(grid, "train", 3)
    with pytest.raises(Killed):
        selecting(None).start(grid, model(), num_rounds=ROUNDS)
    assert logged[-1] == (
        "stopped after 2 rounds; nothing is saved. With checkpoint=PATH, the same run "
        "resumes after a stop."
    )


def test_a_run_that_never_began_says_nothing_about_rounds(ticking, tmp_path, logged):
    path = save_one(tmp_path)
    before = len(logged)
    with pytest.raises(StateFileError):
        selecting(path, seed=6).start(federation(5), model(), num_rounds=3)
    assert not [line for line in logged[before:] if line.startswith("stopped")]


def test_the_folder_of_the_checkpoint_is_made(ticking, tmp_path):
    path = tmp_path / "new" / "folder" / "run.npz"
    selecting(path).start(flaky(), model(), num_rounds=1)
    assert path.exists()


def save_one(tmp_path, **given):
    path = tmp_path / "run.npz"
    selecting(path, **given).start(federation(5), model(), num_rounds=1)
    return path


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"selector": "oort"}, 'selector is "e3cs" in the checkpoint and "oort" in this run'),
        (
            {"selector": turnout.make("e3cs", quota=0.9)},
            "quota is 0.5 in the checkpoint and 0.9 in this run",
        ),
        ({"seed": 6}, "seed is 5 in the checkpoint and 6 in this run"),
        ({"inner": FedAvgM()}, 'strategy is "FedAvg" in the checkpoint and "FedAvgM" in this run'),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_naming_both(ticking, tmp_path, given, message):
    path = save_one(tmp_path)
    before = path.read_bytes()
    grid = federation(5)
    with pytest.raises(StateFileError, match="belongs to another run") as caught:
        selecting(path, **given).start(grid, model(), num_rounds=3)
    assert message in str(caught.value)
    assert grid.sent == []
    assert path.read_bytes() == before


def test_a_checkpoint_of_another_model_is_refused(ticking, tmp_path):
    from flwr.app import ArrayRecord

    path = save_one(tmp_path)
    other = ArrayRecord([np.zeros(7), np.zeros((1, 1))])
    wanted = r"model\[0\].* is 3 in the checkpoint and 7 in this run"
    with pytest.raises(StateFileError, match=wanted):
        selecting(path).start(federation(5), other, num_rounds=3)


def test_a_checkpoint_with_another_order_of_clients_is_refused(ticking, tmp_path):
    path = save_one(tmp_path)
    roster = Roster(["client-001", "client-000"])
    with pytest.raises(StateFileError, match="in another order"):
        selecting(path, roster=roster).start(federation(5), model(), num_rounds=3)


def test_cohort_and_policy_may_change_and_that_is_said(ticking, tmp_path, logged):
    path = save_one(tmp_path)
    resumed = selecting(path, cohort_size=2, policy=FixedDeadline(20.0))
    resumed.start(federation(5), model(), num_rounds=2)
    assert [len(chosen) for chosen in cohorts(resumed)] == [4, 2]
    assert any("cohort_size is 4 in the checkpoint and 2 in this run" in line for line in logged)


def test_a_setting_of_the_inner_strategy_may_change(ticking, tmp_path):
    path = tmp_path / "run.npz"
    selecting(path, FedAdam(eta=0.1)).start(federation(5), model(), num_rounds=1)
    inner = FedAdam(eta=0.5)
    selecting(path, inner).start(federation(5), model(), num_rounds=2)
    assert inner.eta == 0.5
    assert set(inner.m_t) == {"0", "1"}


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "other npz", "selector's own"])
def test_a_damaged_checkpoint_is_refused(ticking, tmp_path, damage):
    path = save_one(tmp_path)
    whole = path.read_bytes()
    if damage == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "text":
        path.write_text("not an archive")
    elif damage == "other npz":
        np.savez(path, a=np.zeros(3))
    else:
        selector = turnout.make("e3cs")
        selector.reset(5)
        turnout.save(selector, path)
    grid = federation(5)
    with pytest.raises(StateFileError, match=r"run\.npz is not"):
        selecting(path).start(grid, model(), num_rounds=2)
    assert grid.sent == []


def test_a_newer_format_is_refused(ticking, tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 9)
    path = save_one(tmp_path)
    monkeypatch.undo()
    with pytest.raises(StateFileError, match=r"format 9.*upgrade turnout"):
        checkpoint.read_checkpoint(path, "turnout-flower")


def test_a_checkpoint_holds_node_ids_only_as_bindings(ticking, tmp_path):
    path = tmp_path / "run.npz"
    grid = federation(5)
    by_name(grid)["client-001"].plan = {0: Fate(is_lost=True)}
    selecting(path, cohort_size=5).start(grid, model(), num_rounds=1)
    saved = checkpoint.read_checkpoint(path, "turnout-flower")
    text = json.dumps(
        [saved.roster, saved.busy, saved.metrics, saved.host["inner"], saved.settings]
    )
    assert "client-001" in json.dumps(saved.busy)
    for node_id in grid.nodes:
        assert str(node_id) not in text
    assert {address for _, address in saved.bindings} == set(grid.nodes)


class Ledger:
    """Something an inner strategy may own, such as a privacy accountant."""

    def __init__(self):
        self.spent = 0

    def state_dict(self):
        return {"spent": self.spent, "per_round": [1.5, {"a": b"x"}]}

    def load_state_dict(self, state):
        assert state["per_round"] == [1.5, {"a": b"x"}]
        self.spent = state["spent"]


class Bookkeeping(FedAvg):
    def __init__(self):
        super().__init__()
        self.ledger = Ledger()
        self.best = None
        self.per_client = {}
        self.logger = object()

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.ledger.spent += len(replies)
        self.best = (server_round, np.arange(3.0) * server_round)
        self.per_client[server_round] = [np.float32(1.5), "text", None, True]
        return super().aggregate_train(server_round, replies)


def test_the_state_of_a_strategy_of_your_own_is_kept(ticking, tmp_path, logged):
    path = tmp_path / "run.npz"
    selecting(path, Bookkeeping()).start(federation(5), model(), num_rounds=2)
    inner = Bookkeeping()
    selecting(path, inner).start(federation(5), model(), num_rounds=3)
    assert inner.ledger.spent == 12
    assert inner.best[0] == 3
    np.testing.assert_array_equal(inner.best[1], np.arange(3.0) * 3)
    assert list(inner.per_client) == [1, 2, 3]
    assert inner.per_client[1] == [np.float32(1.5), "text", None, True]
    told = [line for line in logged if "the checkpoint does not save" in line]
    assert told
    assert all("Bookkeeping.logger holds a object" in line for line in told)


def test_a_privacy_budget_is_not_forgotten(ticking, tmp_path):
    from flwr.serverapp import NeighboringRelation, PrivacyConfig, SamplingMethod

    class Accountant:
        """Counts releases, as Flower's protocol wants; dp-accounting is not installed."""

        config = PrivacyConfig(
            target_delta=1e-5,
            population_size=5,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )

        def __init__(self):
            self.num_releases = 0

        def compose(self, event, count=1):
            self.num_releases += count

        def get_privacy_spent(self, delta=None):
            class Spent:
                epsilon, delta, num_releases = 1.0, 1e-5, self.num_releases

            return Spent()

        def state_dict(self):
            return {"n": self.num_releases}

        def load_state_dict(self, state):
            self.num_releases = state["n"]

    def private(accountant):
        return DifferentialPrivacyServerSideFixedClipping(
            FedAvg(), 0.1, 1.0, 4, accountant=accountant
        )

    def equal(number, message):
        return {"num-examples": 1}

    path, accountant = tmp_path / "run.npz", Accountant()
    given = {"selector": "random"}
    # Client 0 brings the model back unchanged and is dropped: it must not be chosen.
    names = [f"client-{i:03d}" for i in range(1, 5)]

    def grid(seed=0):
        made = federation(5, seed=seed, metrics=equal)
        by_name(made)["client-000"].is_online = False
        return made

    selecting(path, private(accountant), **given).start(grid(), model(), num_rounds=2)
    assert accountant.num_releases == 2
    other = Accountant()
    resumed = selecting(path, private(other), **given)
    resumed.start(grid(seed=2), model(), num_rounds=3)
    assert other.num_releases == 3
    assert cohorts(resumed)[2] == names


def test_a_virtual_world_goes_on_where_it_was(ticking, tmp_path):
    def make(path):
        return selecting(path, world=e3cs_world(n_clients=9, seed=2), cohort_size=4, policy=None)

    def grid(seed):
        made = federation(9, seed=seed)
        for i, node in enumerate(sorted(made.nodes.values(), key=lambda one: one.name)):
            from tests.live.flower.fake import training_app

            node.app = training_app(i, stable_id=i)
        return made

    whole = make(tmp_path / "whole.npz")
    whole.start(grid(0), model(), num_rounds=ROUNDS)
    make(tmp_path / "run.npz").start(grid(1), model(), num_rounds=3)
    resumed = make(tmp_path / "run.npz")
    resumed.start(grid(2), model(), num_rounds=ROUNDS)
    assert cohorts(resumed) == cohorts(whole)
    assert resumed.run.status.tolist() == whole.run.status.tolist()
    assert len(set(whole.run.status.tolist())) > 1


def test_records_of_a_killed_run_are_completed(ticking, tmp_path):
    given = {"records": tmp_path / "runs"}
    grid = flaky()
    kill_when(grid, "train", 4)
    with pytest.raises(Killed):
        selecting(tmp_path / "run.npz", **given).start(grid, model(), num_rounds=ROUNDS)
    folder = tmp_path / "runs" / "e3cs" / "seed-5"
    assert not (folder / "summary.json").exists()
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 3
    resumed = selecting(tmp_path / "run.npz", **given)
    resumed.start(continued(flaky(seed=3), grid), model(), num_rounds=ROUNDS)
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(ROUNDS))
    assert all("accuracy" in line for line in lines)  # also of the rounds before
    assert (folder / "summary.json").exists()


def test_a_folder_with_another_run_is_not_overwritten(ticking, tmp_path):
    given = {"records": tmp_path / "runs"}
    selecting(tmp_path / "a.npz", **given).start(flaky(), model(), num_rounds=1)
    grid = flaky()
    with pytest.raises(FolderError, match="already holds a run"):
        selecting(tmp_path / "b.npz", **given).start(grid, model(), num_rounds=1)
    assert grid.sent == []


def test_a_run_killed_in_its_first_round_can_be_started_again(ticking, tmp_path):
    grid = flaky()
    kill_when(grid, "train", 1)
    given = {"records": tmp_path / "runs"}
    with pytest.raises(Killed):
        selecting(tmp_path / "run.npz", **given).start(grid, model(), num_rounds=2)
    strategy = selecting(tmp_path / "run.npz", **given)
    strategy.start(flaky(), model(), num_rounds=2)
    assert strategy.rounds_done == 2


def test_a_checkpoint_that_lacks_a_part_is_refused(ticking, tmp_path):
    path = save_one(tmp_path)
    saved = checkpoint.read_checkpoint(path, "turnout-flower")
    arrays = {owner: dict(table) for owner, table in saved.arrays.items()}
    del arrays["observed"]
    broken = checkpoint.Checkpoint(**{**vars(saved), "arrays": arrays})
    checkpoint.write_checkpoint(path, broken, "turnout-flower")
    with pytest.raises(StateFileError, match="is damaged"):
        selecting(path).start(federation(5), model(), num_rounds=2)


def test_a_checkpoint_from_before_bindings_were_saved_goes_on(ticking, tmp_path):
    path = save_one(tmp_path)
    saved = dict(np.load(path))
    header = json.loads(saved["header"].tobytes())
    del header["bindings"], header["void"]
    np.savez(path, **(saved | {"header": np.array(json.dumps(header))}))
    resumed = selecting(path)
    resumed.start(federation(5), model(), num_rounds=2)
    assert resumed.rounds_done == 2


def test_the_first_owner_of_an_id_keeps_it_after_the_server_was_killed(ticking, tmp_path):
    grid = federation(3)
    owner = by_name(grid)["client-002"]
    impostor = Node("impostor", 2, training_app(8, stable_id="client-002"))
    given = {"cohort_size": 3, "selector": "random"}
    selecting(tmp_path / "run.npz", **given).start(grid, model(), num_rounds=1)
    grid.nodes[impostor.node_id] = impostor
    selecting(tmp_path / "run.npz", **given).start(grid, model(), num_rounds=2)
    assert (owner.trained, impostor.trained) == (2, 0)


def test_a_run_goes_on_after_clients_were_renamed_and_merged(ticking, tmp_path):
    path = tmp_path / "run.npz"
    selecting(path).start(federation(8), model(), num_rounds=4)
    saved = checkpoint.read_checkpoint(path)
    first = {client.id: client.chosen for client in clients.clients_of(saved)}
    changed = clients.rename(saved, "client-001", "phone")
    changed = clients.merge(changed, "client-002", "client-005")
    checkpoint.write_checkpoint(path, changed, saved.kind)
    after = federation(8, seed=3)
    by_name(after)["client-001"].app = training_app(1, stable_id="phone")
    by_name(after)["client-002"].is_online = False
    again = selecting(path)
    again.start(after, model(), num_rounds=16)
    names = ["client-000", "phone", *(f"client-{i:03d}" for i in range(2, 8))]
    assert list(again.roster.ids) == names
    later = [name for cohort in cohorts(again)[4:] for name in cohort]
    assert "client-005" not in later
    assert {"phone", "client-002"} <= set(later)  # the second is at the node that says client-005
    assert by_name(after)["client-005"].trained == later.count("client-002")
    counts = dict(zip(names, again.run.counts.tolist(), strict=True))
    assert counts["client-002"] == first["client-002"] + first["client-005"] + later.count(
        "client-002"
    )
