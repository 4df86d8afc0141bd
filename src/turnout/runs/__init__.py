"""The record of a run: its columns, its folder, who writes it and who reads it."""

from turnout.runs.run import Run

__all__ = ["Run"]
