"""Datasets, and ways to divide them among clients."""

from turnout.core.files import DataMissing
from turnout.data.base import PADDING, Dataset, FederatedData, Partition, Source
from turnout.data.embedded import Digits, Synthetic
from turnout.data.features import ClientCode
from turnout.data.federate import divide, federate
from turnout.data.files import DamagedData
from turnout.data.images import (
    Cifar10,
    EmnistLetters,
    EmnistLettersFeatures,
    FashionMnist,
    Femnist,
    ImageFolder,
)
from turnout.data.partitions import (
    Dirichlet,
    Iid,
    LabelOrder,
    Natural,
    PowerLaw,
    PrimaryLabel,
    Shards,
)
from turnout.data.texts import BlogAuthors, Shakespeare, StackExchange, TextFile, Yelp
from turnout.data.user_data import ArrayFile, Arrays, CsvFile, Examples, from_examples

__all__ = [
    "PADDING",
    "ArrayFile",
    "Arrays",
    "BlogAuthors",
    "Cifar10",
    "ClientCode",
    "CsvFile",
    "DamagedData",
    "DataMissing",
    "Dataset",
    "Digits",
    "Dirichlet",
    "EmnistLetters",
    "EmnistLettersFeatures",
    "Examples",
    "FashionMnist",
    "FederatedData",
    "Femnist",
    "Iid",
    "ImageFolder",
    "LabelOrder",
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
    "from_examples",
]
