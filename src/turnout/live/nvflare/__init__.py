"""Any selector in NVFlare's FedAvg, simulated and deployed (extra ``nvflare``).

In the job::

    from turnout.live.nvflare import SelectingFedAvg

    job.to_server(SelectingFedAvg("e3cs", cohort_size=20, num_rounds=100, policy=FixedDeadline(30)))

On the client, so that selectors get the columns that they need::

    from turnout.live.nvflare.client import Describe, LossReport

    me = Describe(num_examples=...)
    model = me.receive()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnout.core.errors import MissingExtra

if TYPE_CHECKING:
    from turnout.live.nvflare.controller import SelectingFedAvg

try:
    import nvflare  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        "turnout.live.nvflare needs nvflare>=2.9,<2.10: pip install 'turnout[nvflare]'"
    ) from error


__all__ = ["SelectingFedAvg"]


def __getattr__(name: str) -> Any:
    """Load the server's side only where it is used."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.controller"), name)
