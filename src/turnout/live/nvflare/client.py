"""The client's side in NVFlare: its columns before a round, its report after it.

In a script with NVFlare's Client API, ``Describe.receive`` takes the place of ``flare.receive``::

    flare.init()
    me = Describe(num_examples=len(train_set), loss=evaluate)
    while flare.is_running():
        model = me.receive()
        if model is None:
            break
        report = LossReport()
        ...  # train, with report.add(loss, n=len(batch)) for each mini-batch
        metrics = {"num-examples": len(train_set), **report.metrics()}
        flare.send(FLModel(params=..., metrics=metrics))

An ``Executor`` of your own calls ``Describe.answer`` first. If the selector needs to know nothing
about clients, they need no change: the stable id of a client is the name of its site.

Our questions travel as training tasks with a mark in the model's ``meta``. A task with a name of
its own would end the whole job at the first client without an executor for it: NVFlare's server
aborts on ``TASK_UNKNOWN``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvflare import client as flare
from nvflare.app_common.abstract.fl_model import FLModel

from turnout.core import require
from turnout.live.client import (
    Given,
    LossReport,
    column_values,
    numbers,
    split_columns,
    update_report,
)

__all__ = ["Describe", "LossReport", "update_report"]  # scripts import them from here

#: The key in ``FLModel.meta`` of our questions and answers.
MARK = "turnout"
#: The key of the question, and its possible values.
ASK = "ask"
IDENTITY, COLUMNS, LOSS = "identity", "columns", "loss"
#: Keys that come with a question.
TOOK_PART, POLL_DATA = "took-part", "poll-data"
#: The key that comes with an answer, beside ``COLUMNS`` and ``LOSS``.
EVERY_ROUND = "every-round"


class Describe:
    """Answers the server's questions, and leaves the training to you.

    A value is plain, or a function of the ``FLModel`` that was received. A function for ``context``
    or in ``columns`` is called before every round if the selector needs it; everything else is
    asked for once. ``took_part`` and ``poll_data`` read what the server says with a question.

    Args:
        num_examples: The number of examples, for the column num_samples.
        features: A code of the data, such as SimHash bits.
        context: The state of the device.
        columns: Any other column by its name, such as expected_duration.
        loss: A function that evaluates a received model, on all data or on a mini-batch.

    >>> me = Describe(num_examples=120)
    >>> me.answer(FLModel(params={})) is None
    True
    >>> asked = FLModel(params={}, meta={"turnout": {"ask": "identity"}})
    >>> me.answer(asked).meta
    {'turnout': {'columns': {'num_samples': 120.0}, 'every-round': []}}
    """

    def __init__(
        self,
        *,
        num_examples: Given = None,
        features: Given = None,
        context: Given = None,
        columns: Mapping[str, Given] | None = None,
        loss: Callable[[FLModel], Any] | None = None,
    ) -> None:
        if loss is not None and not callable(loss):
            raise require.wrong("loss", "be a function of the model -> float", loss)
        columns_of = split_columns(num_examples, features, context, columns)
        self._fixed, self._changing = columns_of
        self._loss = loss

    def receive(self, timeout: float | None = None) -> FLModel | None:
        """Return the next model to train, like ``flare.receive``; None when the job is over.

        Args:
            timeout: Seconds to wait for each message; None waits until there is one.
        """
        while True:
            received = flare.receive(timeout)
            answer = None if received is None else self.answer(received)
            if answer is None:
                return received
            flare.send(answer)

    def answer(self, received: FLModel) -> FLModel | None:
        """Return the answer to one of our questions; None if the message is work.

        Args:
            received: What came from the server.
        """
        what = _question(received).get(ASK)
        if what is None:
            return None
        answer: dict[str, Any] = {}
        if what == IDENTITY:
            answer[COLUMNS] = column_values(self._fixed, received)
            answer[EVERY_ROUND] = sorted(self._changing)
        elif what == COLUMNS:
            answer[COLUMNS] = column_values(self._changing, received)
        elif what == LOSS and self._loss is not None:
            answer[LOSS] = numbers("loss", self._loss(received))
        return FLModel(metrics={}, meta={MARK: answer})


def took_part(received: FLModel) -> bool:
    """Return whether this client was chosen in the round before, for a function of ``context``.

    Args:
        received: What the function was called with.
    """
    return bool(_question(received).get(TOOK_PART, False))


def poll_data(received: FLModel) -> str:
    """Return whether a loss is wanted on ``"all"`` data or on a ``"mini-batch"``.

    Args:
        received: What the function for the loss was called with.
    """
    return str(_question(received).get(POLL_DATA, "all"))


def _question(received: FLModel) -> Mapping[str, Any]:
    marked = (received.meta or {}).get(MARK)
    return marked if isinstance(marked, Mapping) else {}
