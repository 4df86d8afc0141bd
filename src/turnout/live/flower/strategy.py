"""A Flower strategy that lets a selector choose the nodes and leaves the rest to another strategy.

Flower's own loop runs. Around it, nodes get stable ids, the selector chooses, and the round policy
says when a round is over. Every chosen node ends as completed, late, failed or silent, and a
checkpoint is written. The inner strategy sees a grid with exactly the chosen nodes, and only
replies that it can use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, cast

import flwr
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore.logger import FLOWER_LOGGER

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.roster import Roster
from turnout.core.selector import Selector
from turnout.core.types import Array, Status
from turnout.experiment import Run
from turnout.experiment.codec import encode
from turnout.live.checkpoint import Checkpoint
from turnout.live.driver import HostRun, Live
from turnout.live.flower import inner as within
from turnout.live.flower.inner import (
    GridView,
    InnerState,
    LoopGrid,
    UnsuitableStrategy,
    decode_arrays,
    encode_arrays,
    numbering,
)
from turnout.live.flower.stale import StaleSteps, check_overlap, unlike_their_models
from turnout.live.flower.transport import (
    FlowerHints,
    FlowerPort,
    ReplyRules,
    form_of_arrays,
    is_training,
    mark_training,
)
from turnout.live.flower.weighing import Weighing, rule_of
from turnout.live.overlap import OverlappingSession
from turnout.live.round import BY_CLIENTS, BY_SERVER, HISTORIES, ClosedRound
from turnout.live.session import Session
from turnout.live.settings import LONGEST_S, LiveSettings
from turnout.live.transport import Address, Port, Reply, log
from turnout.live.virtual import VirtualLive
from turnout.live.world import VirtualWorld
from turnout.training import Aggregation
from turnout.training.aggregate import Answered
from turnout.worlds import Environment, FixedDeadline, RoundPolicy

log.parent = FLOWER_LOGGER  # a session logs like Flower itself

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class SelectingStrategy(Strategy):
    """Selects nodes by a selector; arrays, aggregation and evaluation are the inner strategy's.

    The first five settings are also plain arguments. Every other setting may be given in
    ``settings`` or by its name: ``SelectingStrategy(..., quorum=Quorum(min_answers=3))``.

    Args:
        inner: A strategy of ``flwr.serverapp.strategy``, for example ``FedAvg()``.
        selector: A selector, or its name.
        cohort_size: How many answers a round should get.
        policy: When a round ends; None ends it at the timeout of ``start``.
        seed: The seed of the selection, from 0.
        checkpoint: A file that is written after each round; ``start`` resumes from it.
        records: A folder for ``turnout report``.
        settings: All settings of the run; arguments replace single ones.
        roster: Clients of an earlier run; None starts with none.
        world: Simulates time, availability and failures; None uses the real ones.
        aggregation: A rule of ``turnout.training`` that weighs replies by who took part, such as
            ``OnlineWeights()`` or ``"online-weights"``; None leaves weights to the inner strategy.
        **options: Other fields of ``turnout.live.LiveSettings``, by name.
    """

    def __init__(
        self,
        inner: Strategy,
        selector: Selector | str,
        *,
        cohort_size: int,
        policy: RoundPolicy | None = None,
        seed: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        records: str | os.PathLike[str] | None = None,
        settings: LiveSettings | None = None,
        roster: Roster | None = None,
        world: VirtualWorld | Environment | None = None,
        aggregation: Aggregation | str | Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(inner, Strategy) or isinstance(inner, SelectingStrategy):
            raise InvalidInput(
                f"inner must be a strategy of flwr.serverapp.strategy, got {inner!r}; the older "
                "ones of flwr.server.strategy cannot be wrapped.",
                field="inner",
            )
        if world is not None and roster is not None:
            raise InvalidInput(
                "roster and world exclude each other: the world has its own ids.", field="roster"
            )
        plain = {"policy": policy, "seed": seed, "checkpoint": checkpoint, "records": records}
        options |= {name: value for name, value in plain.items() if value is not None}
        given = LiveSettings.of({"cohort_size": cohort_size, **options}, settings)
        self.inner = inner
        self.settings, self.selector = given.for_selector(selector)
        self._given_roster = roster
        self._world = VirtualWorld(world) if isinstance(world, Environment) else world
        if self.settings.overlaps:
            check_overlap(inner, self.settings.schedule)
        size = self.settings.answers
        chosen = (self.settings.policy or FixedDeadline()).select_size(size)
        within.check_numbers(inner, size, chosen, self.settings.quorum.min_answers)
        self.aggregation = None
        if aggregation is not None:
            self.aggregation = rule_of(aggregation, inner, self.selector, self.settings)
        self._inner_state = None if self.settings.checkpoint is None else InnerState(inner)
        # The hooks of the inner strategy, before others stand in for them.
        self._own = {name: getattr(inner, name) for name in within.HOOKS}
        self._run: FlowerRun | None = None

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the inner strategy that this one does not have."""
        if "inner" not in vars(self) or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.inner, name)

    @property
    def run(self) -> Run:
        """The rounds so far, in columns."""
        return self._running.journal.run

    @property
    def roster(self) -> Roster:
        """The clients, by stable id."""
        return self._running.session.roster

    @property
    def rounds_done(self) -> int:
        """Rounds that are complete, including those before a restart."""
        return 0 if self._run is None else self._run.journal.n_rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = LONGEST_S,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **more: Any,
    ) -> Result:
        """Run, or resume from the checkpoint, until ``num_rounds`` rounds are done in total."""
        limit = self.settings.limit_s
        if timeout is not None:
            require.number("timeout", timeout, above=0.0)
            # The default of limit_s must not cut a longer timeout short.
            limit = timeout if limit == LONGEST_S else min(timeout, limit)
        require.integer("num_rounds", num_rounds, minimum=0)
        kind = OverlappingFlowerRun if self.settings.overlaps else FlowerRun
        self._run = run = kind(self, grid, limit, num_rounds)
        run.arrays = initial_arrays
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        configs = {"train_config": train_config, "evaluate_config": evaluate_config}
        loop_grid = cast(Grid, LoopGrid(grid, run.exchange))
        with ExitStack() as stack:
            stack.enter_context(run.running())
            if self._inner_state is not None:
                for name, config in configs.items():
                    self._inner_state.watch(name, config)
            form = [[key, list(shape), kind] for key, shape, kind in form_of_arrays(initial_arrays)]
            belongs_to = {"strategy": within.name_of(self.inner), "model": form}
            rule = None if self.aggregation is None else encode(self.aggregation)
            run.offset = run.resume({**belongs_to, "aggregation": rule})
            if run.offset and not run.is_evaluated:
                self._evaluate_again(run, evaluate_config, loop_grid)
            renumber = numbering(run.offset, num_rounds)
            FLOWER_LOGGER.addFilter(renumber)
            stack.callback(FLOWER_LOGGER.removeFilter, renumber)
            loop = super().start
            if type(self.inner).start is not Strategy.start:  # it has its own loop
                hooks = {name: getattr(self, name) for name in within.HOOKS}
                loop = stack.enter_context(within.standing_in(self.inner, hooks))
            result = loop(
                grid=loop_grid,
                initial_arrays=run.arrays,
                num_rounds=max(0, num_rounds - run.offset),
                timeout=timeout,
                **configs,
                evaluate_fn=None if evaluate_fn is None else run.watched(evaluate_fn),
                **more,
            )
            run.complete(result)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the selector choose, and the inner strategy write to the chosen."""
        run = self._running
        run.arrays, n_wanted = arrays, self.settings.answers
        if self._world is not None:
            n_wanted = len(self._world.ids)
        elif not run.journal.n_rounds:
            n_wanted = max(n_wanted, int(within.setting(self.inner, "min_available_nodes", 0)))
        nodes = run.begin_round(n_wanted, arrays, config, grid)
        return run.written(nodes, run.journal.n_rounds + 1, arrays, config, grid) if nodes else []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate the usable replies, then save the round."""
        run = self._running
        if run.session.is_open:
            raise UnsuitableStrategy(
                f"{type(self.inner).__name__}.start must send the messages of configure_train by "
                "grid.send_and_receive(messages): deadlines and outcomes depend on it."
            )
        usable, aggregate = list(replies), self._own["aggregate_train"]
        if run.result is None:  # nothing was sent
            usable = run.play_unsent()
        with run.spans.part("aggregate"):
            number = run.journal.n_rounds
            run.weigh()
            arrays, metrics = aggregate(number, usable) if usable else (None, None)
        run.arrays = run.arrays if arrays is None else arrays
        run.is_evaluated = False
        run.end_round(metrics)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy evaluate on free nodes, as many as it wants and there are."""
        run = self._running
        if within.setting(self.inner, "fraction_evaluate", 1.0) == 0.0:
            return []
        number, size_of = run.journal.n_rounds, partial(within.evaluation_size, self.inner)
        nodes = cast(list[int], run.live.evaluators(number, size_of))
        if not nodes:
            return []
        view = GridView(grid, nodes, self.inner)
        with within.taking_everyone(self.inner, evaluate=True):
            made = list(self._own["configure_evaluate"](number, arrays, config, view))
        place = {node: i for i, node in enumerate(nodes)}  # one order, one sum of floats
        return sorted(made, key=lambda one: place.get(one.metadata.dst_node_id, len(nodes)))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the inner strategy aggregate the evaluations that can be used."""
        run = self._running
        sound = [message for message in replies if not message.has_error()]
        checked = [run.rules.check(message, train=False) for message in sound]
        fit = [reply for reply in checked if reply.reason is None]
        rejected = run.rules.rejected(fit, sent=None, needed=())
        for fault in [reply.reason for reply in checked if reply.reason] + [*rejected.values()]:
            log.warning("an evaluation was dropped, %s", fault)
        usable = [reply.content for i, reply in enumerate(fit) if i not in rejected]
        number = run.journal.n_rounds
        metrics = self._own["aggregate_evaluate"](number, usable) if usable else None
        if run.journal.note(BY_CLIENTS, number, metrics):
            run.write()
        return metrics

    def summary(self) -> None:
        """Log the selector and the round policy, then the inner strategy's summary."""
        log.info("\t├──> Selection:")
        log.info("\t│\t├── Selector: %r", self.selector)
        log.info("\t│\t├── Cohort size: %d", self.settings.cohort_size)
        log.info("\t│\t├── Round policy: %r", self.settings.policy)
        if self.settings.overlaps:
            log.info("\t│\t├── Schedule: %r", self.settings.schedule)
        if self.aggregation is not None:
            log.info("\t│\t├── Aggregation: %r", self.aggregation)
        log.info("\t│\t└── Inner strategy: %s", within.name_of(self.inner))
        self._own["summary"]()

    @property
    def _running(self) -> FlowerRun:
        if self._run is None:
            raise InvalidInput(
                "SelectingStrategy has not been started: it must be the outermost strategy, and "
                "its own start(grid=..., ...) must be called. Put DP and other wrappers inside it."
            )
        return self._run

    def _evaluate_again(self, run: FlowerRun, config: ConfigRecord, grid: Grid) -> None:
        """Evaluate the model of the last round: the run was stopped before the result was saved."""
        log.info("evaluating the model of round %d again", run.offset)
        run.live.gather(1)
        messages = self.configure_evaluate(run.offset, run.arrays, config, grid)
        self.aggregate_evaluate(run.offset, grid.send_and_receive(messages))


