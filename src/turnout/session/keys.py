"""Keys under which clients report numbers beside an answer.

A metric stands under the selector's name of it, written with hyphens: ``loss_rms`` is ``loss-rms``.
"""

from __future__ import annotations

from collections.abc import Mapping

NUM_EXAMPLES, DURATION = "num-examples", "duration"


def metric_key(name: str, renamed: Mapping[str, str]) -> str:
    """Return the key under which clients report a selector's metric."""
    return renamed.get(name, name.replace("_", "-"))
