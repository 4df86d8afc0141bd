"""Federations as requests see them: created, enrolled, described, exported and deleted."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
from sqlalchemy import delete, insert, select

from turnout import metrics
from turnout.serve.checks import check_enrolment, check_known
from turnout.serve.database import writing
from turnout.serve.events import StateImported
from turnout.serve.machine import Machine
from turnout.serve.plan import session_of
from turnout.serve.problems import Refusal
from turnout.serve.schemas import Definition, Enrolment, Withdrawal
from turnout.serve.snapshots import save
from turnout.serve.store import Store
from turnout.serve.tables import EVENT, FEDERATION, ROUND, SNAPSHOT, TOKEN
from turnout.session import clock
from turnout.types import IntArray

#: Clients that are named as chosen least and most.
_N_LISTED = 10


def create(store: Store, definition: Definition) -> bool:
    """Create a federation; return whether it is new. The same definition again changes nothing.

    Args:
        store: All federations.
        definition: What it is.
    """
    session_of(definition)  # raises if it cannot be
    text = definition.model_dump_json()
    with writing(store.engine) as connection:
        query = select(FEDERATION.c.definition).where(FEDERATION.c.name == definition.name)
        there = connection.execute(query).scalar()
        if there is None:
            values = {"name": definition.name, "definition": text, "seq": 0}
            connection.execute(insert(FEDERATION).values(created_at=time.time(), **values))
            return True
    if json.loads(there) != json.loads(text):
        raise Refusal(
            409,
            "name-taken",
            f"there is a federation {definition.name!r} with another definition.",
            field="name",
            fix="Choose another name, or delete that federation first.",
        )
    return False


def remove(store: Store, name: str) -> None:
    """Delete a federation with everything that belongs to it.

    Args:
        store: All federations.
        name: The federation.
    """
    with store.write(name) as work:
        row = select(FEDERATION.c.id).where(FEDERATION.c.id == work.id)
        work.connection.execute(row.with_for_update())  # waits for a snapshot on its way
        for table in (EVENT, ROUND, SNAPSHOT, TOKEN):
            work.connection.execute(delete(table).where(table.c.federation_id == work.id))
        work.connection.execute(delete(FEDERATION).where(FEDERATION.c.id == work.id))
    store.forget(work.id, name)


def names(store: Store) -> list[str]:
    """Return the names of all federations, in order.

    Args:
        store: All federations.
    """
    with store.engine.begin() as connection:
        return list(connection.execute(select(FEDERATION.c.name).order_by("name")).scalars())


def describe(store: Store, name: str) -> dict[str, Any]:
    """Return what a federation is and how it is doing.

    Args:
        store: All federations.
        name: The federation.
    """
    with store.read(name) as (_, _, machine):
        session = machine.session
        selector = session.reports.selector
        return {
            **machine.definition.model_dump(mode="json"),
            **_counts(machine),
            "needs": {
                "columns": sorted(selector.needs_columns),
                "may_use": sorted(selector.uses_columns),
                "metrics": sorted(session.reports.needed.values()),
                "polls": selector.polls,
                "poll_data": selector.poll_data,
            },
            "reports_probability": selector.reports_probability,
            "may_underfill": selector.may_underfill,
        }


def fairness(store: Store, name: str) -> dict[str, Any]:
    """Return how often clients were chosen, and how evenly.

    Args:
        store: All federations.
        name: The federation.
    """
    with store.read(name) as (_, _, machine):
        counts = _chosen_counts(machine)
        deciles = np.quantile(counts, np.linspace(0.0, 1.0, 11)).tolist() if counts.size else []
        return {
            **_counts(machine),
            "choices": int(counts.sum()),
            "never_chosen": int(np.count_nonzero(counts == 0)),
            "jain": float(metrics.jain_of_counts(counts)) if counts.any() else None,
            "gini": float(metrics.gini_of_counts(counts)) if counts.any() else None,
            "deciles": deciles,
            "least": _first(machine, counts),
            "most": _first(machine, -counts),
        }


def counts(store: Store, name: str) -> dict[str, Any]:
    """Return for every client how often it was chosen and how often it answered in time.

    Args:
        store: All federations.
        name: The federation.
    """
    with store.read(name) as (_, _, machine):
        n = len(machine.members.roster)
        columns = machine.session.journal.columns()
        in_time = columns["clients"][columns["status"] == 0]
        return {
            "clients": list(machine.members.roster.ids),
            "chosen": _chosen_counts(machine).tolist(),
            "completed": np.bincount(in_time, minlength=n).tolist(),
        }


def enrol(store: Store, name: str, enrolment: Enrolment) -> dict[str, Any]:
    """Add clients, or change what is known about them.

    Args:
        store: All federations.
        name: The federation.
        enrolment: Who, and their columns.
    """
    with store.write(name) as work:
        check_enrolment(work.machine, enrolment)
        before = len(work.machine.members.roster)
        work.add(enrolment)
        after = len(work.machine.members.roster)
        n = len(enrolment.clients)
        return {"new": after - before, "known": n - (after - before), **_counts(work.machine)}


def withdraw(store: Store, name: str, withdrawal: Withdrawal) -> dict[str, Any]:
    """Take clients out; they keep their place and what was learned about them.

    Args:
        store: All federations.
        name: The federation.
        withdrawal: Who.
    """
    with store.write(name) as work:
        check_known(work.machine, withdrawal.clients, "clients")
        work.add(withdrawal)
        return _counts(work.machine)


def export_state(store: Store, name: str) -> bytes:
    """Return everything that the next round depends on, as a checkpoint.

    Args:
        store: All federations.
        name: The federation.
    """
    with store.read(name) as (_, _, machine):
        _check_between_rounds(machine)
        return machine.state()


def import_state(store: Store, name: str, content: bytes) -> dict[str, Any]:
    """Let a new federation go on from a checkpoint.

    Args:
        store: All federations.
        name: The federation, with the definition of that of the checkpoint.
        content: What ``export_state`` returned.
    """
    with store.write(name) as work:
        if work.machine.seq:
            raise Refusal(
                409,
                "not-new",
                f"the federation {name!r} has clients or rounds of its own.",
                field="name",
                fix="Create a federation with another name, and import into that one.",
            )
        machine = Machine(work.machine.definition)
        machine.load(content, 0, work.at)
        save(work.connection, work.id, work.machine.seq + 1, content)
        work.add(StateImported())
    store.forget(work.id)  # it is read again from the snapshot
    with store.read(name) as (_, _, machine):
        return _counts(machine)


def _check_between_rounds(machine: Machine) -> None:
    if machine.chosen is not None:
        t = machine.chosen.round
        fix = f"Close it first with POST .../rounds/{t}/close."
        raise Refusal(409, "round-open", f"round {t} is open.", field="round", fix=fix)


def _counts(machine: Machine) -> dict[str, Any]:
    members = machine.members
    with clock.held(max(time.time(), machine.at)):
        n_free = int(np.count_nonzero(members.selectable()))
    return {
        "n_clients": len(members.roster),
        "n_present": members.n_connected,
        "n_free": n_free,
        "n_rounds": machine.session.journal.n_rounds,
        "open_round": None if machine.chosen is None else machine.chosen.round,
        "version": machine.seq,
    }


def _chosen_counts(machine: Machine) -> IntArray:
    chosen = machine.session.journal.columns()["clients"]
    return np.bincount(chosen, minlength=len(machine.members.roster))


def _first(machine: Machine, counts: IntArray) -> list[list[Any]]:
    """Return the ten with the smallest numbers, and their counts; without sorting a million."""
    some = np.argpartition(counts, _N_LISTED)[:_N_LISTED] if counts.size > _N_LISTED else ...
    few = np.arange(counts.size)[some]
    ordered = few[np.lexsort((few, counts[few]))]
    return [[machine.members.roster.id_of(int(i)), abs(int(counts[i]))] for i in ordered]
