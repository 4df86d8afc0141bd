"""A Flower strategy that lets a selector choose the nodes and leaves the rest to another strategy.

Flower's own loop runs. Around it: nodes get stable ids, the selector chooses, the round policy says
when a round is over, every chosen node ends as completed, late, failed or silent, and a checkpoint
is written. The inner strategy sees a grid with exactly the chosen nodes, and replies it can use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from turnout import require
from turnout.bounds import Bounds
from turnout.environments import Environment
from turnout.errors import InvalidInput
from turnout.integrations.flower import inner as within
from turnout.integrations.flower.base import World
from turnout.integrations.flower.grid import LoopGrid
from turnout.integrations.flower.guard import Guard
from turnout.integrations.flower.inner_state import InnerState
from turnout.integrations.flower.mailbox import log
from turnout.integrations.flower.session import Session
from turnout.integrations.flower.settings import Settings
from turnout.integrations.flower.world import VirtualWorld
from turnout.policies import FixedDeadline, RoundPolicy
from turnout.registry import make, name_of
from turnout.roster import Roster
from turnout.selector import Selector
from turnout.simulation import Run

__all__ = ["SelectingStrategy"]

#: Seconds of a round if neither the policy nor ``start`` sets a limit.
_LONGEST_S = 3600.0
#: What clients claim is bounded unless somebody says otherwise; each run has its own copy.
_BOUNDS = Bounds()

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class SelectingStrategy(Strategy):
    """Chooses nodes by a selector; arrays, aggregation and evaluation are the inner strategy's.

    Args:
        inner: A strategy of ``flwr.serverapp.strategy``, for example ``FedAvg()``.
        selector: Who chooses: a selector, or its name.
        cohort_size: How many answers are wanted per round.
        guard: A floor and a cap on what each client gets; None leaves all places to the selector.
        bounds: What is believed of what clients claim; None believes everything.
        policy: When a round ends; None ends it at the timeout of ``start``.
        seed: The seed of the selection, from 0.
        roster: Clients of an earlier run; None starts with none.
        checkpoint: A file that is written after each round; ``start`` goes on from it.
        records: A folder for ``turnout report``.
        label: The name of this run in the report; None takes the selector's.
        world: Simulates time, availability and failures; None takes them as they are.
        durations: Whose seconds the selector sees: as measured here, or as clients report them.
        metric_keys: The key of a metric in the replies, by the metric's name, if it is your own.
        unidentified: Nodes that do not say who they are go by their node id, or are excluded.
        start_s: Seconds that the first round waits for enough nodes.
        wait_for_nodes_s: Seconds that later rounds wait for them.
        ask_s: Seconds that a question to clients takes at most.
        late_s: Seconds after the deadline that a late node may stay busy; None: as many as before.
        evaluate_s: Seconds that evaluation by clients takes at most; None takes those of training.
        poll_s: Seconds between two looks for replies.
    """

    def __init__(
        self,
        inner: Strategy,
        selector: Selector | str,
        *,
        cohort_size: int,
        guard: Guard | None = None,
        bounds: Bounds | None = _BOUNDS,
        policy: RoundPolicy | None = None,
        seed: int = 0,
        roster: Roster | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        records: str | os.PathLike[str] | None = None,
        label: str | None = None,
        world: World | Environment | None = None,
        durations: Literal["server", "client"] = "server",
        metric_keys: Mapping[str, str] | None = None,
        unidentified: Literal["node-id", "exclude"] = "node-id",
        start_s: float = 300.0,
        wait_for_nodes_s: float = 60.0,
        ask_s: float = 30.0,
        late_s: float | None = None,
        evaluate_s: float | None = None,
        poll_s: float = 0.1,
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
        self.inner = inner
        chooser = make(selector) if isinstance(selector, str) else selector
        self.selector = chooser if guard is None else guard.around(chooser)
        self.settings = Settings(
            cohort_size=require.integer("cohort_size", cohort_size, minimum=1),
            policy=policy,
            bounds=bounds,
            seed=require.integer("seed", seed, minimum=0),
            checkpoint=None if checkpoint is None else Path(checkpoint),
            records=None if records is None else Path(records),
            label=label or name_of(type(chooser)).rpartition(":")[2],
            durations=require.choice("durations", durations, ("server", "client")),
            metric_keys=dict(metric_keys or {}),
            unidentified=require.choice("unidentified", unidentified, ("node-id", "exclude")),
            start_s=require.number("start_s", start_s, minimum=0.0),
            wait_for_nodes_s=require.number("wait_for_nodes_s", wait_for_nodes_s, minimum=0.0),
            ask_s=require.number("ask_s", ask_s, above=0.0),
            late_s=None if late_s is None else require.number("late_s", late_s, minimum=0.0),
            evaluate_s=None
            if evaluate_s is None
            else require.number("evaluate_s", evaluate_s, above=0.0),
            poll_s=require.number("poll_s", poll_s, above=0.0),
        )
        self._given_roster = roster
        self._world = VirtualWorld(world) if isinstance(world, Environment) else world
        chosen = (policy or FixedDeadline()).select_size(cohort_size)
        within.check_numbers(inner, cohort_size, chosen)
        self._inner_state = None if checkpoint is None else InnerState(inner)
        self._own = {name: getattr(inner, name) for name in _HOOKS}  # before anybody stands in
        self._session: Session | None = None

    @property
    def run(self) -> Run:
        """The rounds so far, in columns."""
        return self._running.journal.run

    @property
    def roster(self) -> Roster:
        """Who is who, by stable id."""
        return self._running.members.roster

    @property
    def rounds_done(self) -> int:
        """Rounds that are complete, also those from before a restart."""
        return 0 if self._session is None else self._session.journal.n_rounds

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = _LONGEST_S,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
        **more: Any,
    ) -> Result:
        """Run, or go on from the checkpoint until ``num_rounds`` rounds are done in total."""
        session = self._open(grid, num_rounds, timeout)
        session.begin(initial_arrays)
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        loop_grid = LoopGrid(grid, session.exchange)
        if session.offset and not session.is_evaluated:
            self._evaluate_again(session, evaluate_config, loop_grid)
        with ExitStack() as stack:
            loop = super().start
            if type(self.inner).start is not Strategy.start:  # it has a loop of its own
                loop = self._standing_in(stack)
            result = loop(
                grid=loop_grid,
                initial_arrays=session.arrays,
                num_rounds=max(0, num_rounds - session.offset),
                timeout=timeout,
                train_config=train_config,
                evaluate_config=evaluate_config,
                evaluate_fn=None if evaluate_fn is None else session.watched(evaluate_fn),
                **more,
            )
        session.finish()
        if isinstance(result, Result):
            session.journal.complete(result)
            result.arrays = result.arrays or session.arrays
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the selector choose, and the inner strategy write to the chosen."""
        session = self._running
        nodes = session.choose(arrays, within.first_wait(self.inner, self.settings.cohort_size))
        if not nodes:
            return []
        view = session.view(nodes, lambda: within.refuse_waiting(self.inner))
        with within.taking_everyone(self.inner):
            written = list(self._own["configure_train"](session.round, arrays, config, view))
        messages = {message.metadata.dst_node_id: message for message in written}
        if len(written) != len(nodes) or messages.keys() != set(nodes):
            n_hit = len(messages.keys() & set(nodes))
            within.refuse_sampling(self.inner, len(nodes), len(written), n_hit)
        return session.sending([messages[node] for node in nodes])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate what can be used, then learn and save."""
        session = self._running
        usable = session.received(replies)
        aggregate = self._own["aggregate_train"]
        arrays, metrics = aggregate(session.round, usable) if usable else (None, None)
        session.close_round(arrays, metrics)
        return arrays, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy evaluate on free nodes, as many as it wants and there are."""
        session = self._running
        if not within.evaluates(self.inner):
            return []
        nodes = session.evaluators(lambda n: within.evaluation_size(self.inner, n))
        if not nodes:
            return []
        view = session.view(nodes, lambda: within.refuse_waiting(self.inner))
        with within.taking_everyone(self.inner, evaluate=True):
            made = list(self._own["configure_evaluate"](session.evaluated, arrays, config, view))
        place = {node: i for i, node in enumerate(nodes)}  # one order, one sum of floats
        return sorted(made, key=lambda one: place.get(one.metadata.dst_node_id, len(nodes)))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the inner strategy aggregate the evaluations that can be used."""
        session = self._running
        usable = session.usable_evaluations(replies)
        metrics = self._own["aggregate_evaluate"](session.evaluated, usable) if usable else None
        session.note_evaluation(metrics)
        return metrics

    def summary(self) -> None:
        """Log who chooses and how rounds end, then the inner strategy's summary."""
        log.info("\t├──> Selection:")
        log.info("\t│\t├── Selector: %r", self.selector)
        log.info("\t│\t├── Cohort size: %d", self.settings.cohort_size)
        log.info("\t│\t├── Round policy: %r", self.settings.policy)
        log.info("\t│\t└── Inner strategy: %s", within.name_of(self.inner))
        self._own["summary"]()

    @property
    def _running(self) -> Session:
        if self._session is None:
            raise InvalidInput(
                "SelectingStrategy has not been started: it must be the outermost strategy, and "
                "its own start(grid=..., ...) must be called. Put DP and other wrappers inside it."
            )
        return self._session

    def _open(self, grid: Grid, num_rounds: int, timeout: float | None) -> Session:
        limit = _LONGEST_S if timeout is None else require.number("timeout", timeout, above=0.0)
        require.integer("num_rounds", num_rounds, minimum=0)
        self._session = Session(
            self.settings,
            self.inner,
            self.selector,
            grid,
            roster=self._given_roster,
            world=self._world,
            limit_s=limit,
            n_rounds=num_rounds,
            inner_state=self._inner_state,
        )
        return self._session

    def _evaluate_again(self, session: Session, config: ConfigRecord, grid: LoopGrid) -> None:
        """Evaluate the last round's model once more: the run was stopped before that was saved."""
        log.info("evaluating the model of round %d again", session.offset)
        session.rounds.gather(1)
        messages = self.configure_evaluate(session.offset, session.arrays, config, grid)
        self.aggregate_evaluate(session.offset, grid.send_and_receive(messages))

    def _standing_in(self, stack: ExitStack) -> Callable[..., Any]:
        """Put our hooks in the place of the inner strategy's, and return its own loop."""
        own = vars(self.inner)
        for name in _HOOKS:
            if name in own:
                stack.callback(own.__setitem__, name, own[name])
            else:
                stack.callback(own.pop, name)
            own[name] = getattr(self, name)
        loop: Callable[..., Any] = self.inner.start
        return loop


#: What Flower's loop calls on a strategy.
_HOOKS = (
    "configure_train",
    "aggregate_train",
    "configure_evaluate",
    "aggregate_evaluate",
    "summary",
)
