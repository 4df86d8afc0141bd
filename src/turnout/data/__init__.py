"""Datasets, and how they are divided among clients."""

from turnout.data.base import PADDING, Dataset, FederatedData, Partition, Source
from turnout.data.client_features import ClientCode
from turnout.data.csv_file import CsvFile
from turnout.data.data_files import DamagedData
from turnout.data.embedded import Digits, Synthetic
from turnout.data.examples import Examples, from_examples
from turnout.data.federate import divide, federate
from turnout.data.image_folder import ImageFolder
from turnout.data.images import Cifar10, EmnistLetters, EmnistLettersFeatures, FashionMnist, Femnist
from turnout.data.label_order import LabelOrder
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
