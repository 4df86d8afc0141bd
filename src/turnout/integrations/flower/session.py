"""One call of ``start``: what is set up for it, carried through its rounds and saved after each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from turnout.integrations.flower import saving
from turnout.integrations.flower.base import World
from turnout.integrations.flower.errors import UnsuitableStrategy
from turnout.integrations.flower.grid import GridView
from turnout.integrations.flower.inner_state import InnerState
from turnout.integrations.flower.journal import BY_CLIENTS, BY_SERVER, IN_TRAINING, Journal
from turnout.integrations.flower.mailbox import Mailbox, log
from turnout.integrations.flower.members import Members
from turnout.integrations.flower.records import Records
from turnout.integrations.flower.replies import ReplyRules
from turnout.integrations.flower.reports import Reports
from turnout.integrations.flower.rounds import OpenRound, Rounds
from turnout.integrations.flower.settings import Settings
from turnout.rng import Purpose, stream
from turnout.roster import Roster
from turnout.selector import Selector
from turnout.types import Selection

__all__ = ["Session"]


class Session:
    """Holds the parts of a run together; the strategy's hooks call it in Flower's order."""

    def __init__(
        self,
        settings: Settings,
        inner: Strategy,
        selector: Selector,
        grid: Grid,
        *,
        roster: Roster | None,
        world: World | None,
        limit_s: float,
        n_rounds: int,
        inner_state: InnerState | None,
    ) -> None:
        self.settings, self.inner, self.selector = settings, inner, selector
        self.world, self.limit_s, self.inner_state = world, limit_s, inner_state
        self.arrays = ArrayRecord()  #: the model
        self.identity: dict[str, Any] = {}  #: what a checkpoint belongs to
        self.offset = 0  #: rounds that were done before
        self.is_evaluated = True  #: whether the last of them was evaluated
        self.grid = grid
        self.mailbox = Mailbox(grid, settings.poll_s)
        known = Roster(world.ids) if world is not None else _copied(roster)
        self.members = Members(
            known,
            self.mailbox,
            ask_s=settings.ask_s,
            unidentified=settings.unidentified,
            is_closed=world is not None,
        )
        self.rules = ReplyRules.of(inner)
        self.reports = Reports(
            selector, self.rules.weight_key, settings.durations, settings.metric_keys, world
        )
        self.policy = settings.round_policy(limit_s, world)
        self.rounds = Rounds(
            selector,
            self.members,
            self.mailbox,
            self.rules,
            self.reports,
            self.policy,
            cohort_size=settings.cohort_size,
            seed=settings.seed,
            limit_s=limit_s,
            late_s=settings.late_s,
            start_s=settings.start_s,
            wait_for_nodes_s=settings.wait_for_nodes_s,
            world=world,
            bounds=None if settings.bounds is None else settings.bounds.clone(),
        )
        self.journal = Journal(settings.cohort_size)
        config = settings.config(selector, self.policy, world, n_rounds)
        classes = None if world is None else world.classes
        root, rate = settings.records, selector.guaranteed_rate()
        self._records = None if root is None else Records(root, config, classes, rate)
        self._opened: OpenRound | None = None
        self._pending: list[Message] = []

    @property
    def round(self) -> int:
        """The round being trained, from 1 as Flower counts."""
        return self.journal.n_rounds + 1

    @property
    def evaluated(self) -> int:
        """The round being evaluated: the last that was trained."""
        return self.journal.n_rounds

    def begin(self, initial_arrays: ArrayRecord) -> None:
        """Start afresh, or go on from the checkpoint if there is one."""
        self.arrays = initial_arrays
        path = self.settings.checkpoint
        self.identity = self.settings.identity(self.selector, self.inner, initial_arrays)
        if path is not None and path.exists():
            saving.restore(self, path)
        elif path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
        if self._records is not None:
            self._records.open(self.journal, resumed=self.offset > 0)

    def choose(self, arrays: ArrayRecord, n_first: int) -> list[int]:
        """Return the nodes that train in the next round."""
        self.arrays = arrays
        n_wanted = n_first if not self.journal.n_rounds else self.settings.cohort_size
        self.rounds.gather(len(self.world.ids) if self.world is not None else n_wanted)
        self.journal.n_clients = max(1, len(self.members.roster))
        self._opened = self.rounds.choose(self.round - 1, arrays, self.journal.last)
        nodes = [] if self._opened is None else self._opened.nodes
        if self._opened is not None and not nodes:
            self._opened.close_empty(self.policy)
        n_free = 0 if self._opened is None else self._opened.context.pool.size
        log.info("round %d: %d chosen of %d that are free", self.round, len(nodes), n_free)
        return nodes

    def view(self, nodes: Sequence[int], on_waiting: Callable[[], None]) -> GridView:
        """Return a grid that shows these nodes only."""
        return GridView(self.grid, nodes, on_waiting)

    def sending(self, messages: list[Message]) -> list[Message]:
        """Take note of the messages of the training, and return them."""
        self._pending = messages
        return messages

    def exchange(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Send what Flower's loop wants to send, and return the replies that count."""
        pending, self._pending = self._pending, []
        if pending and self._opened is not None and _is_same(messages, pending):
            return self.rounds.train(self._opened, pending)
        seconds = self.settings.evaluate_s or self._usual_seconds()
        answers, _ = self.mailbox.exchange(messages, seconds, ttl=self.rounds.ttl(seconds))
        found = {one.node: one.reply for one in answers if one.reply is not None}
        order = [message.metadata.dst_node_id for message in messages]
        return [found[node] for node in order if node in found]

    def received(self, replies: Iterable[Message]) -> list[Message]:
        """Return the replies of the training that the inner strategy may see."""
        if self._opened is not None and self._opened.closed is None:
            raise UnsuitableStrategy(
                f"{type(self.inner).__name__}.start must send the messages of configure_train by "
                "grid.send_and_receive(messages): deadlines and outcomes depend on it."
            )
        return list(replies)

    def close_round(self, arrays: ArrayRecord | None, metrics: MetricRecord | None) -> None:
        """Learn from the round, and save it."""
        opened, self._opened = self._opened, None
        if opened is None:  # nobody has ever come
            closed = self.policy.close(np.zeros(0), np.zeros(0, dtype=np.bool_))
            nobody = Selection(self.round - 1, np.zeros(0, dtype=np.int64))
            self.journal.add(nobody, closed, closed.duration, np.zeros(0, dtype=np.bool_))
        else:
            assert opened.closed is not None
            self.rounds.observe(opened)
            available = opened.context.available
            self.journal.add(opened.selection, opened.closed, opened.duration, available)
        if arrays is not None:
            self.arrays = arrays
        self.journal.note(IN_TRAINING, self.journal.n_rounds, metrics)
        saving.save(self, is_evaluated=False)
        self._write()

    def evaluators(self, size_of: Callable[[int], int]) -> list[int]:
        """Return the nodes that evaluate, drawn by the seed."""
        clients = np.flatnonzero(self.members.selectable())
        nodes = self.members.nodes_of(clients)
        there = set(self.grid.get_node_ids())
        nodes = [node for node in nodes if node in there]
        rng = stream(self.settings.seed, Purpose.EVAL, self.evaluated)
        drawn = rng.permutation(len(nodes))[: size_of(len(nodes))]
        return [nodes[i] for i in np.sort(drawn)]

    def usable_evaluations(self, replies: Iterable[Message]) -> list[Message]:
        """Return the evaluations that the inner strategy can use."""
        sound = [reply for reply in replies if not reply.has_error()]
        checked = [self.rules.check(reply, train=False) for reply in sound]
        usable = [one for one in checked if one.fault is None]
        misfits = self.rules.misfits(usable, sent=None, needed=())
        faults = [one.fault for one in checked if one.fault] + list(misfits.values())
        for fault in faults:
            log.warning("an evaluation was dropped, %s", fault)
        return [one.reply for i, one in enumerate(usable) if i not in misfits]

    def note_evaluation(self, metrics: MetricRecord | None) -> None:
        """Keep what the clients' evaluation gave."""
        if self.journal.note(BY_CLIENTS, self.evaluated, metrics):
            self._write()

    def watched(
        self, evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None]
    ) -> Callable[[int, ArrayRecord], MetricRecord | None]:
        """Return the server's evaluation, with its results kept and rounds counted from the start.

        After a restart Flower's loop evaluates the first model, as always: that is the last round's
        model, which is evaluated again only if the result was not saved.
        """

        def evaluate(loop_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            server_round = loop_round + self.offset
            if self.offset and loop_round == 0 and self.is_evaluated:
                return self.journal.metrics[BY_SERVER].get(server_round)
            metrics = evaluate_fn(server_round, arrays)
            if self.journal.note(BY_SERVER, server_round, metrics) and server_round:
                self._write()
            return metrics

        return evaluate

    def finish(self) -> None:
        """Write the end of the run."""
        if self.journal.n_rounds > self.offset or not self.is_evaluated:
            saving.save(self, is_evaluated=True)
        if self._records is not None:
            self._records.finish(self.journal)

    def _usual_seconds(self) -> float:
        if self.world is not None:  # its deadlines are not on the wall clock
            return self.limit_s
        return min(self.policy.deadline(self.rounds.observed), self.limit_s)

    def _write(self) -> None:
        if self._records is not None:
            self._records.add(self.journal)


def _copied(roster: Roster | None) -> Roster:
    """Return a roster of our own: the caller's stays as it is."""
    return Roster(() if roster is None else roster.ids)


def _is_same(messages: Sequence[Message], others: Sequence[Message]) -> bool:
    return len(messages) == len(others) and all(
        one is other for one, other in zip(messages, others, strict=True)
    )
