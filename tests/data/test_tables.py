"""Sources and partitions as tables of a configuration, and back."""

import pytest

from turnout.data import (
    ArrayFile,
    BlogAuthors,
    Cifar10,
    CsvFile,
    Digits,
    Dirichlet,
    EmnistLetters,
    EmnistLettersFeatures,
    Examples,
    FashionMnist,
    Femnist,
    Iid,
    ImageFolder,
    LabelOrder,
    Natural,
    Partition,
    PowerLaw,
    PrimaryLabel,
    Shakespeare,
    Shards,
    Source,
    StackExchange,
    Synthetic,
    TextFile,
    Yelp,
)
from turnout.experiment.codec import ConfigError, decode, encode

SOURCES = {
    "digits": Digits(test_share=0.3),
    "synthetic": Synthetic(0.5, 0.5, n_clients=7),
    "fashion-mnist": FashionMnist(standardise=False),
    "cifar10": Cifar10(directory="data"),
    "emnist-letters": EmnistLetters(verify=False),
    "emnist-letters-features": EmnistLettersFeatures(),
    "femnist": Femnist(classes="letters"),
    "blog-authors": BlogAuthors(vocabulary=500, stop_words=("the", "a")),
    "shakespeare": Shakespeare(length=10),
    "stack-exchange": StackExchange(site="cooking.stackexchange.com"),
    "yelp": Yelp(min_texts=20),
    "array-file": ArrayFile(path="mine.npz"),
    "text-file": TextFile(path="mine.jsonl"),
    "csv-file": CsvFile(path="mine.csv", label="kind", group="owner", ignore=("id",)),
    "image-folder": ImageFolder(path="photos", size=32, grey=True),
    "examples": Examples(path="mine:sets", x="image", y="label", scale=1 / 255),
}
PARTITIONS = {
    "iid": Iid(samples=500),
    "primary-label": PrimaryLabel(0.5, samples=600),
    "dirichlet": Dirichlet(0.3, equal_sizes=False, min_samples=5),
    "shards": Shards(per_client=3),
    "label-order": LabelOrder(0.5),
    "power-law": PowerLaw(1.2, alpha=0.5),
    "natural": Natural(50, 200, choose="largest"),
}


@pytest.mark.parametrize(("kind", "source"), SOURCES.items(), ids=str)
def test_sources_are_tables_and_back(kind, source):
    table = encode(source)
    assert table["kind"] == kind
    assert decode(table, Source) == source


@pytest.mark.parametrize(("kind", "partition"), PARTITIONS.items(), ids=str)
def test_partitions_are_tables_and_back(kind, partition):
    table = encode(partition)
    assert table["kind"] == kind
    assert decode(table, Partition) == partition
    assert hash(decode(table, Partition)) == hash(partition)


@pytest.mark.parametrize("kind", list(PARTITIONS))
def test_the_bare_name_is_the_usual_partition(kind):
    assert decode(kind, Partition) == type(PARTITIONS[kind])()


def test_mistakes_name_the_key():
    with pytest.raises(ConfigError, match=r"^partition\.alpha: alpha must be"):
        decode({"kind": "dirichlet", "alpha": -1.0}, Partition, ("partition",))
    with pytest.raises(ConfigError, match=r"Did you mean 'shards'"):
        decode("shard", Partition)
