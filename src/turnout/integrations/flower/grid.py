"""What Flower's loop sees instead of the real thing: grids, and round numbers in its log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.logger import FLOWER_LOGGER
from flwr.supercore.run import Run

#: A strategy looks who is there once or twice; one that looks more often is waiting.
_MOST_LOOKS = 6

Exchange = Callable[[list[Message], float | None], Iterable[Message]]


class _Delegate(Grid):
    """Passes everything on to another grid."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def set_run(self, run: Run) -> None:
        """Pass on."""
        self._grid.set_run(run)

    @property
    def run(self) -> Run:
        """Pass on."""
        return self._grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Pass on."""
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Pass on."""
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Pass on."""
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Pass on."""
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Pass on."""
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Pass on."""
        return self._grid.send_and_receive(messages, timeout=timeout)


class GridView(_Delegate):
    """Shows some nodes only; ``on_waiting`` is called when somebody keeps looking for more."""

    def __init__(self, grid: Grid, nodes: Sequence[int], on_waiting: Callable[[], None]) -> None:
        super().__init__(grid)
        self._nodes = list(nodes)
        self._on_waiting = on_waiting
        self._looks = 0

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes of the view."""
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            self._on_waiting()
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return what the grid knows of the nodes of the view."""
        shown = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in shown]


class LoopGrid(_Delegate):
    """The grid that Flower's loop works with: sending and receiving is done by us."""

    def __init__(self, grid: Grid, exchange: Exchange) -> None:
        super().__init__(grid)
        self._exchange = exchange

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send the messages of a round and return the replies that count."""
        return self._exchange(list(messages), timeout)


@contextmanager
def numbering(n_before: int, n_rounds: int) -> Iterator[None]:
    """Let Flower's log count the rounds from the start, also after a restart."""

    def renumber(record: logging.LogRecord) -> bool:
        if record.msg == "[ROUND %s/%s]" and isinstance(record.args, tuple):
            record.args = (cast(int, record.args[0]) + n_before, n_rounds)
        return True

    FLOWER_LOGGER.addFilter(renumber)
    try:
        yield
    finally:
        FLOWER_LOGGER.removeFilter(renumber)
