"""Choose the engine of a model: the fastest that gives the numbers of the reference."""

from __future__ import annotations

from turnout.training.batched.chain import Chain
from turnout.training.batched.engine import Engine
from turnout.training.batched.functional import Functional, why_not
from turnout.training.batched.layer_plan import Unreadable, read_layer_plans
from turnout.training.batched.per_client import Copies, OneByOne, is_noisy
from turnout.training.batched.text import Text
from turnout.training.nets import NextWord
from turnout.training.reference import ReferenceTrainer


def engine_for(reference: ReferenceTrainer, batch_size: int) -> tuple[Engine, str]:
    """Return the engine for a module, and why no faster one fits (or an empty string).

    Args:
        reference: The reference trainer of the module.
        batch_size: Examples of the largest mini-batch.

    """
    module, data = reference.module, reference.data
    if type(module) is NextWord:
        return Text(module, data), ""
    if reference.buffers:
        engine = OneByOne if is_noisy(module, data) else Copies
        return engine(reference), f"it changes buffers while it trains: {reference.buffers[0]}"
    try:
        return Chain(read_layer_plans(module, data.example_shape), module, data, batch_size), ""
    except Unreadable as error:
        why = str(error)
    if is_noisy(module, data):
        return OneByOne(reference), f"{why}; it draws random numbers while it trains"
    refusal = why_not(module, data)
    if not refusal:
        return Functional(module, data), why
    return Copies(reference), f"{why}; {refusal}"
