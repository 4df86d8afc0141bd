"""Short codes of a client's data, made on the client: similar data give near codes.

Only the code leaves the client; the server puts one code per client into the column ``features``.
``SimHash`` is for text and other bags of tokens, ``PStableLSH`` for dense vectors such as mean
embeddings. Both are those of NCCB (Cao et al.): Eqs. (6)-(7) and Eq. (5).

A code is shorter than the data and cannot be turned back into it. That is no formal privacy:
anyone who knows the extractor can test a guess against a code.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import resources
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt

from turnout.core import require
from turnout.core.domains import Count, Positive, check_fields, integer
from turnout.core.errors import InvalidInput
from turnout.core.rng import Purpose, stream
from turnout.core.types import LARGEST_REPORT, Array, FloatArray, IntArray

BitArray = npt.NDArray[np.uint8]

#: Longest code: the length of one blake2b digest.
MOST_BITS = 512

#: Length of a code.
Bits = Annotated[int, integer(1, MOST_BITS)]

#: Tokens that are added up at a time.
CHUNK = 4096

#: Codes of dense vectors stay inside this many steps from 0, and so inside 64-bit integers.
LARGEST_CODE = 2.0**62

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class SimHash:
    """Bits of a bag of tokens: the more the frequencies of two bags differ, the more bits differ.

    The hash of a token is its blake2b digest, the same on every machine and in every process. A
    shorter code is the beginning of a longer one. No tokens give only zeros, which NCCB reads as
    "nothing known".

    Args:
        bits: Length of the code, from 1 to 512.
        stop_words: Words that ``of_text`` leaves out, in lower case. Frequent words say little
            about a client; try the 150 most frequent ones of the language.

    >>> code = SimHash(bits=8).of_text("the cat sat on the mat")
    >>> code.shape, code.dtype
    ((8,), dtype('uint8'))
    """

    bits: Bits = 64
    stop_words: Collection[str] = frozenset()

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.stop_words, str):
            raise require.wrong("stop_words", "be a set of words", got=repr(self.stop_words))

    def of_text(self, text: str) -> BitArray:
        """Return the code of a text: its lower-case words, weighted by frequency.

        Args:
            text: The text.
        """
        if not isinstance(text, str):
            raise InvalidInput(f"text must be a string, got {type(text).__name__}.")
        left_out = frozenset(self.stop_words)
        words = (match.group() for match in _WORD.finditer(text.lower()))
        return self.of_counts(Counter(word for word in words if word not in left_out))

    def of_tokens(self, tokens: Iterable[str]) -> BitArray:
        """Return the code of tokens, each weighted by how often it occurs.

        Args:
            tokens: The tokens, in any order.
        """
        if isinstance(tokens, str):
            raise InvalidInput("tokens must be a sequence of strings, got one string: use of_text.")
        return self.of_counts(Counter(tokens))

    def of_counts(self, counts: Mapping[str, float]) -> BitArray:
        """Return the code of weighted tokens.

        Args:
            counts: Weight of each token, >= 0.
        """
        for token, weight in counts.items():
            if not isinstance(token, str):
                raise InvalidInput(f"tokens must be strings, got {token!r}.")
            require.number(f"weight of {token!r}", weight, minimum=0.0, maximum=LARGEST_REPORT)
        tokens = sorted(counts)  # the sum must not depend on the order
        total = np.zeros(self.bits)
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            weights = np.array([counts[token] for token in chunk], dtype=np.float64)
            total += signed_sum(self._hashes(chunk), weights)
        return (total > 0.0).astype(np.uint8)  # Eq. (7)

    def _hashes(self, tokens: list[str]) -> BitArray:
        digests = (hashlib.blake2b(token.encode("utf-8", "surrogatepass")) for token in tokens)
        packed = np.frombuffer(b"".join(digest.digest() for digest in digests), dtype=np.uint8)
        return np.unpackbits(packed.reshape(len(tokens), -1), axis=1, count=self.bits)


def signed_sum(hashes: Array, weights: FloatArray) -> FloatArray:
    """Return (bits,) the sum of +w_i where token i has bit 1 and -w_i where it has 0, Eq. (6)."""
    total: FloatArray = np.where(hashes == 1, weights[:, None], -weights[:, None]).sum(axis=0)
    return total


def fingerprint(hashes: Array, weights: Array) -> BitArray:
    """Return the SimHash bits of hashed tokens, Eqs. (6)-(7).

    The paper does not define sign(0); a tie gives 0 here.

    Args:
        hashes: (n, bits) hash of each token, 0 or 1.
        weights: (n,) weight of each token.

    >>> fingerprint(np.array([[1, 0, 0, 1], [0, 0, 1, 1]]), np.array([2, 1]))
    array([1, 0, 0, 1], dtype=uint8)
    """
    return (signed_sum(np.asarray(hashes), np.asarray(weights, np.float64)) > 0.0).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class PStableLSH:
    """Codes of dense vectors: random coordinates, each cut into steps from a random offset.

    Equal parameters give equal codes everywhere, so server and clients must agree on all four.
    Coordinates are drawn without repetition until all are used, then again. The draws come from
    ``stream(seed, Purpose.PARTITION)``.

    Args:
        dimension: Length of the vectors, at least 1.
        n_hashes: Length of the code, at least 1.
        step: eta, the width of a step, above 0. Try the distance at which two vectors should count
            as different.
        seed: Seed of coordinates and offsets.

    Attributes:
        coordinates: (n_hashes,) i_1 ... i_n, the coordinate of each hash.
        offsets: (n_hashes,) b_i, uniform in [0, eta).

    >>> lsh = PStableLSH(dimension=3, n_hashes=4, step=0.5, seed=1)
    >>> lsh.codes(np.array([0.1, 0.2, 0.3])).shape
    (4,)
    """

    dimension: Count
    n_hashes: Count
    step: Positive
    seed: int = 0
    coordinates: IntArray = field(init=False, repr=False, compare=False)
    offsets: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        rng = stream(self.seed, Purpose.PARTITION)
        n_passes = math.ceil(self.n_hashes / self.dimension)
        order = np.argsort(rng.random((n_passes, self.dimension)), axis=1, kind="stable")
        object.__setattr__(self, "coordinates", order.ravel()[: self.n_hashes])
        object.__setattr__(self, "offsets", self.step * rng.random(self.n_hashes))

    def codes(self, vectors: Array) -> IntArray:
        """Return floor((v - b) / eta) per hash, Eq. (5).

        Args:
            vectors: (d,) one vector, or (n, d) one per row; finite.
        """
        values = self._checked(vectors)
        steps = np.floor((values[..., self.coordinates] - self.offsets) / self.step)
        return np.clip(steps, -LARGEST_CODE, LARGEST_CODE).astype(np.int64)

    def bits(self, vectors: Array) -> BitArray:
        """Return one bit per code, to be used as features.

        Equal codes give equal bits, and the bits of different codes agree half the time. So the
        expected number of different bits is half the number of different codes.

        Args:
            vectors: (d,) one vector, or (n, d) one per row; finite.
        """
        position = np.arange(self.n_hashes, dtype=np.uint64)
        mixed = _mixed(self.codes(vectors).astype(np.uint64) + _mixed(position))
        return (mixed >> np.uint64(63)).astype(np.uint8)

    def _checked(self, vectors: Any) -> FloatArray:
        values = np.asarray(vectors)
        if values.dtype.kind not in "fiub" or values.ndim not in (1, 2):
            raise InvalidInput(
                f"vectors must be a numeric array of one or two dimensions, got shape "
                f"{values.shape} of {values.dtype}."
            )
        if values.shape[-1] != self.dimension:
            raise InvalidInput(f"vectors must have length {self.dimension}, got {values.shape}.")
        values = values.astype(np.float64, copy=False)
        bad = values[~(np.abs(values) <= LARGEST_REPORT)]
        if bad.size:
            limit = f"{LARGEST_REPORT:g}"
            raise InvalidInput(f"vectors must be finite and at most {limit}, got {bad[0]}.")
        return values


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64-bit numbers whose bits look random and depend on all input bits (splitmix64)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


# Function words of English, which say nothing about the author.

_WORDS = resources.files("turnout.data").joinpath("english_stop_words.txt").read_text("utf-8")

#: The list named "english", contractions with either apostrophe.
ENGLISH = frozenset([*_WORDS.split(), *_WORDS.replace("'", "\u2019").split()])


def _check_stop_words(field: str, stop_words: Any) -> None:
    if isinstance(stop_words, str):
        is_known = stop_words == "english"
    else:
        is_known = all(isinstance(word, str) for word in stop_words)
    if not is_known:
        wanted = "be 'english' or a list of words, for example ['the', 'of']"
        raise require.wrong(field, wanted, got=repr(stop_words))


#: "english" or a list of words.
StopWords = Annotated[tuple[str, ...] | Literal["english"], _check_stop_words]


def stop_words_of(stop_words: tuple[str, ...] | str) -> frozenset[str]:
    """Return the words, those of the shipped list for "english".

    Args:
        stop_words: "english" or words.
    """
    return ENGLISH if isinstance(stop_words, str) else frozenset(stop_words)


# Short hash codes of the clients' data, as each client would compute its own (NCCB). A code depends
# on the training examples of one client only, and all clients use the same hash functions.

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

    bits: Bits = 64
    stop_words: StopWords = ()

    def __post_init__(self) -> None:
        check_fields(self)
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


__all__ = [
    "PStableLSH",
    "SimHash",
    "fingerprint",
]
