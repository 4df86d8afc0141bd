"""From a definition to the session that it describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from turnout.bounds import Bounds
from turnout.errors import InvalidInput
from turnout.experiment.codec import decode, decode_parameter
from turnout.names import nearest
from turnout.policies import RoundPolicy
from turnout.registry import make, names
from turnout.serve.schemas import Definition
from turnout.serve.told import Told
from turnout.session import Guard, Quorum, Session, Settings
from turnout.session.enrolled import Enrolled
from turnout.session.follower import Follower
from turnout.session.hints import Hints

#: The name of the policy that leaves it to the caller who was in time.
REPORTED = "reported"


class _Hints(Hints):
    """How clients of the API provide what a selector needs."""

    def columns(self, names: Any) -> str:
        """Name the request that fills columns."""
        return f"PUT .../clients with columns {', '.join(names)}"

    def loss(self) -> str:
        """Name the request that polls."""
        return "POST .../poll and send the losses with POST .../rounds"


def session_of(definition: Definition, followers: Sequence[Follower] = ()) -> Session:
    """Return a session without clients.

    Args:
        definition: What was asked for.
        followers: Who is told of its rounds.

    Raises:
        TurnoutError: A name is unknown, or a value impossible.
    """
    is_told = definition.policy == REPORTED
    session = Session(
        replace(_settings(definition), followers=tuple(followers)),
        _selector(definition),
        limit_s=math.inf if is_told else definition.limit_s,
        hints=_Hints(),
    )
    session.members = Enrolled(session.errands)
    return session


def _settings(definition: Definition) -> Settings:
    policy: RoundPolicy | None = None
    if definition.policy == REPORTED:
        policy = Told()
    elif definition.policy is not None:
        policy = decode(definition.policy, RoundPolicy, ("policy",))
    if definition.limit_s <= 0.0:
        raise InvalidInput("limit_s must be above 0, got 0.", field="limit_s")
    return Settings(
        cohort_size=definition.cohort_size,
        policy=policy,
        bounds=_bounds(definition.bounds),
        seed=definition.seed,
        late_s=definition.late_s,
        quorum=Quorum(**definition.quorum.model_dump()),
        label=definition.name,
    )


def _bounds(wanted: bool | dict[str, bool]) -> Bounds | None:
    if wanted is False:
        return None
    switches = {} if wanted is True else wanted
    for name in switches:
        if name not in Bounds.parameter_names():
            hint = nearest(name, Bounds.parameter_names())
            raise InvalidInput(f"bounds has no switch {name!r}.{hint}", field="bounds")
    return Bounds(**switches)


def _selector(definition: Definition) -> Any:
    if definition.selector not in names():  # a path would be imported: it could be any code
        raise InvalidInput(
            f"selector must be a name, got {definition.selector!r}."
            f"{nearest(definition.selector, names())}",
            field="selector",
        )
    parameters = {
        name: decode_parameter(value, ("parameters", name))
        for name, value in definition.parameters.items()
    }
    selector = make(definition.selector, **parameters)
    if definition.guard is not None:
        selector = Guard(**definition.guard.model_dump()).around(selector)
    selector.check_parameters()
    selector.clone().reset(1)  # what only a reset can find out
    return selector
