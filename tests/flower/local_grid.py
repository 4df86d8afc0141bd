"""A grid that runs a ClientApp in this process: no Ray, no network, any node ids."""

import uuid
from collections import Counter

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

RUN_ID, SERVER = 1, 1


class LocalGrid(Grid):
    """Answers when it is asked for the reply. Node ids and their order are drawn from ``seed``."""

    def __init__(self, app, n_nodes, seed=0):
        TaskIdentity.run_id, TaskIdentity.node_id = RUN_ID, SERVER  # what messages are stamped with
        rng = np.random.default_rng(seed)
        self.nodes = [int(node) for node in rng.integers(2, 2**62, n_nodes)]
        self.order = [self.nodes[i] for i in rng.permutation(n_nodes)]
        self.sent = Counter()
        self._app = app
        self._open = {}
        self._contexts = {
            node: Context(
                run_id=RUN_ID,
                node_id=node,
                node_config={"partition-id": i, "num-partitions": n_nodes},
                state=RecordDict(),
                run_config={},
            )
            for i, node in enumerate(self.nodes)
        }

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **named):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.order)

    def get_nodes(self):
        raise NotImplementedError

    def push_messages(self, messages):
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = str(uuid.uuid4())
            self.sent[message.metadata.message_type] += 1
            self._open[name] = message
            ids.append(name)
        return ids

    def pull_messages(self, message_ids):
        return [self._answer(self._open.pop(name)) for name in message_ids if name in self._open]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))

    def _answer(self, message):
        node = message.metadata.dst_node_id
        try:
            reply = self._app(message, self._contexts[node])
        except Exception as error:
            reply = Message(Error(code=2, reason=repr(error)), reply_to=message)
        reply.metadata.__dict__["_message_id"] = str(uuid.uuid4())
        return reply
