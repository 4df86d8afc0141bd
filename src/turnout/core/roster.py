"""Client ids and their indices: each id, of any hashable type, has an index that never changes."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.types import BoolArray, IntArray

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
        self._merged: dict[Hashable, Hashable] = {}  #: merged ids, and the id that each goes by now
        self._json: str | None = None  #: what ``to_json`` returned, as long as nothing changes
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
        """(n,) which clients have joined and not left."""
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
        client = self._merged.get(client, client)
        index = self._index.get(client)
        if index is None:
            index = self._index[client] = len(self._ids)
            self._ids.append(client)
            self._present.append(False)
        if not self._present[index]:
            self._present[index], self._json = True, None
        return index

    def leave(self, client: Hashable) -> None:
        """Mark a client as gone. It keeps its index and everything learned about it.

        Args:
            client: Its id.
        """
        self._present[self.index_of(client)], self._json = False, None

    def index_of(self, client: Hashable) -> int:
        """Return the index of a client.

        Args:
            client: Its id.

        Raises:
            InvalidInput: The client never joined.
        """
        try:
            return self._index[self._merged.get(client, client)]
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

    def known_as(self, client: Hashable) -> Hashable:
        """Return the id of a client, which is another one if it was merged into that.

        Args:
            client: An id, on the roster or not.
        """
        return self._merged.get(client, client)

    def rename(self, client: Hashable, new: Hashable) -> None:
        """Give a client another id; it keeps its index.

        Args:
            client: Its id.
            new: The new one, which no client has or had.

        Raises:
            InvalidInput: There is no such client, it was merged, or the new id is taken.
        """
        index = self._own_index(client)
        if new in self._index:
            raise InvalidInput(f"client id {new!r} is taken: give another one, or merge the two.")
        self._ids[index], self._json = new, None
        self._index[new] = self._index.pop(client)
        self._merged = {gone: new if to == client else to for gone, to in self._merged.items()}

    def merge(self, kept: Hashable, gone: Hashable) -> None:
        """Let two ids be one client from now on.

        No other index changes. The index of ``gone`` is never present again. A client that comes
        under that id is ``kept``.

        Args:
            kept: The id and index that stay.
            gone: The id that becomes another name of the same client.

        Raises:
            InvalidInput: There is no such client, it was merged already, or both are the same.
        """
        left, right = self._own_index(kept), self._own_index(gone)
        if left == right:
            raise InvalidInput(f"client {kept!r} cannot be merged with itself: name two ids.")
        self._present[left] |= self._present[right]
        self._present[right], self._json = False, None
        self._merged = {name: kept if to == gone else to for name, to in self._merged.items()}
        self._merged[gone] = kept

    def _own_index(self, client: Hashable) -> int:
        if client in self._merged:
            to = self._merged[client]
            raise InvalidInput(f"client {client!r} was merged into {to!r}: name that one.")
        return self.index_of(client)

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
        if self._json is None:  # a million clients take most of a second
            content = {"ids": [_encode(client) for client in self._ids], "present": self._present}
            merged = [[_encode(gone), _encode(kept)] for gone, kept in self._merged.items()]
            self._json = json.dumps(content | ({"merged": merged} if merged else {}))
        return self._json

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
            for gone, kept in content.get("merged", ()):
                roster.merge(_decode(kept), _decode(gone))
            if len(present) != len(roster):
                raise ValueError(f"{len(roster)} ids but {len(present)} presence flags")
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"roster JSON is damaged: {error}.") from error
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
