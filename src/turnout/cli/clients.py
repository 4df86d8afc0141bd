"""``turnout clients``: list the clients of a checkpoint, rename them, and merge two into one."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from turnout.cli.app import documented
from turnout.cli.output import AsJson, note, show, table
from turnout.core.errors import InvalidInput
from turnout.core.files import read_bytes, write_atomically, writing_to
from turnout.live.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from turnout.live.clients import Client, clients_of, find, merge, rename
from turnout.results.answers import name_of

#: Clients that the table shows; JSON has all.
_SHOWN = 200


@documented
def clients(
    checkpoint: Path,
    *,
    renames: Annotated[list[str] | None, typer.Option("--rename", metavar="OLD=NEW")] = None,
    merges: Annotated[list[str] | None, typer.Option("--merge", metavar="KEPT,GONE")] = None,
    as_json: AsJson = False,
) -> None:
    """List the clients of a checkpoint, or change their ids while the run is stopped.

    All changes are checked before anything is written. The old file is kept as NAME.bak. Renames
    are applied before merges.

    Example: [bold]turnout clients run.npz --rename phone-7=phone-seven --merge tablet,tablet-2[/]

    Args:
        checkpoint: The checkpoint of a live run.
        renames: Rename a client; repeatable.
        merges: Merge two clients. The result keeps the index and the learned state of the first
            and the rounds of both; repeatable.
        as_json: For programs.
    """
    saved = read_checkpoint(checkpoint)
    changed = saved
    for text in renames or ():
        old, new = _pair(changed, text, "=", "--rename")
        is_number = isinstance(old, int) and new.lstrip("-").isdecimal()
        changed = rename(changed, old, int(new) if is_number else new)
    for text in merges or ():
        kept, gone = _pair(changed, text, ",", "--merge")
        changed = merge(changed, kept, find(changed, gone))
    if changed is not saved:
        backup = _replace(checkpoint, changed)
        note(f"{checkpoint} was changed; the old one is {backup}.")
    _show(clients_of(changed), as_json)


def _pair(saved: Checkpoint, text: str, sign: str, option: str) -> tuple[Hashable, str]:
    """Return the client before the sign and the text after it; ids may contain the sign, too."""
    parts = text.split(sign)
    splits = [(sign.join(parts[:i]), sign.join(parts[i:])) for i in range(1, len(parts))]
    if not splits:
        raise InvalidInput(f"{option} needs two ids with {sign!r} between them, got {text!r}.")
    ids = {str(client.id) for client in clients_of(saved)}
    known = [(find(saved, first), rest) for first, rest in splits if first in ids]
    if len(known) == 1:
        return known[0]
    if known:
        raise InvalidInput(f"{option} {text!r} is ambiguous: rename one of the clients first.")
    return find(saved, splits[0][0]), splits[0][1]


def _replace(path: Path, changed: Checkpoint) -> Path:
    """Write the checkpoint, and keep the old one as a backup."""
    endings = itertools.chain([".bak"], (f".bak{number}" for number in itertools.count(2)))
    backups = (path.with_name(f"{path.name}{ending}") for ending in endings)
    backup = next(name for name in backups if not name.exists())
    with writing_to(path):
        write_atomically(backup, read_bytes(path))
        write_checkpoint(path, changed, changed.kind)
    return backup


def _show(found: Sequence[Client], as_json: bool) -> None:
    headings = ("id", "index", "chosen", "last round", "busy for", "address", "merged into")
    drawn = table(f"{len(found)} clients", *headings, numbers=headings[1:5])
    for client in found[:_SHOWN]:
        busy = f"{client.busy_s:.0f} s" if client.busy_s else ""
        counts = (str(client.index), str(client.chosen), str(client.last or "never"), busy)
        places = (client.address, client.merged_into)
        rest = ("" if place is None else escape(name_of(place)) for place in places)
        drawn.add_row(escape(name_of(client.id)), *counts, *rest)
    if len(found) > _SHOWN:
        drawn.caption = f"and {len(found) - _SHOWN} more; --json has all"
    show(drawn, [dataclasses.asdict(client) for client in found], as_json)
