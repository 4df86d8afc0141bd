"""Rounds for Prometheus, as the session counts them; those of the past are not counted again.

Nor is what they gave cause to logged again: an alert of last week is no news of today.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from turnout.session import Prometheus
from turnout.session.follower import Follower, Numbers, People
from turnout.session.post import log

_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


def _is_news(_: logging.LogRecord) -> bool:
    return not _is_quiet.get()


class Counter(Follower):
    """Keeps the metrics of this process; what it hears while it is quiet does not count."""

    def __init__(self) -> None:
        self.metrics = Prometheus()
        log.addFilter(_is_news)  # once, however many there are

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Hear nothing for a while, in this thread."""
        token = _is_quiet.set(True)
        try:
            yield
        finally:
            _is_quiet.reset(token)

    def opened(self, run: str, round: int, people: People) -> None:
        """Show who is there."""
        if not _is_quiet.get():
            self.metrics.opened(run, round, people)

    def ended(self, run: str, ended: Any, numbers: Numbers) -> None:
        """Count a round."""
        if not _is_quiet.get():
            self.metrics.ended(run, ended, numbers)
