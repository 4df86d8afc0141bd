"""What a session consists of."""

from __future__ import annotations

from typing import NamedTuple

from turnout.session.chooser import Chooser
from turnout.session.journal import Journal
from turnout.session.members import Members
from turnout.session.oversight import Oversight
from turnout.session.reports import Reports
from turnout.session.settings import Settings


class Parts(NamedTuple):
    """The parts of one session, for what is done with all of them."""

    settings: Settings
    members: Members
    chooser: Chooser
    journal: Journal
    reports: Reports
    oversight: Oversight
