"""What a live run recorded of its clients by name: ``roster.json`` and ``answers.jsonl``.

Reading is forgiving: the run may still write, and what clients sent stands in these files.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.names import shortened
from turnout.core.roster import Roster
from turnout.core.types import Array, BoolArray, FloatArray, IntArray
from turnout.results import files
from turnout.results.files import DamagedFile
from turnout.results.run import STATUSES

_UNPRINTABLE = "\N{REPLACEMENT CHARACTER}"
#: Characters of a name, a reason and an alert that are kept.
_LONGEST_NAME, _LONGEST_REASON, _LONGEST_ALERT = 80, 200, 500


@dataclass(frozen=True, slots=True)
class LiveAnswers:
    """The rounds of a live run, by client.

    Attributes:
        names: (n,) the clients, in the order of their indices.
        began: (T,) when the server began to look for clients, as ISO 8601.
        wall_s: (T,) seconds from then to the end of the round; NaN = unknown.
        length_s: (T,) seconds that training took of them.
        is_void: (T,) whether there were too few answers.
        busy: (T,) clients that were connected when the cohort was chosen, but still had work.
        round_of: (choices,) the round of each choice, counted from 0.
        clients: (choices,) the chosen clients.
        status: (choices,) int8 of ``Status``.
        seconds: (choices,) until the reply; NaN = no reply.
        reasons: Why there is no usable answer, by choice.
    """

    names: tuple[str, ...]
    began: tuple[str, ...]
    wall_s: FloatArray
    length_s: FloatArray
    is_void: BoolArray
    busy: tuple[IntArray, ...]
    round_of: IntArray
    clients: IntArray
    status: Array
    seconds: FloatArray
    reasons: Mapping[int, str]

    @property
    def n_rounds(self) -> int:
        """Rounds that have ended."""
        return len(self.began)


class OpenNow(NamedTuple):
    """The open round, up to what was written.

    Attributes:
        round: The round, counted from 0.
        began: When its cohort was chosen, as ISO 8601.
        deadline_s: Seconds that the chosen have; None if there is no deadline.
        names: The chosen.
        replies: The reply of each client: ``answered``, or why there is no answer.
    """

    round: int
    began: str
    deadline_s: float | None
    names: tuple[str, ...]
    replies: Mapping[str, str]

    @property
    def began_at(self) -> float | None:
        """The same in seconds since 1970; None if it is not written."""
        try:
            return datetime.fromisoformat(self.began).timestamp()
        except ValueError:
            return None

    @property
    def clients(self) -> list[tuple[str, str]]:
        """Each chosen client and its reply; empty = none yet."""
        return [(name, self.replies.get(name, "")) for name in self.names]

    @property
    def n_replies(self) -> int:
        """How many of them have replied."""
        return sum(bool(reply) for _, reply in self.clients)


class Notice(NamedTuple):
    """Something that an operator should look at, as ``alerts.jsonl`` has it.

    Attributes:
        round: The round after which it was found, counted from 1; 0 = not said.
        at: When, as ISO 8601.
        kind: Its topic, in a word.
        text: One sentence.
    """

    round: int
    at: str
    kind: str
    text: str


def read_answers(folder: Path) -> LiveAnswers | None:
    """Return the records of a live run by client; None if the folder is not of a live run.

    Args:
        folder: The folder of the cell.

    Raises:
        DamagedFile: If a file cannot be read at all.
    """
    if not (folder / files.ANSWERS).is_file():
        return None
    rounds, _ = files.read_rounds(folder / files.ANSWERS)
    index = {_key(client): i for i, client in enumerate(_roster(folder / files.ROSTER))}
    rows = [
        (t, _index(index, entry.get("id")), STATUSES.index(entry["status"]), entry)
        for t, line in enumerate(rounds)
        for entry in _listed(line.get("chosen"))
        if isinstance(entry, dict) and entry.get("status") in STATUSES
    ]
    reasons = {
        i: name_of(entry["reason"], _LONGEST_REASON)
        for i, (*_, entry) in enumerate(rows)
        if entry.get("reason")
    }
    busy = tuple(
        np.array([_index(index, client) for client in _listed(line.get("busy"))], dtype=np.int64)
        for line in rounds
    )
    return LiveAnswers(
        names=tuple(name_of(client) for client in index),
        began=tuple(str(line.get("began", "")) for line in rounds),
        wall_s=_column(line.get("wall_s") for line in rounds),
        length_s=_column(line.get("length_s") for line in rounds),
        is_void=np.array([line.get("void") is True for line in rounds], dtype=np.bool_),
        busy=busy,
        round_of=np.array([row[0] for row in rows], dtype=np.int64),
        clients=np.array([row[1] for row in rows], dtype=np.int64),
        status=np.array([row[2] for row in rows], dtype=np.int8),
        seconds=_column(entry.get("seconds") for *_, entry in rows),
        reasons=reasons,
    )


def read_open(folder: Path) -> OpenNow | None:
    """Return the round that is open; None if none is, or it is not known.

    Args:
        folder: The folder of the cell.
    """
    try:
        lines, _ = files.read_lines(folder / files.OPEN)
    except DamagedFile:
        return None
    first, *later = lines or [{}]
    if type(first.get("round")) is not int:
        return None
    deadline = files.number(first.get("deadline_s"))
    return OpenNow(
        first["round"],
        str(first.get("began", "")),
        deadline if math.isfinite(deadline) else None,
        tuple(name_of(client) for client in _listed(first.get("chosen"))),
        {
            name_of(line["id"]): name_of(line.get("heard", ""), _LONGEST_REASON)
            for line in later
            if "id" in line
        },
    )


def read_alerts(folder: Path) -> list[Notice]:
    """Return the alerts of a live run, in order.

    Args:
        folder: The folder of the cell.
    """
    try:
        lines, _ = files.read_lines(folder / files.ALERTS)
    except DamagedFile:
        return []
    return [
        Notice(
            line["round"] + 1 if type(line.get("round")) is int else 0,
            name_of(line.get("at", "")),
            name_of(line.get("kind", "")),
            name_of(line.get("text", ""), _LONGEST_ALERT),
        )
        for line in lines
    ]


def name_of(client: Any, longest: int = _LONGEST_NAME) -> str:
    """Return a client's id, or another text of a file, as it is shown.

    What would steer a terminal or turn the writing direction is replaced.

    Args:
        client: Anything that JSON can hold.
        longest: Characters that are kept.
    """
    text = client if isinstance(client, str) else json.dumps(_key(client), default=str)
    printable = "".join(each if each.isprintable() else _UNPRINTABLE for each in text)
    return shortened(printable, longest)


def _roster(path: Path) -> Sequence[Any]:
    """Return the ids in the roster; none if it cannot be read: those in the answers remain."""
    try:
        return Roster.from_json(json.dumps(files.read_json(path))).ids
    except (DamagedFile, InvalidInput):
        return ()


def _key(client: Any) -> Any:
    return tuple(client) if isinstance(client, list) else client


def _index(index: dict[Any, int], client: Any) -> int:
    """Return the index of a client; one that is not on the roster gets the next."""
    key = _key(client)
    try:
        return index.setdefault(key, len(index))
    except TypeError:  # such as an object, which is no id
        return index.setdefault(json.dumps(key, default=str), len(index))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _column(values: Iterable[Any]) -> FloatArray:
    return np.array([files.number(value) for value in values], dtype=np.float64)
