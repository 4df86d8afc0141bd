"""Weights that clients claim are compared with their first claim."""

import math

import numpy as np
import pytest

from turnout import StateFileError
from turnout.live.reports import FirstClaims


def test_three_times_the_first_word_is_believed():
    claims = FirstClaims()
    assert claims.believed(4, 140.0) == 140.0
    assert claims.believed(4, 420.0) == 420.0
    assert claims.believed(4, 1e9) == 420.0
    assert claims.believed(4, 1.0) == 1.0
    assert claims.believed(4, 1e9) == 420.0  # small steps lead nowhere


def test_what_a_client_said_of_itself_comes_first():
    claims = FirstClaims()
    assert claims.believed(0, 1e9, known=140.0) == 420.0
    assert claims.believed(1, 1e9, known=math.nan) == 1e9  # nothing contradicts it
    assert claims.believed(2, 0.0) == 0.0


def test_first_words_are_saved():
    claims, other = FirstClaims(), FirstClaims()
    claims.believed(1, 10.0)
    other.load_state(claims.state(), 5)
    assert other.believed(1, 100.0) == 30.0
    assert other.believed(4, 100.0) == 100.0
    with pytest.raises(StateFileError, match="claims must be numbers of 1 clients"):
        other.load_state({"examples": np.zeros(2)}, 1)
