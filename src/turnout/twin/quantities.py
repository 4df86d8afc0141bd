"""What was learned from how many observations, and what is a guess, in words."""

from __future__ import annotations

import math

import numpy as np

from turnout.core.types import FloatArray
from turnout.twin.availability import Presence
from turnout.twin.durations import LEVELS, Durations
from turnout.twin.effects import Effects
from turnout.twin.learning import LEAST_PAIRS, Fitted
from turnout.twin.log import Log
from turnout.twin.reported import ReportedValues
from turnout.twin.world import Quantity

#: Clients with fewer observations than this have mostly the population's values.
FEW = 5


def quantities_of(log: Log, fitted: Fitted) -> tuple[Quantity, ...]:
    """Return what was learned, quantity by quantity.

    Args:
        log: The records.
        fitted: What was learned from them.
    """
    n, effects = log.n_clients, fitted.effects
    chosen = np.bincount(log.clients, minlength=n).astype(np.float64)
    return (
        _availability(effects, fitted.presence, n),
        _stays(fitted.presence, effects),
        _rhythm(fitted.presence, log),
        _together(fitted.presence, log),
        _success(effects, chosen, log),
        _lasting(fitted, log),
        *_seconds(effects, fitted.durations, log),
        *_reported(effects, fitted.reported, n),
        _correlation(effects, fitted.reported, n),
    )


def _reported(effects: Effects, reported: ReportedValues, n: int) -> tuple[Quantity, Quantity]:
    lossy, sized = int((reported.n_losses > 0).sum()), int((reported.n_sizes > 0).sum())
    spread = np.sqrt(np.diag(effects.spread))
    losses = Quantity(
        "losses",
        f"clients differ by a factor of {math.exp(spread[3]):.3g}",
        f"{int(reported.n_losses.sum()):,} reports",
        lossy,
        not lossy,
        _unseen(n - lossy) if lossy else "no losses in the records",
    )
    low, high = np.exp(np.quantile(effects.mean[:, 4], (0.05, 0.95)))
    examples = Quantity(
        "examples",
        f"{low:.3g} to {high:.3g}" if sized else "500 each",
        f"{int(reported.n_sizes.sum()):,} reports",
        sized,
        not sized,
        _unseen(n - sized) if sized else "no sizes in the records",
    )
    return losses, examples


def _availability(effects: Effects, presence: Presence, n: int) -> Quantity:
    seen = int((presence.known > 0).sum())
    shares = _chance(effects.mean[:, 0])
    if not seen:
        remark = "the records do not say who was there: everyone is, nearly always"
        return Quantity("availability", _range(shares), "0 client rounds", 0, True, remark)
    return Quantity(
        "availability",
        _range(shares),
        f"{presence.n_known:,} client rounds",
        seen,
        False,
        _unseen(n - seen),
    )


def _stays(presence: Presence, effects: Effects) -> Quantity:
    share = _chance(effects.mean[:, 0])
    if not presence.n_changes:
        return Quantity("stays", "nobody came or went", "0 changes", 0, False)
    redrawn = 1.0 - presence.stay
    there = np.median(1.0 / np.maximum(redrawn * (1.0 - share), 1e-6))
    away = np.median(1.0 / np.maximum(redrawn * share, 1e-6))
    value = f"{there:.3g} rounds there, {away:.3g} away"
    n_clients = int((presence.known > 0).sum())
    return Quantity("stays", value, f"{presence.n_changes:,} changes", n_clients, False)


def _rhythm(presence: Presence, log: Log) -> Quantity:
    learned_from = f"{log.n_rounds:,} rounds"
    if math.isinf(presence.period) or not presence.rhythm.any():
        remark = (
            "not looked for: rounds did not begin at equal distances, as if the server had paused"
            if presence.is_uneven
            else ""
        )
        return Quantity("daily rhythm", "none found", learned_from, 0, False, remark)
    swing = float(np.median(np.hypot(*presence.rhythm.T)))
    value = f"period {presence.period:.4g} rounds, swing {swing:.2f}"
    return Quantity("daily rhythm", value, learned_from, len(presence.rhythm), False)


def _together(presence: Presence, log: Log) -> Quantity:
    size, lasts = presence.together
    value = "none found"
    if size:
        value = f"everyone's odds by a factor of {math.exp(size):.3g}, for {lasts:.3g} rounds"
    return Quantity("swings in common", value, f"{log.n_rounds:,} rounds", 0, False)


