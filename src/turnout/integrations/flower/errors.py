"""Errors of the Flower integration; each message names what is wrong and the fix."""

from __future__ import annotations

from turnout.errors import TurnoutError

__all__ = ["MissingMetric", "UnsuitableStrategy"]


class MissingMetric(TurnoutError, RuntimeError):
    """Clients do not report a metric that the selector learns from."""


class UnsuitableStrategy(TurnoutError, RuntimeError):
    """The inner strategy samples by itself, waits for nodes or needs other numbers."""
