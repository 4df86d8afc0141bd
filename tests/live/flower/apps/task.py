"""The task of the app: weights that move towards the client's examples."""

import numpy as np


def initial_weights():
    return np.zeros(10)


def examples(partition):
    return np.random.default_rng(partition).normal(partition, 1.0, size=(20 + partition, 10))


def trained(weights, data, lr):
    for row in data:
        weights = weights - lr * (weights - row)
    return weights
