"""Worlds without training: who is there, who fails, how long it takes."""

from turnout.data.directory import DataMissing
from turnout.environments.availability import Always, Bernoulli, Diurnal, PhoneTrace
from turnout.environments.base import Environment
from turnout.environments.devices import (
    Devices,
    DeviceTimes,
    FittedDevices,
    TracedDevices,
    best_devices,
)
from turnout.environments.models import (
    Availability,
    Fate,
    History,
    Moment,
    Part,
    Timing,
    Volatility,
)
from turnout.environments.papers import e3cs_world, rbcs_f_world
from turnout.environments.population import Population, SyntheticLoss
from turnout.environments.timing import FixedTime, HeavyTail, LinearContextual, LogNormal, Pareto
from turnout.environments.volatility import (
    Adversary,
    ByClass,
    Markov,
    Outages,
    Reliable,
    Shifting,
)

__all__ = [
    "Adversary",
    "Always",
    "Availability",
    "Bernoulli",
    "ByClass",
    "DataMissing",
    "DeviceTimes",
    "Devices",
    "Diurnal",
    "Environment",
    "Fate",
    "FittedDevices",
    "FixedTime",
    "HeavyTail",
    "History",
    "LinearContextual",
    "LogNormal",
    "Markov",
    "Moment",
    "Outages",
    "Pareto",
    "Part",
    "PhoneTrace",
    "Population",
    "Reliable",
    "Shifting",
    "SyntheticLoss",
    "Timing",
    "TracedDevices",
    "Volatility",
    "best_devices",
    "e3cs_world",
    "rbcs_f_world",
]
