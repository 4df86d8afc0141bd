"""Rounds for Prometheus, as the session counts them; those of the past are not counted again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from turnout.session import Prometheus
from turnout.session.follower import Follower, Numbers, People

_is_quiet: ContextVar[bool] = ContextVar("is_quiet", default=False)


class Counter(Follower):
    """Keeps the metrics of this process; what it hears while it is quiet does not count."""

    def __init__(self) -> None:
        self.metrics = Prometheus()

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
