from __future__ import annotations

import json

import numpy as np
import pytest

import turnout


def test_indices_are_given_in_order_and_never_reused():
    roster = turnout.Roster(["a", "b"])
    assert roster.join("c") == 2
    roster.leave("b")
    assert roster.join("d") == 3
    assert roster.join("b") == 1
    assert roster.ids == ("a", "b", "c", "d")
    assert len(roster) == 4
    assert [roster.index_of(name) for name in "abcd"] == [0, 1, 2, 3]
    assert [roster.id_of(i) for i in range(4)] == list("abcd")


def test_presence():
    roster = turnout.Roster("abc")
    roster.leave("b")
    roster.leave("b")
    assert roster.present.tolist() == [True, False, True]
    assert "b" in roster
    assert "z" not in roster
    assert roster.available(["c", "b"]).tolist() == [False, False, True]
    assert roster.available([]).dtype == np.bool_
    roster.join("b")
    assert roster.present.all()
    assert turnout.Roster().present.shape == (0,)


def test_what_is_returned_cannot_change_the_roster():
    roster = turnout.Roster("ab")
    roster.present[:] = False
    roster.available("ab")[:] = False
    assert roster.present.all()


def test_any_hashable_id():
    ids = [7, "7", b"7", (1, "x"), frozenset({1}), None, 2.5]
    roster = turnout.Roster(ids)
    assert roster.indices(reversed(ids)).tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert roster.indices([]).dtype == np.int64


def test_mask_fits_a_context_and_a_growing_selector():
    roster = turnout.Roster(["a", "b"])
    selector = turnout.make("round-robin")
    selector.reset(len(roster))
    roster.join("c")
    selector.grow(len(roster))
    ctx = turnout.RoundContext(0, 3, roster.available(["a", "c"]))
    assert selector.select(ctx, np.random.default_rng(0)).clients.tolist() == [0, 2]


def test_unknown_and_duplicate_ids():
    roster = turnout.Roster("ab")
    for ask in (roster.index_of, roster.leave):
        with pytest.raises(turnout.InvalidInput, match=r"'z'.*join"):
            ask("z")
    with pytest.raises(turnout.InvalidInput, match="'z'"):
        roster.indices(["a", "z"])
    with pytest.raises(turnout.InvalidInput, match="'z'"):
        roster.available(["z"])
    with pytest.raises(turnout.InvalidInput, match=r"unique.*'a'"):
        turnout.Roster(["a", "b", "a"])
    for index in (-1, 2):
        with pytest.raises(turnout.InvalidInput, match=rf"index.*\[0, 2\).*{index}"):
            roster.id_of(index)


def test_unhashable_id_changes_nothing():
    roster = turnout.Roster("ab")
    with pytest.raises((turnout.InvalidInput, TypeError)):
        roster.join([1, 2])
    assert len(roster) == 2


def test_json_round_trip():
    roster = turnout.Roster([1, "1", b"\x00\xff", ("edge", 3, (b"x",)), -(2**70)])
    roster.leave("1")
    again = turnout.Roster.from_json(roster.to_json())
    assert again.ids == roster.ids
    assert [type(i) for i in again.ids] == [type(i) for i in roster.ids]
    assert again.present.tolist() == roster.present.tolist()
    assert again.join("new") == 5
    empty = turnout.Roster.from_json(turnout.Roster().to_json())
    assert len(empty) == 0


@pytest.mark.parametrize("client", [2.5, None, True, frozenset({1})])
def test_ids_that_cannot_be_saved(client):
    with pytest.raises(turnout.InvalidInput, match=r"cannot be saved.*string"):
        turnout.Roster([client]).to_json()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "5",
        "{}",
        '{"ids": ["a"]}',
        '{"ids": ["a"], "present": []}',
        '{"ids": ["a"], "present": [true, true]}',
        '{"ids": ["a", "a"], "present": [true, true]}',
        '{"ids": [2.5], "present": [true]}',
        '{"ids": [null], "present": [true]}',
        '{"ids": [["a"]], "present": [true]}',
        '{"ids": [{"bytes": "zz"}], "present": [true]}',
        '{"ids": [{"bytes": 3}], "present": [true]}',
        '{"ids": [{"tuple": 3}], "present": [true]}',
        '{"ids": [{"other": 3}], "present": [true]}',
        '{"ids": 5, "present": [true]}',
        '{"ids": ["a"], "present": 5}',
        '{"ids": ["a"], "present": ["no"]}',
    ],
)
def test_damaged_json(text):
    with pytest.raises(turnout.InvalidInput):
        turnout.Roster.from_json(text)


def test_json_is_plain():
    assert json.loads(turnout.Roster(["a", 3]).to_json()) == {
        "ids": ["a", 3],
        "present": [True, True],
    }
