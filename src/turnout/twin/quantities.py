"""What was learned from how many observations, and what is a guess, in words."""

from __future__ import annotations

import math

import numpy as np

from turnout.core.types import FloatArray
from turnout.twin.availability import Presence
from turnout.twin.durations import LEVELS, Durations
from turnout.twin.effects import Effects
from turnout.twin.log import Log
from turnout.twin.world import Quantity

#: Clients with fewer observations than this have mostly the population's values.
FEW = 5


def quantities_of(
    log: Log, effects: Effects, presence: Presence, durations: Durations, success_stay: float
) -> tuple[Quantity, ...]:
    """Return what was learned, quantity by quantity.

    Args:
        log: The records.
        effects: Of the clients.
        presence: What was seen of availability.
        durations: What is common to the durations of all clients.
        success_stay: Chance that success is not drawn anew from one round to the next.
    """
    n = log.n_clients
    chosen = np.bincount(log.clients, minlength=n).astype(np.float64)
    return (
        _availability(effects, presence, n),
        _stays(presence, effects),
        _rhythm(presence, log),
        _success(effects, chosen, log),
        _lasting(success_stay, log),
        *_seconds(effects, durations, log),
        _correlation(effects, log),
        Quantity("losses", "as in every world", "0 reports", 0, True, "no losses in the records"),
        Quantity("examples", "500 each", "0 reports", 0, True, "no sizes in the records"),
    )


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
        return Quantity("daily rhythm", "none found", learned_from, 0, False)
    swing = float(np.median(np.hypot(*presence.rhythm.T)))
    value = f"period {presence.period:.4g} rounds, swing {swing:.2f}"
    return Quantity("daily rhythm", value, learned_from, len(presence.rhythm), False)


def _success(effects: Effects, chosen: FloatArray, log: Log) -> Quantity:
    seen, few = int((chosen > 0).sum()), int(((chosen > 0) & (chosen < FEW)).sum())
    remark = _unseen(log.n_clients - seen)
    if few:
        remark = f"{remark}{'; ' if remark else ''}{few:,} were chosen fewer than {FEW} times"
    value = _range(_chance(effects.mean[:, 1]))
    return Quantity("success", value, f"{log.clients.size:,} choices", seen, False, remark)


def _lasting(success_stay: float, log: Log) -> Quantity:
    n_pairs = int(log.warm.sum())
    value = f"a state is kept with chance {success_stay:.2f}" if success_stay else "independent"
    is_guess = n_pairs < 100
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
    remark = _unseen(log.n_clients - seen)
    if share > 0.5:
        remark = f"{remark}{'; ' if remark else ''}most were cut off: the tail is extrapolated"
    value = f"median {middle:.3g} s, clients {low:.3g} to {high:.3g} s"
    noise = durations.noise.quantile
    tail = float(np.exp(np.median(durations.scale) * np.interp(0.99, LEVELS, noise)))
    drift, error = durations.drift
    change = math.expm1(drift * log.n_rounds)
    rounds = f"{log.n_rounds:,} rounds"
    gain = math.expm1(durations.gain[0])
    return (
        Quantity("durations", value, learned_from, seen, False, remark),
        Quantity(
            "tail",
            f"1 in 100 takes {tail:.3g} times as long",
            learned_from,
            seen,
            share > 0.5,
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


def _correlation(effects: Effects, log: Log) -> Quantity:
    deviation = np.sqrt(np.diag(effects.spread))
    relation = effects.spread / np.outer(deviation, deviation)
    value = f"slow and failing {relation[1, 2] * -1:+.2f}, slow and away {relation[0, 2] * -1:+.2f}"
    return Quantity("clients' effects", value, f"{log.n_clients:,} clients", log.n_clients, False)


def _unseen(n: int) -> str:
    return f"{n:,} never seen: the population's" if n else ""


def _chance(logit: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-logit)))


def _range(shares: FloatArray) -> str:
    low, high = np.quantile(shares, (0.05, 0.95))
    return f"{shares.mean():.3f}, clients {low:.2f} to {high:.2f}"
