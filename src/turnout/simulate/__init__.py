"""Run federations: the round loop and whole runs, with or without training."""

from turnout.runs.run import Run
from turnout.simulate.loop import Progress, RoundRecord, rounds
from turnout.simulate.participants import Participants, Simulated, Work
from turnout.simulate.run import collect, simulate
from turnout.simulate.training import train

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
