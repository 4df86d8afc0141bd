"""The client: describes itself, trains a softmax regression on its digits, and reports its losses.

NVFlare runs this script at every site. Faults are made on demand: see ``--crash`` and ``--sleep``.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import nvflare.client as flare
from nvflare.app_common.abstract.fl_model import FLModel
from sklearn.datasets import load_digits

from turnout.live.nvflare.client import Describe, LossReport

#: What NVFlare's NumPy persistor calls its only array.
KEY = "numpy_key"


def my_digits(client: int, n_clients: int) -> tuple[np.ndarray, np.ndarray]:
    """Return this client's pixels, with a column of ones, and labels: mostly of two digits."""
    pixels, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(client)
    is_main = np.isin(labels, [client % 10, (3 * client + 1) % 10])
    mine = np.flatnonzero(rng.random(labels.size) < np.where(is_main, 0.8, 0.1))
    mine = mine[: 40 + 200 * (client + 1) // n_clients]
    return np.hstack([pixels[mine] / 16.0, np.ones((mine.size, 1))]), labels[mine]


def losses(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each example, and the probabilities of each digit."""
    scores = x @ weights
    scores -= scores.max(axis=1, keepdims=True)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return -np.log(chances[np.arange(y.size), y] + 1e-12), chances


def train(weights: np.ndarray, x: np.ndarray, y: np.ndarray, seed: int) -> FLModel:
    """Return the model after two epochs, with what selectors learn from."""
    accuracy = float((losses(weights, x, y)[1].argmax(axis=1) == y).mean())  # as it came
    report, rng = LossReport(), np.random.default_rng(seed)
    for batch in np.array_split(np.tile(rng.permutation(y.size), 2), max(1, y.size // 8)):
        loss, slope = losses(weights, x[batch], y[batch])
        report.add(loss)
        slope[np.arange(batch.size), y[batch]] -= 1.0
        weights = weights - 0.5 * x[batch].T @ slope / batch.size
    metrics = {"num-examples": y.size, "accuracy": accuracy, **report.metrics()}
    return FLModel(params={KEY: weights}, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": y.size})


def main() -> None:
    """Train whenever the server asks for it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--crash", type=float, default=0.0, help="chance of an error, per round")
    parser.add_argument("--sleep", type=float, default=0.0, help="chance to be far too late")
    options = parser.parse_args()
    flare.init()
    client = int(flare.get_site_name().rpartition("-")[2]) - 1
    x, y = my_digits(client, options.clients)

    def loss(model: FLModel) -> float:
        return float(losses(np.asarray(model.params[KEY]), x, y)[0].mean())

    me = Describe(num_examples=y.size, loss=loss)
    while flare.is_running():
        model = me.receive()
        if model is None:
            break
        luck = np.random.default_rng([client, model.current_round]).random()
        if luck < options.sleep:
            time.sleep(30.0)
        weights = np.asarray(model.params[KEY], dtype=np.float64)
        reply = train(weights, x, y, seed=1000 * model.current_round + client)
        if luck > 1.0 - options.crash:
            reply.params[KEY][0, 0] = np.nan  # diverged
        flare.send(reply)


if __name__ == "__main__":
    main()