class FlowerRun(HostRun):
    """One call of ``start``: what the strategy's hooks call, in Flower's order.

    Args:
        strategy: The strategy that was started.
        grid: Flower's grid.
        limit_s: Seconds after which a round ends at the latest.
        n_rounds: Rounds in total.
    """

    #: What chooses and learns.
    session_kind: type[Session] = Session

    def __init__(
        self, strategy: SelectingStrategy, grid: Grid, limit_s: float, n_rounds: int
    ) -> None:
        self._inner, self._inner_state = strategy.inner, strategy._inner_state
        self._own = strategy._own
        self.arrays = ArrayRecord()  #: the model
        self.offset = 0  #: rounds that were done before
        self.is_evaluated = True  #: whether the last of them was evaluated
        self.rules = ReplyRules.of(strategy.inner)
        rule = strategy.aggregation
        self._weighing = None if rule is None else Weighing(rule)
        session = self.session_kind(
            replace(strategy.settings, limit_s=limit_s),
            strategy.selector,
            roster=strategy._given_roster,
            world=strategy._world,
            weight_key=self.rules.weight_key,
            counts_once=self.rules.counts_once,
            hints=FlowerHints(),
        )
        self.port = FlowerPort(grid, self.rules)
        super().__init__(session, self.port, "flower", n_rounds, {"flwr": flwr.__version__})

    def begin_round(
        self, n_wanted: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[int, ...]:
        """Return the nodes that get work at the start of a round.

        Args:
            n_wanted: Clients that should be connected.
            arrays: The model.
            config: What goes with it.
            grid: Flower's grid.
        """
        return cast(tuple[int, ...], self.choose(n_wanted, arrays))

    def written(
        self,
        nodes: Sequence[int],
        number: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Grid,
    ) -> list[Message]:
        """Let the inner strategy write to nodes; return the messages in their order.

        Args:
            nodes: The nodes.
            number: The round, counted from 1.
            arrays: The model that they get.
            config: What goes with it.
            grid: Flower's grid.
        """
        inner, view = self._inner, GridView(grid, nodes, self._inner)
        with within.taking_everyone(inner):
            written = list(self._own["configure_train"](number, arrays, config, view))
        messages = {message.metadata.dst_node_id: message for message in written}
        if len(written) != len(nodes) or messages.keys() != set(nodes):
            raise UnsuitableStrategy(
                f"{within.name_of(inner)} samples by itself: {len(nodes)} nodes were chosen, "
                f"and it wrote {len(written)} messages, to {len(messages.keys() & set(nodes))} of "
                f"them. Look at {within.sampling_settings(inner)}: configure_train must write "
                "one message to every node that grid.get_node_ids() shows."
            )
        ordered = [messages[node] for node in nodes]
        mark_training(ordered)
        return ordered

    def play_unsent(self) -> list[Message]:
        """Play a round for which Flower's loop has sent nothing; return the replies that count."""
        self.train(())
        return []

    def weigh(self) -> None:
        """Put the model of the rule into the replies, if there is a rule, and let it learn."""
        weighing, result, cohort = self._weighing, self.result, self.cohort
        if weighing is None or result is None or cohort is None:
            return
        roster = self.session.roster
        replies = {id(reply): reply for reply in result.answers}  # each once
        if replies:
            weights = dict(zip(map(id, result.answers), result.weights, strict=True))
            used = np.flatnonzero(result.closed.status == Status.COMPLETED)
            chance = cohort.probability
            answered = Answered(
                np.array([roster.index_of(result.ids[i]) for i in used]),
                np.array(list(weights.values())),
                None if chance is None else chance[used],
                np.array(cohort.times)[used],
                self.session.sizes(),
            )
            weighing.combine(self.arrays, list(replies.values()), answered)
        weighing.end_round(self.arrays, len(roster))

    def exchange(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Send what Flower's loop wants to send, and return the replies that count."""
        work = [message for message in messages if is_training(message)]
        replies = self._train(work) if work else []
        others = [message for message in messages if not is_training(message)]
        if others:
            settings, limit = self.session.settings, self.session.settings.limit_s
            if self.session.world is None:  # its deadlines are not on the wall clock
                limit = min(self.session.engine.terms()[1], limit)
            seconds = settings.evaluate_s or limit
            nodes = [message.metadata.dst_node_id for message in others]
            answers = self.live.exchange(nodes, others, seconds)
            contents = [answers[node].content for node in nodes if node in answers]
            replies += [content for content in contents if content is not None]
        return replies

    def watched(self, evaluate_fn: EvaluateFn) -> EvaluateFn:
        """Return the server's evaluation with stored results and rounds counted from the start.

        After a restart, Flower's loop evaluates the first model as always. That is the model of the
        last round, which is evaluated again only if its result was not saved.
        """
        is_done = self.is_evaluated

        def evaluate(loop_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            server_round = loop_round + self.offset
            if self.offset and loop_round == 0 and is_done:
                saved = self.journal.metrics[BY_SERVER].get(server_round)
                return None if saved is None else MetricRecord(dict(saved))
            metrics = evaluate_fn(server_round, arrays)
            if self.journal.note(BY_SERVER, server_round, metrics) and server_round:
                self.write()
            return metrics

        return evaluate

    def complete(self, result: Any) -> None:
        """Write the end of the run, and put all rounds into Flower's result."""
        if not self.is_evaluated:
            self.is_evaluated = True
            self.save()
        self.finish()
        if isinstance(result, Result):
            for name in HISTORIES:
                rounds = sorted(self.journal.metrics[name].items())
                setattr(result, name, {t: MetricRecord(dict(metrics)) for t, metrics in rounds})
            result.arrays = result.arrays or self.arrays

    def saved_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the model, the state of the inner strategy, and whether it was evaluated."""
        inner, inner_parts = self._inner_state.changed() if self._inner_state else ({}, [])
        parts: list[Array] = []
        host = {
            "is_evaluated": self.is_evaluated,
            "model": encode_arrays(self.arrays, parts),
            "inner": inner,
            "counts": [len(parts), len(inner_parts)],
        }
        arrays = {f"model.{i}": part for i, part in enumerate(parts)}
        arrays |= {} if self._weighing is None else self._weighing.state()
        return host, arrays | {f"inner.{i}": part for i, part in enumerate(inner_parts)}

    def restore(self, saved: Checkpoint) -> None:
        """Continue with the saved model and the saved state of the inner strategy."""
        n_model, n_inner = saved.host["counts"]
        arrays = saved.host_arrays
        if self._inner_state is not None:
            inner_arrays = [arrays[f"inner.{i}"] for i in range(n_inner)]
            self._inner_state.restore(saved.host["inner"], inner_arrays)
        if self._weighing is not None:
            self._weighing.load_state(arrays)
        model_parts = [arrays[f"model.{i}"] for i in range(n_model)]
        self.arrays = decode_arrays(saved.host["model"], model_parts)
        self.is_evaluated = saved.host["is_evaluated"]

    def _train(self, messages: list[Message]) -> list[Message]:
        cohort = self.cohort
        by_node = {message.metadata.dst_node_id: message for message in messages}
        if cohort is None or not self.session.is_open or by_node.keys() != set(cohort.addresses):
            raise UnsuitableStrategy(
                f"{type(self._inner).__name__}.start must send all messages of configure_train at "
                "once and once, by grid.send_and_receive(messages)."
            )
        payloads = [by_node[cast(int, node)] for node in cohort.addresses]
        self.port.model = self.arrays
        return self._believed(self.train(payloads, self._unfit))

    def _believed(self, result: ClosedRound) -> list[Message]:
        """Return the replies that count, with the weights that are believed."""
        answers = zip(result.answers, result.weights, strict=True)
        return [self.rules.weighted(message, weight) for message, weight in answers]

    def _unfit(
        self, replies: Sequence[Reply], models: Sequence[ArrayRecord] = ()
    ) -> dict[int, str]:
        """Return which replies of a round cannot be aggregated, by position, and why.

        Args:
            replies: The replies.
            models: The model that the client of each got; empty: the present one.
        """
        needed = self.session.reports.required
        faults = self.rules.rejected(replies, sent=self.arrays, needed=needed)
        if self._weighing is None and not models:
            return faults
        return unlike_their_models(replies, models or [self.arrays] * len(replies), faults)


class OverlappingFlowerRun(FlowerRun):
    """A run whose rounds overlap: nodes get work and reply at any time.

    Flower's loop still calls its hooks once a round. ``configure_train`` returns no messages: the
    round is played when the loop calls ``send_and_receive``. The inner strategy writes the messages
    whenever places are free, so it may write several times in a round, or not at all.
    """

    session: OverlappingSession
    session_kind = OverlappingSession

    def __init__(
        self, strategy: SelectingStrategy, grid: Grid, limit_s: float, n_rounds: int
    ) -> None:
        super().__init__(strategy, grid, limit_s, n_rounds)
        self._grid, self._train_config = grid, ConfigRecord()
        self._models: dict[int, ArrayRecord] = {}  # by version, while clients work on them
        self._train_configured = -1  # the version with which the inner strategy was called last
        self._is_due = False  # whether a round is to be played

    def begin_round(
        self, n_wanted: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[int, ...]:
        """Keep the model, and wait for clients before the first round; no node gets work yet."""
        session, flights = self.session, self.session.flights
        self.result, self._is_due, self._train_config = None, True, config
        known = self._models | {flights.version: arrays}
        self._models = {version: known[version] for version in sorted(flights.versions)}
        self.live.gather(max(n_wanted, session.places()))
        return ()

    def play_unsent(self) -> list[Message]:
        """Play the round: the strategy's own loop has not called ``send_and_receive``."""
        return self._play()

    def exchange(self, messages: list[Message], timeout: float | None) -> list[Message]:
        """Play the round, or evaluate."""
        return self._play() if self._is_due else super().exchange(messages, timeout)

    def saved_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return also the models of earlier versions that clients work on."""
        host, arrays = super().saved_state()
        parts: list[Array] = []
        used = self.session.flights.versions - {self.session.version}
        host["kept"] = [[v, encode_arrays(self._models[v], parts)] for v in sorted(used)]
        return host, arrays | {f"kept.{i}": part for i, part in enumerate(parts)}

    def restore(self, saved: Checkpoint) -> None:
        """Continue also with the models of earlier versions."""
        super().restore(saved)
        named = {name: x for name, x in saved.host_arrays.items() if name.startswith("kept.")}
        parts = [named[f"kept.{i}"] for i in range(len(named))]
        self._models = {v: decode_arrays(table, parts) for v, table in saved.host["kept"]}

    def _play(self) -> list[Message]:
        self._is_due = False
        version, present = self.session.version, self.arrays
        result = self.play(
            self._write,
            present,
            lambda replies, versions: self._unfit(replies, [self._models[v] for v in versions]),
        )
        taken = result.taken
        if self._train_configured != version:  # strategies remember the model that they wrote last
            self.written((), version + 1, present, self._train_config, self._grid)
            self._train_configured = version
        if taken is None or not result.answers:
            return []
        messages = self._believed(result)
        bases = [self._models[number] for number in taken.versions.tolist()]
        return StaleSteps(present, bases, taken, np.array(result.weights)).rewrite(messages)

    def _write(self, addresses: Sequence[Address], version: int) -> list[Message]:
        """Return the work of nodes on the model of a version."""
        self.port.model, self._train_configured = self._models[version], version
        nodes = cast(Sequence[int], addresses)
        number, config = version + 1, self._train_config
        messages = self.written(nodes, number, self.port.model, config, self._grid)
        for content in {id(one.content): one.content for one in messages}.values():
            for name, record in content.config_records.items():
                # The strategy changes the record for the next choice, while this one is on its way.
                content[name] = ConfigRecord(dict(record))
        return messages

    def _driver(self, port: Port) -> Live:
        if self.session.world is None:
            return super()._driver(port)
        return VirtualLive(self.session, port, self._records)
