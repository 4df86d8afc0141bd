from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from turnout import InvalidInput
from turnout.data.features import PStableLSH, SimHash, fingerprint

PINNED_TEXT = "the cat sat on the mat"
PINNED_CODE = "05d11dc8013e25c7"  # worked out token by token with b2sum's digests


def as_hex(code: np.ndarray) -> str:
    return np.packbits(code).tobytes().hex()


def test_hand_example() -> None:
    # As in Fig. 2: "the cat sat on the mat", four bits, "the" twice.
    #   the 1001 weight 2:  +2 -2 -2 +2
    #   cat 0101 weight 1:  -1 +1 -1 +1
    #   sat 1100 weight 1:  +1 +1 -1 -1
    #   on  0110 weight 1:  -1 +1 +1 -1
    #   mat 1010 weight 1:  +1 -1 +1 -1
    #   sum                 +2  0 -2  0   -> 1 0 0 0, a tie is 0
    hashes = [[1, 0, 0, 1], [0, 1, 0, 1], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 0]]
    assert fingerprint(hashes, [2, 1, 1, 1, 1]).tolist() == [1, 0, 0, 0]
    assert fingerprint(hashes, [3, 1, 1, 1, 1]).tolist() == [1, 0, 0, 1]
    # one by one instead of by frequency
    assert fingerprint([*hashes, hashes[0]], np.ones(6)).tolist() == [1, 0, 0, 0]


def test_one_token_is_its_own_hash() -> None:
    digest = "06b059c0112019db"  # the beginning of what `printf cat | b2sum` prints
    assert as_hex(SimHash().of_tokens(["cat"])) == digest
    assert as_hex(SimHash().of_counts({"cat": 7.5})) == digest
    assert as_hex(SimHash(bits=16).of_text("Cat!")) == digest[:4]


def test_the_code_is_the_majority_of_the_token_hashes() -> None:
    tokens = ["a", "b", "b", "c", "d", "d", "d"]
    each = np.array([SimHash().of_tokens([token]) for token in tokens])
    assert (SimHash().of_tokens(tokens) == (each.mean(axis=0) > 0.5)).all()


def test_the_code_is_stable() -> None:
    assert as_hex(SimHash().of_text(PINNED_TEXT)) == PINNED_CODE


