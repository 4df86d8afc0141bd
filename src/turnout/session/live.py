"""A session over a port: whatever waits, asks and sends."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from turnout.rng import Purpose, stream
from turnout.session import clock
from turnout.session.port import Address, AskColumns, AskIdentity, AskLoss, Heard, Kind, Port
from turnout.session.post import Post, log
from turnout.session.records import Records
from turnout.session.reports import number
from turnout.session.round import Chosen, Ended, Misfits
from turnout.session.session import Session
from turnout.types import FloatArray

#: An unanswered question who somebody is stays open for so many times its deadline.
_OPEN_FOR = 10.0
_IDENTITY = AskIdentity()


class Live:
    """Plays the rounds of a session: waits for clients, asks them, gives them work.

    Args:
        session: What chooses and learns.
        port: The way to the clients.
        records: Writes the round that is open; None writes none.
    """

    def __init__(self, session: Session, port: Port, records: Records | None = None) -> None:
        self.session, self.port, self.records = session, port, records
        self.post = Post(port, session.errands, session.settings.poll_s)
        self._has_gathered = False
        self._has_waited = False  # in vain
        self._asked: set[Address] = set()

    def gather(self, n_wanted: int) -> None:
        """Look who is there; wait for enough clients, but not for ever and not twice in vain.

        Before the first round it also waits until all connected ones have said who they are and no
        more come, so that the order of the roster does not depend on who was faster. Who does not
        answer is waited for until ``wait_for_nodes_s`` after the last news of anybody. Later nobody
        waits for newcomers: they are asked in the background.

        Args:
            n_wanted: Clients that should be connected.
        """
        self.session.begin()
        with self.session.spans.part("wait"):
            self._gather(n_wanted)

    def _gather(self, n_wanted: int) -> None:
        members, settings = self.session.members, self.session.settings
        is_first, self._has_gathered = not self._has_gathered, True
        patience = settings.start_s if is_first else settings.wait_for_nodes_s
        started = news_at = clock.now()
        before = None
        while True:
            looked_at = clock.now()
            self._meet(waits=is_first)
            heard = (members.connected, len(members.unknown))
            is_news, before = heard != before, heard
            news_at = looked_at if is_news else news_at
            waited, quiet = clock.now() - started, clock.now() - news_at
            is_complete = not (members.unknown or is_news) or quiet >= settings.wait_for_nodes_s
            is_settled, n_there = not is_first or is_complete, members.n_connected
            if is_settled and (n_there >= n_wanted or (self._has_waited and n_there > 0)):
                members.bind()
                if np.count_nonzero(members.selectable()) >= settings.quorum.min_free:
                    break
            if waited >= patience:
                log.warning(
                    "%d of %d clients are connected after %g s: going on with those that are free",
                    *(n_there, n_wanted, patience),
                )
                break
            clock.sleep(settings.poll_s)
        self.session.sync(members.connected)
        self._has_waited = n_there < n_wanted

    def choose(self, model: Any = None) -> Chosen:
        """Ask what the selector wants to know, and open the next round.

        Args:
            model: What clients that are polled evaluate.
        """
        session = self.session
        with session.spans.part("ask"):
            self._ask_all(model)
        chosen = session.open()
        log.info(
            "round %d: %d chosen of %d that are free",
            *(chosen.round + 1, len(chosen.ids), chosen.n_free),
        )
        if self.records is not None and session.world is None:
            self.records.choose(chosen, session.members)
        return chosen

    def train(
        self, chosen: Chosen, payloads: Sequence[Any], misfits: Misfits | None = None
    ) -> Ended:
        """Give the chosen their work, wait as long as the policy says, and end the round.

        Args:
            chosen: Who was chosen.
            payloads: The work of each, in the order of the chosen.
            misfits: Says which answers do not fit the others; they count as failed.
        """
        session = self.session
        client_at = dict(zip(chosen.addresses, chosen.ids, strict=True))
        asked = [i for i, is_asked in enumerate(chosen.is_asked) if is_asked]
        seconds = session.limit_s if session.world is not None else chosen.deadline
        ttl = seconds if session.world is not None else session.settings.busy_s(seconds)
        addresses = [chosen.addresses[i] for i in asked]
        with session.spans.part("train"):
            sent = self.post.send(addresses, [payloads[i] for i in asked], ttl=ttl)
            length = self.post.collect(
                sent,
                seconds,
                lambda address, heard: self._heard(client_at[address], heard),
                session.closes_at,
            )
        is_missing = session.world is None and session.is_waiting
        there = self.port.present() if is_missing else chosen.addresses
        return session.close(there, length, misfits)

    def evaluators(self, number: int, size_of: Callable[[int], int]) -> list[Address]:
        """Return who evaluates after a round, drawn by the seed from those that are free.

        Args:
            number: The round, counted from 1.
            size_of: How many evaluate, of so many.
        """
        members, connected = self.session.members, set(self.port.present())
        free = members.addresses_of(np.flatnonzero(members.selectable()))
        there = [address for address in free if address in connected]
        rng = stream(self.session.settings.seed, Purpose.EVAL, number)
        drawn = rng.permutation(len(there))[: size_of(len(there))]
        return [there[i] for i in np.sort(drawn)]

    def exchange(
        self, addresses: Sequence[Address], payloads: Sequence[Any], seconds: float
    ) -> dict[Address, Heard]:
        """Send something that is no round, and return what was heard in time.

        Args:
            addresses: To whom.
            payloads: What, in their order.
            seconds: How long to wait.
        """
        answers: dict[Address, Heard] = {}
        sent = self.post.send(addresses, payloads, ttl=self.session.settings.busy_s(seconds))
        self.post.collect(sent, seconds, answers.__setitem__)
        return answers

    def _heard(self, client: Hashable, heard: Heard) -> None:
        is_first = self.session.heard(client, heard)
        if is_first and self.records is not None and self.session.world is None:
            self.records.hear(client, heard)

    def _meet(self, *, waits: bool) -> None:
        """Take in late answers, look who is connected, and ask newcomers who they are."""
        session, settings = self.session, self.session.settings
        for errand, heard in self.post.reap():
            if errand.question == _IDENTITY:
                session.introduce(errand.address, heard)
        session.members.look(self.port.present())
        busy = session.errands.busy
        unknown = [address for address in session.members.unknown if address not in busy]
        new = [address for address in unknown if address not in self._asked]
        waited_for = new if waits else []
        ttl = _OPEN_FOR * settings.ask_s
        self._asked.update(unknown)
        self.post.ask(
            [address for address in unknown if address not in waited_for], _IDENTITY, ttl=ttl
        )
        if new:
            log.info("asking %d new nodes who they are", len(new))
        sent = self.post.ask(waited_for, _IDENTITY, ttl=ttl)
        self.post.collect(sent, settings.ask_s, session.introduce)

    def _ask_all(self, model: Any) -> None:
        """Ask for what the selector wants to know before it chooses."""
        session = self.session
        selector, members = session.reports.selector, session.members
        wanted = selector.needs_columns | selector.uses_columns
        if wanted and session.world is None:
            last = frozenset(members.addresses_of(members.present_of(session.journal.last)))
            self._ask(members.changing(wanted), AskColumns(session.round, last))
        polled = session.polled()
        if polled:
            question = AskLoss(session.round, selector.poll_data, model)
            session.answered(polled, *self._losses(polled, question))

    def _ask(self, addresses: Sequence[Address], question: AskColumns) -> None:
        def hear(address: Address, heard: Heard) -> None:
            if heard.kind is Kind.ANSWERED:
                self.session.tell(address, heard)

        seconds = self.session.settings.ask_s
        self.post.collect(self.post.ask(addresses, question, ttl=seconds), seconds, hear)

    def _losses(self, polled: Sequence[Address], question: AskLoss) -> tuple[FloatArray, int]:
        """Return (d,) the losses of the model, NaN = no answer, and how many failed."""
        answers: dict[Address, Heard] = {}
        seconds = self.session.settings.ask_s
        sent = self.post.ask(polled, question, ttl=seconds)
        self.post.collect(sent, seconds, answers.__setitem__)
        nothing = Heard()
        losses = [number(answers.get(address, nothing).metrics, "loss") for address in polled]
        failed = [heard for heard in answers.values() if heard.kind in (Kind.FAILED, Kind.LOST)]
        return np.array(losses, dtype=np.float64), len(failed)
