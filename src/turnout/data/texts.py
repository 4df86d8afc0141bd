"""Texts by author for next-word prediction, from a data directory."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from turnout.data.base import Dataset, Draw, Source
from turnout.data.data_files import Files
from turnout.data.embedded import TestShare, held_back
from turnout.data.stop_words import StopWords, stop_words_of
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
from turnout.data.user_data import OwnPath, own_file
from turnout.domains import CheckedFields, Count, Flag, check_fields, integer
from turnout.errors import InvalidInput

_JSONL = 'The file has a line {"client": name, "sentences": [...]} for each '


@dataclass(frozen=True, slots=True)
class _TextSource(CheckedFields, Source):
    """Texts of many authors. Subclasses explain the settings.

    The vocabulary comes from the training sentences of all authors. The seed chooses the test
    sentences.
    """

    directory: str | None = None
    length: Count = 20
    vocabulary: Annotated[int, integer(2)] = 10_000
    test_share: TestShare = 0.1
    predict_unknown: Flag = False
    stop_words: StopWords = ()

    @property
    @abstractmethod
    def files(self) -> Files[Texts]:
        """The files that may hold the texts."""

    def find(self) -> Path:
        """Return the file of the texts."""
        return self.files.find(self.directory)

    def load(self, seed: int) -> Dataset:
        """Read the texts and cut them into sequences."""
        path, texts = self.files.read(self.directory)
        with self.files.reading(path):
            corpus = tokenised(texts, stop_words_of(self.stop_words))
            if corpus.author.size == 0:
                raise ValueError("no sentence has two words")
        is_test = held_back(corpus.author, self.test_share, Draw.CONTENT.rng(seed))
        words, number = vocabulary(corpus, is_test, self.vocabulary)
        cut = sequences(corpus, number, self.length, self.predict_unknown)
        for_test = is_test[cut.sentence]
        kept = ~for_test
        return Dataset(
            name=self.files.name,
            x=cut.x[kept],
            y=cut.y[kept],
            x_test=cut.x[for_test],
            y_test=cut.y[for_test],
            n_classes=len(words),
            group=corpus.author[cut.sentence[kept]],
            group_names=corpus.authors,
            words=words,
        )


@dataclass(frozen=True, slots=True)
class BlogAuthors(_TextSource):
    """Sentences of bloggers, from the Blog Authorship Corpus (research use only).

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        length: Number of words that a sequence reads, at least 1.
        vocabulary: Largest number of words, ``<unk>`` included, at least 2.
        test_share: Share of each author's sentences that is kept for the test, inside (0, 1).
        predict_unknown: Whether ``<unk>`` is a label. If not, its positions do not count.
        stop_words: Words that are removed from the texts first; "english" is a shipped list.

    """

    @property
    def files(self) -> Files[Texts]:
        """The files that may hold the texts."""
        get_it = _JSONL + "author; the corpus is by Schler, Koppel, Argamon and Pennebaker (2006)."
        return Files("blog-authors", {"blog-authors.jsonl": read_jsonl}, get_it)


@dataclass(frozen=True, slots=True)
class Shakespeare(_TextSource):
    """The lines of Shakespeare's plays by speaking role.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        length: Number of words that a sequence reads, at least 1.
        vocabulary: Largest number of words, ``<unk>`` included, at least 2.
        test_share: Share of each author's sentences that is kept for the test, inside (0, 1).
        predict_unknown: Whether ``<unk>`` is a label. If not, its positions do not count.
        stop_words: Words that are removed from the texts first; "english" is a shipped list.

    """

    @property
    def files(self) -> Files[Texts]:
        """The files that may hold the texts."""
        get_it = _JSONL + "role."
        return Files("shakespeare", {"shakespeare.jsonl": read_jsonl}, get_it)


@dataclass(frozen=True, slots=True)
class TextFile(_TextSource):
    """Your own texts in a file: path=texts.jsonl.

    It has a line ``{"client": name, "sentences": [...]}`` for each client.

    Args:
        directory: The folder that a relative path starts from. Default: the current folder.
        length: Number of words that a sequence reads, at least 1.
        vocabulary: Largest number of words, ``<unk>`` included, at least 2.
        test_share: Share of each author's sentences that is kept for the test, inside (0, 1).
        predict_unknown: Whether ``<unk>`` is a label. If not, its positions do not count.
        stop_words: Words that are removed from the texts first; "english" is a shipped list.
        path: The file. It must be set.

    """

    directory: str | None = "."
    path: OwnPath = ""

    @property
    def files(self) -> Files[Texts]:
        """The user's file."""
        return own_file(self.path, read_jsonl)


@dataclass(frozen=True, slots=True)
class StackExchange(_TextSource):
    """Questions and answers of a StackExchange site by user, from its Posts.xml.

    The file is read twice and never held in memory.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        length: Number of words that a sequence reads, at least 1.
        vocabulary: Largest number of words, ``<unk>`` included, at least 2.
        test_share: Share of each author's sentences that is kept for the test, inside (0, 1).
        predict_unknown: Whether ``<unk>`` is a label. If not, its positions do not count.
        stop_words: Words that are removed from the texts first; "english" is a shipped list.
        site: The name of the site, which is the name of its folder.
        min_texts: Users with fewer posts are left out, at least 1. NCCB uses 150.

    """

    site: str = "superuser.com"
    min_texts: Count = 150

    def __post_init__(self) -> None:
        check_fields(self)
        if not isinstance(self.site, str) or not self.site or Path(self.site).name != self.site:
            raise InvalidInput(
                f"site must be the name of a site such as 'superuser.com', got {self.site!r}.",
                field="site",
            )

    @property
    def files(self) -> Files[Texts]:
        """The files that may hold the dump."""
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

    The file is read twice and never held in memory.

    Args:
        directory: The data directory. Default: the environment variable ``TURNOUT_DATA``.
        length: Number of words that a sequence reads, at least 1.
        vocabulary: Largest number of words, ``<unk>`` included, at least 2.
        test_share: Share of each author's sentences that is kept for the test, inside (0, 1).
        predict_unknown: Whether ``<unk>`` is a label. If not, its positions do not count.
        stop_words: Words that are removed from the texts first; "english" is a shipped list.
        min_texts: Users with fewer reviews are left out, at least 1. NCCB uses 150.

    """

    min_texts: Count = 150

    @property
    def files(self) -> Files[Texts]:
        """The files that may hold the dump."""
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
