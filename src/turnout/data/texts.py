"""Texts by author for next-word prediction: readers, a vocabulary, sequences of words."""

from __future__ import annotations

import html
import io
import itertools
import json
import re
import tarfile
import xml.etree.ElementTree as ElementTree
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from turnout.core import require
from turnout.core.domains import CheckedFields, Count, Flag, check_fields, integer
from turnout.core.types import Array, BoolArray, IntArray
from turnout.data.base import PADDING, Dataset, Draw, Source
from turnout.data.embedded import TestShare, held_back, parts
from turnout.data.features import StopWords, stop_words_of
from turnout.data.files import Files, UnfitSetting
from turnout.data.partitions import offsets_of
from turnout.data.user_data import OwnPath, own_file

# Readers of texts by author: JSON lines, StackExchange's Posts.xml, Yelp's reviews. Each reader
# yields (author, sentences), one client or one text at a time, and keeps nothing in memory.

#: (author, sentences) pairs.
Texts = Iterator[tuple[str, list[str]]]

_YELP_MEMBER = "yelp_academic_dataset_review.json"

_CODE = re.compile(r"<(pre|code)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_PARAGRAPH = re.compile(r"</?(?:p|br|li|ul|ol|h\d|blockquote|div|hr)\b[^>]*>", re.IGNORECASE)
_TAG = re.compile(r"<[^>]*>")
_SENTENCE_END = re.compile(r"[.!?]+(?=\s)|\n+")

#: Questions and answers; the other kinds of posts are made by the site.
_POST_TYPES = frozenset({"1", "2"})


def read_jsonl(path: Path) -> Texts:
    """Read a file with a line ``{"client": name, "sentences": [...]}`` for each client.

    Args:
        path: The file.

    """
    with path.open(encoding="utf-8") as lines:
        for number, row in _json_rows(lines):
            if not {"client", "sentences"} <= row.keys():
                raise ValueError(f"line {number} must have the keys 'client' and 'sentences'")
            sentences = row["sentences"]
            if not isinstance(sentences, list) or not all(isinstance(s, str) for s in sentences):
                raise ValueError(f"line {number}: sentences must be a list of strings")
            yield str(row["client"]), sentences


def read_posts(path: Path) -> Texts:
    """Read the questions and answers of a StackExchange dump; authors are ``OwnerUserId``.

    Args:
        path: The file ``Posts.xml``.

    """
    context = iter(ElementTree.iterparse(path, events=("start", "end")))  # nosec B314: the user's own file
    _, root = next(context)
    for event, element in context:
        if event != "end" or element.tag != "row":
            continue
        owner, kind = element.get("OwnerUserId"), element.get("PostTypeId")
        if owner is not None and kind in _POST_TYPES:
            yield owner, [element.get("Body", "")]
        root.clear()


def sentences_of_post(body: str) -> list[str]:
    """Return the sentences of a post, without HTML tags and without code.

    Args:
        body: The HTML of the post.

    >>> sentences_of_post("<p>Try <b>this</b>. It&#39;s short:</p><pre><code>ls -l</code></pre>")
    ['Try this', "It's short:"]

    """
    prose = _PARAGRAPH.sub("\n", _CODE.sub(" ", body))
    return sentences_of(html.unescape(_TAG.sub(" ", prose)))


def read_reviews(path: Path) -> Texts:
    """Read Yelp's reviews; authors are ``user_id``.

    Args:
        path: The file of JSON lines, or the tar archive that holds it.

    """
    for _, row in _json_rows(_review_lines(path)):
        yield row["user_id"], [row["text"]]


def sentences_of(text: str) -> list[str]:
    """Return the sentences of running text.

    Args:
        text: Plain text. A sentence ends at a full stop, question or exclamation mark, or line end.

    >>> sentences_of("Good food. Would I go again? Yes!")
    ['Good food', 'Would I go again', 'Yes!']

    """
    parts = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
    return [part for part in parts if part]


def prolific(
    path: Path, read: Callable[[Path], Texts], min_texts: int, split: Callable[[str], list[str]]
) -> Texts:
    """Yield the sentences of authors who wrote many texts.

    Args:
        path: The file.
        read: Opens the file and yields (author, texts). It is called twice.
        min_texts: Authors with fewer texts are left out.
        split: Cuts a text into sentences.

    Raises:
        UnfitSetting: No author wrote that many.

    """
    n_texts = Counter(author for author, _ in read(path))
    most = max(n_texts.values(), default=min_texts)
    if most < min_texts:
        raise UnfitSetting(
            f"min_texts is {min_texts}, but no author wrote more than {most} texts: "
            "lower min_texts."
        )
    for author, texts in read(path):
        if n_texts[author] >= min_texts:
            yield author, [sentence for text in texts for sentence in split(text)]


def _json_rows(lines: Iterable[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        if not isinstance(row, dict):
            raise ValueError(f"line {number} is not a JSON object")
        yield number, row


def _review_lines(path: Path) -> Iterator[str]:
    if path.suffix != ".tar":
        with path.open(encoding="utf-8") as lines:
            yield from lines
        return
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.name.endswith(_YELP_MEMBER) else None
            if file is not None:
                yield from io.TextIOWrapper(file, encoding="utf-8")
                return
    raise ValueError(f"it does not contain {_YELP_MEMBER}")


# Texts as numbers: words, a vocabulary, sequences of fixed length with next-word labels.
#
# A word is a run of letters and digits, with apostrophes inside, in lower case. Word 0 is
# ``<unk>``. It stands for every word outside the vocabulary. It also fills a sequence after its
# end.

#: The text of word 0.
UNKNOWN = "<unk>"

#: Ends a sentence in a stream of words.
_BREAK = "\n"
_WORD = re.compile(r"\n|[^\W_]+(?:['\u2019][^\W_]+)*")

#: Sequences that are built at a time.
_CHUNK = 65_536


class Corpus(NamedTuple):
    """Sentences of all authors, one after the other.

    Args:
        words: (words of all sentences,) numbers of ``types``, of int32.
        offsets: (sentences + 1,) where each sentence begins.
        author: (sentences,) numbers of ``authors``.
        types: Every word that occurs.
        authors: The name of each author.

    """

    words: Array
    offsets: IntArray
    author: IntArray
    types: tuple[str, ...]
    authors: tuple[str, ...]


class Sequences(NamedTuple):
    """What a model reads, and the next word at each position.

    Args:
        x: (N, length) word numbers, of int32.
        y: (N, length) the next word of each, of int32; ``PADDING`` where there is none.
        sentence: (N,) the sentence that each sequence comes from.

    """

    x: Array
    y: Array
    sentence: IntArray


def tokenised(texts: Iterable[tuple[str, Sequence[str]]], left_out: Collection[str] = ()) -> Corpus:
    """Return the words of all texts as numbers. Sentences of fewer than two words are dropped.

    Args:
        texts: (author, sentences) pairs. An author may occur more than once.
        left_out: Words that are removed first.

    """
    number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    author_number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    end = number[_BREAK]  # 0, which no sentence keeps
    pieces, n_words, authors = [], [], []
    for author, sentences in texts:
        tokens = _WORD.findall("\n".join(sentences).lower())
        tokens.append(_BREAK)
        pieces.append(np.fromiter(map(number.__getitem__, tokens), np.int32, len(tokens)))
        n_words.append(len(tokens))
        authors.append(author_number[author])
    if not pieces:
        raise ValueError("there are no texts")
    stream = np.concatenate(pieces)
    author = np.repeat(np.array(authors), n_words)[stream == end]
    sentence = np.cumsum(stream == end) - (stream == end)
    unwanted = [number[word.lower()] for word in left_out if word.lower() in number]
    kept = ~np.isin(stream, [end, *unwanted])
    size = np.bincount(sentence[kept], minlength=author.size)
    is_long = size >= 2
    words, offsets = stream[kept & is_long[sentence]], offsets_of(size[is_long])
    return Corpus(words, offsets, author[is_long], tuple(number), tuple(author_number))


def vocabulary(corpus: Corpus, is_test: BoolArray, size: int) -> tuple[tuple[str, ...], Array]:
    """Return the words of the vocabulary and, for each word type of the corpus, its number there.

    The vocabulary holds ``<unk>`` and the most frequent words of the training sentences. Ties are
    broken by alphabet.

    Args:
        corpus: The sentences.
        is_test: (sentences,) which are kept for the test.
        size: Largest number of words.

    """
    is_test_word = np.repeat(is_test, np.diff(corpus.offsets))
    count = np.bincount(corpus.words[~is_test_word], minlength=len(corpus.types))
    n_kept = min(size - 1, int((count > 0).sum()))
    least = np.partition(count, -n_kept)[-n_kept] if n_kept else 1
    candidates = np.flatnonzero(count >= max(least, 1)).tolist()
    order = sorted(candidates, key=lambda number: (-count[number], corpus.types[number]))[:n_kept]
    number = np.zeros(len(corpus.types), dtype=np.int32)
    number[order] = np.arange(1, n_kept + 1)
    return (UNKNOWN, *(corpus.types[at] for at in order)), number


def sequences(corpus: Corpus, number: Array, length: int, predict_unknown: bool) -> Sequences:
    """Cut sentences into sequences. No word is lost, and no sequence reaches the next sentence.

    Sequence j of a sentence reads the words from ``j * length`` on. The label of each word is the
    next one. Sequences without any label are dropped.

    Args:
        corpus: The sentences.
        number: (types,) the number of each word type in the vocabulary, 0 if it is not there.
        length: Number of words that a sequence reads.
        predict_unknown: Whether unknown words are labels.

    """
    n_labels = np.diff(corpus.offsets) - 1
    n_parts = -(-n_labels // length)
    sentence = np.repeat(np.arange(n_labels.size), n_parts)
    part = np.arange(sentence.size) - np.repeat(offsets_of(n_parts)[:-1], n_parts)
    start = corpus.offsets[sentence] + part * length
    n_here = np.minimum(length, n_labels[sentence] - part * length)
    after_end = np.zeros(length + 1, np.int32)  # the last sequences read past the end
    words = np.concatenate((number[corpus.words], after_end))
    least = PADDING if predict_unknown else 0  # labels are above it
    chunks = [
        _cut(words, start[at : at + _CHUNK], n_here[at : at + _CHUNK], length, least)
        for at in range(0, sentence.size, _CHUNK)
    ]
    x, y, kept = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    return Sequences(x, y, sentence[kept])


def _cut(
    words: Array, start: IntArray, n_here: IntArray, length: int, least: int
) -> tuple[Array, Array, BoolArray]:
    """Return x and y of the sequences that have a label, and which these are."""
    column = np.arange(length)
    is_inside = column < n_here[:, None]
    at = start[:, None] + column
    x = np.where(is_inside, words[at], 0)
    y = np.where(is_inside & (words[at + 1] > least), words[at + 1], PADDING)
    kept = (y != PADDING).any(axis=1)
    return x[kept], y[kept], kept


_JSONL = 'The file has a line {"client": name, "sentences": [...]} for each'


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
        return Dataset(
            self.files.name,
            *parts(cut.x, cut.y, for_test),
            n_classes=len(words),
            group=corpus.author[cut.sentence[~for_test]],
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

    files: ClassVar[Files[Texts]] = Files(
        "blog-authors",
        {"blog-authors.jsonl": read_jsonl},
        f"{_JSONL} author; the corpus is by Schler, Koppel, Argamon and Pennebaker (2006).",
    )


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

    files: ClassVar[Files[Texts]] = Files(
        "shakespeare", {"shakespeare.jsonl": read_jsonl}, f"{_JSONL} role."
    )


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
            wanted = "be the name of a site such as 'superuser.com'"
            raise require.wrong("site", wanted, got=repr(self.site))

    @property
    def files(self) -> Files[Texts]:
        """The files that may hold the dump."""
        read = partial(prolific, read=read_posts, min_texts=self.min_texts, split=sentences_of_post)
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
        read = partial(prolific, read=read_reviews, min_texts=self.min_texts, split=sentences_of)
        return Files(
            "yelp",
            {_YELP_MEMBER: read, f"yelp/{_YELP_MEMBER}": read, "yelp_dataset.tar": read},
            "Ask for the Yelp Open Dataset at yelp.com/dataset.",
        )
