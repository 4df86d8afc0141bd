"""A short hash code of each client's data, as the client itself would compute it (NCCB).

A code depends on that client's training examples alone, and all clients use the same hash
functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from turnout.data.stop_words import StopWords, stop_words_of
from turnout.domains import check_fields
from turnout.features import PStableLSH, SimHash
from turnout.types import Array, FloatArray, IntArray

#: Numbers that are processed at a time.
_CHUNK = 1 << 20

#: Width of a step of the hash of mean vectors, as a model sees them.
STEP = 0.25


@dataclass(frozen=True, slots=True)
class ClientCode:
    """How the data of a client becomes its code.

    Args:
        bits: Length of a code, from 1 to 512. NCCB tries 64, 32, 16 and 8 (Fig. 5), and 64 is best
            there; longer codes tell clients apart better and make NCCB slower. Try 64 first.
        stop_words: Words that do not count in the codes of texts; "english" is a shipped list.
            Without it the most frequent words, the same for everyone, decide most bits.

    """

    bits: int = 64
    stop_words: StopWords = ()

    def __post_init__(self) -> None:
        check_fields(self)
        SimHash(self.bits)  # checks it
        if not isinstance(self.stop_words, str):
            object.__setattr__(self, "stop_words", tuple(self.stop_words))


def word_codes(x: Array, offsets: IntArray, words: tuple[str, ...], code: ClientCode) -> Array:
    """Return (n, bits) the SimHash of each client's words, weighted by frequency.

    Word 0 stands for unknown words and for padding. It does not count, and stop words do not.

    Args:
        x: (N, length) the word numbers of all clients, client after client.
        offsets: (n + 1,) where the rows of each client begin.
        words: The word of each number.
        code: Length of a code, and words that do not count.

    """
    bits, left_out = code.bits, stop_words_of(code.stop_words)
    sign = 2.0 * np.array([SimHash(bits).of_tokens([word]) for word in words], np.float64) - 1.0
    sign[0] = 0.0
    sign[[word in left_out for word in words]] = 0.0
    n_words, n_clients = len(words), offsets.size - 1
    codes = np.empty((n_clients, bits), dtype=np.uint8)
    n_at_once = max(1, _CHUNK // n_words)
    for first in range(0, n_clients, n_at_once):
        last = min(first + n_at_once, n_clients)
        client = np.repeat(np.arange(last - first), np.diff(offsets[first : last + 1]))
        key = client[:, None] * n_words + x[offsets[first] : offsets[last]]
        counts = np.bincount(key.ravel(), minlength=(last - first) * n_words)
        total = counts.reshape(-1, n_words).astype(np.float64) @ sign  # NCCB, Eq. (6)
        codes[first:last] = total > 0.0  # NCCB, Eq. (7)
    return codes


def mean_codes(means: FloatArray, bits: int) -> Array:
    """Return (n, bits) the p-stable hash of each mean vector, NCCB Eq. (5).

    Args:
        means: (n, d) a vector for each client.
        bits: Length of a code.

    """
    return PStableLSH(dimension=means.shape[1], n_hashes=bits, step=STEP).bits(means)


def mean_vectors(x: Array, offsets: IntArray) -> FloatArray:
    """Return (n, d) the mean example of each client.

    Args:
        x: (N, ...) the examples of all clients, client after client.
        offsets: (n + 1,) where the rows of each client begin.

    """
    d = int(np.prod(x.shape[1:]))
    total = np.empty((offsets.size - 1, d))
    for first, last in _chunks(offsets, d):
        rows = x[offsets[first] : offsets[last]].reshape(-1, d)
        start = offsets[first:last] - offsets[first]
        total[first:last] = np.add.reduceat(rows, start, axis=0, dtype=np.float64)
    return total / np.diff(offsets)[:, None]


def _chunks(offsets: IntArray, width: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of clients with about ``_CHUNK`` numbers, at least one client each."""
    limit = max(1, _CHUNK // width)
    first, n = 0, offsets.size - 1
    while first < n:
        reach = int(np.searchsorted(offsets, offsets[first] + limit, side="right")) - 1
        last = min(max(reach, first + 1), first + limit, n)
        yield first, last
        first = last
