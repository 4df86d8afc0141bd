"""Real folders of live runs: a session over a port that plays accidents on a virtual clock."""

import numpy as np
import pytest

import turnout
from tests.live.history import DEADLINE, FakePort, History
from tests.live.ticking import Ticking
from turnout.core.roster import Roster
from turnout.core.types import Status
from turnout.live import Live, LiveSettings, Quorum, Session
from turnout.live.records import Records
from turnout.live.round import BY_SERVER, ClosedRound, Journal
from turnout.results.run import RoundRow
from turnout.worlds import Closed, FixedDeadline

#: An id that would run, were it not escaped.
HOSTILE = "<script>document.title='owned'</script>"


class LiveFolder:
    """A live run that is played round by round into a folder."""

    def __init__(self, root, *, n=12, seed=3, n_rounds=40, selector="e3cs", names=(), **given):
        self.history = History(seed, n=n)
        self.history.names[: len(names)] = names
        given = {"cohort_size": 4, "quorum": Quorum(min_answers=2), "label": selector} | given
        settings = LiveSettings(
            policy=FixedDeadline(DEADLINE),
            seed=seed,
            records=root,
            start_s=5.0,
            wait_for_clients_s=2.0,
            ask_s=5.0,
            poll_s=0.5,
            **given,
        )
        made = turnout.make(selector)
        self.session = Session(settings, made)
        config = settings.config("flower", made, None, n_rounds)
        self.records = Records(root, config, None, made.guaranteed_rate())
        self.live = Live(self.session, FakePort(self.history), self.records)
        self.records.open(self.session.journal, resumed=False)
        self.path = self.records.path

    def choose(self):
        self.live.gather(self.session.settings.cohort_size)
        return self.live.choose("model")

    def train(self, chosen):
        work = ["work"] * len(chosen.ids)
        return self.live.train(chosen, work) if chosen.ids else self.session.close()

    def record(self, ended):
        journal = self.session.journal
        journal.note(BY_SERVER, journal.n_rounds, {"accuracy": 0.9 - 0.7 / journal.n_rounds})
        self.records.write_answers(ended, self.session.members.roster)
        self.records.add(journal)
        self.history.advance()

    def play(self, n_rounds=1):
        for _ in range(n_rounds):
            self.record(self.train(self.choose()))
        return self

    def finish(self):
        self.records.finish(self.session.journal)
        return self


def live_folder(root, n_rounds=40, **given):
    """Play a whole run and return the folder of its cell."""
    with pytest.MonkeyPatch.context() as patch:
        Ticking.installed(patch)
        return LiveFolder(root, n_rounds=n_rounds, **given).play(n_rounds).finish().path


def large_folder(root, *, n, n_rounds, cohort_size=20, seed=1, promised=None):
    """Write a large run without playing its messages; most accidents are those of a few."""
    rng = np.random.default_rng(seed)
    policy = FixedDeadline(10.0)
    settings = LiveSettings(cohort_size=cohort_size, policy=policy, records=root, label="random")
    made = turnout.make("random")
    config = settings.config("flower", made, None, n_rounds)
    records, journal = Records(root, config, None, promised), Journal(cohort_size)
    journal.n_clients = n
    records.open(journal, resumed=False)
    roster = Roster(f"device-{i:05d}" for i in range(n))
    bad = rng.random(n) < 0.05
    for t in range(n_rounds):
        free = rng.random(n) < 0.7
        clients = np.sort(rng.choice(np.flatnonzero(free), cohort_size, replace=False))
        status = np.where(bad[clients], rng.integers(0, 4, cohort_size), 0).astype(np.int8)
        spent = rng.uniform(1.0, 9.0, cohort_size)
        duration = np.where(status == Status.COMPLETED, spent, np.nan)
        closed = Closed(status, duration, 9.0, spent, False)
        ids = tuple(roster.id_of(int(client)) for client in clients)
        failed = np.flatnonzero(status == Status.FAILED).tolist()
        reasons, began = dict.fromkeys(failed, "out of memory"), 1.7e9 + 12.0 * t
        ended = ClosedRound(t, ids, closed, reasons, (), False, began, began + 11.0)
        row = RoundRow(clients, status, duration, spent, None, 9.0, free)
        journal.add(row, is_void=False)
        records.write_answers(ended, roster)
        records.add(journal)
    records.finish(journal)
    return records.path
