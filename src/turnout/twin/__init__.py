"""A twin of your federation: a world fitted to its records, and how well it predicts them."""

from turnout.twin.check import Check, Coverage, check
from turnout.twin.fit import fit
from turnout.twin.replay import Replay, Replayed, replay
from turnout.twin.world import FittedWorld, Quantity

__all__ = [
    "Check",
    "Coverage",
    "FittedWorld",
    "Quantity",
    "Replay",
    "Replayed",
    "check",
    "fit",
    "replay",
]
