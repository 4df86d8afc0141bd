"""The only place where a live run looks at a clock or sleeps."""

from __future__ import annotations

import time


def now() -> float:
    """Return seconds on a clock that never goes back."""
    return time.monotonic()


def wall() -> float:
    """Return seconds since 1970, for what outlives the process."""
    return time.time()


def sleep(seconds: float) -> None:
    """Do nothing for a while."""
    time.sleep(seconds)
