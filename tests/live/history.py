"""Accidents by a seed: one seed is one history, whoever plays it.

A history says what happens to each client: when it is online, under which address, and what becomes
of the n-th work it gets. ``FakePort`` plays it to a session, ``tests.live.flower`` to a strategy.
"""

from dataclasses import dataclass, field

import numpy as np

from turnout.live import Identity, Kind, Reply
from turnout.live.transport import AskIdentity, AskLoss, clock

#: What may become of a work: kind, chance. "late" answers after the deadline, "hung" never.
FATES = {"ok": 0.7, "failed": 0.08, "lost": 0.05, "late": 0.09, "hung": 0.04, "garbled": 0.04}
DEADLINE = 10.0


@dataclass(frozen=True)
class Step:
    """What becomes of one work."""

    kind: str
    delay: float


@dataclass
class History:
    """What happens to n clients. ``online(t)`` has an address for everyone who is there."""

    seed: int
    n: int = 12
    churn: float = 0.1  # chance per round to leave, to come back, and to restart
    kinds: tuple = tuple(FATES)

    def __post_init__(self):
        self.names = [f"client-{i:03d}" for i in range(self.n)]
        rng = np.random.default_rng([self.seed, 1])
        self._is_on = rng.random(self.n) < 0.8
        self._is_on[:4] = True
        self._life = np.zeros(self.n, dtype=int)
        self._rng = np.random.default_rng([self.seed, 2])

    def step(self, client, number):
        """Return what becomes of a client's n-th work."""
        rng = np.random.default_rng([self.seed, 3, client, number])
        chance = np.array([FATES[kind] for kind in self.kinds])
        kind = str(rng.choice(self.kinds, p=chance / chance.sum()))
        delay = float(rng.integers(1, 16)) / 2
        return Step(kind, delay + 12.0 if kind == "late" else delay)

    def online(self):
        """Return the address of every client that is there, as a dictionary by index."""
        there = np.flatnonzero(self._is_on).tolist()
        return {i: 10_000 * i + int(self._life[i]) + 2 for i in there}

    def advance(self):
        """Let clients leave, come back and restart between two rounds."""
        draw = self._rng.random((2, self.n))
        flips = draw[0] < self.churn
        restarts = (draw[1] < self.churn / 2) | (flips & ~self._is_on)
        self._is_on = self._is_on ^ flips
        self._is_on[:2] = True  # somebody is always there
        self._life += restarts


@dataclass
class FakePort:
    """Plays a history, on the virtual clock. ``asks_s``: seconds until questions are answered."""

    history: History
    asks_s: float = 0.5
    refuses: set = field(default_factory=set)  # addresses
    hangs: set = field(default_factory=set)  # addresses that never say who they are
    claims: dict = field(default_factory=dict)  # stable ids that addresses claim, if not their own
    trained: dict = field(default_factory=dict)  # works given, by client
    cancelled: list = field(default_factory=list)

    def __post_init__(self):
        self._open, self._n = {}, 0

    def client_at(self, address):
        return address // 10_000

    def present(self):
        return list(self.history.online().values())

    def ask(self, addresses, question, ttl):
        return [self._put(address, question, ttl, self.asks_s) for address in addresses]

    def send(self, addresses, payloads, ttl):
        tickets = []
        for address, payload in zip(addresses, payloads, strict=True):
            client = self.client_at(address)
            number = self.trained.get(client, 0)
            self.trained[client] = number + 1
            step = self.history.step(client, number)
            tickets.append(self._put(address, (payload, step), ttl, step.delay))
        return tickets

    def poll(self, tickets):
        answers = []
        for ticket in sorted(tickets):
            heard = self._look(ticket)
            if heard is not None:
                answers.append((ticket, heard))
                self._open.pop(ticket, None)
        return answers

    def cancel(self, tickets):
        self.cancelled += tickets

    def _put(self, address, what, ttl, delay):
        if address in self.refuses:
            return None
        self._n += 1
        ticket = f"ticket-{self._n:06d}"
        self._open[ticket] = (address, what, clock.now() + delay, clock.now() + ttl)
        return ticket

    def _look(self, ticket):
        if ticket not in self._open:
            return None
        address, what, ready, expires = self._open[ticket]
        if clock.now() >= expires:
            return Reply(Kind.LOST, reason="expired")
        if address not in self.present():
            return Reply(Kind.LOST, reason="gone")
        if clock.now() < ready:
            return None
        client = self.client_at(address)
        if isinstance(what, AskIdentity):
            if address in self.hangs:
                return None
            name = self.claims.get(address, self.history.names[client])
            return Reply(metrics={"num_samples": client + 1.0}, content=Identity(name))
        if isinstance(what, AskLoss):
            return Reply(metrics={"loss": float(client)})
        return self._done(client, *what)

    def _done(self, client, payload, step):
        if step.kind == "hung":
            return None
        if step.kind in ("failed", "lost", "garbled"):
            return Reply(Kind[step.kind.upper()], reason=f"made {step.kind} for the test")
        metrics = {"num-examples": client + 1, "loss": 1.0 / (1 + client), "loss_std": 0.1}
        metrics |= {"loss_rms": 2.0 / (1 + client)}
        return Reply(metrics=metrics, content=(client, payload))
