"""One run of the workflow: a session over the controller's tasks, with the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from nvflare.apis.controller_spec import ClientTask
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.fuel.utils import fobs

import nvflare
from turnout.errors import InvalidInput
from turnout.integrations.nvflare import arguments, replies
from turnout.integrations.nvflare.hints import NvflareHints
from turnout.integrations.nvflare.port import NvflarePort
from turnout.integrations.nvflare.questions import answer_to
from turnout.session.checkpoint import Checkpoint
from turnout.session.journal import IN_TRAINING
from turnout.session.keeper import Keeper
from turnout.session.live import Live
from turnout.session.port import Heard
from turnout.session.post import log
from turnout.session.round import Chosen, Ended
from turnout.session.session import Session
from turnout.types import Array


class NvflareRun:
    """What the controller's hooks call, in FedAvg's order.

    Args:
        controller: The controller, a ``SelectingFedAvg``.
        n_rounds: Rounds in total.
    """

    def __init__(self, controller: Any, n_rounds: int) -> None:
        followers = arguments.followers_of(controller)
        settings = replace(arguments.settings_of(controller), followers=followers)
        selector, hints = arguments.selector_of(controller), NvflareHints()
        self.session = Session(settings, selector, limit_s=controller.limit_s, hints=hints)
        asks = bool(selector.needs_columns | selector.uses_columns)
        self.port = NvflarePort(controller, asks=asks)
        self.model = FLModel(params={})  #: the model of the federation
        self.host: dict[str, Any] = {}  #: what else the controller wants to find again
        self.keeper = Keeper(self.session, "nvflare", n_rounds, {"nvflare": nvflare.__version__})
        self._live = Live(self.session, self.port, self.keeper.records)
        self._averages = controller.aggregator is None
        self._chosen: Chosen | None = None
        self._ended: Ended | None = None  # until it is saved

    def begin(self, model: FLModel) -> int:
        """Start with a model, or go on from the checkpoint; return how many rounds are done."""
        self.model = self.port.model = model
        if self.session.settings.checkpoint is not None:
            _encode(model.params)  # what cannot be saved is refused before anybody trains
        form = [[key, list(shape), kind] for key, shape, kind in replies.form_of(model.params)]
        return self.keeper.begin({"model": form}, self._restore)

    def choose(self) -> list[str]:
        """Return who trains in the next round."""
        is_first = self._chosen is None  # also after a restart: all processes start anew
        n_wanted = self.session.settings.cohort_size
        self._live.gather(len(self.port.expected) if is_first else n_wanted)
        self._chosen = self._live.choose(self.model)
        return [str(name) for name in self._chosen.addresses]

    def train(self, aggregate: Callable[[FLModel], Any]) -> None:
        """Give the chosen their work, wait, and aggregate the replies that count.

        They are aggregated in the order of the selection, so that the sum does not depend on who
        was faster.
        """
        chosen = self._chosen
        if chosen is None or not chosen.addresses:
            self._ended = self.session.close()
            return
        try:
            payloads = [self.model] * len(chosen.addresses)
            self._ended = self._live.train(chosen, payloads, self._misfits)
        finally:
            self.port.end_round()
        with self.session.spans.part("aggregate"):
            for reply, weight in zip(self._ended.answers, self._ended.weights, strict=True):
                try:
                    aggregate(replies.weighing(reply, weight))
                except Exception as error:  # an aggregator of the user's own; NVFlare goes on, too
                    log.error("the aggregator failed: %s: %s", type(error).__name__, error)

    def hear(self, client_task: ClientTask) -> bool | None:
        """Take in a result, on any thread; return whether it may count, None for a question."""
        task, client = client_task.task, client_task.client.name
        received = replies.read(client_task.result)
        question = self.port.question_of(task, client)
        if question is not None:
            self.port.take(task, client, answer_to(question, client, received))
            return None
        if not isinstance(received, Heard):
            received.meta["client_name"] = client  # FedAvg weighs by it
            received = replies.check(received, self.port.form, averages=self._averages)
        return self.port.take(task, client, received)

    def end_round(self) -> None:
        """Save the round, if it is not saved yet."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        journal = self.session.journal
        metrics = None if ended.is_void else replies.plain_metrics(self.model.metrics)
        journal.note(IN_TRAINING, journal.n_rounds, metrics)
        self.keeper.note(ended)
        self.save()
        self.keeper.record()

    def save(self) -> None:
        """Write the checkpoint, if one is wanted."""
        if self.session.settings.checkpoint is not None:
            self.keeper.save(self.host, {"model": _encode(self.model.params)})

    def finish(self) -> None:
        """Write the end of the run."""
        self.keeper.finish()

    def _misfits(self, answers: Sequence[Heard]) -> dict[int, str]:
        return replies.misfits(answers, self.port.form, averages=self._averages)

    def _restore(self, saved: Checkpoint) -> None:
        self.model.params = fobs.loads(saved.host_arrays["model"].tobytes())
        self.host = dict(saved.host)


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
