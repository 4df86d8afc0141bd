"""Who is there: each client's share of rounds, its stays, the rhythm of the day, common swings.

Only the recorded pool counts. Whether a client was chosen says nothing about its availability, and
a client that was still working for an earlier round is left out of that round.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from turnout.core.types import Array, FloatArray
from turnout.twin.log import Log, times_of_day

#: Entries of the matrix of rounds x clients that are looked at; of longer logs the last rounds.
_MOST_ENTRIES = 200_000_000
#: Clients whose spectra show whether there is a rhythm.
_MOST_SPECTRA = 400
#: A rhythm needs so many rounds, and a period that fits into them so often.
_LEAST_ROUNDS, _LEAST_PERIODS = 40, 2.0
#: Worlds know rounds and no clocks. If clocks differ from evenly spaced rounds by more than this
#: part of a day, or a pause is longer, then a wave of the day is none of the rounds.
_MOST_UNEVEN = 1.0 / 12.0
#: Swings are common to all clients if they are so many standard errors from chance.
_CLEAR = 3.0
#: Longest stay that is told apart from for ever.
_MOST_STAY = 0.999


class Presence(NamedTuple):
    """What was seen of availability.

    Attributes:
        present: (n,) rounds in which a client was there, as independent ones.
        known: (n,) rounds in which this is known, as independent ones.
        n_known: How many pairs of client and round are known.
        n_changes: How often a client came or went.
        stay: (n,) chance that the state is not drawn anew from one round to the next.
        rhythm: (n, 2) what a day adds: cosine and sine.
        period: Rounds of a day; infinity = no rhythm.
        n_gone: Clients that were there early and never later.
        n_new: Clients that were first there later.
        is_uneven: Whether no rhythm was looked for: rounds did not begin at equal distances.
        together: How much everyone's log-odds swing together, as a standard deviation, and how many
            rounds a swing lasts; zeros if clients come and go by themselves.
    """

    present: FloatArray
    known: FloatArray
    n_known: int
    n_changes: int
    stay: FloatArray
    rhythm: FloatArray
    period: float
    n_gone: int = 0
    n_new: int = 0
    is_uneven: bool = False
    together: tuple[float, float] = (0.0, 0.0)


def presence_of(log: Log) -> Presence:
    """Return what a log shows of availability.

    Args:
        log: The records.
    """
    state, days = _states(log)
    n = log.n_clients
    known = state >= 0
    n_known = known.sum(axis=0)
    present = np.where(known, state, 0).sum(axis=0).astype(np.float64)
    share = present / np.maximum(n_known, 1)
    if not known.any() or (share[n_known > 0] == 1.0).all():
        return Presence(
            present,
            n_known.astype(np.float64),
            int(n_known.sum()),
            0,
            np.zeros(n),
            np.zeros((n, 2)),
            math.inf,
            *_comings(state),
        )
    is_uneven = days is not None and _is_uneven(days)
    rhythm, period = np.zeros((n, 2)), math.inf
    if not is_uneven:
        rhythm, period = _rhythm(state, share, days)
    stay, n_changes = _stays(state, share, rhythm, period)
    # Rounds that resemble the one before say less: so many independent ones say as much.
    thinning = (1.0 - stay) / (1.0 + stay)
    return Presence(
        present * thinning,
        n_known * thinning,
        int(n_known.sum()),
        n_changes,
        stay,
        rhythm,
        period,
        *_comings(state),
        is_uneven,
        _together(state, share, rhythm, period, stay),
    )


def _states(log: Log) -> tuple[Array, FloatArray | None]:
    """Return (T, n) 1 = there, 0 = not, -1 = not known; and (T,) the days, if they are known."""
    own = [record for record in log.records if record.has_own_time]
    n_rounds = sum(record.run.n_rounds for record in own)
    first = max(0, n_rounds - _MOST_ENTRIES // max(1, log.n_clients))
    state = np.full((n_rounds - first, log.n_clients), -1, dtype=np.int8)
    days: list[FloatArray] = []
    row = -first
    for record in own:
        n = record.run.n_rounds
        if record.run.knows_available:
            for t, available, known in record.presence():
                if row + t >= 0:
                    state[row + t, record.client_of] = np.where(known, available, -1)
        at = np.full(n, np.nan) if record.answers is None else times_of_day(record.answers)
        days.append(np.pad(at[:n], (0, max(0, n - at.size)), constant_values=np.nan))
        if record.answers is not None:
            _forget_before_first(state[max(row, 0) : row + n])
        row += n
    when = np.concatenate(days)[first:]
    is_clock = np.isfinite(when).all() and (np.diff(when) >= 0.0).all()
    return state, when if is_clock else None


def _forget_before_first(state: Array) -> None:
    """Mark the rounds up to a client's first one as not known: it had not joined yet."""
    is_there = state == 1
    first = np.where(is_there.any(axis=0), is_there.argmax(axis=0), -1)
    late = first > 0
    rounds = np.arange(len(state))[:, None]
    state[(rounds <= first) & late & (state >= 0)] = -1


