"""A Flower strategy that lets a selector choose the nodes and leaves the rest to another strategy.

Flower's own loop runs. Around it: nodes get stable ids, the selector chooses, the round policy says
when a round is over, every chosen node ends as completed, late, failed or silent, and a checkpoint
is written. The inner strategy sees a grid with exactly the chosen nodes, and replies it can use.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from turnout import require
from turnout.bounds import Bounds
from turnout.environments import Environment
from turnout.errors import InvalidInput
from turnout.integrations.flower import inner as within
from turnout.integrations.flower.grid import GridView, LoopGrid, numbering
from turnout.integrations.flower.inner_state import InnerState
from turnout.integrations.flower.run import EvaluateFn, FlowerRun
from turnout.policies import FixedDeadline, RoundPolicy
from turnout.registry import make, name_of
from turnout.roster import Roster
from turnout.selector import Selector
from turnout.session.alerts import AlertRules
from turnout.session.follower import Follower
from turnout.session.guard import Guard
from turnout.session.post import log
from turnout.session.session import LONGEST_S
from turnout.session.settings import Quorum, Settings
from turnout.session.virtual import VirtualWorld
from turnout.session.world import World
from turnout.simulation import Run
from turnout.training.callbacks import Callback

#: Claims are bounded, one answer is enough and alerts are given unless somebody says otherwise.
_BOUNDS, _QUORUM, _ALERTS = Bounds(), Quorum(), AlertRules()


class SelectingStrategy(Strategy):
    """Chooses nodes by a selector; arrays, aggregation and evaluation are the inner strategy's.

    Args:
        inner: A strategy of ``flwr.serverapp.strategy``, for example ``FedAvg()``.
        selector: Who chooses: a selector, or its name.
        cohort_size: How many answers are wanted per round.
        guard: A floor and a cap on what each client gets; None leaves all places to the selector.
        bounds: What is believed of what clients claim; None believes everything.
        policy: When a round ends; None ends it at the timeout of ``start``.
        quorum: How many answers and free clients it takes.
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
        alerts: When it warns; None never does.
        followers: Who is told of every round: ``TensorBoard``, ``Prometheus``, your own.
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
        quorum: Quorum = _QUORUM,
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
        alerts: AlertRules | None = _ALERTS,
        followers: Sequence[Follower | Callback] = (),
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
            cohort_size=cohort_size,
            policy=policy,
            bounds=bounds,
            seed=seed,
            checkpoint=None if checkpoint is None else Path(checkpoint),
            records=None if records is None else Path(records),
            label=label or name_of(type(chooser)).rpartition(":")[2],
            durations=durations,
            metric_keys=dict(metric_keys or {}),
            unidentified=unidentified,
            start_s=start_s,
            wait_for_nodes_s=wait_for_nodes_s,
            ask_s=ask_s,
            late_s=late_s,
            evaluate_s=evaluate_s,
            poll_s=poll_s,
            quorum=quorum,
            alerts=alerts,
            followers=tuple(followers),
        )
        self._given_roster = roster
        self._world = VirtualWorld(world) if isinstance(world, Environment) else world
        chosen = (policy or FixedDeadline()).select_size(cohort_size)
        within.check_numbers(inner, cohort_size, chosen)
        self._inner_state = None if checkpoint is None else InnerState(inner)
        self._own = {
            name: getattr(inner, name) for name in within.HOOKS
        }  # before anybody stands in
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
        """Who is who, by stable id."""
        return self._running.session.members.roster

    @property
    def rounds_done(self) -> int:
        """Rounds that are complete, also those from before a restart."""
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
        """Run, or go on from the checkpoint until ``num_rounds`` rounds are done in total."""
        run = self._open(grid, num_rounds, timeout)
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        configs = {"train_config": train_config, "evaluate_config": evaluate_config}
        loop_grid = LoopGrid(grid, run.exchange)
        with ExitStack() as stack:
            stack.enter_context(run.keeper.running())
            run.begin(initial_arrays, configs)
            if run.offset and not run.is_evaluated:
                self._evaluate_again(run, evaluate_config, loop_grid)
            stack.enter_context(numbering(run.offset, num_rounds))
            loop = super().start
            if type(self.inner).start is not Strategy.start:  # it has a loop of its own
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
            run.finish(result)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the selector choose, and the inner strategy write to the chosen."""
        run = self._running
        nodes = run.choose(arrays, within.first_wait(self.inner, self.settings.cohort_size))
        if not nodes:
            return []
        view = GridView(grid, nodes, lambda: within.refuse_waiting(self.inner))
        with within.taking_everyone(self.inner):
            written = list(self._own["configure_train"](run.round, arrays, config, view))
        messages = {message.metadata.dst_node_id: message for message in written}
        if len(written) != len(nodes) or messages.keys() != set(nodes):
            n_hit = len(messages.keys() & set(nodes))
            within.refuse_sampling(self.inner, len(nodes), len(written), n_hit)
        return run.sending([messages[node] for node in nodes])

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the inner strategy aggregate what can be used, then learn and save."""
        return self._running.close_round(replies, self._own["aggregate_train"])

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the inner strategy evaluate on free nodes, as many as it wants and there are."""
        run = self._running
        if not within.evaluates(self.inner):
            return []
        number, size_of = run.evaluated, partial(within.evaluation_size, self.inner)
        nodes = cast(list[int], run.live.evaluators(number, size_of))
        if not nodes:
            return []
        view = GridView(grid, nodes, lambda: within.refuse_waiting(self.inner))
        with within.taking_everyone(self.inner, evaluate=True):
            made = list(self._own["configure_evaluate"](number, arrays, config, view))
        place = {node: i for i, node in enumerate(nodes)}  # one order, one sum of floats
        return sorted(made, key=lambda one: place.get(one.metadata.dst_node_id, len(nodes)))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the inner strategy aggregate the evaluations that can be used."""
        run = self._running
        usable = run.usable_evaluations(replies)
        metrics = self._own["aggregate_evaluate"](run.evaluated, usable) if usable else None
        run.note_evaluation(metrics)
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
    def _running(self) -> FlowerRun:
        if self._run is None:
            raise InvalidInput(
                "SelectingStrategy has not been started: it must be the outermost strategy, and "
                "its own start(grid=..., ...) must be called. Put DP and other wrappers inside it."
            )
        return self._run

    def _open(self, grid: Grid, num_rounds: int, timeout: float | None) -> FlowerRun:
        limit = LONGEST_S if timeout is None else require.number("timeout", timeout, above=0.0)
        require.integer("num_rounds", num_rounds, minimum=0)
        self._run = FlowerRun(
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
        return self._run

    def _evaluate_again(self, run: FlowerRun, config: ConfigRecord, grid: LoopGrid) -> None:
        """Evaluate the last round's model once more: the run was stopped before that was saved."""
        log.info("evaluating the model of round %d again", run.offset)
        run.live.gather(1)
        messages = self.configure_evaluate(run.offset, run.arrays, config, grid)
        self.aggregate_evaluate(run.offset, grid.send_and_receive(messages))
