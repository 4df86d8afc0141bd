"""The numbers behind the page, for other programs."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Iterable
from typing import Any

from turnout.results.frames import cell_row
from turnout.runs.cell import Cell


def cells_csv(cells: Iterable[Cell]) -> str:
    """Return a table with one row per cell, as the address of a file inside the page.

    Args:
        cells: The cells of all worlds.

    Returns:
        A ``data:`` address of a CSV; what is not defined is empty.
    """
    rows = [cell_row(cell) for cell in cells]
    text = io.StringIO(newline="")
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _written(value) for name, value in row.items()} for row in rows)
    content = base64.b64encode(text.getvalue().encode("utf-8", "replace")).decode("ascii")
    return f"data:text/csv;charset=utf-8;base64,{content}"


def _written(value: Any) -> Any:
    return "" if isinstance(value, float) and math.isnan(value) else value
