"""Faults on demand, to see what a federation does about them.

A script such as ``"1:crash@2 2:sleep30@3 *:crash@10%"`` reads: client 1 raises an exception in
round 2, client 2 sleeps for 30 seconds in round 3, everyone raises with a chance of 10 %. A third
fault, ``exit``, ends the client's process without a word.
"""

from __future__ import annotations

import os
import re
import time

from turnout.core.rng import Purpose, stream

_FAULT = re.compile(r"(\*|\d+):(crash|exit|sleep)(\d+(?:\.\d+)?)?@(\d+)(%?)")


def strike(script: str, client: int, round: int, seed: int) -> None:
    """Do to this client what the script says for this round."""
    for position, entry in enumerate(script.split()):
        match = _FAULT.fullmatch(entry)
        if match is None:
            raise ValueError(f"faults: {entry!r} is not like 1:crash@2, 2:sleep30@3 or *:exit@10%.")
        who, what, seconds, when, percent = match.groups()
        if who not in ("*", str(client)):
            continue
        luck = stream(seed, Purpose.ENV, round, client).random(position + 1)[position]
        if luck < int(when) / 100 if percent else round == int(when):
            _suffer(what, float(seconds or 0), client, round)


def _suffer(what: str, seconds: float, client: int, round: int) -> None:
    print(f"fault: client {client} {what} in round {round}", flush=True)
    if what == "crash":
        raise RuntimeError(f"client {client} crashes in round {round}, as the script says")
    if what == "exit":
        os._exit(1)
    time.sleep(seconds)
