"""Worlds without training: who is available, who fails, how long clients take."""

from turnout.data_directory import DataMissing
from turnout.environments.availability import Always, Bernoulli, Diurnal, PhoneTrace
from turnout.environments.base import (
    Availability,
    Fate,
    History,
    Moment,
    Timing,
    Volatility,
    WorldStream,
)
from turnout.environments.claims import Claims, Honest, Liars
from turnout.environments.devices import (
    Devices,
    DeviceTimes,
    FittedDevices,
    TracedDevices,
    best_devices,
)
from turnout.environments.environment import Environment
from turnout.environments.population import Population, SyntheticLoss
from turnout.environments.presets import (
    WORLDS,
    NamedWorld,
    e3cs_world,
    named_world,
    rbcs_f_world,
)
from turnout.environments.swapping import Swapping, SwappingTimes
from turnout.environments.timing import FixedTime, HeavyTail, LinearContextual, LogNormal, Pareto
from turnout.environments.trace_files import AvailabilityFile, DeviceFile
from turnout.environments.volatility import (
    Adversary,
    ByClass,
    Markov,
    Outages,
    Reliable,
    Shifting,
)

__all__ = [
    "WORLDS",
    "Adversary",
    "Always",
    "Availability",
    "AvailabilityFile",
    "Bernoulli",
    "ByClass",
    "Claims",
    "DataMissing",
    "DeviceFile",
    "DeviceTimes",
    "Devices",
    "Diurnal",
    "Environment",
    "Fate",
    "FittedDevices",
    "FixedTime",
    "HeavyTail",
    "History",
    "Honest",
    "Liars",
    "LinearContextual",
    "LogNormal",
    "Markov",
    "Moment",
    "NamedWorld",
    "Outages",
    "Pareto",
    "PhoneTrace",
    "Population",
    "Reliable",
    "Shifting",
    "Swapping",
    "SwappingTimes",
    "SyntheticLoss",
    "Timing",
    "TracedDevices",
    "Volatility",
    "WorldStream",
    "best_devices",
    "e3cs_world",
    "named_world",
    "rbcs_f_world",
]
