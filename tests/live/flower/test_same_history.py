"""The same accidents through Flower's adapter and through a bare port give the same rounds."""

import pytest
from flwr.serverapp.strategy import FedAvg

import turnout
from tests.live.flower.fake import FakeGrid, Fate, Node, cohorts, model, outcomes, training_app
from tests.live.history import FakePort, History
from tests.live.test_session import COHORT, play_round, settings_of
from turnout.live import Live, Session
from turnout.live.flower import SelectingStrategy

ROUNDS = 25
#: A reply that cannot be read has no counterpart in the fake grid.
KINDS = ("ok", "failed", "lost", "late", "hung")


class Plan:
    """The fates of a client's trainings, also when it restarts as another node."""

    def __init__(self, history, client, counts):
        self.history, self.client, self.counts = history, client, counts

    def get(self, number, default):
        number = self.counts[self.client] = self.counts.get(self.client, -1) + 1
        step = self.history.step(self.client, number)
        code = {"failed": 2, "lost": 5}.get(step.kind)
        return Fate(step.delay, code, is_lost=step.kind == "hung")


class HistoryGrid(FakeGrid):
    def __init__(self, history):
        super().__init__([])
        self.history, self.counts = history, {}
        self.follow()

    def follow(self):
        """Let nodes come and go as the history says."""
        online = self.history.online()
        for client, node_id in online.items():
            if node_id not in self.nodes:
                name = self.history.names[client]
                app = training_app(int(client), loss=lambda m, c, n=client: float(n))
                plan = Plan(self.history, int(client), self.counts)
                self.nodes[node_id] = Node(name, node_id, app, plan=plan)
        for node in self.nodes.values():
            node.is_online = node.node_id in online.values()


def through_flower(seed, selector):
    history = History(seed, kinds=KINDS)
    grid = HistoryGrid(history)
    told = settings_of()
    strategy = SelectingStrategy(
        FedAvg(fraction_evaluate=0.0),
        selector,
        cohort_size=COHORT,
        policy=told.policy,
        seed=told.seed,
        start_s=told.start_s,
        wait_for_nodes_s=told.wait_for_clients_s,
        ask_s=told.ask_s,
        poll_s=told.poll_s,
    )

    def advance(server_round, arrays):
        if server_round:
            history.advance()
            grid.follow()

    strategy.start(grid, model(), num_rounds=ROUNDS, evaluate_fn=advance)
    return cohorts(strategy), [list(outcomes(strategy, t).values()) for t in range(ROUNDS)]


def through_a_port(seed, selector):
    history = History(seed, kinds=KINDS)
    live = Live(Session(settings_of(), turnout.make(selector)), FakePort(history))
    chosen, statuses = [], []
    for _ in range(ROUNDS):
        _, _, ended = play_round(live)
        chosen.append(list(ended.ids))
        statuses.append(ended.closed.status.tolist())
        history.advance()
    return chosen, statuses


@pytest.mark.parametrize("selector", ["e3cs", "ucb-cs", "oort", "pow-d"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_history_gives_the_same_rounds(ticking, selector, seed):
    started = ticking.at
    expected = through_a_port(seed, selector)
    ticking.at = started
    assert through_flower(seed, selector) == expected
    assert len({status for ended in expected[1] for status in ended}) == 4
