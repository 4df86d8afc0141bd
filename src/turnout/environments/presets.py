"""The worlds of the papers' numerical experiments."""

from __future__ import annotations

from turnout.environments.availability import Bernoulli
from turnout.environments.environment import Environment
from turnout.environments.timing import LinearContextual
from turnout.environments.volatility import ByClass, Reliable

__all__ = ["e3cs_world", "rbcs_f_world"]


def e3cs_world(n_clients: int = 100, seed: int = 0) -> Environment:
    """E3CS, Sec. VI-A: four equal classes that succeed with chance 0.1, 0.3, 0.6 and 0.9."""
    return Environment(n_clients, seed, volatility=ByClass())


def rbcs_f_world(n_clients: int = 40, seed: int = 0, log_base: float = 2.0) -> Environment:
    """RBCS-F, Sec. 6.1: nobody fails, 80 % are available, times are linear in the context."""
    return Environment(
        n_clients,
        seed,
        availability=Bernoulli(0.8),
        volatility=Reliable(),
        timing=LinearContextual(log_base=log_base),
    )
