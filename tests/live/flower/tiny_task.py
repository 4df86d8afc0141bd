"""Takes the place of the example's task: client i adds 10^i, so the model tells who was averaged.

The sum of the model is reported as its loss. No torch and no data, for a new process per message.
"""

from typing import NamedTuple

import numpy as np

from turnout.live.flower.client import LossReport


class Examples(NamedTuple):
    x: int
    y: list


def initial_weights(seed):
    return [np.zeros(1)]


def examples_of(client, n_clients):
    return Examples(client, [0])


def train(weights, examples, *, epochs, lr, seed):
    report = LossReport()
    report.add(1.0)
    return [weights[0] + 10.0**examples.x], report.metrics()


def mean_loss(weights, examples):
    return 1.0


def test(weights):
    return {"loss": float(weights[0].sum()), "accuracy": 0.0}
