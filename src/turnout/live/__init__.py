"""A live federation without any framework: who is connected, who is selected, who answers.

A ``Session`` never waits and sends nothing. It receives connections and replies, and
returns who is selected and when the round closes. ``Live`` drives it over a ``Port``, which is all
that a framework has to provide. Models and messages pass through unopened.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.live.alerts import Alert as Alert
    from turnout.live.alerts import AlertRules as AlertRules
    from turnout.live.driver import Live as Live
    from turnout.live.monitor import Follower as Follower
    from turnout.live.prometheus import Prometheus as Prometheus
    from turnout.live.round import ClosedRound as ClosedRound
    from turnout.live.round import Cohort as Cohort
    from turnout.live.session import Session as Session
    from turnout.live.settings import Guard as Guard
    from turnout.live.settings import LiveSettings as LiveSettings
    from turnout.live.settings import MissingMetric as MissingMetric
    from turnout.live.settings import Quorum as Quorum
    from turnout.live.settings import TooFewAnswers as TooFewAnswers
    from turnout.live.transport import Identity as Identity
    from turnout.live.transport import Kind as Kind
    from turnout.live.transport import Port as Port
    from turnout.live.transport import Reply as Reply
    from turnout.live.world import VirtualWorld as VirtualWorld
    from turnout.live.world import World as World

#: The names of each module; clients import parts of this package without the server's side.
_NAMES = {
    "alerts": ("Alert", "AlertRules"),
    "driver": ("Live",),
    "monitor": ("Follower",),
    "prometheus": ("Prometheus",),
    "round": ("ClosedRound", "Cohort"),
    "session": ("Session",),
    "settings": ("Guard", "LiveSettings", "MissingMetric", "Quorum", "TooFewAnswers"),
    "transport": ("Identity", "Kind", "Port", "Reply"),
    "world": ("VirtualWorld", "World"),
}
#: Names of earlier versions, and what they are called now.
_FORMER = {
    "Chosen": "Cohort",
    "Ended": "ClosedRound",
    "Heard": "Reply",
    "Settings": "LiveSettings",
}

__all__ = sorted(name for names in _NAMES.values() for name in names)


def __getattr__(name: str) -> Any:
    current = _FORMER.get(name, name)
    for module, names in _NAMES.items():
        if current in names:
            return getattr(import_module(f"{__name__}.{module}"), current)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
