"""Datasets, and how they are divided among clients."""

from turnout.data.base import PADDING, Dataset, FederatedData, Partition, Source
from turnout.data.embedded import Digits, Synthetic
from turnout.data.federate import divide, federate
from turnout.data.own import Arrays
from turnout.data.partitions import Iid, Natural, PrimaryLabel, Shards
from turnout.data.skew import Dirichlet, PowerLaw

__all__ = [
    "PADDING",
    "Arrays",
    "Dataset",
    "Digits",
    "Dirichlet",
    "FederatedData",
    "Iid",
    "Natural",
    "Partition",
    "PowerLaw",
    "PrimaryLabel",
    "Shards",
    "Source",
    "Synthetic",
    "divide",
    "federate",
]
