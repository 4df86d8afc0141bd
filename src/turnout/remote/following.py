"""Rounds of a server, told to trackers: TensorBoard, MLflow, W&B or your own.

They follow from outside. So a slow tracker holds up no request, and it does not matter how many
servers share the database.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from turnout import require
from turnout.remote.wire import RemoteError, Wire
from turnout.training.callbacks import Callback

#: What trackers are told about a federation.
_ABOUT = ("name", "selector", "parameters", "seed", "cohort_size", "policy")


def follow(
    url: str,
    federation: str,
    callbacks: Sequence[Callback],
    *,
    start: int = 0,
    n_rounds: int | None = None,
    token: str | None = None,
    poll_s: float = 1.0,
    patience_s: float = 60.0,
) -> int:
    """Tell callbacks of every round of a federation that is closed; return the next round.

    Args:
        url: Where the server is.
        federation: Its name there.
        callbacks: Who is told; they end when this does, also after an error or Ctrl-C.
        start: The first round that is told, from 0.
        n_rounds: How many are; None: all that ever come.
        token: With the scope read; without it, what the variable ``TURNOUT_TOKEN`` holds.
        poll_s: Seconds between two looks.
        patience_s: Seconds that a server which does not answer is waited for.

    Raises:
        RemoteError: The server refuses, does not answer, or the federation was deleted.
    """
    first = require.integer("start", start, minimum=0)
    last = None if n_rounds is None else first + require.integer("n_rounds", n_rounds, minimum=0)
    require.number("poll_s", poll_s, above=0.0)
    wire, path, t = Wire(url, token, patience_s), f"/federations/{federation}", first
    there = wire.send("GET", path)
    with ExitStack() as started:
        for callback in callbacks:
            callback.start({name: there[name] for name in _ABOUT})
            started.callback(callback.end)
        while last is None or t < last:
            closed = _closed(wire, path, t)
            if closed is None:
                time.sleep(poll_s)
                continue
            for callback in callbacks:
                callback.round(t, _values(closed))
            t += 1
    return t


def _closed(wire: Wire, path: str, t: int) -> Mapping[str, Any] | None:
    """Return a round; None if it is open, or still to come."""
    try:
        found: Mapping[str, Any] = wire.send("GET", f"{path}/rounds/{t}")
    except RemoteError as error:
        if error.status != 404:
            raise
        wire.send("GET", path)  # raises if it is the federation that is gone
        return None
    return found if found["state"] == "closed" else None


def _values(closed: Mapping[str, Any]) -> dict[str, float]:
    """Return a round in numbers, by the names that they have on the other stacks."""
    result = closed["result"]
    return {
        **{name: float(n) for name, n in result["counts"].items()},
        "chosen": float(len(closed["clients"])),
        "free": float(closed["n_free"]),
        "train_s": float(result["length_s"]),
        "void": float(result["void"]),
        "alerts": float(len(result["alerts"])),
    }
