"""One call of ``start``: a session over the grid, with the model and the inner strategy's state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import flwr
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore.logger import FLOWER_LOGGER

from turnout.integrations.flower import inner as within
from turnout.integrations.flower.inner import UnsuitableStrategy
from turnout.integrations.flower.inner_state import InnerState, decode_arrays, encode_arrays
from turnout.integrations.flower.port import FlowerHints, FlowerPort, is_training, mark_training
from turnout.integrations.flower.replies import ReplyRules, form_of_arrays
from turnout.roster import Roster
from turnout.selector import Selector
from turnout.session.checkpoint import Checkpoint
from turnout.session.journal import BY_CLIENTS, BY_SERVER, HISTORIES, IN_TRAINING
from turnout.session.keeper import Keeper
from turnout.session.live import Live
from turnout.session.port import Heard
from turnout.session.post import log
from turnout.session.round import Chosen, Ended
from turnout.session.session import Session
from turnout.session.settings import Settings
from turnout.session.world import World
from turnout.types import Array

log.parent = FLOWER_LOGGER  # what a session logs is shown as Flower's own lines are

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class FlowerRun:
    """What the strategy's hooks call, in Flower's order."""

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
        self.settings, self.inner, self.inner_state = settings, inner, inner_state
        self.arrays = ArrayRecord()  #: the model
        self.offset = 0  #: rounds that were done before
        self.is_evaluated = True  #: whether the last of them was evaluated
        self._rules = ReplyRules.of(inner)
        self.session = Session(
            settings,
            selector,
            roster=roster,
            world=world,
            limit_s=limit_s,
            weight_key=self._rules.weight_key,
            counts_once=self._rules.counts_once,
            hints=FlowerHints(),
        )
        self.journal = self.session.journal
        self._chosen: Chosen | None = None
        self._ended: Ended | None = None
        self.keeper = Keeper(self.session, "flower", n_rounds, {"flwr": flwr.__version__})
        self.live = Live(self.session, FlowerPort(grid, self._rules), self.keeper.records)

    @property
    def round(self) -> int:
        """The round being trained, from 1 as Flower counts."""
        return self.evaluated + (self._ended is None)

    @property
    def evaluated(self) -> int:
        """The round being evaluated: the last that was trained."""
        return self.journal.n_rounds

    def begin(self, initial_arrays: ArrayRecord, configs: dict[str, ConfigRecord]) -> None:
        """Start afresh, or go on from the checkpoint if there is one."""
        self.arrays = initial_arrays
        model = [[key, list(shape), kind] for key, shape, kind in form_of_arrays(initial_arrays)]
        if self.inner_state is not None:
            for name, config in configs.items():
                self.inner_state.watch(name, config)
        host = {"strategy": within.name_of(self.inner), "model": model}
        self.offset = self.keeper.begin(host, self._restore)

    def choose(self, arrays: ArrayRecord, n_first: int) -> list[int]:
        """Return the nodes that train in the next round."""
        self.arrays, self._ended = arrays, None
        world = self.session.world
        n_wanted = n_first if not self.journal.n_rounds else self.settings.cohort_size
        self.live.gather(len(world.ids) if world is not None else n_wanted)
        self._chosen = self.live.choose(arrays)
        return cast(list[int], list(self._chosen.addresses))

    def sending(self, messages: list[Message]) -> list[Message]:
        """Mark the messages of the training, and return them."""
        mark_training(messages)
        return messages

    def exchange(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Send what Flower's loop wants to send, and return the replies that count."""
        work = [message for message in messages if is_training(message)]
        replies = self._train(work) if work else []
        others = [message for message in messages if not is_training(message)]
        if others:
            seconds = self.settings.evaluate_s or self.session.chooser.seconds()
            nodes = [message.metadata.dst_node_id for message in others]
            answers = self.live.exchange(nodes, others, seconds)
            replies += [
                answers[node].content
                for node in nodes
                if node in answers and answers[node].content is not None
            ]
        return replies

    def close_round(
        self,
        replies: Iterable[Message],
        aggregate: Callable[[int, list[Message]], tuple[ArrayRecord | None, MetricRecord | None]],
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate what can be used, then save the round."""
        if self.session.is_open:
            raise UnsuitableStrategy(
                f"{type(self.inner).__name__}.start must send the messages of configure_train by "
                "grid.send_and_receive(messages): deadlines and outcomes depend on it."
            )
        self._ended = ended = self.session.close() if self._ended is None else self._ended
        usable = list(replies)
        with self.session.spans.part("aggregate"):
            arrays, metrics = aggregate(self.round, usable) if usable else (None, None)
        if arrays is not None:
            self.arrays = arrays
        self.journal.note(IN_TRAINING, self.round, metrics)
        self.keeper.note(ended)
        self._save(is_evaluated=False)
        self.keeper.record()
        return arrays, metrics

    def usable_evaluations(self, replies: Iterable[Message]) -> list[Message]:
        """Return the evaluations that the inner strategy can use."""
        sound = [reply for reply in replies if not reply.has_error()]
        checked = [self._rules.check(reply, train=False) for reply in sound]
        usable = [one for one in checked if one.fault is None]
        misfits = self._rules.misfits(usable, sent=None, needed=())
        faults = [one.fault for one in checked if one.fault] + list(misfits.values())
        for fault in faults:
            log.warning("an evaluation was dropped, %s", fault)
        return [one.reply for i, one in enumerate(usable) if i not in misfits]

    def note_evaluation(self, metrics: MetricRecord | None) -> None:
        """Keep what the clients' evaluation gave."""
        if self.journal.note(BY_CLIENTS, self.evaluated, metrics):
            self.keeper.write()

    def watched(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the server's evaluation, with its results kept and rounds counted from the start.

        After a restart Flower's loop evaluates the first model, as always: that is the last round's
        model, which is evaluated again only if the result was not saved.
        """

        def evaluate(loop_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            server_round = loop_round + self.offset
            if self.offset and loop_round == 0 and self.is_evaluated:
                saved = self.journal.metrics[BY_SERVER].get(server_round)
                return None if saved is None else MetricRecord(dict(saved))
            metrics = evaluate_fn(server_round, arrays)
            if self.journal.note(BY_SERVER, server_round, metrics) and server_round:
                self.keeper.write()
            return metrics

        return evaluate

    def finish(self, result: Any) -> None:
        """Write the end of the run, and put all rounds into Flower's result."""
        if self.journal.n_rounds > self.offset or not self.is_evaluated:
            self._save(is_evaluated=True)
        self.keeper.finish()
        if isinstance(result, Result):
            for name in HISTORIES:
                rounds = sorted(self.journal.metrics[name].items())
                setattr(result, name, {t: MetricRecord(dict(metrics)) for t, metrics in rounds})
            result.arrays = result.arrays or self.arrays

    def _train(self, messages: list[Message]) -> list[Message]:
        chosen = self._chosen
        by_node = {message.metadata.dst_node_id: message for message in messages}
        if chosen is None or not self.session.is_open or by_node.keys() != set(chosen.addresses):
            raise UnsuitableStrategy(
                f"{type(self.inner).__name__}.start must send all messages of configure_train at "
                "once and once, by grid.send_and_receive(messages)."
            )
        payloads = [by_node[cast(int, node)] for node in chosen.addresses]
        self._ended = self.live.train(chosen, payloads, self._misfits)
        ended = self._ended
        return [
            checked.weighing(self._rules.weight_key, weight)
            for checked, weight in zip(ended.answers, ended.weights, strict=True)
        ]

    def _misfits(self, answers: Sequence[Heard]) -> dict[int, str]:
        needed = tuple(self.session.reports.needed.values())
        sound = [heard.content for heard in answers]
        return self._rules.misfits(sound, sent=self.arrays, needed=needed)

    def _save(self, *, is_evaluated: bool) -> None:
        """Write the checkpoint, if one is wanted."""
        if self.inner_state is None:
            return
        inner, inner_parts = self.inner_state.changed()
        parts: list[Array] = []
        host = {
            "is_evaluated": is_evaluated,
            "model": encode_arrays(self.arrays, parts),
            "inner": inner,
            "counts": [len(parts), len(inner_parts)],
        }
        arrays = {f"model.{i}": part for i, part in enumerate(parts)}
        arrays |= {f"inner.{i}": part for i, part in enumerate(inner_parts)}
        self.keeper.save(host, arrays)

    def _restore(self, saved: Checkpoint) -> None:
        """Take back the model and the inner strategy's state."""
        n_model, n_inner = saved.host["counts"]
        arrays = saved.host_arrays
        if self.inner_state is not None:
            inner_arrays = [arrays[f"inner.{i}"] for i in range(n_inner)]
            self.inner_state.restore(saved.host["inner"], inner_arrays)
        model_parts = [arrays[f"model.{i}"] for i in range(n_model)]
        self.arrays = decode_arrays(saved.host["model"], model_parts)
        self.is_evaluated = saved.host["is_evaluated"]
