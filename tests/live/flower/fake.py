"""A grid in memory, on the fake clock: delays, errors, lost replies, nodes that come and go."""

from dataclasses import dataclass, field

import numpy as np
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.message_type import MessageType
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from turnout.live.flower.client import describe
from turnout.live.transport import clock

SUPERLINK = 1


@dataclass
class Node:
    """How one node behaves; ``plan`` gives the n-th train message its fate."""

    name: str
    node_id: int
    app: ClientApp
    delay: float = 0.5
    plan: dict = field(default_factory=dict)  # n-th training, from 0 -> Fate
    config: dict = field(default_factory=dict)
    is_online: bool = True
    is_listed: bool = True  # False: it has left, and the grid has not told about its messages yet
    trained: int = 0
    asked: list = field(default_factory=list)  # message types, in order
    context: Context | None = None

    def __post_init__(self):
        self.context = Context(1, self.node_id, dict(self.config), RecordDict(), {})


@dataclass(frozen=True)
class Fate:
    delay: float | None = None  # None: the node's own
    code: int | None = None  # an error
    is_lost: bool = False  # never answers
    forge: object = None  # Message -> Message: a hostile reply


class FakeGrid(Grid):
    """``omits_refused``: as the in-memory grid; else None in the ids, as the HTTP grid."""

    def __init__(self, nodes, omits_refused=True):
        self.nodes = {node.node_id: node for node in nodes}
        self.omits_refused = omits_refused
        self.sent = []  # (node name, message type, round), in order
        self.contents = []
        self.refuses = set()  # node ids whose messages are refused
        self.at_most = None  # messages per push
        self._open = {}
        self._n = 0

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **named):
        raise NotImplementedError

    def get_node_ids(self):
        return [n.node_id for n in self.nodes.values() if n.is_online and n.is_listed]

    def push_messages(self, messages):
        assert isinstance(messages, list), "the HTTP grid walks the messages twice"
        if self.at_most is not None and len(messages) > self.at_most:
            return []
        ids = []
        for message in messages:
            self._n += 1
            message.metadata.__dict__["_message_id"] = name = f"m{self._n}"
            node = self.nodes.get(message.metadata.dst_node_id)
            if node is None or node.node_id in self.refuses:
                ids += [] if self.omits_refused else [None]
                continue
            ids.append(name)
            self._deliver(name, node, message)
        return ids

    def pull_messages(self, message_ids):
        assert None not in message_ids
        replies = []
        for name in sorted(message_ids):
            found = self._look(name)
            if found is not None:
                replies.append(found)
                self._open.pop(name, None)
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the strategy must poll by itself")

    def _deliver(self, name, node, message):
        kind = message.metadata.message_type
        config = message.content.config_records.get("config", {})
        self.sent.append((node.name, kind, config.get("server-round")))
        self.contents.append(message)
        node.asked.append(kind)
        fate = Fate()
        if kind == MessageType.TRAIN:
            fate = node.plan.get(node.trained, Fate())
            node.trained += 1
        delay = node.delay if fate.delay is None else fate.delay
        self._open[name] = (node, message, fate, clock.now() + delay, clock.now())

    def _look(self, name):
        if name not in self._open:
            return _made_up(name, 3)
        node, message, fate, ready, sent = self._open[name]
        if clock.now() >= sent + message.metadata.ttl:
            return _made_up(name, 3)
        if not node.is_online:
            return _made_up(name, 5)
        if fate.is_lost or clock.now() < ready:
            return None
        if fate.code is not None:
            if fate.code in (3, 4, 5):
                return _made_up(name, fate.code)
            return Message(Error(fate.code, "made for the test"), reply_to=message)
        try:
            reply = node.app(message, node.context)
        except Exception as error:
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        return fate.forge(reply) if fate.forge else reply


def _made_up(name, code):
    """An error of the SuperLink: it names itself as the source."""
    asked = Message(RecordDict(), SUPERLINK, MessageType.TRAIN)
    asked.metadata.__dict__["_message_id"] = name
    reply = Message(Error(code, "made up by the SuperLink"), reply_to=asked)
    assert reply.metadata.src_node_id == SUPERLINK
    return reply


def model(value=0.0):
    return ArrayRecord([np.full(3, value), np.array([[value]])])


def value_of(arrays):
    return [array.tolist() for array in arrays.to_numpy_ndarrays()]


def training_app(number, *, describes=True, metrics=None, **described):
    """A client that adds its number to the model, with num-examples = number + 1."""
    app = ClientApp()
    if describes:
        described.setdefault("stable_id", f"client-{number:03d}")
        described.setdefault("num_examples", number + 1)
        describe(app, **described)

    @app.train()
    def train(message, context):
        arrays = [array + number for array in message.content["arrays"].to_numpy_ndarrays()]
        found = {"num-examples": number + 1, "loss": 1.0 / (1 + number), "duration": 0.25}
        found |= {"loss_std": 0.1, "loss_rms": 2.0 / (1 + number), "norm_bit": 1.0}
        found |= {"train_loss": 0.5}
        content = {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord(found if metrics is None else metrics(number, message)),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        mean = float(message.content["arrays"].to_numpy_ndarrays()[0].mean())
        metrics = MetricRecord({"num-examples": number + 1, "eval_acc": mean, "eval_loss": number})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def federation(n, *, seed=0, omits_refused=True, delay=0.5, **kwargs):
    """Return a grid of n nodes with random node ids, in a random order."""
    rng = np.random.default_rng(seed)
    node_ids = [int(one) for one in rng.choice(10**9, size=n, replace=False) + 2]
    nodes = [
        Node(f"client-{i:03d}", node_ids[i], training_app(i, **kwargs), delay=delay)
        for i in range(n)
    ]
    return FakeGrid([nodes[i] for i in rng.permutation(n)], omits_refused)


def by_name(grid):
    return {node.name: node for node in grid.nodes.values()}


def cohorts(strategy):
    """Return who was chosen in each round, by stable id."""
    run, ids = strategy.run, strategy.roster.ids
    return [[ids[i] for i in run.chosen_in(t)] for t in range(run.n_rounds)]


def outcomes(strategy, t):
    """Return the status of each chosen client of a round, by stable id."""
    run, ids = strategy.run, strategy.roster.ids
    part = slice(run.offsets[t], run.offsets[t + 1])
    names = [ids[i] for i in run.clients[part]]
    return dict(zip(names, run.status[part].tolist(), strict=True))
