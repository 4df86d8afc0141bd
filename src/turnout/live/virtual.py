"""A virtual world whose rounds overlap, with clients that really train.

``turnout.experiment.overlap`` plays the world, so cohorts, staleness, weights and records equal
those of ``turnout.simulate``. This module connects it to real clients. It sends work over a port to
the clients that will answer in virtual time, and waits for each reply only when its virtual time
has come. Until then, all clients at work train in parallel.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.types import Array, FloatArray, IntArray, Selection, Status
from turnout.experiment.loop import Participants, Playing, Progress, Simulated, Work, WorkReported
from turnout.experiment.overlap import OverlappingRounds, check_overlap
from turnout.live.driver import OverlappingLive, Write
from turnout.live.members import Request
from turnout.live.overlap import OverlappingSession, RejectStale
from turnout.live.records import Records
from turnout.live.reports import number
from turnout.live.round import ClosedRound
from turnout.live.transport import AskLoss, Kind, Port, Reply, clock
from turnout.live.world import VirtualWorld
from turnout.worlds import Answers

#: The number of a choice, and the index of a client.
_Piece = tuple[int, int]


class VirtualLive(OverlappingLive):
    """Plays rounds that overlap in the virtual world of a session.

    Args:
        session: Its world decides who is available, how long clients take and whether they fail.
        port: The connection to the clients.
        records: Writes the rounds; None writes none.
    """

    def __init__(
        self, session: OverlappingSession, port: Port, records: Records | None = None
    ) -> None:
        super().__init__(session, port, records)
        world, engine = session.world, session.engine
        assert world is not None
        self._nodes = _Nodes(self, world)
        progress = Progress(world.environment.n_clients)
        progress.history, progress.observed = world.history, engine.observed
        playing = Playing(engine, world.environment, self._nodes, progress)
        check_overlap(playing, session.schedule)
        self._loop = OverlappingRounds(playing, self._nodes)
        self._is_begun = False

    def play(
        self, write: Write, model: Any = None, reject: RejectStale | None = None
    ) -> ClosedRound:
        """Play the next round of the world.

        Args:
            write: Returns the work of clients, by their addresses and the version of the model.
            model: The model that polled clients evaluate.
            reject: Returns which answers cannot be used together with the others; they are left
                out of the model.
        """
        session, nodes = self.session, self._nodes
        nodes.write, nodes.model = write, model
        if not self._is_begun:
            self._is_begun = True
            self._loop.load_state(session.virtual_state())
            session.virtual_state = self._loop.state
            self._rounds = self._loop.rounds(range(session.version, sys.maxsize))
        with session.spans.part("train"):
            done = next(self._rounds)
        return session.record(done, nodes.taken, reject)

    def _take(self, request: Request, reply: Reply) -> None:
        if request.work is None:
            super()._take(request, reply)
            return
        client, choice = request.work
        index = self.session.roster.index_of(client)
        self._nodes.early[choice, index] = reply


class _Nodes(Participants):
    """The clients of a world, as nodes that train."""

    def __init__(self, live: VirtualLive, world: VirtualWorld) -> None:
        self._live, self._world = live, world
        self._simulated = Simulated(world.environment)
        selector = live.session.selector
        wanted = sorted(selector.needs_metrics)
        self._simulated.report({name: selector.metric_sizes.get(name) for name in wanted})
        self.write: Write = lambda addresses, version: ()
        self.model: Any = None
        self.early: dict[_Piece, Reply] = {}  # replies whose virtual time has not come
        self.taken: list[Reply] = []  # the answers of the last round
        self._sent: set[_Piece] = set()
        self._done: dict[_Piece, Reply] = {}

    @property
    def columns(self) -> Mapping[str, Array]:
        """The facts about clients that replace the environment's."""
        return self._world.columns

    def polled_loss(
        self, round: int, clients: IntArray, data: Literal["all", "mini-batch"]
    ) -> FloatArray:
        """Return the losses that clients report, or the world's synthetic ones."""
        own = self._world.polled_loss(round, data)
        if own is not None:
            return np.asarray(own[clients])
        session = self._live.session
        there = np.isin(clients, session.members.connected_clients)
        addresses, ask_s = session.members.addresses_of(clients[there]), session.settings.ask_s
        replies = self._live.exchange(addresses, AskLoss(round, data, self.model), ask_s, ask_s)
        losses = np.full(clients.size, np.nan)
        losses[there] = [number(replies.get(at, Reply()).metrics, "loss") for at in addresses]
        return losses

    def work(self, selection: Selection, is_completed: Any) -> Work:
        """Refuse: these rounds overlap."""
        raise InvalidInput("rounds overlap here: call start, finish and take_in.")

    def start(self, round: int, clients: IntArray) -> None:
        """Send the present model to clients that will answer."""
        version = self._live.session.version
        self._send([(round, client) for client in clients.tolist()], [version] * clients.size)

    def finish(self, rounds: IntArray, clients: IntArray) -> Work:
        """Wait for the replies of clients, and return what they report."""
        session = self._live.session
        flights = session.flights.flights[session.flights.where(clients)]
        pieces = list(zip(rounds.tolist(), clients.tolist(), strict=True))
        lost = [i for i, piece in enumerate(pieces) if piece not in self._sent]
        if lost:  # they had their work before a restart
            self._send([pieces[i] for i in lost], flights["version"][lost].tolist())
        self._wait(pieces)
        replies = {i: self.early.pop(piece) for i, piece in enumerate(pieces)}
        self._sent.difference_update(pieces)
        sound = {i: one for i, one in replies.items() if one.kind is Kind.ANSWERED}
        session.reports.note(sound.values())
        for i in list(sound):
            _, fault = session.judge(pieces[i][1], sound[i])
            if fault is not None:
                del sound[i]
        self._done |= {pieces[i]: reply for i, reply in sound.items()}
        is_broken = np.array([i not in sound for i in range(len(pieces))], dtype=np.bool_)
        if session.reports.is_virtual:
            metrics = self._simulated.finish(rounds, clients).metrics
        else:
            status = np.where(is_broken, np.int8(Status.FAILED), np.int8(Status.COMPLETED))
            unknown = np.full(len(pieces), math.nan)
            metrics = session.reports.outcome(0, clients, status, unknown, sound).metrics
        return WorkReported(metrics, is_broken)

    def take_in(self, answers: Answers) -> None:
        """Keep the replies that make the next model."""
        pieces = zip(answers.choices.tolist(), answers.clients.tolist(), strict=True)
        self.taken = [self._done.pop(piece) for piece in pieces]

    def _send(self, pieces: Sequence[_Piece], versions: Sequence[int]) -> None:
        members, settings = self._live.session.members, self._live.session.settings
        there = set(members.connected_clients.tolist())
        self._sent |= set(pieces)
        for version in sorted(set(versions)):
            mine = [p for p, own in zip(pieces, versions, strict=True) if own == version]
            gone = [piece for piece in mine if piece[1] not in there]
            mine = [piece for piece in mine if piece[1] in there]
            addresses = members.addresses_of(np.array([client for _, client in mine], np.int64))
            work = [(members.roster.id_of(client), choice) for choice, client in mine]
            payloads = self.write(addresses, version) if mine else ()
            refused = self._live.transport.give(addresses, payloads, settings.limit_s, work)
            for piece in [*gone, *(mine[i] for i in refused)]:
                self.early[piece] = Reply(Kind.REFUSED, reason="the message was refused")

    def _wait(self, pieces: Sequence[_Piece]) -> None:
        """Wait until the replies of some clients have come, or until ``limit_s``."""
        live, settings, began = self._live, self._live.session.settings, clock.now()
        while True:
            live.collect()
            missing = [piece for piece in pieces if piece not in self.early]
            if missing and clock.now() - began < settings.limit_s:
                clock.sleep(settings.poll_s)
                continue
            for piece in missing:
                self.early[piece] = Reply(Kind.LOST, reason="no answer")
            return
