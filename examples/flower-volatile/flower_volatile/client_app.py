"""The client: describes itself, trains, and reports its losses."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flower_volatile import task
from flower_volatile.faults import strike
from turnout.live.flower.client import describe

app = ClientApp()


def stable_id(message: Message, context: Context) -> str:
    """Return a name that outlives restarts; Flower's node ids do not."""
    return f"client-{context.node_config['partition-id']:03d}"


def num_examples(message: Message, context: Context) -> int:
    """Return how much data is here."""
    return len(examples(context).y)


def loss(message: Message, context: Context) -> float:
    """Return the loss of the current model on this client's data, for selectors that ask first."""
    return task.mean_loss(message.content["arrays"].to_numpy_ndarrays(), examples(context))


describe(app, stable_id=stable_id, num_examples=num_examples, loss=loss)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train for one round."""
    settings = context.run_config
    client = context.node_config["partition-id"]
    round = message.content["config"]["server-round"]
    strike(settings["faults"], client, round, settings["seed"])
    mine = examples(context)
    weights, losses = task.train(
        message.content["arrays"].to_numpy_ndarrays(),
        mine,
        epochs=settings["local-epochs"],
        lr=settings["learning-rate"],
        seed=1000 * round + client,
    )
    metrics = MetricRecord({"num-examples": len(mine.y), **losses})
    content = RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics})
    return Message(content, reply_to=message)


def examples(context: Context) -> task.Examples:
    """Return this client's examples."""
    node = context.node_config
    return task.examples_of(node["partition-id"], node["num-partitions"])
