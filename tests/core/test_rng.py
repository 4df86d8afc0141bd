from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

import turnout
from turnout import Purpose, stream

#: First uniform number of stream(7, purpose, 3), and the first 63-bit integer with client 2.
#: They change only if a purpose is renumbered or the recipe changes: then every result changes.
GOLDEN = {
    "PARTITION": (0, 0.9432168673415459, 317259476141154665),
    "INIT": (1, 0.24347712366202823, 1836372901351550783),
    "ENV": (2, 0.5676245348009825, 1705238077373992872),
    "POLL": (3, 0.5371496470277703, 1122288099873201431),
    "SELECT": (4, 0.46071851949991993, 5566271925559654187),
    "TRAIN": (5, 0.6048486073088057, 4473544152500352178),
    "EVAL": (6, 0.22073875797412057, 5837751504284143420),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_first_values(name):
    number, uniform, integer = GOLDEN[name]
    assert Purpose[name] == number
    assert stream(7, Purpose[name], 3).random() == uniform
    assert int(stream(7, Purpose[name], 3, 2).integers(2**63)) == integer


def test_recipe():
    # One spawn key per (purpose, round[, client]) below the seed's sequence.
    sequence = np.random.SeedSequence(7, spawn_key=(4, 3))
    expected = np.random.Generator(np.random.PCG64(sequence)).random(5)
    assert stream(7, Purpose.SELECT, 3).random(5).tolist() == expected.tolist()


def test_streams_are_reproducible():
    first = stream(11, Purpose.ENV, 5, 9).random(1000)
    assert np.array_equal(first, stream(11, Purpose.ENV, 5, 9).random(1000))


def test_streams_differ_in_every_argument():
    keys = itertools.product((0, 1, 2), Purpose, (0, 1, 2, 255), (None, 0, 1))
    firsts = [stream(*key).integers(2**63) for key in keys]
    assert len(set(firsts)) == len(firsts) == 3 * len(Purpose) * 4 * 3


def test_streams_are_not_correlated():
    n = 4000
    base = stream(3, Purpose.SELECT, 10).random(n)
    others = [
        stream(4, Purpose.SELECT, 10),
        stream(3, Purpose.POLL, 10),
        stream(3, Purpose.SELECT, 11),
        stream(3, Purpose.SELECT, 10, 0),
    ]
    for other in others:  # the correlation of independent samples has deviation 1 / sqrt(n)
        assert abs(np.corrcoef(base, other.random(n))[0, 1]) < 5 / np.sqrt(n)


def test_consecutive_rounds_are_uniform_across_streams():
    firsts = np.array([stream(1, Purpose.ENV, t).random() for t in range(2000)])
    assert abs(firsts.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 2000)
    assert abs(np.corrcoef(firsts[1:], firsts[:-1])[0, 1]) < 5 / np.sqrt(2000)


def test_one_stream_never_shifts_another():
    greedy = stream(1, Purpose.SELECT, 0)
    greedy.random(10**5)
    assert stream(1, Purpose.SELECT, 1).random() == stream(1, Purpose.SELECT, 1).random()


@pytest.mark.parametrize("bad", [-1, 1.5, "1", None, True])
def test_bad_seed_and_round(bad):
    with pytest.raises(turnout.InvalidInput, match=r"seed must be an integer >= 0, got"):
        stream(bad, Purpose.ENV)
    with pytest.raises(turnout.InvalidInput, match=r"round must be an integer >= 0, got"):
        stream(0, Purpose.ENV, bad)
    if bad is not None:
        with pytest.raises(turnout.InvalidInput, match=r"client must be an integer >= 0, got"):
            stream(0, Purpose.ENV, 0, bad)


@pytest.mark.parametrize("bad", [len(Purpose), -1, "SELECT", None])
def test_bad_purpose(bad):
    with pytest.raises(turnout.InvalidInput, match="purpose"):
        stream(0, bad)


def test_numpy_integers_give_the_same_stream():
    same = stream(np.int64(7), Purpose.SELECT, np.int32(3), np.uint8(2)).random()
    assert same == stream(7, Purpose.SELECT, 3, 2).random()


def test_large_seeds():
    assert stream(2**70, Purpose.ENV).random() != stream(2**70 + 1, Purpose.ENV).random()


def test_no_global_randomness_is_touched():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    stream(1, Purpose.SELECT, 3).random(10)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


@pytest.mark.slow
def test_same_values_in_another_process():
    program = (
        "from turnout import Purpose, stream\nprint([stream(7, p, 3).random() for p in Purpose])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == str([stream(7, p, 3).random() for p in Purpose])