def _comings(state: Array) -> tuple[int, int]:
    """Return how many clients were there early and never later, and the other way around."""
    third = len(state) // 3
    early, late = (state[:third] == 1).any(axis=0), (state[third:] == 1).any(axis=0)
    last = (state[-third:] == 1).any(axis=0) if third else late
    return int((early & ~last).sum()), int((~early & late).sum())


# --------------------------------------------------------------------------------------------------
# The rhythm of the day: one period for all, a strength and a phase for each client.
# --------------------------------------------------------------------------------------------------


def _is_uneven(days: FloatArray) -> bool:
    """Return whether rounds are long enough for a rhythm, but not at equal distances."""
    if days.size < _LEAST_ROUNDS:
        return False
    gaps = np.diff(days)
    usual = float(np.median(gaps))
    if not 4.0 * usual <= 1.0 <= usual * days.size / _LEAST_PERIODS:
        return False
    even = np.linspace(days[0], days[-1], days.size)
    return bool(max(gaps.max() - usual, np.abs(days - even).max()) > _MOST_UNEVEN)


def _rhythm(state: Array, share: FloatArray, days: FloatArray | None) -> tuple[FloatArray, float]:
    """Return (n, 2) what a day adds to each client's chance, and the rounds of a day."""
    n_rounds, n = state.shape
    nothing = np.zeros((n, 2)), math.inf
    if n_rounds < _LEAST_ROUNDS:
        return nothing
    if days is None:
        period = _period(state, share)
    else:
        step = float(days[-1] - days[0]) / (n_rounds - 1)
        period = 1.0 / step if step > 0.0 else math.inf
    if not 4.0 <= period <= n_rounds / _LEAST_PERIODS:
        return nothing
    turns = np.arange(n_rounds) / period if days is None else days - days[0]
    angle = 2.0 * math.pi * turns
    wave = np.stack((np.cos(angle), np.sin(angle)))
    deviation = np.where(state >= 0, state - share, 0.0)
    count = np.maximum((state >= 0).sum(axis=0), 1)
    own = 2.0 * (wave @ deviation).T / count[:, None]
    noise = 2.0 * share * (1.0 - share) * _thickness(deviation) / count
    return _shrunk(own, noise), period


