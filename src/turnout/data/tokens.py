"""Texts as numbers: words, a vocabulary, sequences of fixed length with next-word labels.

A word is a run of letters and digits, with apostrophes inside, in lower case. Word 0 is
``<unk>``: it stands for every word outside the vocabulary, and fills sequences up behind their end.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from turnout.data.base import PADDING
from turnout.types import Array, BoolArray, IntArray

__all__ = ["UNKNOWN", "Corpus", "Sequences", "sequences", "tokenised", "vocabulary"]

#: Word 0.
UNKNOWN = "<unk>"

#: What ends a sentence in a stream of words.
_BREAK = "\n"
_WORD = re.compile(r"\n|[^\W_]+(?:['\u2019][^\W_]+)*")

#: Sequences that are built at a time.
_CHUNK = 65_536


class Corpus(NamedTuple):
    """Sentences of all authors, one after the other; words are numbers of ``types``."""

    words: Array  #: (words of all sentences,) of int32
    offsets: IntArray  #: (sentences + 1,) where each sentence begins
    author: IntArray  #: (sentences,)
    types: tuple[str, ...]  #: every word that occurs
    authors: tuple[str, ...]


class Sequences(NamedTuple):
    """What a model reads, and the next word at each position."""

    x: Array  #: (N, length) of int32
    y: Array  #: (N, length) of int32, PADDING where there is no next word
    sentence: IntArray  #: (N,) which sentence it is from


def tokenised(texts: Iterable[tuple[str, Sequence[str]]], left_out: Collection[str] = ()) -> Corpus:
    """Return the words of (author, sentences) pairs; an author may come more than once.

    Words in ``left_out`` are dropped, and then sentences of fewer than two words.
    """
    number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    author_number: defaultdict[str, int] = defaultdict(itertools.count().__next__)
    end = number[_BREAK]
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
    types = tuple(number)
    unwanted = [number[word.lower()] for word in left_out if word.lower() in number]
    return _sentences(stream, author, unwanted)._replace(types=types, authors=tuple(author_number))


def _sentences(stream: Array, author: IntArray, unwanted: list[int]) -> Corpus:
    """Cut a stream of word numbers, in which 0 ends a sentence."""
    sentence = np.cumsum(stream == 0) - (stream == 0)
    kept = ~np.isin(stream, [0, *unwanted])
    size = np.bincount(sentence[kept], minlength=author.size)
    is_long = size >= 2
    words = stream[kept & is_long[sentence]]
    offsets = np.concatenate(([0], np.cumsum(size[is_long])))
    return Corpus(words, offsets, author[is_long], (), ())


def vocabulary(corpus: Corpus, is_test: BoolArray, size: int) -> tuple[tuple[str, ...], Array]:
    """Return the words of the vocabulary and, for each type, its number there.

    The most frequent words of the training sentences, ties by alphabet; ``<unk>`` is one of them.
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
    """Cut sentences into sequences; nothing is lost, and none reaches into the next sentence.

    Sequence j of a sentence reads words ``j * length ..`` and predicts the one behind each. Unknown
    words are no labels unless ``predict_unknown``; sequences without any label are dropped.
    """
    n_labels = np.diff(corpus.offsets) - 1
    n_parts = -(-n_labels // length)
    sentence = np.repeat(np.arange(n_labels.size), n_parts)
    first = np.concatenate(([0], np.cumsum(n_parts)))[:-1]
    part = np.arange(sentence.size) - np.repeat(first, n_parts)
    start = corpus.offsets[sentence] + part * length
    n_here = np.minimum(length, n_labels[sentence] - part * length)
    behind = np.zeros(length + 1, np.int32)  # what is read past the end
    words = np.concatenate((number[corpus.words], behind))
    least = PADDING if predict_unknown else 0  # labels are above it
    made = [
        _cut(words, start[at : at + _CHUNK], n_here[at : at + _CHUNK], length, least)
        for at in range(0, sentence.size, _CHUNK)
    ]
    x, y, kept = (np.concatenate(parts) for parts in zip(*made, strict=True))
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
