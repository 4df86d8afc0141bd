"""Shadows of a live run: selectors that choose in parallel, and whose choices are only recorded.

A shadow sees the same free clients as the selector of the run, and learns from the clients that
both chose. If it raises an error, or makes an impossible choice, it is switched off with a warning.
A shadow never changes the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from turnout.core.arrays import vector
from turnout.core.errors import InvalidInput
from turnout.core.plain import below
from turnout.core.types import Array, FloatArray, Outcome, RoundContext, Selection
from turnout.experiment.shadow import Shadow, Wish
from turnout.experiment.variants import Variant, variants_of
from turnout.live.transport import log
from turnout.results.shadows import Shadowed, shadows_in

_STATE, _OFF = "state.", "off."


class _Shadowing:
    """One shadow, with a record of its choices."""

    def __init__(self, variant: Variant, seed: int, place: int) -> None:
        self.label, self.is_on = variant.label, True
        self.selector = variant.make()
        self._shadow = Shadow(self.selector, seed, place)
        self._wish: Wish | None = None
        self._n_clients = 0
        self._clients: list[Array] = [np.zeros(0, dtype=np.int64)]
        self._sizes: list[Array] = [np.zeros(0, dtype=np.int64)]
        self._chance: list[FloatArray] = [np.zeros(0)]
        self._seed = seed

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Switch it off with a warning if it raises."""
        try:
            yield
        except Exception as error:  # a plug-in may raise anything, and must not harm the run
            self.is_on, self._wish = False, None
            log.warning(
                "the shadow %s is switched off because it raised %s: %s. The run continues.",
                *(self.label, type(error).__name__, error),
            )

    def resize(self, n_clients: int) -> None:
        """Make room for clients."""
        if n_clients and not self._n_clients:
            self.selector.prepare(n_clients, self._seed)
        elif n_clients > self._n_clients:
            self.selector.grow(n_clients)
        self._n_clients = n_clients

    def choose(self, ctx: RoundContext) -> None:
        """Remember its choice; it makes none while a column that it needs is missing."""
        self._wish = None
        if self.selector.needs_columns <= ctx.columns.keys():
            self._wish = _checked(self._shadow.choose(ctx), ctx)

    def add(self, selection: Selection) -> None:
        """Add the round to the columns."""
        wish, size = self._wish, selection.clients.size
        clients, chance = np.zeros(0, dtype=np.int64), np.full(size, np.nan)
        if wish is not None:
            with self.guarded():
                found = np.clip(wish.of(selection.clients), 0.0, 1.0)
                clients, chance = wish.selection.clients, found
        self._clients.append(clients)
        self._sizes.append(np.array([clients.size]))
        self._chance.append(chance)

    def learn(self, selection: Selection, outcome: Outcome) -> None:
        """Learn from the clients that both chose."""
        if self._wish is not None:
            metrics = {
                name: values
                for name, values in outcome.metrics.items()
                if name in self.selector.needs_metrics
            }
            known = Outcome(outcome.status, outcome.duration, metrics)
            wish, self._wish = self._wish, None
            self._shadow.learn(wish, selection.clients, selection.probability, known)

    def state(self) -> dict[str, Array]:
        """Return what its selector has learned, under the names of a checkpoint."""
        own: dict[str, Array] = {}
        for name, values in self.selector.state().items():
            own[f"{_STATE}{self.label}.{name}"] = array = np.asarray(values)
            if array.dtype.hasobject:
                raise InvalidInput(f"state() must return arrays of numbers or text: {name!r}.")
        return own

    @property
    def shadowed(self) -> Shadowed:
        """What it would have done so far."""
        clients, sizes = np.concatenate(self._clients), np.concatenate(self._sizes)
        chance = np.concatenate(self._chance)
        self._clients, self._sizes, self._chance = [clients], [sizes], [chance]
        return Shadowed(self.label, clients, np.concatenate(([0], np.cumsum(sizes))), chance)

    def restore(self, past: Shadowed | None, n_rounds: int, n_choices: int) -> None:
        """Continue after recorded rounds; it has no choice in rounds that it did not see."""
        if past is not None and past.offsets.size == n_rounds + 1:
            self._clients, self._chance = [past.clients], [past.chance]
            self._sizes = [np.diff(past.offsets)]
        else:
            self._clients = [np.zeros(0, dtype=np.int64)]
            self._sizes = [np.zeros(n_rounds, dtype=np.int64)]
            self._chance = [np.full(n_choices, np.nan)]