def _success(effects: Effects, chosen: FloatArray, log: Log) -> Quantity:
    seen, few = int((chosen > 0).sum()), int(((chosen > 0) & (chosen < FEW)).sum())
    seldom = f"{few:,} were chosen fewer than {FEW} times" if few else ""
    remark = _joined(_unseen(log.n_clients - seen), seldom)
    value = _range(_chance(effects.mean[:, 1]))
    return Quantity("success", value, f"{log.clients.size:,} choices", seen, False, remark)


def _lasting(fitted: Fitted, log: Log) -> Quantity:
    stay, n_pairs = fitted.success_stay, fitted.n_success_pairs
    value = f"a state is kept with chance {stay:.2f}" if stay else "independent"
    is_guess = n_pairs < LEAST_PAIRS
    remark = "hardly anyone was chosen twice in a row" if is_guess else ""
    return Quantity("failures in a row", value, f"{n_pairs:,} pairs", 0, is_guess, remark)


def _seconds(effects: Effects, durations: Durations, log: Log) -> tuple[Quantity, ...]:
    n_cut = int(durations.cut_off.sum())
    n_known = durations.log_s.size - n_cut
    seen = np.unique(durations.clients).size
    own = effects.mean[:, 2]
    low, middle, high = np.exp(np.quantile(own, (0.05, 0.5, 0.95)))
    learned_from = f"{n_known:,} answers, {n_cut:,} cut off"
    share = n_cut / max(1, n_cut + n_known)
    is_short = share > 0.5
    cut = "most were cut off: the tail is extrapolated" if is_short else ""
    remark = _joined(_unseen(log.n_clients - seen), cut)
    value = f"median {middle:.3g} s, clients {low:.3g} to {high:.3g} s"
    noise = durations.noise.quantile
    tail = float(np.exp(np.median(durations.scale) * np.interp(0.99, LEVELS, noise)))
    drift, error = durations.drift
    change = math.expm1(drift * log.n_rounds)
    rounds = f"{log.n_rounds:,} rounds"
    gain = math.expm1(durations.gain[0])
    if not seen:
        remark = "no durations in the records: from how long rounds took, and who was in time"
        return (Quantity("durations", value, "0 answers", 0, True, remark),)
    return (
        Quantity("durations", value, learned_from, seen, False, remark),
        Quantity(
            "tail",
            f"1 in 100 takes {tail:.3g} times as long",
            learned_from,
            seen,
            is_short,
            "beyond the deadline it is extrapolated" if n_cut else "",
        ),
        Quantity(
            "rounds differ by",
            f"a factor of {math.exp(durations.round_scale):.3g}" if durations.round_scale else "no",
            rounds,
            0,
            False,
        ),
        Quantity(
            "drift",
            f"{change:+.1%} over the record" if drift else "none found",
            rounds,
            0,
            False,
            f"standard error {math.expm1(error * log.n_rounds):.1%}",
        ),
        Quantity(
            "after a round",
            f"{gain:+.1%} time" if durations.gain[0] else "no difference found",
            f"{int(durations.warm.sum()):,} answers",
            0,
            False,
        ),
    )


def _correlation(effects: Effects, reported: ReportedValues, n: int) -> Quantity:
    deviation = np.sqrt(np.diag(effects.spread))
    relation = effects.spread / np.outer(deviation, deviation)
    shown = {"failing": -relation[2, 1], "away": -relation[2, 0]}
    if reported.n_losses.any():
        shown["high losses"] = relation[2, 3]
    if reported.n_sizes.any():
        shown["many examples"] = relation[2, 4]
    value = "slow goes with " + ", ".join(f"{name} {x:+.2f}" for name, x in shown.items())
    return Quantity("correlations", value, f"{n:,} clients", n, False)


def _unseen(n: int) -> str:
    return f"{n:,} never seen: the population's" if n else ""


def _joined(*remarks: str) -> str:
    return "; ".join(remark for remark in remarks if remark)


def _chance(logit: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def _range(shares: FloatArray) -> str:
    low, high = np.quantile(shares, (0.05, 0.95))
    return f"{shares.mean():.3f}, clients {low:.2f} to {high:.2f}"
