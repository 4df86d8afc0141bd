"""A live federation without any framework: who is connected, who is selected, who answers.

A ``Session`` never waits and sends nothing. It receives connections and replies, and
returns who is selected and when the round closes. ``Live`` drives it over a ``Port``, which is all
that a framework has to provide. Models and messages pass through unopened.

The answer of a client takes six forms on its way: the framework's message, the ``Reply`` that the
port makes of it, the policy's ``Closed``, the ``Outcome`` that the selector learns from, the
``ClosedRound`` that the host gets back, and the ``RoundRow`` of the records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.core.names import loader

if TYPE_CHECKING:
    from turnout.live.alerts import Alert, AlertRules
    from turnout.live.driver import Live
    from turnout.live.monitor import Follower
    from turnout.live.overlap import OverlappingSession
    from turnout.live.prometheus import Prometheus
    from turnout.live.round import ClosedRound, Cohort
    from turnout.live.session import Session
    from turnout.live.settings import Guard, LiveSettings, MissingMetric, Quorum, TooFewAnswers
    from turnout.live.transport import Identity, Kind, Port, Reply
    from turnout.live.world import VirtualWorld, World

__all__ = [
    "Alert",
    "AlertRules",
    "ClosedRound",
    "Cohort",
    "Follower",
    "Guard",
    "Identity",
    "Kind",
    "Live",
    "LiveSettings",
    "MissingMetric",
    "OverlappingSession",
    "Port",
    "Prometheus",
    "Quorum",
    "Reply",
    "Session",
    "TooFewAnswers",
    "VirtualWorld",
    "World",
]

#: The module of each name; clients import parts of this package without the server's side. The last
#: ones are names of earlier versions.
_HOMES = {
    **dict.fromkeys(("Alert", "AlertRules"), "alerts"),
    **dict.fromkeys(("Guard", "LiveSettings", "MissingMetric", "Quorum"), "settings"),
    **dict.fromkeys(("Identity", "Kind", "Port", "Reply"), "transport"),
    **dict.fromkeys(("ClosedRound", "Cohort"), "round"),
    **dict.fromkeys(("VirtualWorld", "World"), "world"),
    "Follower": "monitor",
    "Live": "driver",
    "OverlappingSession": "overlap",
    "Prometheus": "prometheus",
    "Session": "session",
    "TooFewAnswers": "settings",
    "Chosen": "round:Cohort",
    "Ended": "round:ClosedRound",
    "Heard": "transport:Reply",
    "Settings": "settings:LiveSettings",
}

__getattr__ = loader(__name__, _HOMES)
