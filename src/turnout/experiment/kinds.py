"""The kinds of models that a table can name, family by family."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from turnout import data, environments, policies, schedules, training
from turnout.environments import Environment
from turnout.environments.timing import Noise


def kind_of(cls: type) -> str:
    """Return the class name in lower-kebab case.

    >>> kind_of(policies.FirstK)
    'first-k'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()


#: What holds more than plain values, and so is for Python only.
_IN_MEMORY = (data.Arrays, training.Ready)


def _family(base: type, module: Any) -> dict[str, type]:
    classes = [cls for cls in vars(module).values() if isinstance(cls, type)]
    return {
        kind_of(cls): cls
        for cls in classes
        if issubclass(cls, base) and dataclasses.is_dataclass(cls)
        if cls is not base and cls not in _IN_MEMORY
    }


#: The kinds of each family of models, by base class.
FAMILIES: dict[type, dict[str, type]] = {
    base: _family(base, environments)
    for base in (
        environments.Availability,
        environments.Volatility,
        environments.Timing,
        environments.Devices,
        environments.Claims,
        Noise,
    )
} | {
    environments.Population: {"population": environments.Population},
    environments.SyntheticLoss: {"synthetic-loss": environments.SyntheticLoss},
    Environment: {"environment": Environment},
    policies.RoundPolicy: _family(policies.RoundPolicy, policies),
    data.Source: _family(data.Source, data),
    data.Partition: _family(data.Partition, data),
    training.Model: _family(training.Model, training),
    training.Aggregation: _family(training.Aggregation, training),
    data.ClientCode: {"client-code": data.ClientCode},
    training.LocalWork: {"local-work": training.LocalWork},
    training.PerClient: {"per-client": training.PerClient},
    training.Training: {"training": training.Training},
}

#: What holds the path of something that is no model itself: a function that makes a torch module.
BY_PATH: dict[type, type] = {training.Model: training.Custom}

#: A key that stands for another one with a default: steps of local work replace epochs.
REPLACES: dict[type, tuple[str, str]] = {training.LocalWork: ("steps", "epochs")}

#: Schedules have a tag of their own, because they stand among plain parameters.
SCHEDULES: dict[str, type] = {
    kind_of(cls): cls
    for cls in (
        schedules.Constant,
        schedules.ExponentialDecay,
        schedules.Lemma1,
        schedules.Linear,
        schedules.StepAfter,
        schedules.StepDecay,
    )
}
