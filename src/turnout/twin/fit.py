"""From records to a world: ``turnout.fit(runs)``."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from turnout.core.errors import InvalidInput
from turnout.core.types import FloatArray, Status
from turnout.experiment.codec import decode
from turnout.twin.durations import LEVELS
from turnout.twin.effects import Effects
from turnout.twin.learning import Fitted, learned_from
from turnout.twin.log import Log, read_log, settings_of
from turnout.twin.quantities import quantities_of
from turnout.twin.world import FittedWorld
from turnout.worlds import FittedArrays, FixedDeadline, RoundPolicy
from turnout.worlds.fitted import EFFECTS

#: So large a share of the clients that leave while others come may have been renamed.
MANY_RENAMED = 0.05
#: Smaller differences between clients' effects, and between their durations, are none.
EQUAL = 1e-3


def fit(runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> FittedWorld:
    """Return the world that was fitted to the records of a federation.

    Availability is learned from the recorded pool, never from who was chosen. Answers that were cut
    off count as longer than the time they had. Clients that were seldom seen get more of the
    population's values, clients that were never seen get all of them.

    Args:
        runs: Run folders of one federation: what Flower, NVFlare or ``turnout serve`` recorded, or
            simulated runs of one world and one seed.

    Raises:
        InvalidInput: The records cannot be used, or are of several federations.

    >>> import tempfile, turnout
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     found = turnout.compare(["random"], "e3cs", n_rounds=50, seeds=1, n_jobs=1, out=folder)
    ...     world = turnout.fit(folder)
    >>> world.n_clients, world.success.shape
    (100, (100,))
    """
    return fit_log(read_log(runs))


def fit_log(log: Log) -> FittedWorld:
    """Return the world that was fitted to a log.

    Args:
        log: The records of one federation.

    Raises:
        InvalidInput: No client ever answered.
    """
    completed = log.status == Status.COMPLETED
    if not completed.any():
        raise InvalidInput(
            f"runs hold {completed.size:,} choices and not one answer in time: nothing can be "
            "learned of durations. See the reasons with turnout show, and record more.",
            field="runs",
        )
    fitted = learned_from(log)
    settings = settings_of(log)
    failed = log.status[np.isin(log.status, (Status.FAILED, Status.SILENT))]
    policy = settings["policy"]
    return FittedWorld(
        _arrays(fitted, log.n_rounds),
        log.names,
        settings["cohort_size"],
        log.n_rounds,
        decode(policy, RoundPolicy, ("policy",)) if policy else FixedDeadline(),
        fitted.reported.losses,
        bool(failed.size and (failed == Status.FAILED).mean() > 0.5),
        quantities_of(log, fitted),
        log.notes + _changes(log, fitted),
        tuple(str(record.cell.path) for record in log.records),
    )


def _changes(log: Log, fitted: Fitted) -> tuple[str, ...]:
    """Return a note if clients of a live run left while others came."""
    gone, new = fitted.presence.n_gone, fitted.presence.n_new
    if log.records[-1].answers is None or min(gone, new) < max(2.0, MANY_RENAMED * log.n_clients):
        return ()
    return (
        f"{gone:,} clients were there in the first third of the rounds and not in the last, and "
        f"{new:,} others came later. If they were renamed, each counts as two: join them in the "
        "checkpoint with turnout clients --merge, and record on.",
    )


def _arrays(fitted: Fitted, n_rounds: int) -> FittedArrays:
    effects, presence, durations = fitted.effects, fitted.presence, fitted.durations
    ridge = 1e-12 * np.eye(len(EFFECTS))
    mean, factor = effects.mean.copy(), np.linalg.cholesky(effects.covariance + ridge)
    # Where clients do not differ, they are equal: selectors break ties at random.
    is_equal = np.sqrt(np.diag(effects.spread)) < EQUAL
    mean[:, is_equal] = effects.population[is_equal]
    factor[:, is_equal, :] = 0.0
    return FittedArrays.from_arrays(
        {
            "mean": mean,
            "factor": factor,
            "population": effects.population,
            "population_error": _error_of_population(effects, presence.together, n_rounds),
            "spread": np.linalg.cholesky(effects.spread + ridge),
            "stay": presence.stay,
            "rhythm": presence.rhythm,
            "period": np.array(presence.period),
            "success_stay": np.array(fitted.success_stay),
            "scale": np.where(durations.scale < EQUAL, 0.0, durations.scale),
            "noise_at": LEVELS,
            "noise": durations.noise.quantile,
            "round_scale": np.array(durations.round_scale),
            "drift": np.array(durations.drift),
            "warm": np.array(durations.gain),
            "n_rounds": np.array(float(n_rounds)),
            "together": np.array(presence.together),
        }
    )


def _error_of_population(
    effects: Effects, together: tuple[float, float], n_rounds: int
) -> FloatArray:
    """Return (k,) the standard errors of the population's mean; all clients share their swings."""
    size, lasts = together
    error = effects.population_error.copy()
    error[0] = np.hypot(error[0], size * np.sqrt(min(1.0, 2.0 * lasts / n_rounds)))
    return error
