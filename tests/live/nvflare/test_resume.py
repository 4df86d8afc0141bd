"""A killed server goes on from its checkpoint: same cohorts, same model, bit for bit."""

import json

import numpy as np
import pytest
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from tests.live.nvflare.fake import Federation, Site, cohorts, initial, play
from turnout.core.errors import InvalidInput, StateFileError
from turnout.worlds import FixedDeadline


class Killed(BaseException):
    """The process dies here."""


def federation(**told):
    return Federation([Site(f"site-{i + 1}", **told) for i in range(5)])


def dying(after, **told):
    """Return a federation whose server dies while so many rounds are done."""
    made = federation(**told)
    step = made.step

    def stepping():
        step()
        if made.controller._run.session.round >= after:
            raise Killed

    made.step = stepping
    return made


@pytest.mark.parametrize("selector", ["e3cs", "oort", "round-robin"])
def test_a_killed_server_goes_on_bit_for_bit(ticking, tmp_path, selector):
    told = {"selector": selector, "num_rounds": 6, "seed": 4}
    whole = federation()
    expected = cohorts(play(whole, ticking, records=tmp_path / "whole", **told))
    told |= {"checkpoint": tmp_path / "run.npz", "records": tmp_path / "records"}
    with pytest.raises(Killed):
        play(dying(3), ticking, **told)
    rest = federation()
    controller = play(rest, ticking, **told)
    assert cohorts(controller) == expected
    assert rest.saved[-1]["weights"].tobytes() == whole.saved[-1]["weights"].tobytes()
    assert len(rest.saved) == 3
    trained = sorted({t for site in rest.sites.values() for t in site.trained})
    assert trained == [3, 4, 5]  # clients see the numbers go on
    (lines,) = (tmp_path / "records").glob("*/seed-4/rounds.jsonl")
    assert [json.loads(line)["round"] for line in lines.read_text().splitlines()] == list(range(6))


def test_clients_see_the_same_number_of_rounds_after_a_restart(ticking, tmp_path):
    totals = []

    def spoil(reply):
        return FLModelUtils.to_shareable(reply)

    def watched(made):
        for site in made.sites.values():
            work = site.work
            site.work = lambda data, work=work: (
                totals.append(
                    (FLModelUtils.from_shareable(data).start_round, data.get_header("num_rounds"))
                ),
                work(data),
            )[1]
        return made

    told = {"num_rounds": 4, "checkpoint": tmp_path / "run.npz", "start_round": 10}
    with pytest.raises(Killed):
        play(watched(dying(2, spoil=spoil)), ticking, **told)
    play(watched(federation()), ticking, **told)
    assert set(totals) == {(10, 4)}


def test_a_late_client_stays_busy_over_the_restart(ticking, tmp_path):
    told = {
        "cohort_size": 5,
        "num_rounds": 4,
        "policy": FixedDeadline(10.0),
        "late_s": 1000.0,
        "checkpoint": tmp_path / "run.npz",
        "wait_for_clients_s": 2.0,
    }
    first = dying(1)
    first.sites["site-2"].seconds = 1e6
    with pytest.raises(Killed):
        play(first, ticking, **told)
    names = cohorts(play(federation(), ticking, **told))
    assert "site-2" in names[0]
    assert all("site-2" not in later for later in names[1:])


def test_what_is_done_is_not_done_again_and_the_model_is_saved(ticking, tmp_path):
    told = {"num_rounds": 2, "checkpoint": tmp_path / "run.npz"}
    first = federation()
    play(first, ticking, **told)
    again = federation()
    play(again, ticking, **told)
    assert all(site.trained == [] for site in again.sites.values())
    assert again.saved[-1]["weights"].tobytes() == first.saved[-1]["weights"].tobytes()
    more = federation()
    assert len(cohorts(play(more, ticking, **{**told, "num_rounds": 3}))) == 3


def test_early_stopping_goes_on_where_it_was(ticking, tmp_path):
    told = {"num_rounds": 30, "stop_cond": "loss <= 0.0", "patience": 3}
    whole = federation()
    expected = cohorts(play(whole, ticking, **told))
    assert 4 <= len(expected) < 30
    told |= {"checkpoint": tmp_path / "run.npz"}
    with pytest.raises(Killed):
        play(dying(len(expected) - 2), ticking, **told)
    controller = play(federation(), ticking, **told)
    assert cohorts(controller) == expected
    rest = federation()
    assert cohorts(play(rest, ticking, **told)) == expected  # it has stopped for good
    assert all(site.trained == [] for site in rest.sites.values())


def test_a_checkpoint_of_something_else_is_refused(ticking, tmp_path):
    path = tmp_path / "run.npz"
    play(federation(), ticking, checkpoint=path)
    with pytest.raises(StateFileError, match=r"run\.npz.*selector"):
        play(federation(), ticking, checkpoint=path, selector="e3cs")
    with pytest.raises(StateFileError, match="model"):
        play(federation(), ticking, checkpoint=path, model={"other": np.zeros(2)})
    with np.load(path) as saved:
        arrays = dict(saved)
    arrays["model"] = arrays["model"][:20]
    np.savez(path, **arrays)
    with pytest.raises(StateFileError, match="damaged"):
        play(federation(), ticking, checkpoint=path)


def test_a_model_that_cannot_be_saved_is_refused_before_anybody_trains(ticking, tmp_path):
    made = federation()
    with pytest.raises(InvalidInput, match="register a decomposer"):
        play(made, ticking, checkpoint=tmp_path / "run.npz", model={**initial(), "odd": object()})
    assert all(site.trained == [] for site in made.sites.values())


def test_a_large_model_comes_back(ticking, tmp_path):
    """NVFlare streams large arrays on the wire; in a file they must be whole."""
    model = {**initial(), "large": np.random.default_rng(1).normal(size=2**20)}

    def spoil(reply):
        reply.params["large"] = model["large"] + 1.0
        return FLModelUtils.to_shareable(reply)

    path = tmp_path / "run.npz"
    first = federation(spoil=spoil)
    play(first, ticking, checkpoint=path, model=dict(model), num_rounds=1)
    again = federation(spoil=spoil)
    play(again, ticking, checkpoint=path, model=dict(model), num_rounds=1)
    assert again.saved[-1]["large"].tobytes() == first.saved[-1]["large"].tobytes()
