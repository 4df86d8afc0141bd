"""A federation as a run folder, for the commands that read run folders.

``turnout audit --privacy``, ``show``, ``report``, ``fit``, ``replay`` and ``recommend`` judge the
rounds of a server as they judge those of Flower and NVFlare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from turnout.core.errors import InvalidInput
from turnout.core.files import write_atomically, writing_to
from turnout.core.types import Status
from turnout.live.records import Records, chosen_entry, stamp
from turnout.results import files
from turnout.results.writer import RoundLog
from turnout.serve.database import ROUND
from turnout.serve.federation import LiveFederation
from turnout.serve.problems import HttpProblem
from turnout.serve.store import Store, Transaction

#: The kind of run in ``config.json``.
_KIND = "serve"


def write_folder(store: Store, name: str, path: Path) -> int:
    """Write the closed rounds of a federation as a run folder; return how many there are.

    Servers need not be stopped: the folder shows one moment. Of rounds that ``--keep-days`` has
    deleted, it has the clients and their statuses, without times of day and reasons.

    Args:
        store: All federations of a database.
        name: The federation.
        path: The folder; a folder of the federation in it must not exist.

    Raises:
        HttpProblem: There is no such federation.
        InvalidInput: No round was closed yet.
        OutputError: The folder cannot be written, or holds a run already.
    """
    try:
        with store.read(name) as tx:
            return _write(tx, path)
    except HttpProblem as problem:
        raise InvalidInput(str(problem.detail), field="federation") from problem


def _write(tx: Transaction, path: Path) -> int:
    federation = tx.federation
    session, selector = federation.session, federation.selector
    journal, settings = session.journal, replace(session.settings, records=path)
    if not journal.n_rounds:
        name = federation.definition.name
        raise InvalidInput(f"federation {name!r} has no closed round yet.", field="federation")
    if federation.reported is not None:  # the caller's decisions are no policy to be written
        settings = replace(settings, policy=None)
    config = settings.config(_KIND, selector, None, journal.n_rounds)
    records = Records(path, config, guaranteed_rate=selector.guaranteed_rate())
    records.open(journal, resumed=False)
    query = select(ROUND).where(ROUND.c.federation_id == federation.id, ROUND.c.result.is_not(None))
    kept = {row.number: row for row in tx.connection.execute(query)}
    answers = [
        _from_row(kept[t]) if t in kept else line for t, line in enumerate(_from_state(federation))
    ]
    alerts = [alert for t in sorted(kept) for alert in _alerts(kept[t])]
    with writing_to(records.path):
        roster = federation.roster.to_json()
        write_atomically(records.path / files.ROSTER, roster.encode())
        for file, lines in ((files.ANSWERS, answers), (files.ALERTS, alerts)):
            RoundLog(records.path / file).begin(list(map(json.dumps, lines)))
    records.finish(journal)
    return journal.n_rounds


def _alerts(row: Row[Any]) -> list[dict[str, Any]]:
    when = {"round": row.number, "at": stamp(row.closed_at), "kind": "alert"}
    return [{**when, "text": text} for text in json.loads(row.result)["alerts"]]


def _from_row(row: Row[Any]) -> dict[str, Any]:
    chosen, result = json.loads(row.chosen), json.loads(row.result)
    reasons = result["reasons"]
    answers = zip(chosen["clients"], result["status"], result["seconds"], strict=True)
    return {
        "round": row.number,
        "began": stamp(row.opened_at),
        "closed": stamp(row.closed_at),
        "wall_s": round(row.closed_at - row.opened_at, 3),
        "length_s": round(result["length_s"], 3),
        "void": result["void"],
        "busy": chosen.get("busy", []),  # an earlier turnout did not store them
        "chosen": [
            # Where rounds overlap, a client may be there twice.
            chosen_entry(
                client,
                status,
                seconds,
                reason=None if status == "completed" else reasons.get(str(client)),
            )
            for client, status, seconds in answers
        ],
    }


def _from_state(federation: LiveFederation) -> Iterator[dict[str, Any]]:
    """Yield what the state has of every round, also of those that are not kept."""
    journal, roster = federation.session.journal, federation.roster
    columns = journal.columns()
    names = [status.name.lower() for status in Status]
    ids = [roster.id_of(client) for client in columns["clients"].tolist()]
    status, seconds = columns["status"].tolist(), columns["duration"]
    length_s, offsets = columns["length_s"].tolist(), columns["offsets"].tolist()
    for t, (start, stop) in enumerate(pairwise(offsets)):
        yield {
            "round": t,
            "length_s": round(length_s[t], 3),
            "void": t + 1 in journal.void,
            "chosen": [
                chosen_entry(ids[i], names[status[i]], float(seconds[i]))
                for i in range(start, stop)
            ],
        }
