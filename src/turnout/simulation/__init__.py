"""Run federations: the round loop and whole runs, with or without training."""

from turnout.runs.run import Run
from turnout.simulation.loop import Progress, RoundRecord, rounds
from turnout.simulation.participants import Participants, Simulated, Work
from turnout.simulation.run import collect, simulate
from turnout.simulation.training import train

__all__ = [
    "Participants",
    "Progress",
    "RoundRecord",
    "Run",
    "Simulated",
    "Work",
    "collect",
    "rounds",
    "simulate",
    "train",
]
