"""Arguments of a controller as a job file can hold them, and what they stand for.

NVFlare writes the arguments of a component to JSON by their names, and makes the component anew on
the server. So models such as policies are kept as tables, and made from them again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from turnout.bounds import Bounds
from turnout.errors import InvalidInput
from turnout.experiment.codec import decode, encode
from turnout.policies import RoundPolicy
from turnout.selector import Selector
from turnout.session.alerts import AlertRules
from turnout.session.guard import Guard
from turnout.session.settings import Quorum, Settings

#: A table of plain values.
Table = dict[str, Any]


def settings_of(controller: Any) -> Settings:
    """Return how a controller chooses, waits and saves.

    Args:
        controller: It has its arguments as attributes.
    """
    return Settings(
        cohort_size=controller.cohort_size,
        policy=policy_of(controller.policy),
        bounds=bounds_of(controller.bounds),
        seed=controller.seed,
        checkpoint=path_of(controller.checkpoint),
        records=path_of(controller.records),
        label=controller.variant.label,
        durations=controller.durations,
        metric_keys=controller.metric_keys,
        start_s=controller.start_s,
        wait_for_nodes_s=controller.wait_for_clients_s,
        ask_s=controller.ask_s,
        late_s=controller.late_s,
        poll_s=controller.poll_s,
        quorum=quorum_of(controller.quorum),
        alerts=alerts_of(controller.alerts),
    )


def selector_of(controller: Any) -> Selector:
    """Return who chooses, with the guard around it.

    Args:
        controller: It has its arguments as attributes.
    """
    guard, selector = guard_of(controller.guard), controller.variant.make()
    return selector if guard is None else guard.around(selector)


def followers_of(controller: Any) -> list[Any]:
    """Return the components of the job that follow the run.

    Args:
        controller: It has its arguments as attributes.
    """
    found = {name: controller.get_component(name) for name in controller.followers}
    missing = [name for name, component in found.items() if component is None]
    if missing:
        raise InvalidInput(
            f"followers: the job has no component {missing[0]!r}; add it by "
            f"job.to_server(component, id={missing[0]!r}).",
            field="followers",
        )
    return list(found.values())


def policy_table(policy: RoundPolicy | Mapping[str, Any] | str | None) -> Table | None:
    """Return a policy as a table."""
    if policy is None:
        return None
    table: Table = encode(decode(policy, RoundPolicy, ("policy",)))
    return table


def policy_of(table: Table | None) -> RoundPolicy | None:
    """Return the policy that a table stands for."""
    policy: RoundPolicy | None = None if table is None else decode(table, RoundPolicy, ("policy",))
    return policy


def guard_table(guard: Guard | Mapping[str, Any] | None) -> Table | None:
    """Return a guard as a table."""
    if guard is None:
        return None
    made = guard if isinstance(guard, Guard) else _made(Guard, "guard", guard)
    table: Table = encode({"floor": float(made.floor), "cap": float(made.cap)})
    return table


def guard_of(table: Table | None) -> Guard | None:
    """Return the guard that a table stands for."""
    return None if table is None else Guard(float(table["floor"]), float(table["cap"]))


def bounds_table(bounds: Bounds | Mapping[str, Any] | bool) -> Table | bool:
    """Return bounds as a table; False = none."""
    if isinstance(bounds, bool):
        return bounds
    made = bounds if isinstance(bounds, Bounds) else _made(Bounds, "bounds", bounds)
    made.check_parameters()
    return dict(made.parameters)


def bounds_of(table: Table | bool) -> Bounds | None:
    """Return the bounds that a table stands for."""
    if isinstance(table, bool):
        return Bounds() if table else None
    return Bounds(**table)


def quorum_table(quorum: Quorum | Mapping[str, Any] | None) -> Table | None:
    """Return a quorum as a table; None = one answer is enough."""
    if quorum is None:
        return None
    made = quorum if isinstance(quorum, Quorum) else _made(Quorum, "quorum", quorum)
    return {field.name: getattr(made, field.name) for field in fields(Quorum)}


def quorum_of(table: Table | None) -> Quorum:
    """Return the quorum that a table stands for."""
    return Quorum(**(table or {}))


def alerts_table(alerts: AlertRules | Mapping[str, Any] | bool) -> Table | bool:
    """Return rules of alerts as a table; False = none."""
    if isinstance(alerts, bool):
        return alerts
    made = alerts if isinstance(alerts, AlertRules) else _made(AlertRules, "alerts", alerts)
    return {field.name: getattr(made, field.name) for field in fields(AlertRules)}


def alerts_of(table: Table | bool) -> AlertRules | None:
    """Return the rules that a table stands for."""
    if isinstance(table, bool):
        return AlertRules() if table else None
    return AlertRules(**table)


def absolute(name: str, path: str | os.PathLike[str] | None) -> str | None:
    """Return a path as text; it must be absolute, for jobs run in folders of their own."""
    if path is None or os.path.isabs(path):
        return None if path is None else os.fspath(path)
    raise InvalidInput(
        f"{name} must be an absolute path on the server, got {os.fspath(path)!r}: NVFlare runs "
        "each job in a folder of its own.",
        field=name,
    )


def path_of(text: str | None) -> Path | None:
    """Return the path that a text stands for."""
    return None if text is None else Path(text)


def _made(kind: type[Any], name: str, table: Any) -> Any:
    if not isinstance(table, Mapping):
        raise InvalidInput(f"{name} must be {kind.__name__} or a table, got {table!r}.", field=name)
    try:
        return kind(**{str(key): _number(value) for key, value in table.items()})
    except TypeError as error:
        raise InvalidInput(f"{name}: {error}.", field=name) from error


def _number(value: Any) -> Any:
    return float(value) if value in ("inf", "-inf") else value
