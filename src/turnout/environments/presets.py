"""The worlds of the papers' numerical experiments."""

from __future__ import annotations

from turnout.environments.availability import Bernoulli
from turnout.environments.environment import Environment
from turnout.environments.timing import LinearContextual
from turnout.environments.volatility import ByClass, Reliable

__all__ = ["e3cs_world", "rbcs_f_world"]


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
