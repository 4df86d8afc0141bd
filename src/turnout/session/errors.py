"""Errors of live runs; each message names what is wrong and the fix."""

from __future__ import annotations

from turnout.errors import TurnoutError


class MissingMetric(TurnoutError, RuntimeError):
    """Clients do not report a metric that the selector learns from."""


class TooFewAnswers(TurnoutError, RuntimeError):
    """So many rounds in a row had too few answers that the run was stopped."""
