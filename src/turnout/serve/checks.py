"""What is looked at before a request becomes an event."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence

import numpy as np

from turnout.arrays import COLUMN_LIMITS
from turnout.serve.machine import Machine, as_array
from turnout.serve.problems import Refusal, unknown_clients
from turnout.serve.schemas import Bits, ClientId, ClientOutcome, Enrolment, Terms
from turnout.session import TooFewAnswers
from turnout.session.keys import metric_key

#: Most numbers that a client may have in one column.
_MOST_NUMBERS = 100_000
#: Most columns of a federation.
_MOST_COLUMNS = 64


def check_enrolment(machine: Machine, enrolment: Enrolment) -> None:
    """Refuse ids that come twice, and columns that do not fit the clients or what is there.

    Args:
        machine: The federation.
        enrolment: What was sent.
    """
    n = len(enrolment.clients)
    check_unique(enrolment.clients, "clients")
    known = machine.members.columns.state().keys()
    if len(known | enrolment.columns.keys()) > _MOST_COLUMNS:
        raise _bad_column("", f"there may be {_MOST_COLUMNS} columns at most")
    for name, values in enrolment.columns.items():
        if len(values) != n:
            raise _bad_column(name, f"has {len(values)} entries for {n} clients")
        try:
            array = as_array(values)
        except ValueError:
            raise _bad_column(name, "has lists of different lengths") from None
        shape = array.shape[1:]
        if name in COLUMN_LIMITS and shape:
            raise _bad_column(name, "must have one number for each client")
        if shape and not 0 < shape[0] <= _MOST_NUMBERS:
            raise _bad_column(name, f"must have 1 to {_MOST_NUMBERS} numbers for each client")
        there = machine.members.columns.shape_of(name)
        if there is not None and there != shape:
            raise _bad_column(name, f"has shape {shape} for each client, others have {there}")


def check_known(machine: Machine, clients: Sequence[ClientId], field: str) -> None:
    """Refuse ids that are not enrolled, or come twice.

    Args:
        machine: The federation.
        clients: Ids.
        field: Where they stand.
    """
    check_unique(clients, field)
    strangers = [client for client in clients if client not in machine.members.roster]
    if strangers:
        raise unknown_clients(strangers, field)


def check_unique(clients: Sequence[ClientId], field: str) -> None:
    """Refuse ids that come twice.

    Args:
        clients: Ids.
        field: Where they stand.
    """
    if len(set(clients)) == len(clients):
        return
    twice, _ = Counter(clients).most_common(1)[0]
    raise Refusal(
        422,
        "duplicate-client",
        f"{field} must name each client once, got {twice!r} twice.",
        field=field,
        fix="Send every id once.",
    )


def check_terms(
    machine: Machine, terms: Terms, at: float, *, go_on: bool, polls: bool = False
) -> None:
    """Refuse a round that cannot be opened.

    Args:
        machine: The federation, without an open round.
        terms: What is special about the round.
        at: The time, in seconds since 1970.
        go_on: Whether to go on after too many rounds without answers.
        polls: Whether this is the question before the round, which comes without losses.
    """
    session, n = machine.session, len(machine.members.roster)
    if not n:
        fix = "Enrol some first with PUT .../clients."
        raise Refusal(409, "no-clients", "no client is enrolled.", field="clients", fix=fix)
    _check_available(machine, terms)
    _check_told(machine, terms)
    quorum = session.settings.quorum
    if not go_on:
        try:
            quorum.check_rounds(session.journal.n_last_below(quorum.min_answers))
        except TooFewAnswers as error:
            fix = 'Mend the clients, then send {"go_on": true} with the next round.'
            raise Refusal(409, "too-few-answers", str(error), field="quorum", fix=fix) from error
    n_free = int(np.count_nonzero(machine.free(terms, at)))
    if machine.told is None and n_free < quorum.min_free:
        raise Refusal(
            409,
            "too-few-free",
            f"{n_free} clients are free, and {quorum.min_free} are needed.",
            field="available",
            fix="Wait until late clients were reported or their time is over, or enrol more.",
            headers={"Retry-After": "1"},
        )
    session.reports.check_columns(machine.members.columns)
    if session.reports.selector.polls and n_free and not polls:
        _check_losses(machine, terms, at)


def _check_available(machine: Machine, terms: Terms) -> None:
    n = len(machine.members.roster)
    if isinstance(terms.available, Bits):
        try:
            size = len(base64.b64decode(terms.available.bits, validate=True))
        except (binascii.Error, ValueError):
            size = -1
        if size != -(-n // 8):
            raise Refusal(
                422,
                "bad-bits",
                f"available.bits must be base64 of {-(-n // 8)} bytes, a bit for each of the {n} "
                "clients.",
                field="available",
                fix="Pack one bit for each client, in the order in which they were enrolled.",
            )
    elif terms.available is not None:
        check_known(machine, terms.available, "available")


def _check_told(machine: Machine, terms: Terms) -> None:
    for field in ("cohort_size", "deadline_s"):
        if machine.told is None and getattr(terms, field) is not None:
            raise Refusal(
                422,
                "policy-decides",
                f"{field} is given by the federation's policy.",
                field=field,
                fix='Leave it out, or create the federation with the policy "reported".',
            )


def _check_losses(machine: Machine, terms: Terms, at: float) -> None:
    polled = machine.polled(terms, at)
    losses = terms.losses
    if not polled:
        return
    if losses is None:
        raise Refusal(
            409,
            "poll-first",
            "this selector wants to see losses before it chooses.",
            field="losses",
            fix="POST .../poll says whose; send them as losses with POST .../rounds.",
        )
    if len(losses.clients) != len(losses.losses) or set(losses.clients) != set(polled):
        raise Refusal(
            422,
            "wrong-poll",
            f"losses must be those of the {len(polled)} clients that .../poll names, one for each.",
            field="losses",
            fix="Ask .../poll again, with the same terms as the round; null = no answer.",
        )


def check_outcomes(
    machine: Machine,
    outcomes: Sequence[ClientOutcome],
    chosen: Collection[Hashable],
    said: Mapping[Hashable, ClientOutcome],
) -> list[ClientOutcome]:
    """Return which outcomes are new; refuse what was not asked, or contradicts what was said.

    Args:
        machine: The federation.
        outcomes: What was sent.
        chosen: Who was chosen in that round.
        said: What was reported of it before.
    """
    check_unique([outcome.client for outcome in outcomes], "outcomes")
    there = set(chosen)
    odd = [outcome.client for outcome in outcomes if outcome.client not in there]
    strangers = [client for client in odd if client not in machine.members.roster]
    if strangers:
        raise unknown_clients(strangers, "outcomes")
    if odd:
        raise Refusal(
            422,
            "not-chosen",
            f"{odd[0]!r} was not chosen in this round.",
            field="outcomes",
            fix="Report only clients that the round names.",
        )
    for outcome in outcomes:
        _check_outcome(machine, outcome)
        if outcome.client in said and said[outcome.client] != outcome:
            raise Refusal(
                409,
                "contradiction",
                f"{outcome.client!r} was reported before, with different content.",
                field="outcomes",
                fix="The first report stands; send the same one again, or none.",
            )
    return [outcome for outcome in outcomes if outcome.client not in said]


def _check_outcome(machine: Machine, outcome: ClientOutcome) -> None:
    if outcome.status == "late" and machine.told is None:
        raise Refusal(
            422,
            "policy-decides",
            "the federation's policy decides who is late.",
            field="status",
            fix='Report "completed" with its seconds, or nothing; or use the policy "reported".',
        )
    needed = machine.session.reports.needed.values()
    sent = {metric_key(name, {}) for name in outcome.metrics}
    missing = [key for key in needed if key not in sent]
    if outcome.status == "completed" and missing:
        raise Refusal(
            422,
            "missing-metric",
            f"the selector needs the metric {missing[0]!r} of {outcome.client!r}.",
            field="metrics",
            fix=f'Send "metrics": {{"{missing[0]}": ...}}; null = unknown.',
        )


def _bad_column(name: str, problem: str) -> Refusal:
    return Refusal(
        422,
        "bad-column",
        f"columns.{name}: {problem}." if name else f"columns: {problem}.",
        field=f"columns.{name}" if name else "columns",
        fix="Send one entry for each client, in the order of clients; null = unknown.",
    )
