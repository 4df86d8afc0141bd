"""The clients of a checkpoint: list them, rename one, merge two ids into one client.

Indices never move, so everything that was learned about other clients stays in place.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.participation import merged
from turnout.core.roster import Roster
from turnout.core.types import Array
from turnout.live.checkpoint import Checkpoint
from turnout.live.transport import clock
from turnout.results.run import Collector, RoundRow, Run

#: What a checkpoint with merged clients leaves out.
_AFRESH = ("tally", "alerts", "shadows")


@dataclass(frozen=True, slots=True)
class Client:
    """A client as a checkpoint describes it.

    Attributes:
        id: The stable id.
        index: Its place in everything that is learned.
        chosen: How often it was chosen.
        last: The last round in which it was chosen, counted from 1; None if it never was.
        busy_s: Seconds for which it may stay busy at most, 0 if it is free.
        address: Where it was connected; None if it was not.
        merged_into: The id of the client that it was merged into; None if it was not merged.
    """

    id: Hashable
    index: int
    chosen: int
    last: int | None
    busy_s: float
    address: Hashable | None
    merged_into: Hashable | None


def clients_of(saved: Checkpoint) -> list[Client]:
    """Return the clients of a checkpoint, in the order of their indices.

    Args:
        saved: The checkpoint.
    """
    roster = Roster.from_json(saved.roster)
    run = _run_of(saved, roster)
    round_of = np.repeat(np.arange(1, run.n_rounds + 1), np.diff(run.offsets))
    last = np.zeros(len(roster), dtype=np.int64)
    np.maximum.at(last, run.clients, round_of)
    counts = np.bincount(run.clients, minlength=len(roster))
    wall, addresses = clock.wall(), dict(saved.bindings)
    busy = {client: max(0.0, float(until) - wall) for client, until, *_ in saved.busy}
    return [
        Client(
            id=client,
            index=i,
            chosen=int(counts[i]),
            last=int(last[i]) or None,
            busy_s=busy.get(client, 0.0),
            address=addresses.get(client),
            merged_into=None if roster.known_as(client) == client else roster.known_as(client),
        )
        for i, client in enumerate(roster.ids)
    ]


def find(saved: Checkpoint, text: str) -> Hashable:
    """Return the id that a text stands for; a number may be a text or an integer.

    Args:
        saved: The checkpoint.
        text: The id as text.

    Raises:
        InvalidInput: There is no such id, or there are two; the message names the nearest.
    """
    ids = Roster.from_json(saved.roster).ids
    found = [client for client in ids if str(client) == text]
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidInput(f"client {text!r} is both a text and a number in this checkpoint.")
    near = difflib.get_close_matches(text, map(str, ids), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InvalidInput(f"there is no client {text!r} in the checkpoint.{hint}")


def rename(saved: Checkpoint, client: Hashable, new: Hashable) -> Checkpoint:
    """Return the checkpoint with another id for a client, which keeps everything else.

    Args:
        saved: The checkpoint.
        client: Its id.
        new: The new id, which no client has or had.

    Raises:
        InvalidInput: There is no such client, the new id is taken, or the ids are a world's.
    """
    _refuse_world(saved)
    if new == "":
        raise InvalidInput(f"client {client!r} needs a new id that is not empty.")
    roster = Roster.from_json(saved.roster)
    roster.rename(client, new)
    names = {client: new}
    return dataclasses.replace(
        saved,
        roster=roster.to_json(),
        busy=[[names.get(who, who), *until] for who, *until in saved.busy],
        bindings=[[names.get(who, who), address] for who, address in saved.bindings],
    )


def merge(saved: Checkpoint, kept: Hashable, gone: Hashable) -> Checkpoint:
    """Return the checkpoint with two ids as one client.

    ``kept`` keeps its index and what the selector has learned about it. The rounds of ``gone``
    count as its own, so that counts add up, also those against limits on participation. Columns
    that it has not filled are filled from ``gone``. The index of ``gone`` stays unused: it is never
    present, so it is never chosen.

    Args:
        saved: The checkpoint.
        kept: The id that stays.
        gone: The id that becomes another name of the same client.

    Raises:
        InvalidInput: There is no such client, it was merged already, the ids are a world's, or
            rounds overlap.
    """
    _refuse_world(saved)
    if "in_flight" in saved.arrays:
        raise InvalidInput(
            "clients cannot be merged where rounds overlap, because both may be at work at the "
            "same time: rename the new one, or keep both."
        )
    roster = Roster.from_json(saved.roster)
    pair = roster.index_of(kept), roster.index_of(gone)
    roster.merge(kept, gone)
    run = _run_of(saved, roster)
    # When the run resumes, counts by client are computed from the rounds, and shadows begin again:
    # what they wished is in the order of the former choices.
    arrays = {name: part for name, part in saved.arrays.items() if name not in _AFRESH}
    arrays["run"] = _as_one(run, *pair)
    arrays["selector"] = merged(saved.arrays.get("selector", {}), *pair)
    for owner in ("columns", "claims"):
        parts = saved.arrays.get(owner, {})
        arrays[owner] = {name: _filled(values, *pair) for name, values in parts.items()}
    # Busy for as long as it is under any of its ids; at its own address, else at the other.
    busy = sorted(saved.busy, key=lambda entry: float(entry[1]))
    longest = {roster.known_as(who): until for who, *until in busy}
    addresses = dict(saved.bindings)
    if gone in addresses:
        addresses.setdefault(kept, addresses.pop(gone))
    return dataclasses.replace(
        saved,
        roster=roster.to_json(),
        busy=[[who, *until] for who, until in longest.items()],
        bindings=[[who, address] for who, address in addresses.items()],
        arrays=arrays,
    )


def _refuse_world(saved: Checkpoint) -> None:
    if saved.arrays.get("world"):
        raise InvalidInput(
            "this checkpoint is of a virtual world, whose clients have the ids of the world: give "
            "VirtualWorld(environment, ids) other ids, and start again."
        )


def _run_of(saved: Checkpoint, roster: Roster) -> Run:
    return Run.from_columns(max(1, len(roster)), 1, saved.arrays["run"])


def _as_one(run: Run, kept: int, gone: int) -> dict[str, Array]:
    """Return the columns of a run with the choices of one client given to another."""
    rounds = Collector()
    for t in range(run.n_rounds):
        at = slice(run.offsets[t], run.offsets[t + 1])
        clients = np.where(run.clients[at] == gone, kept, run.clients[at])
        order = np.argsort(clients, kind="stable")
        columns = (run.status, run.duration, run.spent, run.probability)
        status, duration, spent, chance = (column[at][order] for column in columns)
        measured = {name: float(values[t]) for name, values in run.measured.items()}
        available = run.available_in(t).copy()
        available[kept] |= available[gone]
        available[gone] = False
        sound = {name: x for name, x in measured.items() if not np.isnan(x)}
        length_s = float(run.length_s[t])
        row = RoundRow(clients[order], status, duration, spent, chance, length_s, available, sound)
        reported = {name: values[at][order] for name, values in run.reported.items()}
        rounds.add(row._replace(reported=reported))
    return rounds.columns()


def _filled(values: Array, kept: int, gone: int) -> Array:
    """Return a column in which one client has what it lacked from another."""
    column = np.array(values)
    if max(kept, gone) >= len(column):  # it has no room for the youngest
        return column
    column[kept] = np.where(np.isnan(column[kept]), column[gone], column[kept])
    return column
