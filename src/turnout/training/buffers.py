"""What a module of PyTorch asks of its trainer: buffers that change, mini-batches that suffice.

Batch normalisation has running moments, which are no weights, and cannot normalise one example.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn

from turnout.data.base import FederatedData
from turnout.errors import InvalidInput
from turnout.training.modules import PROBE, REFUSALS, tried


def changing_buffers(module: nn.Module, data: FederatedData) -> tuple[str, ...]:
    """Return the names of the buffers of all layers that change a buffer while they train.

    Args:
        module: The module. It is copied.
        data: The examples that it is tried on.

    """
    after = copy.deepcopy(module)
    tried(after, data, min(PROBE, data.x.shape[0]))
    buffers = dict(module.named_buffers())
    changed = {
        _layer(name)
        for name, buffer in after.named_buffers()
        if not torch.equal(buffer, buffers[name])
    }
    names = tuple(name for name in buffers if _layer(name) in changed)
    for name in names:
        if buffers[name].is_complex():
            raise InvalidInput(
                f"model {type(module).__name__} changes its buffer {name} of complex numbers, "
                "which cannot be averaged with its weights: keep two of real numbers."
            )
    return names


def least_batch(module: nn.Module, data: FederatedData) -> int:
    """Return how many examples a mini-batch must hold: 2 if the module refuses a single one.

    Args:
        module: The module. It is copied.
        data: The examples that it is tried on.

    """
    try:
        tried(copy.deepcopy(module), data, 1)
    except REFUSALS:
        return 2
    return 1


def check_batches(
    module: nn.Module, data: FederatedData, batch_size: int | None, least: int
) -> None:
    """Raise an error if a client would have a mini-batch that is too small for the module.

    Args:
        module: The module.
        data: The examples of all clients.
        batch_size: Examples of a mini-batch; None for all.
        least: Examples that a mini-batch must hold.

    """
    n = data.num_samples
    size = n if batch_size is None else np.minimum(n, batch_size)
    lent = np.where(n % size == 0, 0, np.maximum(least - n % size, 0))  # to the last of a pass
    short = np.flatnonzero(size - lent < least)
    if short.size:
        raise InvalidInput(
            f"model {type(module).__name__} needs {least} examples in every mini-batch, as batch "
            f"normalisation does, but with batch_size={batch_size} client {short[0]} has "
            f"{n[short[0]]} training examples and a mini-batch of one. Use batch_size >= 3 and "
            "clients with two examples or more, or GroupNorm."
        )


def _layer(name: str) -> str:
    return name.rpartition(".")[0]
