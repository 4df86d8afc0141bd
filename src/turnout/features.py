"""Short codes of a client's data, made on the client: similar data give near codes.

Only the code leaves the client; the server puts one code per client into the column ``features``.
``SimHash`` is for text and other bags of tokens, ``PStableLSH`` for dense vectors such as mean
embeddings. Both are those of NCCB (Cao et al.): Eqs. (6)-(7) and Eq. (5).

A code is shorter than the data and cannot be inverted, but it is no formal privacy: whoever knows
the extractor can test a guess against it.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from turnout import require
from turnout.errors import InvalidInput
from turnout.rng import Purpose, stream
from turnout.types import LARGEST_REPORT, Array, FloatArray, IntArray

__all__ = ["PStableLSH", "SimHash", "fingerprint"]

Bits = npt.NDArray[np.uint8]

#: Longest code: the length of one blake2b digest.
MOST_BITS = 512

#: Tokens that are added up at a time.
CHUNK = 4096

#: Codes of dense vectors stay inside this many steps from 0, and so inside 64-bit integers.
LARGEST_CODE = 2.0**62

_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class SimHash:
    """Bits of a bag of tokens; two bags differ in as many bits as their frequencies differ.

    The hash of a token is its blake2b digest, the same on every machine and in every process. A
    shorter code is the beginning of a longer one. No tokens at all give only zeros, which NCCB
    reads as "nothing known".

    >>> code = SimHash(bits=8).of_text("the cat sat on the mat")
    >>> code.shape, code.dtype
    ((8,), dtype('uint8'))
    """

    bits: int = 64  #: length of the code, at most 512
    stop_words: Collection[str] = frozenset()  #: words that ``of_text`` leaves out, lower case

    def __post_init__(self) -> None:
        if require.integer("bits", self.bits, minimum=1) > MOST_BITS:
            raise InvalidInput(f"bits must be at most {MOST_BITS}, got {self.bits}.", field="bits")
        if isinstance(self.stop_words, str):
            raise InvalidInput(
                f"stop_words must be a set of words, got {self.stop_words!r}.", field="stop_words"
            )

    def of_text(self, text: str) -> Bits:
        """Return the code of a text: its lower-case words, weighted by frequency."""
        if not isinstance(text, str):
            raise InvalidInput(f"text must be a string, got {type(text).__name__}.")
        left_out = frozenset(self.stop_words)
        words = (match.group() for match in _WORD.finditer(text.lower()))
        return self.of_counts(Counter(word for word in words if word not in left_out))

    def of_tokens(self, tokens: Iterable[str]) -> Bits:
        """Return the code of tokens, each weighted by how often it occurs."""
        if isinstance(tokens, str):
            raise InvalidInput("tokens must be a sequence of strings, got one string: use of_text.")
        return self.of_counts(Counter(tokens))

    def of_counts(self, counts: Mapping[str, float]) -> Bits:
        """Return the code of tokens with weights >= 0."""
        for token, weight in counts.items():
            if not isinstance(token, str):
                raise InvalidInput(f"tokens must be strings, got {token!r}.")
            require.number(f"weight of {token!r}", weight, minimum=0.0, maximum=LARGEST_REPORT)
        tokens = sorted(counts)  # one order, one sum
        total = np.zeros(self.bits)
        for start in range(0, len(tokens), CHUNK):
            chunk = tokens[start : start + CHUNK]
            weights = np.array([counts[token] for token in chunk], dtype=np.float64)
            total += signed_sum(self._hashes(chunk), weights)
        return (total > 0.0).astype(np.uint8)  # Eq. (7)

    def _hashes(self, tokens: list[str]) -> Bits:
        digests = (hashlib.blake2b(token.encode("utf-8", "surrogatepass")) for token in tokens)
        packed = np.frombuffer(b"".join(digest.digest() for digest in digests), dtype=np.uint8)
        return np.unpackbits(packed.reshape(len(tokens), -1), axis=1, count=self.bits)


def signed_sum(hashes: Array, weights: FloatArray) -> FloatArray:
    """Return sum_i of +w_i where bit j of token i is 1 and of -w_i where it is 0, Eq. (6)."""
    column = weights[:, None]
    total: FloatArray = np.where(hashes == 1, column, -column).sum(axis=0)
    return total


def fingerprint(hashes: Array, weights: Array) -> Bits:
    """Return the SimHash bits of given token hashes (n, bits) and weights (n,), Eqs. (6)-(7).

    The paper leaves sign(0) open; a tie gives 0 here.

    >>> fingerprint(np.array([[1, 0, 0, 1], [0, 0, 1, 1]]), np.array([2, 1]))
    array([1, 0, 0, 1], dtype=uint8)
    """
    return (signed_sum(np.asarray(hashes), np.asarray(weights, np.float64)) > 0.0).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class PStableLSH:
    """Codes of dense vectors: random coordinates, each cut into steps from a random offset.

    Server and clients agree on the four parameters; equal parameters give equal codes everywhere.
    Coordinates are drawn without repetition until all are used, then again. The drawing uses
    ``stream(seed, Purpose.PARTITION)`` and nothing else of that stream.

    >>> lsh = PStableLSH(dimension=3, n_hashes=4, step=0.5, seed=1)
    >>> lsh.codes(np.array([0.1, 0.2, 0.3])).shape
    (4,)
    """

    dimension: int  #: length of the vectors
    n_hashes: int  #: length of the code
    step: float  #: eta, the width of a step: about the distance at which vectors become different
    seed: int = 0
    coordinates: IntArray = field(init=False, repr=False, compare=False)  #: i_1 ... i_n
    offsets: FloatArray = field(init=False, repr=False, compare=False)  #: b_i, uniform in [0, eta)

    def __post_init__(self) -> None:
        require.integer("dimension", self.dimension, minimum=1)
        require.integer("n_hashes", self.n_hashes, minimum=1)
        require.number("step", self.step, above=0.0)
        rng = stream(self.seed, Purpose.PARTITION)
        n_passes = math.ceil(self.n_hashes / self.dimension)
        order = np.argsort(rng.random((n_passes, self.dimension)), axis=1, kind="stable")
        object.__setattr__(self, "coordinates", order.ravel()[: self.n_hashes])
        object.__setattr__(self, "offsets", self.step * rng.random(self.n_hashes))

    def codes(self, vectors: Array) -> IntArray:
        """Return floor((v - b) / eta) per hash, for one vector (d,) or for rows (n, d), Eq. (5)."""
        values = self._checked(vectors)
        steps = np.floor((values[..., self.coordinates] - self.offsets) / self.step)
        return np.clip(steps, -LARGEST_CODE, LARGEST_CODE).astype(np.int64)

    def bits(self, vectors: Array) -> Bits:
        """Return one bit per code, to be used as features.

        Equal codes give equal bits and different codes agree half the time, so the expected
        number of different bits is half the number of different codes.
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
        if not (np.abs(values) <= LARGEST_REPORT).all():
            bad = values[~(np.abs(values) <= LARGEST_REPORT)][0]
            raise InvalidInput(f"vectors must be finite and at most {LARGEST_REPORT:g}, got {bad}.")
        return values


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return 64-bit numbers whose bits look random and depend on all bits given (splitmix64)."""
    z = numbers + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
