"""Datasets, and how they are divided among clients."""

from turnout.data.base import PADDING, Dataset, FederatedData, Partition, Source
from turnout.data.client_features import ClientCode
from turnout.data.data_files import DamagedData
from turnout.data.embedded import Digits, Synthetic
from turnout.data.federate import divide, federate
from turnout.data.images import (
    Cifar10,
    EmnistLetters,
    EmnistLettersFeatures,
    FashionMnist,
    Femnist,
)
from turnout.data.partitions import Iid, Natural, PrimaryLabel, Shards
from turnout.data.skew import Dirichlet, PowerLaw
from turnout.data.texts import BlogAuthors, Shakespeare, StackExchange, TextFile, Yelp
from turnout.data.user_data import ArrayFile, Arrays
from turnout.data_directory import DataMissing

__all__ = [
    "PADDING",
    "ArrayFile",
    "Arrays",
    "BlogAuthors",
    "Cifar10",
    "ClientCode",
    "DamagedData",
    "DataMissing",
    "Dataset",
    "Digits",
    "Dirichlet",
    "EmnistLetters",
    "EmnistLettersFeatures",
    "FashionMnist",
    "FederatedData",
    "Femnist",
    "Iid",
    "Natural",
    "Partition",
    "PowerLaw",
    "PrimaryLabel",
    "Shakespeare",
    "Shards",
    "Source",
    "StackExchange",
    "Synthetic",
    "TextFile",
    "Yelp",
    "divide",
    "federate",
]
