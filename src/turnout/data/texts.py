"""Texts by author for next-word prediction, from a data directory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from turnout import require
from turnout.data.base import Dataset, Draw, Source
from turnout.data.data_files import Files
from turnout.data.embedded import check_test_share, held_back
from turnout.data.text_readers import (
    Texts,
    prolific,
    read_jsonl,
    read_posts,
    read_reviews,
    sentences_of,
    sentences_of_post,
)
from turnout.data.tokens import sequences, tokenised, vocabulary
from turnout.data.user_data import check_path, own_file
from turnout.errors import InvalidInput

__all__ = ["BlogAuthors", "Shakespeare", "StackExchange", "TextFile", "Yelp"]

_JSONL = 'The file has a line {"client": name, "sentences": [...]} for each '


@dataclass(frozen=True, slots=True)
class _TextSource(Source):
    """Texts of many authors.

    The vocabulary is made of the training sentences of all authors. The seed chooses the test
    sentences, the same share of each author.
    """

    directory: str | None = None  #: default: the environment variable TURNOUT_DATA
    length: int = 20  #: words that a sequence reads
    vocabulary: int = 10_000  #: most words, with <unk>
    test_share: float = 0.1  #: of each author's sentences
    predict_unknown: bool = False  #: whether <unk> is a label, or a position that does not count
    stop_words: tuple[str, ...] = ()  #: words that are taken out of the texts first

    def __post_init__(self) -> None:
        require.integer("length", self.length, minimum=1)
        require.integer("vocabulary", self.vocabulary, minimum=2)
        check_test_share(self.test_share)
        require.boolean("predict_unknown", self.predict_unknown)
        words: Any = self.stop_words
        if isinstance(words, str) or not all(isinstance(word, str) for word in words):
            raise InvalidInput(
                f"stop_words must be a list of words, got {words!r}.", field="stop_words"
            )

    @property
    @abstractmethod
    def files(self) -> Files[Texts]:
        """Where the texts may lie."""

    def find(self) -> Path:
        """Return the file of the texts."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read the texts and cut them into sequences."""
        path, texts = self.files.read(self.directory)
        with self.files.reading(path):
            corpus = tokenised(texts, self.stop_words)
            if corpus.author.size == 0:
                raise ValueError("there is no sentence of two words")
        is_test = held_back(corpus.author, self.test_share, Draw.CONTENT.rng(seed))
        words, number = vocabulary(corpus, is_test, self.vocabulary)
        made = sequences(corpus, number, self.length, self.predict_unknown)
        for_test = is_test[made.sentence]
        kept = ~for_test
        return Dataset(
            name=self.files.name,
            x=made.x[kept],
            y=made.y[kept],
            x_test=made.x[for_test],
            y_test=made.y[for_test],
            n_classes=len(words),
            group=corpus.author[made.sentence[kept]],
            group_names=corpus.authors,
            words=words,
        )


@dataclass(frozen=True, slots=True)
class BlogAuthors(_TextSource):
    """Sentences of bloggers, from the Blog Authorship Corpus (research use only)."""

    @property
    def files(self) -> Files[Texts]:
        """Where the texts may lie."""
        get_it = _JSONL + "author; the corpus is by Schler, Koppel, Argamon and Pennebaker (2006)."
        return Files("blog-authors", {"blog-authors.jsonl": read_jsonl}, get_it)


@dataclass(frozen=True, slots=True)
class Shakespeare(_TextSource):
    """The lines of Shakespeare's plays by speaking role."""

    @property
    def files(self) -> Files[Texts]:
        """Where the texts may lie."""
        get_it = _JSONL + "role."
        return Files("shakespeare", {"shakespeare.jsonl": read_jsonl}, get_it)


@dataclass(frozen=True, slots=True)
class TextFile(_TextSource):
    """Your own texts in a file: path=texts.jsonl.

    It has a line ``{"client": name, "sentences": [...]}`` for each client.
    """

    directory: str | None = "."  #: where the path starts
    path: str = ""

    def __post_init__(self) -> None:
        _TextSource.__post_init__(self)
        check_path(self.path)

    @property
    def files(self) -> Files[Texts]:
        """Where the file is."""
        return own_file(self.path, read_jsonl)


@dataclass(frozen=True, slots=True)
class StackExchange(_TextSource):
    """Questions and answers of a StackExchange site by user, from its Posts.xml.

    Users with fewer than ``min_texts`` posts are left out, as NCCB does. The file is read twice
    and never held in memory.
    """

    site: str = "superuser.com"
    min_texts: int = 150

    def __post_init__(self) -> None:
        _TextSource.__post_init__(self)
        require.integer("min_texts", self.min_texts, minimum=1)
        if not isinstance(self.site, str) or not self.site or Path(self.site).name != self.site:
            raise InvalidInput(
                f"site must be a site such as 'superuser.com', got {self.site!r}.", field="site"
            )

    @property
    def files(self) -> Files[Texts]:
        """Where the dump may lie."""
        read = partial(
            _prolific, read=read_posts, min_texts=self.min_texts, split=sentences_of_post
        )
        return Files(
            f"stack-exchange ({self.site})",
            {f"{self.site}/Posts.xml": read, f"stackexchange/{self.site}/Posts.xml": read},
            f"Unpack Posts.xml from {self.site}.7z of archive.org/details/stackexchange.",
        )


@dataclass(frozen=True, slots=True)
class Yelp(_TextSource):
    """Reviews of the Yelp Open Dataset by user.

    Users with fewer than ``min_texts`` reviews are left out, as NCCB does. The file is read twice
    and never held in memory.
    """

    min_texts: int = 150

    def __post_init__(self) -> None:
        _TextSource.__post_init__(self)
        require.integer("min_texts", self.min_texts, minimum=1)

    @property
    def files(self) -> Files[Texts]:
        """Where the dump may lie."""
        read = partial(_prolific, read=read_reviews, min_texts=self.min_texts, split=sentences_of)
        member = "yelp_academic_dataset_review.json"
        return Files(
            "yelp",
            {member: read, f"yelp/{member}": read, "yelp_dataset.tar": read},
            "Ask for the Yelp Open Dataset at yelp.com/dataset.",
        )


def _prolific(
    path: Path,
    read: Callable[[Path], Texts],
    min_texts: int,
    split: Callable[[str], list[str]],
) -> Texts:
    return prolific(partial(read, path), min_texts, split)
