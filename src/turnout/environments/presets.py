"""Worlds by name, among them those of the papers' numerical experiments."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from turnout.environments.availability import Bernoulli
from turnout.environments.environment import Environment
from turnout.environments.timing import LinearContextual
from turnout.environments.volatility import ByClass, Reliable
from turnout.errors import InvalidInput
from turnout.names import nearest


def e3cs_world(n_clients: int = 100, seed: int = 0) -> Environment:
    """Return the world of E3CS, Sec. VI-A: four equal classes with success 0.1, 0.3, 0.6 and 0.9.

    Args:
        n_clients: Number of clients; the paper has 100.
        seed: Seed of the world.
    """
    return Environment(n_clients, seed, volatility=ByClass())


def rbcs_f_world(n_clients: int = 40, seed: int = 0, log_base: float = 2.0) -> Environment:
    """Return the world of RBCS-F, Sec. 6.1: 80 % are available, nobody fails, times are linear.

    Args:
        n_clients: Number of clients; the paper has 40.
        seed: Seed of the world.
        log_base: Base of the logarithm in 1 / log(1 + SNR), which the paper does not state.
    """
    return Environment(
        n_clients,
        seed,
        availability=Bernoulli(0.8),
        volatility=Reliable(),
        timing=LinearContextual(log_base=log_base),
    )


class NamedWorld(NamedTuple):
    """A world that can be asked for by name, with the sizes it is usually run at.

    Attributes:
        example: The world, with its usual number of clients.
        cohort_size: Answers usually wanted per round.
        n_rounds: Rounds of a usual run.
        what: The world in a few words.
    """

    example: Environment
    cohort_size: int
    n_rounds: int
    what: str


#: All worlds that have a name.
WORLDS: Mapping[str, NamedWorld] = MappingProxyType(
    {
        "volatile": NamedWorld(
            Environment(100, 0, Bernoulli(0.9), ByClass(), LinearContextual()),
            20,
            500,
            "90 % available, four classes of success rate, times linear in a context",
        ),
        "reliable": NamedWorld(
            Environment(100, 0, volatility=Reliable()),
            20,
            500,
            "everyone is there, answers, and takes the same time",
        ),
        "unequal": NamedWorld(
            Environment(
                100,
                0,
                volatility=ByClass((0.4, 0.6, 0.8, 1.0)),
                timing=LinearContextual((8.0, 4.0, 2.0, 1.0), snr=(1.0, 10.0, 100.0, 1000.0)),
            ),
            20,
            500,
            "the slow fail more often; with the partition label-order they hold other labels",
        ),
        "e3cs": NamedWorld(e3cs_world(), 20, 2500, "the numerical experiments of E3CS"),
        "rbcs-f": NamedWorld(rbcs_f_world(), 8, 500, "the numerical experiments of RBCS-F"),
    }
)


def named_world(name: str) -> NamedWorld:
    """Return a world by its name.

    Args:
        name: One of ``WORLDS``.

    Raises:
        InvalidInput: There is none; the message has the nearest name.
    """
    if name not in WORLDS:
        raise InvalidInput(f"unknown world {name!r}.{nearest(name, WORLDS)}", field="world")
    return WORLDS[name]
