# %% [markdown]
# # 5. Flower
#
# turnout selects the clients, and Flower sends the messages. `SelectingStrategy` wraps your existing strategy.
# Here is a whole Flower app: a ClientApp, a ServerApp and 20 nodes. It needs
# `pip install 'turnout[flower,torch,plot]'`.

# %%
import logging

import matplotlib.pyplot as plt
import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from turnout.data import Digits, Shards, federate
from turnout.live import VirtualWorld
from turnout.live.flower import SelectingStrategy
from turnout.live.flower.client import LossReport, describe
from turnout.worlds import Buffered, Environment, LinearContextual, Reliable, e3cs_world

logging.getLogger("flwr").setLevel(logging.ERROR)
N_CLIENTS = 20
data = federate(Digits(), Shards(per_client=3), n_clients=N_CLIENTS, seed=1)

# %% [markdown]
# ## The model
#
# The model is softmax regression in plain numpy, to keep the script short. Your app can train any model.


# %%
def probabilities(weights, x):
    """Return the probability of each digit."""
    scores = x.reshape(len(x), -1) * data.scale @ weights
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def losses_of(weights, x, y):
    """Return the loss of each example."""
    return -np.log(probabilities(weights, x)[np.arange(len(y)), y] + 1e-12)


# %% [markdown]
# ## The client
#
# `describe` identifies the client, so it has the same name in every run. `LossReport` collects the losses that
# selectors use. The rest is an ordinary ClientApp.

# %%
client = ClientApp()
describe(client, stable_id=lambda message, context: int(context.node_config["partition-id"]))


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round on the examples of this node."""
    number = int(context.node_config["partition-id"])
    mine = slice(data.offsets[number], data.offsets[number + 1])
    x, y = data.x[mine], data.y[mine]
    (weights,) = message.content["arrays"].to_numpy_ndarrays()
    report = LossReport()
    for _ in range(20):
        report.add(losses_of(weights, x, y))
        error = probabilities(weights, x) - np.eye(10)[y]
        weights = weights - 0.5 * (x.reshape(len(x), -1) * data.scale).T @ error / len(y)
    metrics = MetricRecord({"num-examples": len(y), **report.metrics()})
    content = {"arrays": ArrayRecord([weights]), "metrics": metrics}
    return Message(RecordDict(content), reply_to=message)


# %% [markdown]
# ## The server
#
# One line differs from an app without turnout: it wraps `FedAvg()`. The virtual world makes nodes fail as in
# step 1. Leave it out in a deployment, because real nodes fail by themselves.

# %%
server = ServerApp()
curves, counts = {}, {}


def accuracy(round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test the global model on the server."""
    (weights,) = arrays.to_numpy_ndarrays()
    right = probabilities(weights, data.x_test).argmax(axis=1) == data.y_test
    return MetricRecord({"accuracy": float(right.mean())})


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Run 20 rounds with each selector."""
    for name in ("random", "e3cs"):
        strategy = SelectingStrategy(
            FedAvg(fraction_evaluate=0.0),
            name,
            cohort_size=5,
            seed=1,
            world=VirtualWorld(e3cs_world(n_clients=N_CLIENTS, seed=1)),
        )
        start = ArrayRecord([np.zeros((64, 10))])
        result = strategy.start(grid, start, num_rounds=20, evaluate_fn=accuracy)
        tests = sorted(result.evaluate_metrics_serverapp.items())
        curves[name] = [metrics["accuracy"] for _, metrics in tests]
        counts[name] = strategy.run.counts
        print(
            f"{name:7} {strategy.run.success_ratio:.0%} answered, accuracy {curves[name][-1]:.1%}"
        )


# %% [markdown]
# ## Run it
#
# `flwr run` starts the two apps on Flower's simulation engine (Ray) or in a deployment (real nodes). Both take a
# while to start, so this script delivers the messages in its own process. Your app needs none of this.


# %%
class OneProcess(Grid):
    """Delivers each message to the ClientApp at once."""

    def __init__(self, app: ClientApp, n_nodes: int) -> None:
        self.app = app
        self.contexts = {
            1000 + i: Context(1, 1000 + i, {"partition-id": i}, RecordDict(), {})
            for i in range(n_nodes)
        }
        self.replies = {}

    def get_node_ids(self):
        """Return who is connected."""
        return list(self.contexts)

    def push_messages(self, messages):
        """Send, and keep the replies."""
        names = [f"message-{len(self.replies) + i}" for i in range(len(messages))]
        for name, message in zip(names, messages, strict=True):
            message.metadata.__dict__["_message_id"] = name  # as Flower's own grids do
            self.replies[name] = self.app(message, self.contexts[message.metadata.dst_node_id])
        return names

    def pull_messages(self, message_ids):
        """Return the replies."""
        return [self.replies[name] for name in message_ids]

    def send_and_receive(self, messages, *, timeout=None):
        """Send and return the replies."""
        return self.pull_messages(self.push_messages(messages))

    def set_run(self, run):
        """Do nothing; there is one run."""

    run = property(lambda self: None)

    def create_message(self, content, message_type, dst_node_id, group_id, ttl=None):
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)


TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # set by Flower's engines
server(OneProcess(client, N_CLIENTS), Context(1, 0, {}, RecordDict(), {}))

# %% [markdown]
# ## Rounds that overlap
#
# With a schedule, no node waits for the slowest one. Here 8 nodes are always at work, and 5 replies make a new model. A
# node trains on the model that it got; its step counts less if the model has changed since. In this world, nodes
# differ in speed.

# %%
overlapping = ServerApp()
SLOW = Environment(N_CLIENTS, seed=1, volatility=Reliable(), timing=LinearContextual())


@overlapping.main()
def compare(grid: Grid, context: Context) -> None:
    """Run 20 rounds that wait for all clients, and 20 that do not."""
    for name, schedule in (("waiting", None), ("buffered", Buffered(size=5, concurrency=8))):
        strategy = SelectingStrategy(
            FedAvg(fraction_evaluate=0.0),
            "random",
            cohort_size=5,
            seed=1,
            schedule=schedule,
            world=VirtualWorld(SLOW),
        )
        start = ArrayRecord([np.zeros((64, 10))])
        result = strategy.start(grid, start, num_rounds=20, evaluate_fn=accuracy)
        found = result.evaluate_metrics_serverapp[20]["accuracy"]
        seconds = strategy.run.length_s.sum()
        print(f"{name:8} accuracy {found:.1%} after {seconds:.0f} s of virtual time")


overlapping(OneProcess(client, N_CLIENTS), Context(1, 0, {}, RecordDict(), {}))

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name, values in curves.items():
    axes.plot(values, label=name)
axes.set(xlabel="round", ylabel="accuracy on the server", ylim=(0, 1))
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# One seed of a small app shows that it works, not which selector wins. Read on: [deadlines](../docs/howto/flower-deadlines.md),
# [rounds that overlap](../docs/howto/overlap.md#in-flower), [resume after a crash](../docs/howto/flower-resume.md),
# [clients that report loss](../docs/howto/flower-client.md),
# [deployment](../docs/howto/flower-deployment.md). [flower-volatile](flower-volatile/README.md) is a complete app
# with real processes, certificates and failures.