@pytest.mark.slow
@pytest.mark.parametrize("hash_seed", ["0", "1", "4242"])
def test_the_code_does_not_depend_on_pythons_hash(hash_seed: str) -> None:
    program = (
        "import numpy as np; from turnout.data.features import SimHash; "
        f"print(np.packbits(SimHash().of_text({PINNED_TEXT!r})).tobytes().hex())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    assert done.stdout.strip() == PINNED_CODE


def test_forms_of_the_same_data_agree() -> None:
    words = PINNED_TEXT.split()
    code = SimHash().of_text(PINNED_TEXT)
    for other in (
        SimHash().of_tokens(words),
        SimHash().of_tokens(iter(reversed(words))),
        SimHash().of_counts(Counter(words)),
        SimHash().of_counts({"mat": 0.5, "sat": 0.5, "the": 1.0, "cat": 0.5, "on": 0.5}),
        SimHash().of_counts({**Counter(words), "unseen": 0}),
        SimHash().of_text("The CAT sat, on\nthe -- mat!"),
        SimHash(stop_words={"a", "an"}).of_text("a " + PINNED_TEXT + " an A"),
    ):
        np.testing.assert_array_equal(other, code)
    assert (SimHash(stop_words={"the"}).of_text(PINNED_TEXT) != code).any()
    with_apostrophe = SimHash().of_text("don't _stop_")
    np.testing.assert_array_equal(with_apostrophe, SimHash().of_tokens(["don't", "stop"]))


@pytest.mark.parametrize("bits", [1, 8, 63, 64, 300, 512])
def test_length_and_prefix(bits: int) -> None:
    code = SimHash(bits=bits).of_text(PINNED_TEXT)
    assert code.shape == (bits,)
    assert code.dtype == np.uint8
    assert set(np.unique(code)) <= {0, 1}
    np.testing.assert_array_equal(code, SimHash(bits=512).of_text(PINNED_TEXT)[:bits])


def test_nothing_gives_zeros() -> None:
    for code in (SimHash().of_text(""), SimHash().of_tokens([]), SimHash().of_counts({"a": 0})):
        np.testing.assert_array_equal(code, np.zeros(64, dtype=np.uint8))


def test_the_order_of_weights_does_not_matter() -> None:
    # 1e16 + 1 - 1e16 is 0 or 1 by order of summation
    weights = {"a": 1e16, "b": 1e16, "c": 1.0, "d": 1.0, "e": 1e16, "f": 1e16}
    codes = {
        as_hex(SimHash(bits=512).of_counts({token: weights[token] for token in order}))
        for order in itertools.permutations(weights)
    }
    assert len(codes) == 1


def test_more_tokens_than_are_added_at_a_time() -> None:
    rng = np.random.default_rng(0)
    counts = {f"token {i}": int(c) for i, c in enumerate(rng.integers(1, 9, 10_000))}
    hashes = np.array([SimHash(bits=32).of_tokens([token]) for token in counts])
    np.testing.assert_array_equal(
        SimHash(bits=32).of_counts(counts), fingerprint(hashes, list(counts.values()))
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SimHash(bits=0), "bits"),
        (lambda: SimHash(bits=513), "integer >= 1 and <= 512, got 513"),
        (lambda: SimHash(stop_words="the"), "stop_words"),
        (lambda: SimHash().of_tokens("one string"), "use of_text"),
        (lambda: SimHash().of_tokens([1, 2]), "tokens must be strings, got 1"),
        (lambda: SimHash().of_text(b"bytes"), "text must be a string, got bytes"),
        (lambda: SimHash().of_counts({"a": -1}), "weight of 'a'"),
        (lambda: SimHash().of_counts({"a": math.nan}), "weight of 'a'"),
        (lambda: SimHash().of_counts({"a": math.inf}), "weight of 'a'"),
    ],
)
def test_bad_input_to_simhash(call: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()


def test_any_string_is_a_token() -> None:
    assert SimHash().of_tokens(["\ud800", "", "中", "\0"]).shape == (64,)


N_WORDS, N_TOPICS = 2000, 5


def topics() -> np.ndarray:
    """Return word frequencies: each topic is a Zipf law over its own order of the words."""
    rng = np.random.default_rng(7)
    zipf = 1.0 / np.arange(1, N_WORDS + 1)
    frequency = np.array([zipf[rng.permutation(N_WORDS)] for _ in range(N_TOPICS)])
    return frequency / frequency.sum(axis=1, keepdims=True)


def code_of(frequency: np.ndarray, seed: int, n_words: int = 3000) -> np.ndarray:
    drawn = np.random.default_rng(seed).multinomial(n_words, frequency)
    return SimHash().of_counts({f"word{i}": int(c) for i, c in enumerate(drawn) if c})


def test_clients_of_one_topic_have_near_codes() -> None:
    frequency = topics()
    codes = np.array([[code_of(frequency[t], 100 * t + s) for s in range(8)] for t in range(5)])
    distance = (codes[:, :, None, None] != codes[None, None]).sum(axis=-1)  # topic, client, ...
    topic = np.arange(N_TOPICS)
    within = distance[topic, :, topic][:, ~np.eye(8, dtype=bool)]
    across = distance.transpose(0, 2, 1, 3)[~np.eye(N_TOPICS, dtype=bool)]
    # Unrelated codes differ in 32 of 64 bits, with a deviation of 4.
    # Within a topic only sampling noise is left: 2.3 bits on average here.
    assert within.mean() < 5
    assert across.mean() > 32 - 5 * 4 / math.sqrt(10)  # ten independent pairs of topics
    assert within.max() < across.min()


def test_codes_move_with_the_mixture() -> None:
    frequency = topics()
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    pairs = [(a, b) for a in range(N_TOPICS) for b in range(a)]
    mean = []
    for share in shares:
        distance = [
            (
                code_of(frequency[a], seed=a)
                != code_of((1 - share) * frequency[a] + share * frequency[b], seed=50 + b)
            ).sum()
            for a, b in pairs
        ]
        mean.append(float(np.mean(distance)))
    # ten pairs, each with a deviation of at most 4 bits: neighbours differ by more than one sigma
    assert all(b - a > 4 / math.sqrt(len(pairs)) for a, b in itertools.pairwise(mean))
    assert mean[-1] - mean[0] > 5 * 4 / math.sqrt(len(pairs))


def test_codes_of_dense_vectors_by_hand() -> None:
    lsh = PStableLSH(dimension=3, n_hashes=3, step=0.5, seed=0)
    object.__setattr__(lsh, "coordinates", np.array([2, 0, 1]))
    object.__setattr__(lsh, "offsets", np.array([0.1, 0.3, 0.0]))
    # v' = (v_3, v_1, v_2) = (1.2, 0.2, -0.6)
    # (1.2 - 0.1) / 0.5 = 2.2 -> 2; (0.2 - 0.3) / 0.5 = -0.2 -> -1; -0.6 / 0.5 = -1.2 -> -2
    assert lsh.codes(np.array([0.2, -0.6, 1.2])).tolist() == [2, -1, -2]


def test_draw_of_coordinates_and_offsets() -> None:
    lsh = PStableLSH(dimension=50, n_hashes=20_000, step=0.25, seed=3)
    times = np.bincount(lsh.coordinates, minlength=50)
    assert times.tolist() == [400] * 50  # all coordinates in every pass
    assert np.unique(lsh.coordinates[:50]).size == 50
    assert lsh.offsets.min() >= 0.0
    assert lsh.offsets.max() < 0.25
    share = lsh.offsets / 0.25  # uniform: mean 1/2, variance 1/12
    assert abs(share.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 20_000)
    assert abs(share.var() - 1 / 12) < 5 * math.sqrt(1 / 180 / 20_000)
    short = PStableLSH(dimension=50, n_hashes=10, step=0.25, seed=3)
    assert np.unique(short.coordinates).size == 10


def test_the_same_parameters_give_the_same_code_everywhere() -> None:
    v = np.linspace(-1.0, 2.0, 12)
    one, two = (PStableLSH(dimension=12, n_hashes=16, step=0.3, seed=9) for _ in range(2))
    assert one == two
    np.testing.assert_array_equal(one.codes(v), two.codes(v))
    pinned = [-2, 1, -5, 5, 3, -3, 0, 2, 5, 4, -1, -2, 4, -1, 0, -2]
    assert one.codes(v).tolist() == pinned
    assert as_hex(one.bits(v)) == "c7ef"
    other = PStableLSH(dimension=12, n_hashes=16, step=0.3, seed=10)
    assert (one.codes(v) != other.codes(v)).any()


def test_rows_are_coded_one_by_one() -> None:
    lsh = PStableLSH(dimension=4, n_hashes=9, step=1.0)
    rows = np.random.default_rng(0).normal(size=(5, 4))
    np.testing.assert_array_equal(lsh.codes(rows), [lsh.codes(row) for row in rows])
    np.testing.assert_array_equal(lsh.bits(rows), [lsh.bits(row) for row in rows])
    assert lsh.bits(rows).dtype == np.uint8


def test_distance_of_dense_codes_follows_the_perturbation() -> None:
    # A coordinate moved by u < eta changes its code with probability u / eta, and its bit with
    # half of that; further than eta it always changes the code.
    n, step = 40_000, 0.5
    lsh = PStableLSH(dimension=200, n_hashes=n, step=step, seed=1)
    rng = np.random.default_rng(2)
    v = rng.normal(size=200)
    for moved in (0.0, 0.05, 0.1, 0.2, 0.4, 0.5, 1.3):
        u = v + moved * rng.choice([-1.0, 1.0], 200)
        p = min(1.0, moved / step)
        codes = np.mean(lsh.codes(u) != lsh.codes(v))
        bits = np.mean(lsh.bits(u) != lsh.bits(v))
        assert abs(codes - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-12
        assert abs(bits - p / 2) <= 5 * math.sqrt(p / 2 * (1 - p / 2) / n) + 1e-12


def test_similar_vectors_have_near_bits() -> None:
    lsh = PStableLSH(dimension=128, n_hashes=64, step=1.0, seed=4)
    rng = np.random.default_rng(5)
    centre = rng.normal(size=(6, 128))
    codes = lsh.bits(np.repeat(centre, 5, axis=0) + 0.05 * rng.normal(size=(30, 128)))
    distance = (codes[:, None] != codes[None]).sum(axis=-1)
    same = (np.arange(30)[:, None] // 5) == (np.arange(30)[None] // 5)
    within, across = distance[same & ~np.eye(30, dtype=bool)], distance[~same]
    # A bit differs with probability E[min(1, |difference|)] / 2: 0.028 within, 0.35 across, so 1.8
    # and 22 of 64 bits; five deviations of the mean over six groups and fifteen pairs of centres.
    assert within.max() < across.min()
    assert within.mean() < 4
    assert across.mean() > 17


def test_bits_of_far_codes_look_random() -> None:
    lsh = PStableLSH(dimension=1000, n_hashes=1000, step=0.1, seed=6)
    rng = np.random.default_rng(7)
    bits = lsh.bits(10.0 * rng.normal(size=(40, 1000)))
    assert abs(bits.mean() - 0.5) < 5 * 0.5 / math.sqrt(bits.size)
    agree = np.mean(bits[0::2] == bits[1::2])
    assert abs(agree - 0.5) < 5 * 0.5 / math.sqrt(bits.size / 2)


def test_large_values_stay_integers() -> None:
    lsh = PStableLSH(dimension=2, n_hashes=2, step=1e-6)
    codes = lsh.codes(np.array([1e30, -1e30]))
    assert sorted(codes.tolist()) == [-(2**62), 2**62]
    assert lsh.bits(np.array([1e30, -1e30])).shape == (2,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PStableLSH(dimension=0, n_hashes=1, step=1.0), "dimension"),
        (lambda: PStableLSH(dimension=1, n_hashes=0, step=1.0), "n_hashes"),
        (lambda: PStableLSH(dimension=1, n_hashes=1, step=0.0), "step"),
        (lambda: PStableLSH(dimension=1, n_hashes=1, step=1.0, seed=-1), "seed"),
        (lambda: PStableLSH(dimension=2, n_hashes=1, step=1.0).codes([1.0]), "length 2"),
        (lambda: PStableLSH(dimension=1, n_hashes=1, step=1.0).codes([math.nan]), "finite"),
        (lambda: PStableLSH(dimension=1, n_hashes=1, step=1.0).codes([math.inf]), "finite"),
        (lambda: PStableLSH(dimension=1, n_hashes=1, step=1.0).codes(["x"]), "numeric"),
        (lambda: PStableLSH(dimension=1, n_hashes=1, step=1.0).codes(1.0), "numeric"),
    ],
)
def test_bad_input_to_dense_codes(call: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        call()
