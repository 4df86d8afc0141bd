import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.live.flower.apps.task import examples, trained
from turnout.live.flower.client import describe

app = ClientApp()
describe(app, stable_id=lambda message, context: context.node_config["partition-id"])


@app.train()
def train(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()[0]
    data = examples(int(context.node_config["partition-id"]))
    weights = trained(weights, data, message.content["config"]["lr"])
    metrics = {"num-examples": len(data), "train_loss": float(np.square(weights).mean())}
    content = {"arrays": ArrayRecord([weights]), "metrics": MetricRecord(metrics)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()[0]
    data = examples(int(context.node_config["partition-id"]))
    loss = float(np.square(data - weights).mean())
    metrics = {"num-examples": len(data), "eval_loss": loss}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
