"""Limits on how often a client takes part: at least so many rounds apart, and so many times in all.

DP-FTRL and banded matrix factorisation add noise for the worst pattern of participation that is
possible. Their literature (arXiv:2306.08153, arXiv:2408.08868) calls the first limit the minimum
separation b, and the second one the maximum participation k: two rounds i < j in which the same
client takes part have j - i >= b, and there are at most k such rounds. So b = 1 allows two rounds
in a row, and b = 2 does not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from turnout.core.domains import CheckedFields, Count
from turnout.core.errors import InvalidInput
from turnout.core.types import Array

__all__ = ["Participation", "merged"]

#: The state of a selector that keeps such limits: how often each client was chosen, the round after
#: the last time (0 = never), and the first round that is not known.
TIMES, NEXT, KNOWN = "invited_", "after_invited_", "known_until_"
#: The largest chance of any client to be chosen: in the memo of a selection, and in records.
CHANCE_BOUND = "chance_bound"


@dataclass(frozen=True, slots=True)
class Participation(CheckedFields):
    """How often a client may take part.

    Args:
        min_gap: b: a client that takes part in round t is not chosen again before round t + b.
        max_times: k: rounds in which a client takes part at most; None for no limit.

    >>> Participation(min_gap=5).check_fits(n_clients=100, cohort_size=20)
    """

    min_gap: Count = 1
    max_times: Count | None = None

    @property
    def is_limited(self) -> bool:
        """Whether there is any limit."""
        return self.min_gap > 1 or self.max_times is not None

    def check_fits(self, n_clients: int, cohort_size: int, n_rounds: int | None = None) -> None:
        """Refuse a federation that is too small to fill its cohorts under the limits.

        The condition is exact if all clients are always available: taking turns then fills every
        round, and less is impossible.

        Args:
            n_clients: n, the size of the federation.
            cohort_size: m, clients per round.
            n_rounds: T, the rounds of the run; None = unknown, and only the gap is checked.

        Raises:
            InvalidInput: The message says which n, m, b, k or T would do.
        """
        n, m, b, k = n_clients, cohort_size, self.min_gap, self.max_times
        gap = b if n_rounds is None else min(b, n_rounds)
        total = 0 if n_rounds is None or k is None else m * n_rounds
        is_far, is_often = m * gap <= n, k is None or total <= n * k
        if not self.is_limited or (is_far and is_often):
            return
        ways = [f"n_clients at least {max(m * gap, 0 if k is None else math.ceil(total / k))}"]
        most = n // gap
        if k is not None and n_rounds:
            most = min(most, n * k // n_rounds)
        if most:
            ways.append(f"cohort_size at most {most}")
        limits = []
        if not is_far and n >= m:
            limits.append(f"min_gap at most {n // m}")
        if not is_often:
            limits.append(f"max_times at least {math.ceil(total / n)}")
        if n >= m:
            ways.append(" and ".join(limits))
        if n_rounds is not None and n >= m:
            longest = n // m if not is_far else n * (k or 0) // m
            ways.append(f"n_rounds at most {longest}")
        of = "" if n_rounds is None else f" in each of {n_rounds} rounds"
        limit = f"min_gap = {b}" + ("" if k is None else f" and max_times = {k}")
        raise InvalidInput(
            f"{n} clients cannot fill a cohort of {m}{of} with {limit}: one of these would do: "
            f"{'; '.join(ways)}.",
            field="max_times" if is_far else "min_gap",
        )


def merged(state: Mapping[str, Array], kept: int, gone: int) -> dict[str, Array]:
    """Return the state of a selector after two clients became one: it took part as both.

    Args:
        state: The state; one without limits stays as it is.
        kept: The index that stays.
        gone: The index of the other.
    """
    changed = {name: np.array(values) for name, values in state.items()}
    if TIMES in changed:
        changed[TIMES][kept] += changed[TIMES][gone]
        changed[NEXT][kept] = max(changed[NEXT][kept], changed[NEXT][gone])
    return changed
