"""A twin of your federation: a world fitted to its records, and how well it predicts them."""

from turnout.twin.check import Coverage, HeldOut, check
from turnout.twin.fit import fit
from turnout.twin.replay import Replay, Replayed, replay
from turnout.twin.world import FittedWorld, Quantity

__all__ = [
    "Coverage",
    "FittedWorld",
    "HeldOut",
    "Quantity",
    "Replay",
    "Replayed",
    "check",
    "fit",
    "replay",
]
