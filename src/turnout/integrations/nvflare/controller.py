"""NVFlare's FedAvg with a selector in place of ``sample_clients``.

FedAvg's own loop runs. A round is ``sample_clients``, in which the selector chooses, and
``send_model``, which waits as long as the round policy says and hands on what can be aggregated.
Every chosen client ends as completed, late, failed or silent, and a checkpoint is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg

from turnout import require
from turnout.bounds import Bounds
from turnout.errors import InvalidInput
from turnout.experiment.variants import Variant
from turnout.integrations.nvflare import arguments, replies
from turnout.integrations.nvflare.port import Aborted
from turnout.integrations.nvflare.run import NvflareRun
from turnout.policies import RoundPolicy
from turnout.session.alerts import AlertRules
from turnout.session.guard import Guard
from turnout.session.session import LONGEST_S
from turnout.session.settings import Quorum


class SelectingFedAvg(FedAvg):
    """Chooses clients by a selector; the model, aggregation and early stopping are FedAvg's.

    Every argument may also be a table, which is how it stands in an exported job.

    Args:
        selector: The name of who chooses, or ``"package.module:Class"``.
        cohort_size: How many answers are wanted per round.
        num_rounds: Rounds in total, also after a restart.
        parameters: The selector's parameters.
        guard: A floor and a cap on what each client gets; None leaves all places to the selector.
        bounds: What is believed of what clients claim; False believes everything.
        policy: When a round ends; None ends it after ``limit_s``.
        quorum: How many answers and free clients it takes; None: one.
        seed: The seed of the selection, from 0.
        checkpoint: A file on the server, written after each round; a new job goes on from it.
        records: A folder on the server for ``turnout report``.
        label: The name of this run in the report; None takes the selector's.
        durations: Whose seconds the selector sees: as measured here, or as clients report them.
        metric_keys: The key of a metric in the replies, by the metric's name, if it is your own.
        limit_s: Seconds after which a round ends at the latest.
        start_s: Seconds that the first round waits for enough clients.
        wait_for_clients_s: Seconds that later rounds wait for them.
        ask_s: Seconds that a question to clients takes at most.
        late_s: Seconds after the deadline that a late client may stay busy; None: as many as it.
        poll_s: Seconds between two looks for results.
        alerts: When it warns; False never does.
        followers: Ids of components that are told of every round: ``TensorBoard``, ``Prometheus``,
            your own.
        start_round: The number of the first round, as clients see it.
        persistor_id: As in FedAvg.
        model: As in FedAvg.
        save_filename: As in FedAvg.
        aggregator: As in FedAvg; its own state is not in the checkpoint.
        stop_cond: As in FedAvg.
        patience: As in FedAvg.
        task_name: As in FedAvg; our questions travel under the same name.
        exclude_vars: As in FedAvg.
        aggregation_weights: As in FedAvg.
        fedprox_mu: As in FedAvg.
        memory_gc_rounds: As in FedAvg.
        allow_empty_global_weights: As in FedAvg.
        task_check_period: As in FedAvg.
    """

    model: Any

    def __init__(
        self,
        selector: str,
        *,
        cohort_size: int,
        num_rounds: int = 5,
        parameters: Mapping[str, Any] | None = None,
        guard: Guard | Mapping[str, Any] | None = None,
        bounds: Bounds | Mapping[str, Any] | bool = True,
        policy: RoundPolicy | Mapping[str, Any] | str | None = None,
        quorum: Quorum | Mapping[str, Any] | None = None,
        seed: int = 0,
        checkpoint: str | os.PathLike[str] | None = None,
        records: str | os.PathLike[str] | None = None,
        label: str | None = None,
        durations: Literal["server", "client"] = "server",
        metric_keys: Mapping[str, str] | None = None,
        limit_s: float = LONGEST_S,
        start_s: float = 300.0,
        wait_for_clients_s: float = 60.0,
        ask_s: float = 30.0,
        late_s: float | None = None,
        poll_s: float = 0.1,
        alerts: AlertRules | Mapping[str, Any] | bool = True,
        followers: Sequence[str] = (),
        start_round: int = 0,
        persistor_id: str = AppConstants.DEFAULT_PERSISTOR_ID,
        model: dict[str, Any] | FLModel | None = None,
        save_filename: str | None = "FL_global_model.pt",
        aggregator: ModelAggregator | None = None,
        stop_cond: str | None = None,
        patience: int | None = None,
        task_name: str = AppConstants.TASK_TRAIN,
        exclude_vars: str | None = None,
        aggregation_weights: dict[str, float] | None = None,
        fedprox_mu: float | None = None,
        memory_gc_rounds: int = 0,
        allow_empty_global_weights: bool = False,
        task_check_period: float = 0.5,
    ) -> None:
        super().__init__(
            num_clients=cohort_size,
            num_rounds=num_rounds,
            start_round=start_round,
            persistor_id=persistor_id,
            model=model,
            save_filename=save_filename,
            aggregator=aggregator,
            stop_cond=stop_cond,
            patience=patience,
            task_name=task_name,
            exclude_vars=exclude_vars,
            aggregation_weights=aggregation_weights,
            fedprox_mu=fedprox_mu,
            memory_gc_rounds=memory_gc_rounds,
            allow_empty_global_weights=allow_empty_global_weights,
            task_check_period=task_check_period,
            ignore_result_error=True,  # a client's error is its own, not the end of the job
        )
        variant = Variant(selector, label or selector.rpartition(":")[2], parameters or {})
        self.selector, self.parameters = selector, dict(variant.parameters)
        self.cohort_size, self.seed = cohort_size, seed
        self.guard, self.bounds = arguments.guard_table(guard), arguments.bounds_table(bounds)
        self.policy, self.quorum = arguments.policy_table(policy), arguments.quorum_table(quorum)
        self.checkpoint = arguments.absolute("checkpoint", checkpoint)
        self.records = arguments.absolute("records", records)
        self.label, self.durations, self.metric_keys = label, durations, dict(metric_keys or {})
        self.start_s, self.wait_for_clients_s = start_s, wait_for_clients_s
        self.ask_s, self.late_s, self.poll_s = ask_s, late_s, poll_s
        self.alerts, self.followers = arguments.alerts_table(alerts), tuple(followers)
        self.limit_s = require.number("limit_s", limit_s, above=0.0)
        require.integer("num_rounds", num_rounds, minimum=0)
        self.variant, self._first_round, self._n_rounds = variant, start_round, num_rounds
        self._run: NvflareRun | None = None
        self._is_accepted = False
        arguments.settings_of(self)  # what is impossible is refused where the job is made
        arguments.selector_of(self)

    def run(self) -> None:
        """Run FedAvg, or go on from the checkpoint until ``num_rounds`` rounds are done."""
        model = self.load_model() if self.model is None else self.model
        if model is None:  # the panic has said why
            return
        self.model = model if isinstance(model, FLModel) else FLModel(params=model)
        self._run = run = NvflareRun(self, self._n_rounds)
        try:
            with run.keeper.running():
                self._go_on(run)
        except Aborted:
            self.info("The job was aborted: nobody waits for answers any more.")

    def _go_on(self, run: NvflareRun) -> None:
        n_done = run.begin(self.model)
        if n_done:
            self._take_back(run)
        is_over = self.stop_condition is not None and run.host.get("is_over", False)
        self.num_rounds = 0 if is_over else max(0, self._n_rounds - n_done)
        self.start_round = self._first_round + n_done
        super().run()
        run.end_round()
        if self.num_rounds == 0:  # nothing was left to do but this
            self.save_model(run.model)
        elif run.session.journal.n_rounds < self._n_rounds:
            run.host["is_over"] = True  # stopped early
            run.save()
        run.finish()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Let the selector choose.

        Args:
            num_clients: Not used: the cohort has its own size.
        """
        return self._running.choose()

    def send_model(self, *, data: FLModel, callback: Callable[[FLModel], Any], **_: Any) -> None:
        """Send the model to the chosen, and wait until the round is over.

        Args:
            data: The model.
            callback: Called with each result that counts.
            **_: What the selector and the round policy decide in place of NVFlare.
        """
        data.start_round, data.total_rounds = self._first_round, self._n_rounds
        self._running.train(callback)

    def get_num_standing_tasks(self) -> int:
        """Return 0: ``send_model`` has waited already, and nobody waits for late answers."""
        return 0

    def update_model(self, model: FLModel, aggr_result: FLModel) -> FLModel:
        """Update the model, and keep it for the checkpoint.

        Args:
            model: The model.
            aggr_result: The aggregate of the round.
        """
        self._running.model = super().update_model(model, aggr_result)
        return self._running.model

    def process_result_of_unknown_task(self, client: Client, *_: Any) -> None:
        """Let a client that comes too late be chosen again.

        Args:
            client: Who it is.
            *_: What it sends, which nobody waits for any more.
        """
        if self._run is not None:
            self._run.port.is_idle(client.name)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take note of who asks for work.

        Args:
            event_type: What happens.
            fl_ctx: With whom.
        """
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST and self._run is not None:
            self._run.port.is_idle(fl_ctx.get_peer_context().get_identity_name())

    def _accepts(self, result: FLModel) -> bool:
        """Return whether the result that came just now may count, for NVFlare's events."""
        return self._is_accepted

    def _prepare_task_data(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self._running.port.fetched(client_task.task, client_task.client.name)
        super()._prepare_task_data(client_task, fl_ctx)

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Look at a result before anything is made of it; NVFlare calls this on other threads."""
        may_count = self._running.hear(client_task)
        if may_count is None:  # an answer to a question is nothing to aggregate
            client_task.result = None
            return
        self._is_accepted = may_count
        super()._process_result(client_task, fl_ctx)

    def _get_aggregated_result(self) -> FLModel:
        """Return the aggregate; the model as it is if no reply counts, or they overflow."""
        if self._received_count:
            aggregate: FLModel = super()._get_aggregated_result()
            if self.aggregator is not None or replies.is_finite(aggregate.params):
                return aggregate
            self.warning("The average of the replies is not finite: the model stays as it is.")
        self._set_ctx_prop_preserving_attrs(self.fl_ctx, AppConstants.AGGREGATION_STATS, None)
        meta = {"nr_aggregated": 0, "current_round": self.current_round}
        params = self._running.model.params
        return FLModel(params=params, current_round=self.current_round, meta=meta)

    def _maybe_cleanup_memory(self) -> None:
        """Save the round: FedAvg calls this at the end of each."""
        run = self._running
        best = self.best_target_metric_value
        run.host = {
            "best": None if best is None else float(best),
            "n_unimproved": self.num_fl_rounds_without_improvement,
        }
        run.end_round()
        super()._maybe_cleanup_memory()

    def _take_back(self, run: NvflareRun) -> None:
        """Go on with what was saved."""
        self.best_target_metric_value = run.host.get("best")
        self.num_fl_rounds_without_improvement = run.host.get("n_unimproved", 0)
        learnable = make_model_learnable(weights=run.model.params, meta_props=run.model.meta)
        self.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=True)

    @property
    def _running(self) -> NvflareRun:
        if self._run is None:
            raise InvalidInput("SelectingFedAvg is not running: NVFlare's server calls run().")
        return self._run
