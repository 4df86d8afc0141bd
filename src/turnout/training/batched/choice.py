"""Which engine trains a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.training.batched.chain import Chain
from turnout.training.batched.engine import Engine
from turnout.training.batched.parts import Unreadable, read_parts

if TYPE_CHECKING:
    from turnout.training.torch_trainer import TorchTrainer

__all__ = ["engine_for"]


def engine_for(trainer: TorchTrainer) -> tuple[Engine, str]:
    """Return the fastest engine that gives the right numbers, and why it is no faster one."""
    from turnout.training.batched.text import Text
    from turnout.training.nets import NextWord
    from turnout.training.batched.functional import Functional
    local, data = trainer.local, trainer.data
    largest = int(data.num_samples.max())
    batch_size = largest if local.batch_size is None else min(local.batch_size, largest)
    if isinstance(trainer.module, NextWord): return Text(trainer.module, data), ""
    try:
        parts = read_parts(trainer.module, data.example_shape)
        return Chain(parts, trainer.module, data, batch_size), ""
    except Unreadable as error:
        return Functional(trainer.module,data), str(error)
