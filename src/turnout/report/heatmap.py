"""Who was chosen when: client x round, binned so that a large run stays light."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from turnout.report.figures import label
from turnout.results.groups import WorldGroup
from turnout.runs.cell import Cell
from turnout.types import Array, FloatArray, IntArray

#: Cells of the map at most; colours have 8 bits.
N_ROWS, N_COLUMNS = 100, 125
_MOST_CLASSES = 12


def classes_of(world: WorldGroup) -> IntArray | None:
    """Return (n,) the class of each client, None without classes or with too many to draw.

    Args:
        world: The cells that compare; the first that recorded classes is asked.
    """
    recorded = [cell.class_of for cell in world.cells]
    class_of = next((classes for classes in recorded if classes is not None), None)
    if class_of is None:
        return None
    return class_of if 2 <= np.unique(class_of).size <= _MOST_CLASSES else None


def class_names(world: WorldGroup, classes: IntArray) -> list[str]:
    """Return the names of classes, for a chart.

    Args:
        world: The cells that compare; their settings may name the classes.
        classes: The numbers of the classes to name.
    """
    setting = world.settings.classes.get("names")
    names = setting if isinstance(setting, list) else []
    return [
        label(str(names[number])) if 0 <= number < len(names) else f"class {number}"
        for number in classes.tolist()
    ]


def heat_map(world: WorldGroup, order: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the maps of all selectors, and what their rows and columns are.

    Args:
        world: The cells that compare.
        order: The number of each selector, for colours and toggling.

    Returns:
        Data for the page's script; None if no cell recorded who was chosen.
    """
    n, n_rounds = world.settings.n_clients, world.n_rounds
    class_of = classes_of(world)
    position = np.arange(n) if class_of is None else np.argsort(class_of, kind="stable")
    row_of = np.empty(n, dtype=np.int64)
    row_of[position] = _bins(n, N_ROWS)
    column_of = _bins(n_rounds, N_COLUMNS)
    maps = []
    for variant in world.variants:
        cells = [cell for cell in variant.cells if cell.choices is not None]
        if not cells:
            continue
        shares = [_shares(cell, row_of, column_of) for cell in cells]
        seed = f"seed {cells[0].settings.seed}"
        runs = {seed: _packed(shares[0])}
        if len(cells) > 1:
            runs[f"mean of {len(cells)} seeds"] = _packed(np.mean(shares, axis=0))
        maps.append({"selector": order[variant.name], "name": variant.name, "runs": runs})
    if not maps:
        return None
    return {
        "maps": maps,
        "rows": _labels(position, row_of[position], "client"),
        "columns": _labels(np.arange(1, n_rounds + 1), column_of, "round"),
        "x": _middles(column_of, 1.0),
        "groups": [] if class_of is None else _groups(world, class_of[position], row_of[position]),
    }


def _bins(n: int, most: int) -> IntArray:
    """Return (n,) the bin of each of n clients or rounds, equally many in each."""
    return np.arange(n, dtype=np.int64) * min(n, most) // n


def _shares(cell: Cell, row_of: IntArray, column_of: IntArray) -> FloatArray:
    """Return in which share of its rounds each client of a bin was chosen."""
    assert cell.choices is not None
    n_rows, n_columns = int(row_of.max()) + 1, int(column_of.max()) + 1
    column = np.repeat(column_of[: cell.n_rounds], np.diff(cell.choices.offsets))
    hits = np.bincount(row_of[cell.choices.clients] * n_columns + column, None, n_rows * n_columns)
    room = np.outer(np.bincount(row_of), np.bincount(column_of))
    return np.asarray(hits.reshape(n_rows, n_columns) / room)


def _packed(shares: FloatArray) -> str:
    """Return one byte per cell, row by row: 0 = never, 255 = always."""
    levels = np.clip(np.rint(shares * 255.0), 0, 255).astype(np.uint8)
    return base64.b64encode(levels.tobytes()).decode("ascii")


def _labels(members: IntArray, bin_of: IntArray, word: str) -> list[str]:
    """Return what each bin holds: one client, a range, or so many clients."""
    starts = np.flatnonzero(np.diff(bin_of, prepend=-1))
    return [_bin_label(held, word) for held in np.split(members, starts[1:])]


def _bin_label(held: Sequence[int] | Array, word: str) -> str:
    first, last = int(held[0]), int(held[-1])
    if len(held) == 1:
        return f"{word} {first}"
    is_range = last - first == len(held) - 1
    return f"{word}s {first}-{last}" if is_range else f"{len(held)} {word}s from {first}"


def _middles(bin_of: IntArray, first: float) -> list[float]:
    sizes = np.bincount(bin_of)
    middles: list[float] = (np.cumsum(sizes) - (sizes + 1) / 2 + first).tolist()
    return middles


def _groups(world: WorldGroup, ordered: IntArray, row_of: IntArray) -> list[dict[str, Any]]:
    """Return the name and the first and last row of each class, bottom up."""
    classes, starts, sizes = np.unique(ordered, return_index=True, return_counts=True)
    rows = zip(row_of[starts].tolist(), row_of[starts + sizes - 1].tolist(), strict=True)
    names = class_names(world, classes)
    return [
        {"name": name, "first": first, "last": last}
        for name, (first, last) in zip(names, rows, strict=True)
    ]
