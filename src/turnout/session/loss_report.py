"""Mean, spread and root mean square of the losses of one local training."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from turnout import require
from turnout.session.keys import DURATION


class LossReport:
    """Collects the losses of a training loop, with torch or anything else.

    >>> report = LossReport()
    >>> report.add(0.5, n=32)
    >>> report.add(0.7, n=32)
    >>> sorted(report.metrics())
    ['duration', 'loss', 'loss-rms', 'loss-std']

    Put them into the reply's ``MetricRecord`` beside ``num-examples``. Make the report before the
    training starts: it also measures the time.
    """

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._batches = 0
        self._mean = 0.0
        self._spread = 0.0  # sum of squared distances from the mean
        self._examples = 0
        self._squares = 0.0  # sum over examples

    def add(self, loss: Any, n: int = 1) -> None:
        """Add a mini-batch.

        Args:
            loss: The loss of each example (``reduction="none"``), which makes the root mean square
                exact, or their mean, which then counts for every example.
            n: How many examples the mean is of.
        """
        if hasattr(loss, "detach"):  # a tensor
            loss = loss.detach().cpu()
        values = np.asarray(loss, dtype=np.float64)
        if values.ndim == 0:
            n_examples = require.integer("n", n, minimum=1)
            mean, squares = float(values), n_examples * float(values) ** 2
        elif values.size:
            n_examples = values.size
            mean, squares = float(values.mean()), float(np.square(values).sum())
        else:
            return
        self._batches += 1
        distance = mean - self._mean
        self._mean += distance / self._batches
        self._spread += distance * (mean - self._mean)
        self._examples += n_examples
        self._squares += squares

    def metrics(self) -> dict[str, float]:
        """Return ``loss``, ``loss-std``, ``loss-rms`` and ``duration``; NaN if nothing was added.

        The keys are always the same, as strategies that average metrics want it.
        """
        is_empty = self._batches == 0
        return {
            "loss": math.nan if is_empty else self._mean,
            "loss-std": math.nan if is_empty else math.sqrt(self._spread / self._batches),
            "loss-rms": math.nan if is_empty else math.sqrt(self._squares / self._examples),
            DURATION: time.perf_counter() - self._started,
        }
