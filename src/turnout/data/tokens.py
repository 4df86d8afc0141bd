"""Texts as numbers: words, a vocabulary, sequences of fixed length with next-word labels.

A word is a run of letters and digits, with apostrophes inside, in lower case. Word 0 is ``<unk>``.
It stands for every word outside the vocabulary. It also fills a sequence after its end.
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
    """Cut a stream of word numbers into sentences; 0 ends a sentence."""
    sentence = np.cumsum(stream == 0) - (stream == 0)
    kept = ~np.isin(stream, [0, *unwanted])
    size = np.bincount(sentence[kept], minlength=author.size)
    is_long = size >= 2
    words = stream[kept & is_long[sentence]]
    offsets = np.concatenate(([0], np.cumsum(size[is_long])))
    return Corpus(words, offsets, author[is_long], (), ())


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
    first = np.concatenate(([0], np.cumsum(n_parts)))[:-1]
    part = np.arange(sentence.size) - np.repeat(first, n_parts)
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
