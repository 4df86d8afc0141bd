"""The client's side: what I know before a round, and what I report after it.

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

An ``Executor`` of your own calls ``Describe.answer`` first. A client that the selector needs to
know nothing about can stay as it is: its stable id is the name of its site.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nvflare.app_common.abstract.fl_model import FLModel

from nvflare import client as flare
from turnout.errors import InvalidInput
from turnout.integrations.nvflare import keys
from turnout.session.client_columns import ClientColumns, Given, numbers, told
from turnout.session.loss_report import LossReport

__all__ = ["Describe", "LossReport"]  # scripts import both from here


class Describe:
    """Answers the server's questions, and leaves the training to you.

    A value is plain, or a function of the ``FLModel`` that was received. A function for ``context``
    or in ``columns`` is called before every round, if the selector needs it; everything else is
    asked once. ``took_part`` and ``poll_data`` read what the server says with a question.

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
            raise InvalidInput(
                f"loss must be a function of the model -> float, got {loss!r}.", field="loss"
            )
        self._columns = ClientColumns.of(num_examples, features, context, columns)
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
        """Return the answer if a message is a question of ours; None if it is work.

        Args:
            received: What came from the server.
        """
        what = _question(received).get(keys.ASK)
        if what is None:
            return None
        said: dict[str, Any] = {}
        if what == keys.IDENTITY:
            said[keys.COLUMNS] = told(self._columns.fixed, received)
            said[keys.EVERY_ROUND] = sorted(self._columns.changing)
        elif what == keys.COLUMNS:
            said[keys.COLUMNS] = told(self._columns.changing, received)
        elif what == keys.LOSS and self._loss is not None:
            said[keys.LOSS] = numbers("loss", self._loss(received))
        return FLModel(metrics={}, meta={keys.MARK: said})


def took_part(received: FLModel) -> bool:
    """Return whether this client was chosen in the round before, for a function of ``context``.

    Args:
        received: What the function was called with.
    """
    return bool(_question(received).get(keys.TOOK_PART, False))


def poll_data(received: FLModel) -> str:
    """Return whether a loss is wanted on ``"all"`` data or on a ``"mini-batch"``.

    Args:
        received: What the function for the loss was called with.
    """
    return str(_question(received).get(keys.POLL_DATA, "all"))


def _question(received: FLModel) -> Mapping[str, Any]:
    marked = (received.meta or {}).get(keys.MARK)
    return marked if isinstance(marked, Mapping) else {}
