"""What drives a session: ``Live`` plays its rounds over a port, ``HostRun`` adds the run's files.

A framework derives its own run from ``HostRun`` and adds only what is its own: how it aggregates,
and how its model is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from turnout.core.errors import StateFileError
from turnout.core.files import UNREADABLE, writing_to
from turnout.core.rng import Purpose, stream
from turnout.core.types import Array
from turnout.experiment.codec import encode
from turnout.live.checkpoint import Checkpoint, check_settings, read_checkpoint, write_checkpoint
from turnout.live.members import PendingRequests, Request
from turnout.live.overlap import Flight, OverlappingSession, RejectStale
from turnout.live.receipts import Receipts
from turnout.live.records import Records
from turnout.live.reports import number
from turnout.live.round import IN_TRAINING, ClosedRound, Cohort, Reject
from turnout.live.session import Session
from turnout.live.transport import (
    Address,
    AskColumns,
    AskIdentity,
    AskLoss,
    Kind,
    Port,
    Question,
    Reply,
    Ticket,
    clock,
    log,
)

#: An unanswered question for an identity stays open for this many times its deadline.
_OPEN_FOR = 10.0
_IDENTITY = AskIdentity()
#: Shortest sleep: rounding must not keep a round from its end.
_SHORTEST_S = 1e-3


class Transport:
    """Sends requests and collects replies over a port.

    Args:
        port: The connection to the clients.
        pending: Where requests without a reply are kept.
        poll_s: Seconds between two looks for replies.
    """

    def __init__(self, port: Port, pending: PendingRequests, poll_s: float) -> None:
        self.port, self.pending, self.poll_s = port, pending, poll_s
        #: Called after each look of ``request``, with the tickets that it waits for.
        self.meanwhile: Callable[[Collection[Ticket]], None] = lambda waiting: None

    def request(
        self,
        addresses: Sequence[Address],
        content: Question | Sequence[Any],
        ttl: float,
        seconds: float | None,
        receive: Callable[[Address, Reply], object],
        until: Callable[[], float] | None = None,
    ) -> float:
        """Send a question or work, wait for the replies, and return how long it took.

        It ends when every client has replied, after ``seconds``, or at the time that ``until``
        returns for the replies so far. The last look is at the end, so no reply in time is missed.
        ``late_replies`` returns the others, and all of them if ``seconds`` is None.
        """
        sent_at, waiting = clock.now(), self._send(addresses, content, ttl)
        if seconds is None:
            return 0.0
        taken = set(waiting.values())
        for address in (address for address in addresses if address not in taken):
            receive(address, Reply(Kind.REFUSED, 0.0, reason="the message was refused"))
        end, at = seconds, 0.0
        while waiting:
            at = min(clock.now() - sent_at, end)
            for ticket, reply in self.port.poll(waiting):
                receive(waiting.pop(ticket), reply._replace(seconds=at))
                del self.pending.open[ticket]
            self.meanwhile(waiting)
            end = min(seconds, until() if until else seconds)
            if at >= end or not waiting:
                break
            clock.sleep(min(self.poll_s, max(end - at, _SHORTEST_S)))
        return at

    def give(
        self,
        addresses: Sequence[Address],
        payloads: Sequence[Any],
        ttl: float,
        work: Sequence[tuple[Hashable, int]],
    ) -> list[int]:
        """Send clients work without waiting; return the positions of those that were refused.

        Args:
            addresses: Where they are.
            payloads: The work of each.
            ttl: Seconds after which the messages expire.
            work: Stable id and choice of each, for ``late_replies``.
        """
        now, taken = clock.now(), set()
        places = dict(zip(addresses, range(len(addresses)), strict=True))
        for ticket, address in self._send(addresses, payloads, ttl).items():
            taken.add(places[address])
            self.pending.open[ticket] = Request(
                address, None, now + ttl, now, work[places[address]]
            )
        return [i for i in range(len(addresses)) if i not in taken]

    def late_replies(self, but: Collection[Ticket] = ()) -> list[tuple[Request, Reply]]:
        """Return the replies that no other call waits for; forget expired requests.

        Args:
            but: The tickets that another call waits for.
        """
        expired = self.pending.expire()
        if expired:
            self.port.cancel(expired)
        tickets = {one: None for one in self.pending.open if one not in but}  # in their order
        replies = self.port.poll(tickets) if tickets else []
        return [(self.pending.open.pop(ticket), reply) for ticket, reply in replies]

    def _send(
        self, addresses: Sequence[Address], content: Question | Sequence[Any], ttl: float
    ) -> dict[Ticket, Address]:
        """Send to all of them; return who got it, by ticket."""
        tickets: Sequence[Ticket | None] = ()
        question = None
        if isinstance(content, Sequence):
            tickets = self.port.send(addresses, content, ttl) if addresses else ()
        elif addresses:
            tickets, question = self.port.ask(addresses, content, ttl), content
        pairs = zip(tickets, addresses, strict=True)
        waiting = {ticket: address for ticket, address in pairs if ticket is not None}
        expires, n_refused = clock.now() + ttl, len(addresses) - len(waiting)
        for ticket, address in waiting.items():
            self.pending.open[ticket] = Request(address, question, expires)
        if n_refused:
            log.warning("%d of %d messages were refused", n_refused, len(addresses))
        return waiting


class Live:
    """Plays the rounds of a session: waits for clients, asks them, sends them work.

    Args:
        session: Selects and learns.
        port: The connection to the clients.
        records: Writes the open round; None writes none.
    """

    def __init__(self, session: Session, port: Port, records: Records | None = None) -> None:
        self.session, self.port, self.records = session, port, records
        pending, poll_s = session.members.pending, session.settings.poll_s
        self.transport = Transport(port, pending, poll_s)
        self._has_gathered = False
        self._has_waited = False  # without success
        self._asked: set[Address] = set()

    def gather(self, n_wanted: int) -> None:
        """Wait until enough clients are connected, but not forever.

        If one round has waited without success, later ones do not wait for the same number.

        Before the first round it also waits until all connected clients have identified themselves
        and no more connect, so that the order of the roster does not depend on who was faster. Each
        sign of life restarts the timeout ``wait_for_clients_s``. Later rounds do not wait for
        newcomers: they are asked in the background.

        Args:
            n_wanted: Clients that should be connected.
        """
        self.session.begin()
        with self.session.spans.part("wait"):
            self._gather(n_wanted)

    def _gather(self, n_wanted: int) -> None:
        members, settings = self.session.members, self.session.settings
        is_first, self._has_gathered = not self._has_gathered, True
        patience = settings.start_s if is_first else settings.wait_for_clients_s
        started = news_at = clock.now()
        before = None
        while True:
            looked_at = clock.now()
            self._meet(waits=is_first)
            seen = (members.connected, len(members.unknown))
            is_news, before = seen != before, seen
            news_at = looked_at if is_news else news_at
            waited, quiet = clock.now() - started, clock.now() - news_at
            is_complete = not (members.unknown or is_news) or quiet >= settings.wait_for_clients_s
            is_settled, n_there = not is_first or is_complete, members.n_connected
            if is_settled and (n_there >= n_wanted or (self._has_waited and n_there > 0)):
                members.bind()
                if np.count_nonzero(members.selectable()) >= settings.quorum.min_free:
                    break
            if waited >= patience:
                log.warning(
                    "%d of %d clients are connected after %g s: continuing with the free ones",
                    *(n_there, n_wanted, patience),
                )
                break
            clock.sleep(settings.poll_s)
        self.session.sync(members.connected)
        self._has_waited = n_there < n_wanted

    def choose(self, model: Any = None) -> Cohort:
        """Ask clients for what the selector needs to know, and open the next round.

        Args:
            model: The model that polled clients evaluate.
        """
        session = self.session
        with session.spans.part("ask"):
            self._ask_all(model)
        cohort = session.open()
        log.info(
            "round %d: %d of %d free clients selected",
            *(cohort.round + 1, len(cohort.ids), cohort.n_free),
        )
        wanted = session.engine.cohort_size
        if cohort.n_free < wanted and session.world is None:
            log.warning(
                "round %d has %d instead of %d clients: %d are connected, and %d of these are free",
                *(cohort.round + 1, len(cohort.ids), wanted, session.members.n_connected),
                cohort.n_free,
            )
        if self.records is not None and session.world is None:
            self.records.write_cohort(cohort, session.members)
        return cohort

    def train(
        self, cohort: Cohort, payloads: Sequence[Any], reject: Reject | None = None
    ) -> ClosedRound:
        """Send the cohort its work, wait as long as the policy says, and end the round.

        Args:
            cohort: The clients of the round.
            payloads: The work of each, in the order of the cohort.
            reject: Returns which answers cannot be used together with the others; they count as
                failed.
        """
        session = self.session
        client_at = dict(zip(cohort.addresses, cohort.ids, strict=True))

        def receive(address: Address, reply: Reply) -> None:
            is_first = session.receive(client_at[address], reply)
            if is_first and self.records is not None and session.world is None:
                self.records.write_reply(client_at[address], reply)

        seconds = session.settings.limit_s if session.world is not None else cohort.deadline
        ttl = seconds if session.world is not None else session.busy_s(seconds)
        addresses, work = (list(compress(x, cohort.is_asked)) for x in (cohort.addresses, payloads))
        with session.spans.part("train"):
            length = self.transport.request(
                addresses, work, ttl, seconds, receive, session.closes_at
            )
        is_missing = session.world is None and session.is_waiting
        there = self.port.present() if is_missing else cohort.addresses
        return session.close(there, length, reject)

    def evaluators(self, number: int, size_of: Callable[[int], int]) -> list[Address]:
        """Return free clients for an evaluation after a round, drawn by the seed.

        Args:
            number: The round, counted from 1.
            size_of: Returns how many of this many clients evaluate.
        """
        members, connected = self.session.members, set(self.port.present())
        free = members.addresses_of(np.flatnonzero(members.selectable()))
        there = [address for address in free if address in connected]
        rng = stream(self.session.settings.seed, Purpose.EVAL, number)
        drawn = rng.permutation(len(there))[: size_of(len(there))]
        return [there[i] for i in np.sort(drawn)]

    def exchange(
        self,
        addresses: Sequence[Address],
        content: Question | Sequence[Any],
        seconds: float,
        ttl: float | None = None,
    ) -> dict[Address, Reply]:
        """Send something outside of a round, and return the replies in time.

        Args:
            addresses: The receivers.
            content: A question, or a message for each of them.
            seconds: How long to wait.
            ttl: Seconds after which the messages expire; None: as for the work of a round.
        """
        replies: dict[Address, Reply] = {}
        ttl = self.session.busy_s(seconds) if ttl is None else ttl
        self.transport.request(addresses, content, ttl, seconds, replies.__setitem__)
        return replies

    def collect(self, but: Collection[Ticket] = ()) -> None:
        """Process the replies that no other call waits for.

        Args:
            but: The tickets that another call waits for.
        """
        for request, reply in self.transport.late_replies(but):
            self._take(request, reply)

    def _meet(self, *, waits: bool) -> None:
        """Process late replies, update who is connected, and ask newcomers for their identity."""
        session, members, ask_s = self.session, self.session.members, self.session.settings.ask_s
        self.collect()
        members.update(self.port.present())
        busy = members.pending.busy
        unknown = [address for address in members.unknown if address not in busy]
        new = [address for address in unknown if address not in self._asked]
        waited_for = new if waits else []
        ttl = _OPEN_FOR * ask_s
        self._asked.update(unknown)
        others = [address for address in unknown if address not in waited_for]
        self.transport.request(others, _IDENTITY, ttl, None, session.identify)
        if new:
            log.info("asking %d new nodes for their identity", len(new))
        self.transport.request(waited_for, _IDENTITY, ttl, ask_s, session.identify)

    def _take(self, request: Request, reply: Reply) -> None:
        """Process a reply that no call waits for."""
        if request.question == _IDENTITY:
            self.session.identify(request.address, reply)

    def _ask_all(self, model: Any) -> None:
        """Ask for what the selector needs to know before it chooses."""
        session, members, ask_s = self.session, self.session.members, self.session.settings.ask_s
        wanted = session.engine.wanted
        if wanted and session.world is None:
            last = frozenset(members.addresses_of(members.present_of(session.journal.last)))
            columns = AskColumns(session.round, last)
            replies = self.exchange(members.changing(wanted), columns, ask_s, ask_s)
            for address, reply in replies.items():
                if reply.kind is Kind.ANSWERED:
                    session.update_columns(address, reply)
        polled = session.to_poll()
        if polled:
            loss = AskLoss(session.round, session.selector.poll_data, model)
            replies, nothing = self.exchange(polled, loss, ask_s, ask_s), Reply()
            losses = [number(replies.get(address, nothing).metrics, "loss") for address in polled]
            failed = [one for one in replies.values() if one.kind in (Kind.FAILED, Kind.LOST)]
            session.receive_losses(polled, np.array(losses, dtype=np.float64), len(failed))


#: Returns the work of clients at some addresses on the model of some version.
Write = Callable[[Sequence[Address], int], Sequence[Any]]


class OverlappingLive(Live):
    """Plays rounds that overlap: fills free places, collects replies as they come.

    Args:
        session: Selects and learns. Work that is in flight in it already is given out again.
        port: The connection to the clients.
        records: Writes the open round; None writes none.
    """

    session: OverlappingSession

    def __init__(
        self, session: OverlappingSession, port: Port, records: Records | None = None
    ) -> None:
        super().__init__(session, port, records)
        #: Replies that have come and do not count before the next round, as their buffer is full.
        self._waiting: list[tuple[int, int, Hashable, Reply]] = []
        self._lost: list[Flight] | None = None  # work that was in flight at a restart
        self._tried: tuple[int, bytes] | None = None  # free places and clients that were no match
        self._looked_at = clock.now()
        # While other clients are asked or evaluate, finished work is still timed.
        self.transport.meanwhile = self.collect

    def gather(self, n_wanted: int) -> None:
        """Wait for clients before the first round; later rounds do not wait.

        Args:
            n_wanted: Clients that should be connected.
        """
        self.session.begin()
        if not self._has_gathered:
            super().gather(n_wanted)
            self.session.start_clock()

    def play(
        self, write: Write, model: Any = None, reject: RejectStale | None = None
    ) -> ClosedRound:
        """Keep clients at work until the round is over, and end it.

        Args:
            write: Returns the work of clients, by their addresses and the version of the model.
            model: The model that polled clients evaluate.
            reject: Returns which answers cannot be used together with the others; they count as
                failed.
        """
        session, self._tried = self.session, None
        with session.spans.part("train"):
            self._repeat(write)
            while not self._is_over():
                self._repeat(write)
                self._fill(write, model)
                clock.sleep(min(session.settings.poll_s, max(session.left_s(), _SHORTEST_S)))
        return session.close(set(self.port.present()), None, reject)

    def collect(self, but: Collection[Ticket] = ()) -> None:
        """Take the replies that have come, and remember when this look was.

        Args:
            but: The tickets that another call waits for.
        """
        at = clock.now()
        super().collect(but)
        self._looked_at = at

    def _is_over(self) -> bool:
        """Take in what has happened; return whether the round is over."""
        session = self.session
        self.collect()
        # Replies of one look come in the order of their choices.
        self._waiting.sort(key=lambda one: one[:2])
        while self._waiting and not session.flights.is_full:
            choice, _, client, reply = self._waiting.pop(0)
            is_first = session.receive(client, reply, choice)
            if is_first and self.records is not None:
                self.records.write_reply(client, reply)
        if not session.flights.is_full and session.has_overdue:
            session.give_up(set(self.port.present()))
        return session.is_over()

    def _take(self, request: Request, reply: Reply) -> None:
        if request.work is None:
            super()._take(request, reply)
            return
        client, choice = request.work
        index = self.session.roster.index_of(client)
        seconds, work_s = clock.now() - request.sent, self.session.work_s
        if self._looked_at - request.sent <= work_s:  # it may have come in time
            seconds = min(seconds, work_s)
        self._waiting.append((choice, index, client, reply._replace(seconds=seconds)))

    def _fill(self, write: Write, model: Any) -> None:
        """Let the selector choose for the free places, and give the chosen work."""
        session = self.session
        if not session.places():
            return
        self._meet(waits=False)
        session.sync(session.members.connected)
        if self._tried == self._free():
            return
        with session.spans.part("ask"):
            self._ask_all(model)
        cohort = session.open()
        if cohort.ids:
            log.info(
                "choice %d: %d of %d free clients get model %d",
                *(cohort.round, len(cohort.ids), cohort.n_free, cohort.version),
            )
            self._give(write, cohort)
        self._tried = self._free()

    def _give(self, write: Write, cohort: Cohort) -> None:
        session, work_s = self.session, self.session.work_s
        if self.records is not None:
            ids = tuple(flight.client for flight in session.at_work)
            self.records.write_cohort(
                cohort._replace(ids=ids, round=session.round), session.members
            )
        payloads = write(cohort.addresses, cohort.version)
        work = [(client, cohort.round) for client in cohort.ids]
        ttl = session.busy_s(work_s)
        for i in self.transport.give(cohort.addresses, payloads, ttl, work):
            refused = Reply(Kind.REFUSED, 0.0, reason="the message was refused")
            session.receive(cohort.ids[i], refused, cohort.round)

    def _repeat(self, write: Write) -> None:
        """Send work that was in flight at a restart again, once its client is connected."""
        session, members = self.session, self.session.members
        if self._lost is None:
            self._lost = session.at_work
        if not self._lost:
            return
        self._meet(waits=False)
        session.sync(members.connected)
        flights, there = set(session.at_work), set(members.connected_clients.tolist())
        waits = []
        for flight in self._lost:
            index = session.roster.index_of(flight.client)
            if flight not in flights:  # its time was over
                continue
            if index not in there:
                waits.append(flight)
                continue
            log.info("%s gets its work on model %d again", flight.client, flight.version)
            session.restart(flight.client)
            addresses = tuple(members.addresses_of(np.array([index])))
            again = Cohort(flight.choice, (flight.client,), addresses, version=flight.version)
            self._give(write, again._replace(deadline=session.work_s))
        self._lost = waits

    def _free(self) -> tuple[int, bytes]:
        return self.session.places(), self.session.members.selectable().tobytes()


class HostRun:
    """One run in a framework: rounds over its port, with checkpoint and records if wanted.

    Args:
        session: Selects and learns.
        port: The connection to the clients.
        kind: The framework, as checkpoint and records call it.
        n_rounds: How many rounds there will be.
        versions: Versions of the framework, for the records.
    """

    def __init__(
        self, session: Session, port: Port, kind: str, n_rounds: int, versions: Mapping[str, str]
    ) -> None:
        self.session, self.journal, self.spans = session, session.journal, session.spans
        settings, world, selector = session.settings, session.world, session.selector
        session.n_rounds = max(1, n_rounds)
        self._kind = f"turnout-{kind}"
        self._identity: dict[str, Any] = {}  # what a checkpoint belongs to
        self._config: dict[str, Any] = {}
        if settings.records is not None or settings.followers:
            self._config = settings.config(kind, selector, world, n_rounds)
        self._records: Records | None = None
        if settings.records is not None:
            classes = None if world is None else world.classes
            rate = selector.guaranteed_rate()
            receipts = None
            if settings.receipt_key is not None:
                receipts = Receipts(settings.receipt_key)
            self._records = Records(
                settings.records, self._config, classes, rate, versions, receipts
            )
        self.live = self._driver(port)
        self.cohort: Cohort | None = None  #: of the last round
        self.result: ClosedRound | None = None  #: of the last round
        self._n_saved: int | None = None  # rounds in the checkpoint; None before the run begins

    def saved_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what the framework saves: plain data, and arrays by names without a slash."""
        return {}, {}

    def restore(self, saved: Checkpoint) -> None:
        """Continue from what ``saved_state`` returned.

        Args:
            saved: The checkpoint; the framework's part is ``host`` and ``host_arrays``.
        """

    def resume(self, host: Mapping[str, Any]) -> int:
        """Start, or resume from the checkpoint if there is one; return the rounds that are done.

        Args:
            host: What the framework adds to the settings that a checkpoint belongs to.
        """
        settings, n_done = self.session.settings, 0
        if settings.checkpoint is not None:
            path = Path(settings.checkpoint)
            self._identity = settings.identity(self.session.selector, host)
            path.parent.mkdir(parents=True, exist_ok=True)
            n_done = self._resume(path) if path.exists() else 0
        self.session.start(self._config)
        if self._records is not None:
            self._records.open(self.journal, resumed=n_done > 0)
        self._n_saved = n_done
        return n_done

    @contextmanager
    def running(self) -> Iterator[None]:
        """End followers with the block; record the error that stopped the run, if there was one."""
        try:
            yield
        except BaseException as error:  # an interrupt by the operator is a reason, too
            self._log_what_is_saved()
            if self._records is not None:
                self._records.fail(self.journal, error)
            raise
        finally:
            self.session.end()

    def _log_what_is_saved(self) -> None:
        """Log how a run that ends early can be resumed."""
        path, n_saved = self.session.settings.checkpoint, self._n_saved
        if n_saved is not None and path is not None:
            log.warning(
                "stopped: %s holds %d rounds. Start the same run again to resume with round %d; "
                "replies received since then are lost.",
                *(path, n_saved, n_saved + 1),
            )
        elif n_saved is not None:
            log.warning(
                "stopped after %d rounds; nothing is saved. With checkpoint=PATH, the same run "
                "resumes after a stop.",
                self.journal.n_rounds,
            )

    def _driver(self, port: Port) -> Live:
        if isinstance(self.session, OverlappingSession):
            return OverlappingLive(self.session, port, self._records)
        return Live(self.session, port, self._records)

    def play(self, write: Write, model: Any, reject: RejectStale | None = None) -> ClosedRound:
        """Play a round that overlaps with others, and return how it ended.

        Args:
            write: Returns the work of clients, by their addresses and the version of the model.
            model: The model that polled clients evaluate.
            reject: Returns which answers cannot be used together with the others.
        """
        assert isinstance(self.live, OverlappingLive)
        self.result = self.live.play(write, model, reject)
        return self.result

    def choose(self, n_wanted: int, model: Any) -> tuple[Address, ...]:
        """Return the clients of the next round.

        Args:
            n_wanted: Clients that should be connected.
            model: The model that polled clients evaluate.
        """
        self.result = None
        self.live.gather(n_wanted)
        self.cohort = self.live.choose(model)
        return self.cohort.addresses

    def train(self, payloads: Sequence[Any], reject: Reject | None = None) -> ClosedRound:
        """Send the cohort its work, wait for it, and return how the round ended.

        Args:
            payloads: The work of each client, in the order of the cohort; empty if it is empty.
            reject: Returns which answers cannot be used together with the others.
        """
        if self.cohort is None or not self.cohort.ids:
            self.result = self.session.close()
        else:
            self.result = self.live.train(self.cohort, payloads, reject)
        return self.result

    def end_round(self, metrics: Mapping[str, Any] | None = None) -> None:
        """Save the last round; raise if too many in a row had too few answers.

        Args:
            metrics: The aggregated metrics of the training; None if there are none.
        """
        self.journal.note(IN_TRAINING, self.journal.n_rounds, metrics)
        # Answers come before the checkpoint: a round that is not saved is played and written again.
        if self._records is not None and self.result is not None:
            self._records.write_answers(self.result, self.session.roster)
        self.save()
        self.write()
        self.spans.finish()
        self.session.check_quorum()

    def save(self) -> None:
        """Write the checkpoint, if one is wanted.

        Raises:
            OutputError: It cannot be written; the checkpoint before is unchanged.
        """
        path = self.session.settings.checkpoint
        if path is None:
            return
        host, arrays = self.saved_state()
        with self.spans.part("save"):
            whole = replace(self.session.state(self._identity), host=host, host_arrays=arrays)
            advice = "make room, or make the folder writable, and restart from the last checkpoint"
            with writing_to(path, advice):
                write_checkpoint(path, whole, self._kind)
        self._n_saved = self.journal.n_rounds

    def write(self) -> None:
        """Write the numbers of the last round to the records, again if they have changed."""
        if self._records is not None:
            self._records.add(self.journal)
            unwritten, self.session.monitor.unwritten = self.session.monitor.unwritten, []
            if unwritten:
                self._records.write_alerts(unwritten)

    def finish(self) -> None:
        """Write the end of the run."""
        if self._records is not None:
            self._records.finish(self.journal)

    def _resume(self, path: Path) -> int:
        """Continue after the last round that was saved."""
        saved = read_checkpoint(path, self._kind)
        try:
            # The file may be older than a parameter of the selector.
            younger = encode(self.session.selector.default_parameters())
            parameters = {**younger, **saved.settings["parameters"]}
            settings = {**saved.settings, "parameters": parameters}
            change = check_settings(path, settings, self._identity)
            if change is not None:
                log.warning("from now on, settings differ from before: %s", change)
            self.session.load(saved)
            self.restore(saved)
        except StateFileError as error:
            raise StateFileError(f"{path}: {error}") from error
        except UNREADABLE as error:
            raise StateFileError(
                f"{path} is damaged ({type(error).__name__}: {error}); delete it to start again."
            ) from error
        log.info("resuming after round %d, saved in %s", saved.rounds_done, path)
        return saved.rounds_done
