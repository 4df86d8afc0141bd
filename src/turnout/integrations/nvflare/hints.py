"""How a client of NVFlare provides what a selector needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turnout.session.hints import Hints, report_losses

_CLIENT = "turnout.integrations.nvflare.client"


class NvflareHints(Hints):
    """The lines to add to a client's script."""

    def columns(self, names: Sequence[str]) -> str:
        """Return the arguments of ``Describe``."""
        how = {"num_samples": "num_examples=len(train_set)", "features": "features=code"}
        how["context"] = "context=lambda model: [...]"
        arguments = ", ".join(how.get(name, f"columns={{{name!r}: ...}}") for name in names)
        return (
            f"on the client, make me = Describe({arguments}) and call me.receive() in place of "
            f"flare.receive(); it is in {_CLIENT}"
        )

    def metrics(self, keys: Mapping[str, str]) -> str:
        """Return how to use a ``LossReport``."""
        reply = "send FLModel(params=..., metrics=report.metrics())"
        return report_losses(keys, reply, _CLIENT, "SelectingFedAvg")

    def loss(self) -> str:
        """Return how to answer a poll."""
        return (
            "on the client, make me = Describe(loss=evaluate) with evaluate(model) -> float, and "
            "call me.receive() in place of flare.receive()"
        )
