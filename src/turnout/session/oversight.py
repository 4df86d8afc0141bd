"""Looks after a session: counts by client, alerts, and whoever follows it from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from turnout.roster import Roster
from turnout.runs.run import Run
from turnout.selector import Selector
from turnout.session.alerts import Alerts
from turnout.session.follower import Followers, Numbers, People
from turnout.session.members import Members
from turnout.session.post import log
from turnout.session.round import Ended
from turnout.session.settings import Settings
from turnout.session.tally import FAILING, Tallied, Tally, promised_chance
from turnout.types import Array, BoolArray, Selection, Status


class Oversight:
    """Everything about a session that no choice depends on.

    Args:
        settings: Which alerts and followers there are.
        selector: Who chooses; its promises are held against what clients get.
        is_virtual: Whether a world stands in for clients; then there are no alerts.
    """

    def __init__(self, settings: Settings, selector: Selector, *, is_virtual: bool) -> None:
        self.tally = Tally()
        self.followers = Followers(settings.label, settings.followers)
        rules = None if is_virtual else settings.alerts
        self._alerts = None if rules is None else Alerts(rules)
        self._selector = selector
        self._min_answers = settings.quorum.min_answers

    def opened(self, round: int, members: Members) -> None:
        """Tell followers that a round is open."""
        if self.followers:
            self.followers.opened(round, People.of(members))

    def count(
        self, selection: Selection, available: BoolArray, ended: Ended, roster: Roster
    ) -> Ended:
        """Count a round, and return how it ended with its alerts, which are logged."""
        clients, status = selection.clients, ended.closed.status
        promise = promised_chance(
            self._selector, ended.round, available, clients, selection.probability
        )
        self.tally.add(Tallied(clients, status, available, promise))
        self.tally.grow(len(roster))
        if self._alerts is None:
            return ended
        failed = {
            int(clients[i]): ended.reasons.get(i, Status(int(status[i])).name.lower())
            for i in np.flatnonzero(np.isin(status, FAILING)).tolist()
        }
        void = self._void(ended) if ended.is_void else None
        alerts = self._alerts.after(ended.round, self.tally, roster, failed, void)
        for alert in alerts:
            log.warning("alert: %s", alert.text)
        return ended._replace(alerts=alerts)

    def numbers(self, ended: Ended, members: Members) -> Numbers | None:
        """Return a round in numbers; None if nobody wants to know."""
        return Numbers.of(ended, members, self.tally) if self.followers else None

    def state(self) -> dict[str, Mapping[str, Array]]:
        """Return counts and alerts, by owner."""
        alerts = {} if self._alerts is None else self._alerts.state()
        return {"tally": self.tally.state(), "alerts": alerts}

    def load_state(self, state: Mapping[str, Mapping[str, Array]], run: Run, n_void: int) -> None:
        """Go back to saved counts; those of a checkpoint without any come from its rounds."""
        if "tally" in state:
            self.tally.load_state(state["tally"], run.n_clients)
        else:
            self.tally = Tally.of_run(run, self._selector)
        if self._alerts is not None:
            self._alerts.load_state(state.get("alerts", {}), self.tally, n_void)

    def _void(self, ended: Ended) -> str:
        if not ended.ids:
            return "nobody could be chosen"
        n = int(np.count_nonzero(ended.closed.status == Status.COMPLETED))
        return f"{n} of the {self._min_answers} answers that it needs"


def about(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what trackers show of a run's ``config.json``.

    Args:
        config: The configuration.
    """
    shown = ("kind", "experiment", "label", "selector", "parameters", "seed", "cohort_size")
    return {name: config[name] for name in (*shown, "n_rounds", "policy") if name in config}
