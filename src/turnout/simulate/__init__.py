"""Simulate federations without training: the round loop and whole runs."""

from turnout.simulate.loop import Progress, RoundRecord, rounds
from turnout.simulate.run import Run, simulate

__all__ = ["Progress", "RoundRecord", "Run", "rounds", "simulate"]
