"""What shadows would have done in a live run: their columns of ``selections.npz``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from turnout.core.types import Array, FloatArray, IntArray
from turnout.results import files
from turnout.results.guarantee import fair_places, least_share
from turnout.results.run import Run

#: How the names of their columns begin; the label and a word follow.
SHADOW = "shadow."
_WORDS = ("clients", "offsets", "chance")


class Shadowed(NamedTuple):
    """What a selector that was not in charge would have done.

    Attributes:
        label: Its name.
        clients: (wishes,) whom it would have chosen, the rounds one after the other.
        offsets: (T + 1,) where each round starts. A round without a wish is empty.
        chance: (choices,) its chance of each client that *was* chosen; NaN = it had no wish.
    """

    label: str
    clients: IntArray
    offsets: IntArray
    chance: FloatArray

    @property
    def n_rounds(self) -> int:
        """Rounds in which it would have chosen somebody."""
        return int(np.count_nonzero(np.diff(self.offsets)))

    def agreement(self, run: Run) -> float:
        """Return the share of its wishes that were chosen; NaN without any.

        Args:
            run: What was chosen.
        """
        rounds = np.repeat(np.arange(run.n_rounds), np.diff(self.offsets))
        chosen = np.repeat(np.arange(run.n_rounds), np.diff(run.offsets))
        ours = rounds * run.n_clients + self.clients
        both = np.isin(ours, chosen * run.n_clients + run.clients)
        return float(both.mean()) if both.size else np.nan

    def least_share(self, run: Run) -> float:
        """Return what the least served client would have got of its fair share.

        Args:
            run: Who could be chosen.
        """
        if not (run.knows_available and self.clients.size):
            return np.nan
        return least_share(fair_places(run), np.bincount(self.clients, minlength=run.n_clients))

    def columns(self) -> dict[str, Array]:
        """Return the columns by their names in the file."""
        values = zip(_WORDS, (self.clients, self.offsets, self.chance), strict=True)
        return {f"{SHADOW}{self.label}.{word}": column for word, column in values}


def shadows_in(columns: dict[str, Array], n_choices: int, n_clients: int) -> dict[str, Shadowed]:
    """Return the shadows in columns, by label; what is damaged is left out.

    Args:
        columns: Columns by name; others are left out.
        n_choices: How many choices the run has.
        n_clients: How many clients it has.
    """
    found: dict[str, Shadowed] = {}
    for name in columns:
        label, _, word = name.removeprefix(SHADOW).rpartition(".")
        if not name.startswith(SHADOW) or word != "clients":
            continue
        clients, offsets, chance = (columns.get(f"{SHADOW}{label}.{each}") for each in _WORDS)
        if clients is None or offsets is None or chance is None:
            continue
        is_whole = (
            clients.dtype.kind in "iu"
            and offsets.dtype.kind in "iu"
            and chance.dtype.kind == "f"
            and chance.shape == (n_choices,)
            and offsets.ndim == clients.ndim == 1
            and offsets.size >= 1
            and offsets[0] == 0
            and offsets[-1] == clients.size
            and bool((np.diff(offsets) >= 0).all())
            and (not clients.size or (clients.min() >= 0 and clients.max() < n_clients))
            and not bool(((chance < 0.0) | (chance > 1.0)).any())
        )
        if is_whole:
            found[label] = Shadowed(label, clients, offsets, chance)
    return found


def read_shadows(folder: Path, run: Run) -> dict[str, Shadowed]:
    """Return what shadows would have done in a recorded run, by label.

    Args:
        folder: The folder of the run.
        run: The run as it was read; it may have fewer rounds than the file.
    """
    if not (folder / files.SELECTIONS).exists():
        return {}
    columns = files.read_arrays(folder / files.SELECTIONS)
    n_choices = int(columns["offsets"][-1]) if "offsets" in columns else 0
    found = shadows_in(columns, n_choices, run.n_clients)
    n = run.n_rounds
    return {
        label: Shadowed(
            label,
            each.clients[: each.offsets[n]],
            each.offsets[: n + 1],
            each.chance[: run.clients.size],
        )
        for label, each in found.items()
        if each.offsets.size > n
    }