def _period(state: Array, share: FloatArray) -> float:
    """Return the period at which the clients' spectra have a peak; infinity without one."""
    n_rounds = len(state)
    varying = np.flatnonzero((share > 0.02) & (share < 0.98))
    if varying.size < 5:
        return math.inf
    some = varying[:: max(1, varying.size // _MOST_SPECTRA)]
    values = np.where(state[:, some] >= 0, state[:, some] - share[some], 0.0)
    values /= np.maximum(values.std(axis=0), 1e-9)
    power = np.square(np.abs(np.fft.rfft(values, axis=0))).mean(axis=1) / n_rounds
    low, high = math.ceil(_LEAST_PERIODS), n_rounds // 4
    if high <= low + 4:
        return math.inf
    peak = low + int(np.argmax(power[low:high]))
    beside = np.r_[power[max(1, peak - 8) : max(1, peak - 2)], power[peak + 3 : peak + 9]]
    if not beside.size or power[peak] < (1.5 + 8.0 / math.sqrt(some.size)) * np.max(beside):
        return math.inf
    # Between the frequencies of the transform, where the peak is highest.
    finer = np.linspace(peak - 1.0, peak + 1.0, 81)
    angle = 2.0 * math.pi * finer[:, None] * np.arange(n_rounds) / n_rounds
    strength = np.square(np.abs(np.exp(-1j * angle) @ values)).mean(axis=1)
    return float(n_rounds / finer[int(np.argmax(strength))])


def _thickness(deviation: FloatArray) -> FloatArray:
    """Return (n,) how much less a round says because it resembles the one before."""
    square = np.maximum(np.square(deviation).sum(axis=0), 1e-9)
    lag = np.clip((deviation[1:] * deviation[:-1]).sum(axis=0) / square, 0.0, 0.98)
    return np.asarray((1.0 + lag) / (1.0 - lag))


def _shrunk(own: FloatArray, noise: FloatArray) -> FloatArray:
    """Return strength and phase of each client, shrunk to the population's; 0 if it is noise."""
    is_seen = noise > 0.0
    if is_seen.sum() < 3:
        return np.zeros_like(own)
    weight = 1.0 / noise[is_seen]
    mean = (own[is_seen] * weight[:, None]).sum(axis=0) / weight.sum()
    # With noise alone, this is one on average, with a standard deviation of 1 / sqrt(clients).
    excess = float(np.mean(np.square(own[is_seen]).sum(axis=1) / (2.0 * noise[is_seen])))
    if excess < 1.0 + 5.0 / math.sqrt(is_seen.sum()):
        return np.zeros_like(own)
    between = float(np.mean(np.square(own[is_seen] - mean).sum(axis=1) / 2.0 - noise[is_seen]))
    share = max(between, 0.0) / (max(between, 0.0) + np.maximum(noise, 1e-12))
    return np.asarray(np.where(is_seen[:, None], mean + share[:, None] * (own - mean), mean))


# --------------------------------------------------------------------------------------------------
# How long clients stay: the changes that were seen against those of independent rounds.
# --------------------------------------------------------------------------------------------------


def _stays(
    state: Array, share: FloatArray, rhythm: FloatArray, period: float
) -> tuple[FloatArray, int]:
    """Return (n,) the chance that a state is not drawn anew, and how many changes were seen."""
    n_rounds, n = state.shape
    changes, fresh, drifting = np.zeros(n), np.zeros(n), np.zeros(n)
    for t in range(n_rounds - 1):
        both = (state[t] >= 0) & (state[t + 1] >= 0)
        now, then = _chance(share, rhythm, period, t), _chance(share, rhythm, period, t + 1)
        here = state[t] > 0
        changes += both & (state[t] != state[t + 1])
        fresh += both * np.where(here, 1.0 - then, then)
        leaves = np.maximum(now - then, 0.0) / np.maximum(now, 1e-9)
        comes = np.maximum(then - now, 0.0) / np.maximum(1.0 - now, 1e-9)
        drifting += both * np.where(here, leaves, comes)
    seen = np.maximum((state >= 0).sum(axis=0), 2)
    fresh *= seen / (seen - 1.0)  # the shares were learned from the same rounds
    exposure = np.maximum(fresh - drifting, 0.0)
    redraws = np.maximum(changes - drifting, 0.0)
    total = float(exposure.sum())
    if total <= 0.0:
        return np.zeros(n), int(changes.sum())
    usual = min(max(float((changes - drifting).sum()) / total, 1.0 - _MOST_STAY), 1.0)
    rate = np.where(exposure > 1.0, redraws / np.maximum(exposure, 1e-9), usual)
    weight = np.where(exposure > 1.0, exposure, 0.0)
    noise = usual / np.maximum(exposure, 1e-9)
    between = float((weight * (np.square(rate - usual) - noise)).sum() / max(weight.sum(), 1e-9))
    if between > 1e-6:
        shape, pull = usual**2 / between, usual / between
        rate = (redraws + shape) / (exposure + pull)
    else:
        rate = np.full(n, usual)
    return np.clip(1.0 - rate, 0.0, _MOST_STAY), int(changes.sum())


def _chance(share: FloatArray, rhythm: FloatArray, period: float, t: int) -> FloatArray:
    angle = 2.0 * math.pi * t / period
    wave = np.array([math.cos(angle), math.sin(angle)])
    return np.asarray(np.clip(share + rhythm @ wave, 0.0, 1.0))


# --------------------------------------------------------------------------------------------------
# Swings that all clients share: holidays, outages, an application that loses its users.
# --------------------------------------------------------------------------------------------------


def _together(
    state: Array, share: FloatArray, rhythm: FloatArray, period: float, stay: FloatArray
) -> tuple[float, float]:
    """Return how much log-odds swing together, and for how many rounds; zeros if it is chance.

    Clients that come and go by themselves make their number vary by the sum of their variances,
    and it resembles that of later rounds by their stays. What is left is common to all.
    """
    n_rounds = len(state)
    if n_rounds < _LEAST_ROUNDS:
        return 0.0, 0.0
    surplus, known = np.zeros(n_rounds), np.zeros(n_rounds)
    for t in range(n_rounds):
        is_known = state[t] >= 0
        expected = _chance(share, rhythm, period, t)
        surplus[t] = np.where(is_known, state[t] - expected, 0.0).sum()
        known[t] = is_known.sum()
    part = float(known.mean()) / max(1, share.size)
    own = part * share * (1.0 - share)
    lags = np.unique(np.geomspace(1, n_rounds // 4, 24).astype(np.int64))
    found = np.array([np.mean(surplus[lag:] * surplus[:-lag]) for lag in lags])
    alone = np.array([float((own * stay**lag).sum()) for lag in (0, *lags)])
    common = float(np.mean(np.square(surplus))) - alone[0]
    # The squares of that many rounds are independent, where clients stay.
    n_free = n_rounds / float(np.average((1.0 + stay**2) / (1.0 - stay**2), weights=own + 1e-12))
    if common <= _CLEAR * alone[0] * math.sqrt(2.0 / n_free) or alone[0] <= 0.0:
        return 0.0, 0.0
    tried = np.geomspace(0.5, n_rounds, 40)
    misses = np.square((found - alone[1:]) / common - np.exp(-lags / tried[:, None])).sum(axis=1)
    # A small change of everyone's log-odds changes the number by the sum of the variances.
    return float(math.sqrt(common) / alone[0]), float(tried[int(np.argmin(misses))])