def _checked(wish: Wish, ctx: RoundContext) -> Wish:
    """Return a wish that the run can record, or raise ``InvalidInput``.

    Args:
        wish: What a shadow would do; a plug-in may return anything.
        ctx: What it knew.
    """
    selection, chances = wish.selection, wish.chances
    if not isinstance(selection, Selection):
        raise InvalidInput(f"select() must return a Selection, got {type(selection).__name__}.")
    chosen = selection.clients
    if chosen.size > ctx.size or not np.isin(chosen, ctx.pool).all():
        raise InvalidInput(
            f"it must choose at most {ctx.size} available clients in round {ctx.round}, got "
            f"{chosen.size}, {int(np.isin(chosen, ctx.pool).sum())} of them available."
        )
    if chances is not None:
        chances = vector("chances", chances, np.float64, ctx.n_clients).copy()
        if not np.isfinite(chances).all():
            raise InvalidInput(f"chances() must return finite numbers in round {ctx.round}.")
    return wish._replace(chances=chances)


class Shadows:
    """The shadows of a run.

    Args:
        texts: The selectors, as on the command line.
        seed: The seed of the run.
    """

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        variants = [each for text in texts for each in variants_of(text)]
        self._all = [_Shadowing(each, seed, place) for place, each in enumerate(variants)]

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._all)

    @property
    def labels(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(each.label for each in self._all)

    @property
    def wanted(self) -> frozenset[str]:
        """The columns that they can use."""
        used = (each.selector.needs_columns | each.selector.uses_columns for each in self._all)
        return frozenset().union(*used)

    @property
    def metrics(self) -> frozenset[str]:
        """The numbers that they learn from."""
        return frozenset().union(
            *(each.selector.needs_metrics - each.selector.metric_sizes.keys() for each in self._all)
        )

    def resize(self, n_clients: int) -> None:
        """Make room for clients."""
        for each in self._active():
            with each.guarded():
                each.resize(n_clients)

    def choose(self, ctx: RoundContext) -> None:
        """Let all of them choose.

        Args:
            ctx: What the selector in charge knows, with the columns that they want.
        """
        for each in self._active():
            with each.guarded():
                each.choose(ctx)

    def learn(self, selection: Selection, outcome: Outcome | None = None) -> None:
        """Record the round, and let them learn from it.

        Args:
            selection: Whom the selector in charge chose.
            outcome: What happened; None if nobody could be chosen.
        """
        for each in self._all:
            each.add(selection)
            if outcome is not None and each.is_on:
                with each.guarded():
                    each.learn(selection, outcome)

    @property
    def shadowed(self) -> list[tuple[Shadowed, bool]]:
        """What each of them would have done so far, and whether it is still on."""
        return [(each.shadowed, each.is_on) for each in self._all]

    def columns(self) -> dict[str, Array]:
        """Return their columns of ``selections.npz``."""
        return {name: x for each, _ in self.shadowed for name, x in each.columns().items()}

    def state(self) -> dict[str, Array]:
        """Return what they have learned, and their columns."""
        state = self.columns()
        for each in self._all:
            if each.is_on:
                with each.guarded():
                    state |= each.state()
            state[f"{_OFF}{each.label}"] = np.array(not each.is_on)
        return state

    def load_state(
        self, state: Mapping[str, Array], n_clients: int, n_rounds: int, n_choices: int
    ) -> None:
        """Continue from what ``state`` returned; shadows that are new begin now.

        Args:
            state: The arrays of a checkpoint; empty if there were no shadows.
            n_clients: How many clients there were.
            n_rounds: How many rounds were done.
            n_choices: How many clients were chosen in them.
        """
        past = shadows_in(dict(state), n_choices, max(1, n_clients))
        for each in self._all:
            each.restore(past.get(each.label), n_rounds, n_choices)
            each.is_on = not bool(state.get(f"{_OFF}{each.label}", False))
            own = below(f"{_STATE}{each.label}.", state)
            if each.is_on and n_clients:
                with each.guarded():
                    each.resize(n_clients)
                    if own:
                        each.selector.load_state(own)

    def _active(self) -> list[_Shadowing]:
        return [each for each in self._all if each.is_on]
