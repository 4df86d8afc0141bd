"""Mix: each round one of several selectors chooses, drawn by lot.

Paper:      There is none: the epsilon-mixture of off-policy evaluation, as a canary of a new
            selector.
Setting:    It needs what its members need together. Late and out-of-order feedback is possible.
Idea:       A lot with fixed weights decides which member chooses the cohort of a round. The chance
            of every chosen client is exact, whatever the members are. So the records of a mix can
            be judged later (``turnout replay``): they say what another selector would have done.
            Give ``random`` a small weight, and every client has a chance in every round.
Symbols:    w_m = weight of member m, q_m(i) = chance of client i if m chooses, S_m = the cohort of
            m, p(i) = chance of client i.
Equations:  (1) p(i) = sum over m of w_m q_m(i). A member with chances in closed form (``chances``)
            gives q_m. Of any other member, q_m(i) is 1 for i in S_m and 0 otherwise. S_m is a
            function of the state, the round and the context, because such a member draws from a
            generator of its own, which the state (key_) and the round fix. So (1) is the frequency
            of being chosen from a state in either case.
Deviations: none.
Limits:     Only the member that chose learns from a round, with its own chances and its own memo.
            So each member lives through its own rounds as if there were no others, and what is
            proven of it holds for those rounds. A member with weight w learns from a share w of
            the rounds. A floor or a quota holds for a share w of the places. A member that asks
            clients for their loss asks in every round, also if another one chooses. Two members
            cannot be the same selector with other parameters.
Cost:       that of all members; those that did not choose and have no closed form run on a copy of
            their state.
Checked:    chances against frequencies for members with and without a closed form, members against
            the same selectors alone in their own rounds: tests/selectors/test_mix.py.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from turnout.core import require
from turnout.core.errors import InvalidInput
from turnout.core.registry import make, register
from turnout.core.rng import Purpose, stream
from turnout.core.selector import Selector
from turnout.core.stateful import Range
from turnout.core.types import (
    Array,
    BoolArray,
    FloatArray,
    IntArray,
    Outcome,
    PollData,
    RoundContext,
    Selection,
)

#: The members if none are given.
USUAL: Mapping[str, float] = MappingProxyType({"pace": 0.9, "random": 0.1})
#: Keys of the members' own generators are below this.
MOST_KEYS = 2**31
#: How far the sum of the weights may be from 1.
ROUNDING = 1e-6
#: How the names of a member's own memo begin in the memo of the mix.
MEMBER = "member."


@register("mix")
class Mix(Selector):
    """Several selectors, one of which chooses in each round.

    Args:
        members (table of weights or None): The weight of each selector by its name, above 0 and 1
            in sum. None is ``{"pace": 0.9, "random": 0.1}``.
        parameters_of (table of tables or None): Parameters of members by the name of the selector;
            None keeps their defaults.
    """

    reports_probability = True
    memo_by_client = frozenset({"multiplicity"})
    state_ranges = MappingProxyType({"key_": Range(0.0, MOST_KEYS)})

    def __init__(
        self,
        *,
        members: Mapping[str, float] | None = None,
        parameters_of: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.members = members
        self.parameters_of = parameters_of

    def check_parameters(self) -> None:
        """Check the weights, the members, and that what they ask of clients fits together."""
        super().check_parameters()
        _check_weights(self._weights)
        given = self.parameters_of
        if not isinstance(given, Mapping | None):
            raise InvalidInput(
                f"parameters_of must be a table or None, got {given!r}.", field="parameters_of"
            )
        for name, values in (given or {}).items():
            if name not in self._weights or not isinstance(values, Mapping):
                raise InvalidInput(
                    f"parameters_of must hold tables of parameters by the names of members "
                    f"({', '.join(self._weights)}), got {name!r}: {values!r}.",
                    field="parameters_of",
                )
        made = self._make_members()
        if any(each.excludes for each in made):
            raise InvalidInput(
                "members with limits or budgets know their own rounds only: put 'guarded' around "
                "the mix, with the limits.",
                field="members",
            )
        asked: set[str] = {each.poll_data for each in made if each.polls}
        for what, kinds in {
            "poll for losses of different data": asked,
            "need reports of different length": _lengths(made),
        }.items():
            if len(kinds) > 1:
                raise InvalidInput(
                    f"members {what}: {', '.join(map(str, sorted(kinds)))}. Mix others.",
                    field="members",
                )

    def reset(self, n_clients: int) -> None:
        """Reset the members too."""
        super().reset(n_clients)
        self._members = self._make_members()
        for member in self._members:
            member.reset(n_clients)
        self._draw_key(stream(0, Purpose.INIT))

    def randomize(self, rng: np.random.Generator) -> None:
        """Redraw the random states of the members, then the key of their generators."""
        for member in self._members:
            member.randomize(rng)
        self._draw_key(rng)

    def poll(self, ctx: RoundContext, rng: np.random.Generator) -> IntArray | None:
        """Return everyone that a member asks for."""
        asked = [found for found in self._polls(ctx) if found is not None]
        return np.unique(np.concatenate(asked)) if asked else None

    def select(self, ctx: RoundContext, rng: np.random.Generator) -> Selection:
        """Draw the member that chooses, and compute Eq. (1) for those whom it chose."""
        weights = np.array([*self._weights.values()])
        lot = min(int(np.searchsorted(np.cumsum(weights), rng.random())), weights.size - 1)
        contexts = list(self._contexts(ctx))
        member = self._members[lot]
        found = member.chances(contexts[lot])
        chosen_by = self._own_rng(ctx.round, lot) if found is None else rng
        choice = member.select(contexts[lot], chosen_by)
        chance = weights[lot] * (_indicator(ctx, choice) if found is None else found)
        for other, weight in enumerate(weights):
            if other != lot:
                chance = chance + weight * self._chances_of(other, contexts[other])
        memo = {f"{MEMBER}{name}": values for name, values in choice.memo.items()}
        if choice.probability is not None:
            memo["own_probability"] = choice.probability
        if "multiplicity" in choice.memo:
            memo["multiplicity"] = choice.memo["multiplicity"]
        p = np.minimum(chance[choice.clients], 1.0)
        return Selection(ctx.round, choice.clients, p, memo | {"lot": np.array(lot)})

    def chances(self, ctx: RoundContext) -> FloatArray:
        """Return Eq. (1) for everyone."""
        chance = np.zeros(ctx.n_clients)
        for place, (weight, own) in enumerate(
            zip(self._weights.values(), self._contexts(ctx), strict=True)
        ):
            chance += weight * self._chances_of(place, own)
        return np.minimum(chance, 1.0)

    def observe(self, selection: Selection, outcome: Outcome) -> None:
        """Tell the member that chose what came of its choice; the others learn nothing."""
        member, choice = self._choice(selection)
        member.observe(choice, outcome)

    def part(self, selection: Selection, kept: BoolArray, chance: FloatArray) -> Selection:
        """Return the part, with the part of the choice of the member that chose."""
        member, choice = self._choice(selection)
        own = member.part(choice, kept, chance)
        part = super().part(selection, kept, chance)
        memo = {**part.memo, **{f"{MEMBER}{name}": x for name, x in own.memo.items()}}
        if own.probability is not None:
            memo["own_probability"] = own.probability
        return Selection(part.round, part.clients, part.probability, memo)

    def _choice(self, selection: Selection) -> tuple[Selector, Selection]:
        """Return the member that chose, and its own selection."""
        own = {
            name.removeprefix(MEMBER): values
            for name, values in selection.memo.items()
            if name.startswith(MEMBER)
        }
        chance = selection.memo.get("own_probability")
        choice = Selection(selection.round, selection.clients, chance, own)
        lot = int(selection.recall("lot"))
        if not 0 <= lot < len(self._members):
            raise InvalidInput(
                f"memo has lot = {lot}, and the mix has {len(self._members)} members: the "
                "selection belongs to another mix.",
                field="selection",
            )
        return self._members[lot], choice

    def resume(self, waiting: Sequence[Selection]) -> None:
        """Tell each member of its own choices."""
        choices = [self._choice(selection) for selection in waiting]
        for member in self._members:
            member.resume([choice for chooser, choice in choices if chooser is member])

    def quota_at(self, round: int) -> float:
        """Return the members' quotas, each times the member's weight."""
        return sum(weight * each.quota_at(round) for each, weight in self._weighted())

    def promised_share(self, round: int) -> float:
        """Return what the members promise, each times the member's weight.

        Args:
            round: The round, counted from 0.
        """
        return sum(weight * each.promised_share(round) for each, weight in self._weighted())

    @property
    def polls(self) -> bool:
        """Whether a member does."""
        return any(each.polls for each in self._choosers)

    @property
    def needs_columns(self) -> frozenset[str]:  # type: ignore[override]  # the members'
        """What any member needs."""
        return frozenset().union(*(each.needs_columns for each in self._choosers))

    @property
    def uses_columns(self) -> frozenset[str]:  # type: ignore[override]  # the members'
        """What any member uses."""
        used = frozenset[str]().union(*(each.uses_columns for each in self._choosers))
        return used - self.needs_columns

    @property
    def needs_metrics(self) -> frozenset[str]:  # type: ignore[override]  # the members'
        """What any member learns from."""
        return frozenset().union(*(each.needs_metrics for each in self._choosers))

    @property
    def optional_metrics(self) -> Mapping[str, str]:  # type: ignore[override]  # the members'
        """What every member that learns from it can do without."""
        needed = frozenset[str]().union(
            *(each.needs_metrics - each.optional_metrics.keys() for each in self._choosers)
        )
        return {
            name: what
            for each in self._choosers
            for name, what in each.optional_metrics.items()
            if name not in needed
        }

    @property
    def metric_sizes(self) -> Mapping[str, int]:  # type: ignore[override]  # the members'
        """How long the vectors are that members learn from."""
        return {name: size for each in self._choosers for name, size in each.metric_sizes.items()}

    @property
    def poll_data(self) -> PollData:  # type: ignore[override]  # the members'
        """What those who poll do poll."""
        return next((each.poll_data for each in self._choosers if each.polls), "all")

    @property
    def whole_cohorts(self) -> str:  # type: ignore[override]  # the members'
        """Why a member needs whole cohorts, if one does."""
        return next((each.whole_cohorts for each in self._choosers if each.whole_cohorts), "")

    @property
    def may_underfill(self) -> bool:  # type: ignore[override]  # the members'
        """Whether a member may."""
        return any(each.may_underfill for each in self._choosers)

    def state(self) -> dict[str, Array]:
        """Return a copy of the key and of the members' states."""
        state = super().state()
        for place, member in enumerate(self._members):
            learned = member.state()
            del learned["n_clients_"]  # as our own
            state |= {f"{place}.{name}": values for name, values in learned.items()}
        return state

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replace the state by a saved one; nothing changes if it does not fit."""
        members = self._make_members()
        own = dict(state)
        for place, member in enumerate(members):
            prefix = f"{place}."
            learned = {name: own.pop(name) for name in state if name.startswith(prefix)}
            member.reset(self.n_clients)
            member.load_state(
                {"n_clients_": np.array(self.n_clients)}
                | {name.removeprefix(prefix): values for name, values in learned.items()}
            )
        super().load_state(own)
        self._members = members

    def grow(self, n_clients: int) -> None:
        """Make room for more clients, in the members too."""
        super().grow(n_clients)
        for member in self._members:
            member.grow(n_clients)

    def _chances_of(self, place: int, ctx: RoundContext) -> FloatArray:
        """Return (n,) q_m of Eq. (1) of a member; what it would choose is only a preview."""
        found = self._members[place].chances(ctx)
        if found is not None:
            return found
        preview = copy.deepcopy(self._members[place])  # some note what they chose for later rounds
        return _indicator(ctx, preview.select(ctx, self._own_rng(ctx.round, place)))

    def _polls(self, ctx: RoundContext) -> Iterator[IntArray | None]:
        """Yield whom each member asks for; the same in every call for a round."""
        for place, member in enumerate(self._members):
            own = stream(self.key_, Purpose.POLL, ctx.round, place)
            yield member.poll(ctx, own) if member.polls else None

    def _contexts(self, ctx: RoundContext) -> Iterator[RoundContext]:
        """Yield the context of each member: it sees the answers of those whom it asked."""
        if ctx.polled is None or ctx.polled_loss is None:
            yield from [ctx] * len(self._members)
            return
        loss = np.full(ctx.n_clients, np.nan)
        loss[ctx.polled] = ctx.polled_loss
        unasked = dataclasses.replace(ctx, polled=None, polled_loss=None)
        for asked in self._polls(unasked):
            if asked is None:
                yield unasked
            else:
                yield dataclasses.replace(ctx, polled=asked, polled_loss=loss[asked])

    def _own_rng(self, round: int, place: int) -> np.random.Generator:
        """Return the generator of a member in a round, the same for each choice from a state."""
        return stream(self.key_, Purpose.SELECT, round, place)

    def _draw_key(self, rng: np.random.Generator) -> None:
        self.key_ = int(rng.integers(MOST_KEYS))

    @property
    def _weights(self) -> Mapping[str, float]:
        return USUAL if self.members is None else self.members

    def _weighted(self) -> Iterator[tuple[Selector, float]]:
        return zip(self._choosers, self._weights.values(), strict=True)

    @property
    def _choosers(self) -> list[Selector]:
        """The members, fresh ones before ``reset``."""
        return self._members if "_members" in vars(self) else self._make_members()

    def _make_members(self) -> list[Selector]:
        given = self.parameters_of or {}
        return [make(name, **given.get(name, {})) for name in self._weights]


def _check_weights(weights: Any) -> None:
    """Raise unless weights are positive numbers by name, 1 in sum."""
    if not isinstance(weights, Mapping) or not weights:
        raise InvalidInput(
            f"members must be a table of weights, such as {dict(USUAL)}, got {weights!r}.",
            field="members",
        )
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise InvalidInput(
                f"members must have names of selectors, got {name!r}.", field="members"
            )
        try:
            require.number(f"weight of {name!r}", weight, above=0.0)
        except InvalidInput as error:
            raise InvalidInput(f"members: {error}", field="members") from error
    total = sum(weights.values())
    if abs(total - 1.0) > ROUNDING:
        raise InvalidInput(
            f"members must have weights that sum to 1, got {dict(weights)}, which sum to "
            f"{total:g}.",
            field="members",
        )


def _lengths(members: list[Selector]) -> set[str]:
    """Return the lengths of the vectors that two members need under one name."""
    sizes: dict[str, set[int]] = {}
    for member in members:
        for name, size in member.metric_sizes.items():
            sizes.setdefault(name, set()).add(size)
    return {f"{name} of {n}" for name, found in sizes.items() if len(found) > 1 for n in found}


def _indicator(ctx: RoundContext, selection: Selection) -> FloatArray:
    """Return (n,) 1 for the chosen and 0 for all others."""
    chosen = np.zeros(ctx.n_clients)
    chosen[selection.clients] = 1.0
    return chosen
