"""NVFlare's FedAvg with a selector in place of ``sample_clients``.

FedAvg's own loop runs. A round is ``sample_clients``, in which the selector chooses, and
``send_model``, which waits as long as the round policy says and passes on usable replies. Every
chosen client ends as completed, late, failed or silent, and a checkpoint is written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np
import nvflare
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_context import FLContext
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.app_constant import AppConstants
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.fuel.utils import fobs

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.names import nearest
from turnout.core.types import Array
from turnout.experiment.variants import Variant
from turnout.live.checkpoint import Checkpoint
from turnout.live.driver import HostRun
from turnout.live.nvflare.transport import (
    Aborted,
    NvflareHints,
    NvflarePort,
    answer_to,
    check,
    form_of,
    is_finite,
    plain_metrics,
    read,
    weighted,
)
from turnout.live.reports import other_forms
from turnout.live.session import Session
from turnout.live.settings import LiveSettings
from turnout.live.transport import Reply, log


class SelectingFedAvg(FedAvg):
    """Selects clients by a selector; the model, aggregation and early stopping are FedAvg's.

    Every field of ``turnout.live.LiveSettings`` is also a keyword argument, except ``unidentified``
    and ``evaluate_s``, which have no meaning in NVFlare. A setting may also be a table, as it is in
    an exported job.

    Args:
        selector: The name of a selector, or ``"package.module:Class"``.
        cohort_size: How many answers a round should get.
        num_rounds: Rounds in total, including those before a restart.
        parameters: The selector's parameters.
        settings: All settings of the run; arguments replace single ones. Paths must be absolute.
        followers: Ids of components of the job that see every round: ``TensorBoard``,
            ``Prometheus``, your own.
        **options: Other fields of ``LiveSettings``, and arguments of NVFlare's ``FedAvg``. The
            state of an ``aggregator`` is not in the checkpoint.
    """

    model: Any

    def __init__(
        self,
        selector: str,
        *,
        cohort_size: int,
        num_rounds: int = 5,
        parameters: Mapping[str, Any] | None = None,
        settings: LiveSettings | None = None,
        followers: Sequence[str] = (),
        **options: Any,
    ) -> None:
        own = {name: options.pop(name) for name in list(options) if name in _DEFAULTS}
        for name in options:
            if name not in _OF_FEDAVG:
                known = nearest(name, [*_DEFAULTS, *_OF_FEDAVG])
                raise InvalidInput(f"unknown argument {name!r}.{known}", field=name)
        super().__init__(
            num_clients=cohort_size,
            num_rounds=num_rounds,
            ignore_result_error=True,  # the error of one client must not end the job
            **options,
        )
        given = LiveSettings.of({"cohort_size": cohort_size, **own}, settings)
        _check_settings(given)
        variant = Variant(selector, given.label or selector.rpartition(":")[2], parameters or {})
        self.selector, self.parameters = selector, dict(variant.parameters)
        self.cohort_size, self.followers = cohort_size, tuple(followers)
        # NVFlare writes the attributes that are called like arguments to the job file, and makes
        # the controller from them again on the server: each setting is kept there as plain data.
        for name, value in given.table(leave_out=("cohort_size", *_NOT_HERE)).items():
            setattr(self, name, value)
        # An impossible setting or parameter is refused where the job is made.
        self.live_settings, self.chooser = replace(given, label=variant.label).for_selector(
            variant.make()
        )
        require.integer("num_rounds", num_rounds, minimum=0)
        self._first_round, self._n_rounds = int(options.get("start_round", 0)), num_rounds
        self._run: NvflareRun | None = None
        self._is_accepted = False

    def run(self) -> None:
        """Run FedAvg, or resume from the checkpoint, until ``num_rounds`` rounds are done."""
        model = self.load_model() if self.model is None else self.model
        if model is None:  # NVFlare has logged why
            return
        self.model = model if isinstance(model, FLModel) else FLModel(params=model)
        self._run = run = NvflareRun(self, self._n_rounds)
        try:
            with run.running():
                self._play(run)
        except Aborted:
            self.info("The job was aborted: the run stops waiting for answers.")

    def _play(self, run: NvflareRun) -> None:
        if self.live_settings.checkpoint is not None:
            _encode(self.model.params)  # one that cannot be saved is refused before anyone trains
        run.model = run.port.model = self.model
        form = [[key, list(shape), kind] for key, shape, kind in form_of(self.model.params)]
        n_done = run.resume({"model": form})
        if n_done:
            self.best_target_metric_value = run.host.get("best")
            self.num_fl_rounds_without_improvement = run.host.get("n_unimproved", 0)
            learnable = make_model_learnable(weights=run.model.params, meta_props=run.model.meta)
            self.fl_ctx.set_prop(AppConstants.GLOBAL_MODEL, learnable, private=True, sticky=True)
        is_over = self.stop_condition is not None and run.host.get("is_over", False)
        self.num_rounds = 0 if is_over else max(0, self._n_rounds - n_done)
        self.start_round = self._first_round + n_done
        super().run()
        run.save_round()
        if self.num_rounds == 0:  # all rounds were done before
            self.save_model(run.model)
        elif run.journal.n_rounds < self._n_rounds:
            run.host["is_over"] = True  # stopped early
            run.save()
        run.finish()

    def sample_clients(self, num_clients: int | None = None) -> list[str]:
        """Let the selector choose.

        Args:
            num_clients: Not used: the cohort has its own size.
        """
        run = self._running
        is_first = run.cohort is None  # also after a restart: all processes start anew
        n_wanted = len(run.port.expected) if is_first else self.cohort_size
        return [str(name) for name in run.choose(n_wanted, run.model)]

    def send_model(self, *, data: FLModel, callback: Callable[[FLModel], Any], **_: Any) -> None:
        """Send the model to the cohort, and wait until the round is over.

        Args:
            data: The model.
            callback: Called with each result that counts.
            **_: What the selector and the round policy decide instead of NVFlare.
        """
        data.start_round, data.total_rounds = self._first_round, self._n_rounds
        run = self._running
        n_selected = 0 if run.cohort is None else len(run.cohort.ids)
        try:
            result = run.train([run.model] * n_selected, run.rejected)
        finally:
            run.port.end_round()
        with run.spans.part("aggregate"):
            # In the order of the selection: the sum must not depend on who was faster.
            for model, weight in zip(result.answers, result.weights, strict=True):
                try:
                    callback(weighted(model, weight))
                except Exception as error:  # the user's own aggregator; NVFlare continues, too
                    log.error("the aggregator failed: %s: %s", type(error).__name__, error)

    def get_num_standing_tasks(self) -> int:
        """Return 0: ``send_model`` has waited already, and late answers are not waited for."""
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
        """Allow a client whose result comes too late to be chosen again.

        Args:
            client: The client.
            *_: Its result, which is not used.
        """
        if self._run is not None:
            self._run.port.is_idle(client.name)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record which client asks for work.

        Args:
            event_type: The event.
            fl_ctx: Its context, with the client.
        """
        super().handle_event(event_type, fl_ctx)
        if event_type == EventType.BEFORE_PROCESS_TASK_REQUEST and self._run is not None:
            self._run.port.is_idle(fl_ctx.get_peer_context().get_identity_name())

    def _accepts(self, result: FLModel) -> bool:
        """Return whether the last result may count, for NVFlare's events."""
        return self._is_accepted

    def _prepare_task_data(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        self._running.port.fetched(client_task.task, client_task.client.name)
        super()._prepare_task_data(client_task, fl_ctx)

    def _process_result(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        """Check a result before it is used; NVFlare calls this on other threads."""
        may_count = self._running.receive(client_task)
        if may_count is None:  # an answer to a question is not aggregated
            client_task.result = None
            return
        self._is_accepted = may_count
        super()._process_result(client_task, fl_ctx)

    def _get_aggregated_result(self) -> FLModel:
        """Return the aggregate; the unchanged model if no reply counts, or if they overflow."""
        if self._received_count:
            aggregate: FLModel = super()._get_aggregated_result()
            if self.aggregator is not None or is_finite(aggregate.params):
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
        run.save_round()
        super()._maybe_cleanup_memory()

    @property
    def _running(self) -> NvflareRun:
        if self._run is None:
            raise InvalidInput("SelectingFedAvg is not running: NVFlare's server calls run().")
        return self._run


class NvflareRun(HostRun):
    """One run of the workflow: what the controller's hooks call, in FedAvg's order.

    Args:
        controller: The controller.
        n_rounds: Rounds in total.
    """

    def __init__(self, controller: SelectingFedAvg, n_rounds: int) -> None:
        settings = replace(controller.live_settings, followers=_followers_of(controller))
        session = Session(settings, controller.chooser, hints=NvflareHints())
        self.port = NvflarePort(controller, asks=bool(session.engine.wanted))
        self.model = FLModel(params={})  #: the model of the federation
        self.host: dict[str, Any] = {}  #: what else the controller saves
        self._averages = controller.aggregator is None
        versions = {"nvflare": nvflare.__version__}
        super().__init__(session, self.port, "nvflare", n_rounds, versions)

    def receive(self, client_task: ClientTask) -> bool | None:
        """Process a result, on any thread; return whether it may count, None for a question."""
        task, client = client_task.task, client_task.client.name
        received = read(client_task.result)
        question = self.port.question_of(task, client)
        if question is not None:
            self.port.take(task, client, answer_to(question, client, received))
            return None
        if not isinstance(received, Reply):
            received.meta["client_name"] = client  # FedAvg weighs by it
            known = self.model.params or {}
            received = check(received, self.port.form, known, averages=self._averages)
        return self.port.take(task, client, received)

    def save_round(self) -> None:
        """Save the last round, if it is not saved yet."""
        if self.result is None:
            return
        is_void = self.result.is_void
        try:
            self.end_round(None if is_void else plain_metrics(self.model.metrics))
        finally:
            self.result = None

    def saved_state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the model, and what else the controller saves."""
        return self.host, {"model": _encode(self.model.params)}

    def restore(self, saved: Checkpoint) -> None:
        """Continue with the saved model."""
        self.model.params = fobs.loads(saved.host_arrays["model"].tobytes())
        self.host = dict(saved.host)

    def rejected(self, replies: Sequence[Reply]) -> dict[int, str]:
        """Return which sound replies cannot be averaged with the others, by position, and why."""
        return other_forms([x.form for x in replies], self.port.form) if self._averages else {}


#: Settings that have no meaning in NVFlare: sites have names, and only FedAvg evaluates.
_NOT_HERE = ("unidentified", "evaluate_s")
#: Settings that are arguments by their names, and their defaults.
_DEFAULTS = LiveSettings().table(leave_out=("cohort_size", *_NOT_HERE))
#: What is decided here, and what no caller can set.
_DECIDED = {
    *("self", "args", "kwargs", "num_clients", "num_rounds", "ignore_result_error"),
    "enable_tensor_disk_offload",  # replies are looked at in memory
}
#: Arguments of FedAvg and of the classes that it passes its arguments on to, by name.
_OF_FEDAVG = {
    name: parameter.replace(kind=Parameter.KEYWORD_ONLY)
    for cls in reversed(FedAvg.__mro__[:-1])
    for name, parameter in signature(cls.__init__).parameters.items()
    if name not in _DECIDED
}


def _whole_signature() -> Signature:
    """Return the signature with every argument by its name: NVFlare exports only these."""
    own = signature(SelectingFedAvg.__init__).parameters.values()
    settings = [Parameter(name, Parameter.KEYWORD_ONLY, default=x) for name, x in _DEFAULTS.items()]
    first = [one for one in own if one.kind is not Parameter.VAR_KEYWORD]
    return Signature([*first, *settings, *_OF_FEDAVG.values()])


SelectingFedAvg.__init__.__signature__ = _whole_signature()  # type: ignore[attr-defined]


def _check_settings(given: LiveSettings) -> None:
    """Refuse settings that NVFlare cannot follow, where the job is made."""
    for name in ("checkpoint", "records", "receipt_key"):
        path = getattr(given, name)
        if path is not None and not os.path.isabs(path):
            raise InvalidInput(
                f"{name} must be an absolute path on the server, got {os.fspath(path)!r}: NVFlare "
                "runs each job in a folder of its own.",
                field=name,
            )
    require.number("limit_s", given.limit_s, above=0.0)  # a task of NVFlare needs an end
    for name in _NOT_HERE:
        if getattr(given, name) != getattr(LiveSettings(), name):
            raise InvalidInput(f"{name} has no effect in NVFlare: leave it out.", field=name)
    if given.overlaps:
        raise InvalidInput(
            f"schedule {type(given.schedule).__name__} lets rounds overlap, and NVFlare's FedAvg "
            "waits for every round: leave it out. Or let your own NVFlare controller ask turnout "
            "serve for single places (docs/howto/overlap.md, In NVFlare), or use Flower.",
            field="schedule",
        )
    if given.followers:
        raise InvalidInput(
            "followers of settings cannot be sent to the server: add each one by "
            "job.to_server(component, id=...) and name the ids in followers=.",
            field="followers",
        )


def _followers_of(controller: SelectingFedAvg) -> list[Any]:
    """Return the components of the job that follow the run."""
    found = {name: controller.get_component(name) for name in controller.followers}
    missing = [name for name, component in found.items() if component is None]
    if missing:
        raise InvalidInput(
            f"followers: the job has no component {missing[0]!r}; add it by "
            f"job.to_server(component, id={missing[0]!r}).",
            field="followers",
        )
    return list(found.values())


def _encode(params: Any) -> Array:
    """Return a model in NVFlare's own bytes."""
    try:
        return np.frombuffer(fobs.dumps(params), dtype=np.uint8)
    except Exception as error:  # every decomposer has its own
        raise InvalidInput(
            f"checkpoint: NVFlare cannot write this model ({error}); register a decomposer for its "
            "types, or give no checkpoint.",
            field="checkpoint",
        ) from error
