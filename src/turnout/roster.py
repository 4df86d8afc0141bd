"""Client ids and their indices: each id, of any hashable type, has an index that never changes."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from turnout import require
from turnout.errors import InvalidInput
from turnout.types import BoolArray, IntArray

__all__ = ["Roster"]


class Roster:
    """Maps client ids to indices 0 .. n-1. Clients join and leave; no index is used twice.

    Args:
        ids: Clients that join at the start, each once; they get the indices 0, 1, ...

    >>> roster = Roster(["phone-a", "phone-b"])
    >>> roster.join("tablet"), roster.join("phone-a")
    (2, 0)
    >>> roster.leave("phone-b")
    >>> roster.present.tolist(), roster.id_of(1)
    ([True, False, True], 'phone-b')
    """

    def __init__(self, ids: Iterable[Hashable] = ()) -> None:
        self._ids: list[Hashable] = []
        self._index: dict[Hashable, int] = {}
        self._present: list[bool] = []
        for client in ids:
            if client in self._index:
                raise InvalidInput(f"ids must be unique, got {client!r} twice.", field="ids")
            self.join(client)

    def __len__(self) -> int:
        """Return the number of clients ever seen: the ``n_clients`` of a selector."""
        return len(self._ids)

    def __contains__(self, client: Hashable) -> bool:
        """Return whether the client has ever joined."""
        return client in self._index

    @property
    def present(self) -> BoolArray:
        """(n,) who has joined and not left."""
        return np.array(self._present, dtype=np.bool_)

    @property
    def ids(self) -> tuple[Hashable, ...]:
        """All ids in index order."""
        return tuple(self._ids)

    def join(self, client: Hashable) -> int:
        """Add a client, or bring it back under its old index; return the index.

        Args:
            client: Its id.
        """
        index = self._index.get(client)
        if index is None:
            index = self._index[client] = len(self._ids)
            self._ids.append(client)
            self._present.append(True)
        self._present[index] = True
        return index

    def leave(self, client: Hashable) -> None:
        """Mark a client as gone; it keeps its index and what was learned about it.

        Args:
            client: Its id.
        """
        self._present[self.index_of(client)] = False

    def index_of(self, client: Hashable) -> int:
        """Return the index of a client.

        Args:
            client: Its id.

        Raises:
            InvalidInput: The client never joined.
        """
        try:
            return self._index[client]
        except KeyError:
            raise InvalidInput(f"client {client!r} is not on the roster: join it first.") from None

    def id_of(self, index: int) -> Hashable:
        """Return the id of an index.

        Args:
            index: From 0 to n-1.
        """
        if not (isinstance(index, int | np.integer) and 0 <= index < len(self._ids)):
            raise InvalidInput(f"index must be inside [0, {len(self._ids)}), got {index}.")
        return self._ids[index]

    def indices(self, clients: Iterable[Hashable]) -> IntArray:
        """Return the indices of several clients, in their order.

        Args:
            clients: Their ids.
        """
        return np.array([self.index_of(client) for client in clients], dtype=np.int64)

    def available(self, clients: Iterable[Hashable]) -> BoolArray:
        """Return (n,) which of the named clients are present, for a ``RoundContext``.

        Args:
            clients: Ids of clients that could take part.
        """
        mask = np.zeros(len(self), dtype=np.bool_)
        mask[self.indices(clients)] = True
        return mask & self.present

    def to_json(self) -> str:
        """Return the roster as JSON; ids may be strings, integers, bytes or tuples of them."""
        return json.dumps(
            {"ids": [_encode(client) for client in self._ids], "present": self._present}
        )

    @classmethod
    def from_json(cls, text: str) -> Roster:
        """Return the roster written by ``to_json``.

        Args:
            text: The JSON.
        """
        try:
            content = json.loads(text)
            roster = cls(_decode(client) for client in content["ids"])
            present = [require.boolean("present", flag) for flag in content["present"]]
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"roster JSON is damaged: {error}.") from error
        if len(present) != len(roster):
            raise InvalidInput(
                f"roster JSON is damaged: {len(roster)} ids but {len(present)} presence flags."
            )
        roster._present = present
        return roster


def _encode(client: Hashable) -> Any:
    if isinstance(client, str) or (isinstance(client, int) and not isinstance(client, bool)):
        return client
    if isinstance(client, bytes):
        return {"bytes": client.hex()}
    if isinstance(client, tuple):
        return {"tuple": [_encode(part) for part in client]}
    raise InvalidInput(
        f"client id {client!r} cannot be saved: use a string, an integer, bytes or a tuple of them."
    )


def _decode(saved: Any) -> Hashable:
    if isinstance(saved, str | int):
        return saved
    if "bytes" in saved:
        return bytes.fromhex(saved["bytes"])
    return tuple(_decode(part) for part in saved["tuple"])
