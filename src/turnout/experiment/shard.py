"""A part of a grid, for a machine that runs only that part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from turnout.errors import InvalidInput

Item = TypeVar("Item")


@dataclass(frozen=True)
class Shard:
    """The cells whose number is ``index`` modulo ``count``.

    Args:
        index: Which part, from 0.
        count: How many parts there are.

    Raises:
        InvalidInput: If there is no such part.

    >>> Shard(1, 3).of(range(8))
    [1, 4, 7]
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        is_whole = isinstance(self.index, int) and isinstance(self.count, int)
        if not (is_whole and 0 <= self.index < self.count):
            raise _no_shard(str(self))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shard of a text.

        Args:
            text: ``i/n``, such as ``0/4`` for the first of four parts.

        Raises:
            InvalidInput: If it is anything else.
        """
        match = re.fullmatch(r"(\d+)/(\d+)", text, re.ASCII)
        if match is None:
            raise _no_shard(text)
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        """Return it as ``parse`` reads it."""
        return f"{self.index}/{self.count}"

    def of(self, cells: Sequence[Item]) -> list[Item]:
        """Return the part of a list.

        Args:
            cells: All cells, in their order.
        """
        return list(cells[self.index :: self.count])

    def after(self, n_cells: int) -> Shard:
        """Return the same part of what follows, so that numbers go on from grid to grid.

        Args:
            n_cells: Cells of the grids before.
        """
        return Shard((self.index - n_cells) % self.count, self.count)


def _no_shard(text: str) -> InvalidInput:
    wanted = "i/n with 0 <= i < n, such as 0/4 for the first of four parts"
    return InvalidInput(f"shard must be {wanted}; got {text!r}.", field="shard")
