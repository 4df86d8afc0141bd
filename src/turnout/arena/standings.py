"""How the built-in selectors stand in the arena, as it was measured for this release.

``docs/build_arena.py`` writes ``standings.json`` from ``results/arena.json``, so that commands can
say what the arena found without its results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from turnout.arena.standing import BASELINE, Overall, sentence_of

FILE = "standings.json"


class Standing(NamedTuple):
    """A selector over all tasks in which it met the baseline.

    Attributes:
        n_tasks: How many these are.
        time: Time to the target over the baseline's, and the ends of its interval.
        least_share: What the least served client got of its fair share, mean over tasks.
        n_unfair: In how many tasks that is below one half.
        record: Its record in a sentence.
    """

    n_tasks: int
    time: tuple[float, float, float]
    least_share: float
    n_unfair: int
    record: str


@lru_cache(maxsize=1)
def standings() -> Mapping[str, Standing]:
    """Return the standings by selector, the fastest first."""
    text = resources.files("turnout.arena").joinpath(FILE).read_text(encoding="utf-8")
    return {
        label: Standing(**row | {"time": tuple(row["time"])})
        for label, row in json.loads(text).items()
    }


def standings_text(overall: Mapping[str, Overall]) -> str:
    """Return the file's content.

    Args:
        overall: By label.
    """
    rows: dict[str, dict[str, Any]] = {
        label: Standing(
            len(own.duels),
            (round(own.ratio.value, 3), round(own.ratio.low, 3), round(own.ratio.high, 3)),
            round(own.least_share, 3),
            sum(not duel.is_fair for duel in own.duels),
            "Everyone is measured against it." if label == BASELINE else sentence_of(own.duels),
        )._asdict()
        for label, own in overall.items()
    }
    return json.dumps(rows, indent=1) + "\n"
