"""A live round without any framework: who is there, who is chosen, who answered, what is learned.

A ``Session`` waits for nobody and sends nothing. It is told who is present and what was heard, and
says who is chosen and when the round closes. ``Live`` drives it over a ``Port``, which is all that
a framework has to provide. Models and messages pass through unopened.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.session.alerts import Alert, AlertRules
    from turnout.session.errors import MissingMetric, TooFewAnswers
    from turnout.session.follower import Follower
    from turnout.session.guard import Guard
    from turnout.session.live import Live
    from turnout.session.port import Heard, Identity, Kind, Port
    from turnout.session.prometheus import Prometheus
    from turnout.session.round import Chosen, Ended
    from turnout.session.session import Session
    from turnout.session.settings import Quorum, Settings
    from turnout.session.virtual import VirtualWorld
    from turnout.session.world import World

__all__ = [
    "Alert",
    "AlertRules",
    "Chosen",
    "Ended",
    "Follower",
    "Guard",
    "Heard",
    "Identity",
    "Kind",
    "Live",
    "MissingMetric",
    "Port",
    "Prometheus",
    "Quorum",
    "Session",
    "Settings",
    "TooFewAnswers",
    "VirtualWorld",
    "World",
]

#: Where the names live; clients import parts of this package without loading the server's side.
_HOMES = {
    "Prometheus": "prometheus",
    "Follower": "follower",
    "AlertRules": "alerts",
    "Alert": "alerts",
    "Chosen": "round",
    "Ended": "round",
    "Guard": "guard",
    "Heard": "port",
    "Identity": "port",
    "Kind": "port",
    "Live": "live",
    "MissingMetric": "errors",
    "Port": "port",
    "Quorum": "settings",
    "Session": "session",
    "Settings": "settings",
    "TooFewAnswers": "errors",
    "VirtualWorld": "virtual",
    "World": "world",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
