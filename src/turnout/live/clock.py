"""The only place where a live run looks at a clock or sleeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

#: Difference between seconds since 1970 and a clock that never goes back.
_OFFSET = time.time() - time.monotonic()
_held: ContextVar[float | None] = ContextVar("held", default=None)


def now() -> float:
    """Return seconds on a clock that never goes back."""
    at = _held.get()
    return time.monotonic() if at is None else at


def wall() -> float:
    """Return seconds since 1970, for what outlives the process.

    The computer's clock is read once, at the start. If it is set back or forward later, no client
    is locked out or freed by it, and no round has a negative length.
    """
    at = _held.get()
    return _OFFSET + time.monotonic() if at is None else at


def sleep(seconds: float) -> None:
    """Do nothing for a while."""
    time.sleep(seconds)


@contextmanager
def held(at: float) -> Iterator[None]:
    """Stop both clocks of this thread, so that a replay sees the same time.

    Args:
        at: Seconds since 1970.
    """
    token = _held.set(at)
    try:
        yield
    finally:
        _held.reset(token)
