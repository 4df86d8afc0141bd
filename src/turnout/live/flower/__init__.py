"""Any selector in any Flower strategy, simulated and deployed (extra ``flower``).

On the server::

    from turnout.live.flower import SelectingStrategy

    strategy = SelectingStrategy(FedAvg(), "e3cs", cohort_size=20, policy=FixedDeadline(30.0))
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=100)

On the client, so that cohorts are reproducible and selectors get the columns that they need::

    from turnout.live.flower.client import LossReport, describe

    describe(app, stable_id=..., num_examples=...)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.core.errors import MissingExtra
from turnout.core.names import loader

if TYPE_CHECKING:
    from turnout.live.flower.inner import UnsuitableStrategy
    from turnout.live.flower.strategy import SelectingStrategy

try:
    import flwr.app  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        "turnout.live.flower needs flwr>=1.41,<1.43: pip install 'turnout[flower]'"
    ) from error


__all__ = ["SelectingStrategy", "UnsuitableStrategy"]

# Clients import this package without the server's side.
__getattr__ = loader(__name__, {"SelectingStrategy": "strategy", "UnsuitableStrategy": "inner"})
