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

from typing import TYPE_CHECKING

from turnout.core.errors import MissingExtra
from turnout.core.names import loader

if TYPE_CHECKING:
    from turnout.live.nvflare.controller import SelectingFedAvg

try:
    import nvflare  # noqa: F401
except ImportError as error:
    raise MissingExtra(
        "turnout.live.nvflare needs nvflare>=2.9,<2.10: pip install 'turnout[nvflare]'"
    ) from error


__all__ = ["SelectingFedAvg"]

# Clients import this package without the server's side.
__getattr__ = loader(__name__, {"SelectingFedAvg": "controller"})
