"""One round in progress: answers come in, the policy says when it is over, everybody gets a status.

| what came | status |
|---|---|
| a usable reply before the round ended | COMPLETED |
| error 0 unknown, 1 app not loaded, 2 raised, 6 mod refused, 7 bad bundle, 8 crashed | FAILED |
| a reply that cannot be read, or that the inner strategy cannot use | FAILED |
| error 3 message expired, 4 reply lost, 5 node gone; or the grid refused the message | SILENT |
| nothing, and the node is no longer connected | SILENT |
| nothing, and the node is still connected | LATE |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from flwr.app import Message

from turnout.integrations.flower.mailbox import Answer, log
from turnout.integrations.flower.replies import Checked, ReplyRules
from turnout.policies import Closed, Observed, RoundPolicy
from turnout.types import BoolArray, Status

__all__ = ["NO_ANSWER", "Cohort", "reason_of"]

#: Error codes that the SuperLink makes up for a node that did not answer.
NO_ANSWER = frozenset({3, 4, 5})

#: Errors are logged up to so many characters; a simulated client sends its whole traceback.
_LONGEST_REASON = 200


class Cohort:
    """The chosen nodes of a round, in the order of the selection."""

    def __init__(
        self,
        names: Sequence[object],
        nodes: Sequence[int],
        rules: ReplyRules,
        policy: RoundPolicy,
        observed: Observed,
        cohort_size: int,
    ) -> None:
        self.names, self.nodes = list(names), list(nodes)
        self.replies: dict[int, Checked] = {}  #: usable replies by position
        self._rules, self._policy, self._observed = rules, policy, observed
        self._cohort_size = cohort_size
        self._position = {node: i for i, node in enumerate(nodes)}
        self._n_taken = 0
        self._duration = np.full(len(nodes), np.nan)
        self._is_heard = np.zeros(len(nodes), dtype=np.bool_)
        self._survived = np.ones(len(nodes), dtype=np.bool_)
        self._reported = np.zeros(len(nodes), dtype=np.bool_)  # sent an error itself

    @property
    def is_open(self) -> bool:
        """Whether anybody has not answered yet."""
        return not self._is_heard.all()

    def until(self, answers: Sequence[Answer]) -> float:
        """Take in the answers that are new, and return when the round is over."""
        for answer in answers[self._n_taken :]:
            self._take(answer)
        self._n_taken = len(answers)
        # Whoever is still working answers later than everyone so far.
        duration = np.where(self._is_heard, self._duration, np.inf)
        return self._policy.end(duration, self._survived, self._cohort_size, self._observed).at

    def close(self, connected: Collection[int], length_s: float) -> Closed:
        """Return how the round ended; ``connected`` are the nodes that are still there."""
        gone = np.array([node not in connected for node in self.nodes], dtype=np.bool_)
        survived = self._survived & (self._is_heard | ~gone)
        duration = np.where(self._is_heard & (survived | self._reported), self._duration, np.nan)
        closed = self._policy.close(
            duration,
            survived,
            self._observed,
            cohort_size=self._cohort_size,
            reports_failure=self._reported,
        )
        spent = np.where(np.isnan(duration), length_s, np.fmin(duration, length_s))
        return closed._replace(length_s=length_s, spent=spent)

    def _take(self, answer: Answer) -> None:
        i = self._position[answer.node]
        self._duration[i], self._is_heard[i] = answer.at, True
        reply = answer.reply
        if reply is None:
            self._survived[i], self._reported[i] = False, not answer.is_refused
            what = "the grid refused the message" if answer.is_refused else "reply not readable"
            log.warning("%s: %s", self.names[i], what)
        elif reply.has_error():
            self._survived[i] = False
            self._reported[i] = reply.error.code not in NO_ANSWER
            log.warning("%s: error %d, %s", self.names[i], reply.error.code, reason_of(reply))
        else:
            checked = self._rules.check(reply, train=True)
            if checked.fault is None:
                self.replies[i] = checked
            else:
                self._survived[i], self._reported[i] = False, True
                log.warning("%s: reply dropped, %s", self.names[i], checked.fault)

    def drop(self, closed: Closed, faults: dict[int, str]) -> Closed:
        """Mark those whose replies do not fit the others as failed."""
        status = closed.status.copy()
        for i, fault in faults.items():
            status[i] = Status.FAILED
            del self.replies[i]
            log.warning("%s: reply dropped, %s", self.names[i], fault)
        return closed._replace(status=status)


def completed(closed: Closed) -> BoolArray:
    """Return (s,) who was in time."""
    return np.equal(closed.status, Status.COMPLETED)


def reason_of(reply: Message) -> str:
    """Return the end of an error's text, in one line: that is where the exception stands."""
    text = " ".join((reply.error.reason or "no reason given").split())
    return text if len(text) <= _LONGEST_REASON else f"... {text[-_LONGEST_REASON:]}"
