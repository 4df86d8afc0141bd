"""The controller over a federation without processes: who is chosen, and what becomes of them."""

from functools import partial

import numpy as np
import pytest
import torch
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.decomposers import TensorDecomposer
from nvflare.fuel.utils import fobs

import turnout
from tests.live.nvflare.fake import Federation, Site, cohorts, initial, play, statuses, trained
from turnout.core.errors import InvalidInput, MissingColumn
from turnout.core.sketch import sketch
from turnout.live import MissingMetric, Quorum, TooFewAnswers
from turnout.live.monitor import Follower
from turnout.live.nvflare.client import Describe, took_part, update_report
from turnout.worlds import Environment, FirstK, FixedDeadline

N_ROUNDS = 8


def sites(n=5, **told):
    return [Site(f"site-{i + 1}", **told) for i in range(n)]


def everyone(federation, ticking, **told):
    """Choose all clients in every round."""
    n = len(federation.sites)
    return play(federation, ticking, **{"cohort_size": n, "policy": FixedDeadline(30.0), **told})


def test_a_round_is_chosen_trained_and_averaged(ticking):
    federation = Federation(sites())
    made = play(federation, ticking, cohort_size=2, num_rounds=3)
    assert [len(names) for names in cohorts(made)] == [2, 2, 2]
    assert set(statuses(made, 0).values()) == {"completed"}
    assert len(federation.saved) == 3
    assert not np.array_equal(federation.saved[-1]["weights"], initial()["weights"])
    rounds = sorted(t for site in federation.sites.values() for t in site.trained)
    assert rounds == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("name", ["random", "e3cs", "round-robin"])
def test_the_cohorts_are_those_of_a_simulation_with_the_same_history(ticking, name):
    world = Environment(n_clients=6, seed=3)
    run = turnout.simulate(name, world, n_rounds=N_ROUNDS, cohort_size=2, seed=11)

    def crash(reply, number, t):
        lives = world.fate(t).survived[number - 1]
        return FLModelUtils.to_shareable(reply) if lives else make_reply("EXECUTION_EXCEPTION")

    federation = Federation(sites(6))
    for site in federation.sites.values():
        site.spoil = lambda reply, s=site: crash(reply, s.number, s.trained[-1])
    made = play(federation, ticking, selector=name, num_rounds=N_ROUNDS, seed=11)
    expected = [[f"site-{i + 1}" for i in run.chosen_in(t)] for t in range(N_ROUNDS)]
    assert cohorts(made) == expected
    n_completed = sum(list(statuses(made, t).values()).count("completed") for t in range(N_ROUNDS))
    assert n_completed == int(np.count_nonzero(run.completed)) < run.clients.size


def test_the_average_does_not_depend_on_who_was_faster(ticking):
    def final(delays):
        made = sites(4)
        for site, seconds in zip(made, delays, strict=True):
            site.seconds = seconds
        federation = Federation(made)
        everyone(federation, ticking, num_rounds=4)
        return federation.saved[-1]["weights"].tobytes()

    assert final([1, 2, 3, 4]) == final([4, 3, 2, 1]) == final([2, 4, 1, 3])


def failing(reply):
    return make_reply(ReturnCode.EXECUTION_EXCEPTION)


LIES = {
    "a return code": (failing, "return code"),
    "no model": (lambda reply: make_reply(ReturnCode.OK), "not readable"),
    "nonsense": (lambda reply: Shareable({"DXO": 3, "a": object()}), "not readable"),
    "no parameters": ({}, "no parameters"),
    "NaN": ({"weights": np.array([1.0, np.nan, 2.0])}, "not finite"),
    "infinity": ({"weights": np.array([1.0, np.inf, 2.0])}, "not finite"),
    "a shape": ({"weights": np.zeros((2, 2))}, "shape"),
    "a scalar": ({"weights": 4.0}, "shape"),
    "a text": ({"weights": "all of them"}, "no numbers"),
    "objects": ({"weights": np.array([None, None, None])}, "no numbers"),
    "a key": ({"weights": np.zeros(3), "bias": np.zeros(3)}, "no array 'bias'"),
    "another key": ({"bias": np.zeros(3)}, "no array 'bias'"),
}


def lying(params):
    def spoil(reply):
        reply.params = params
        return FLModelUtils.to_shareable(reply)

    return spoil


@pytest.mark.parametrize("name", LIES)
def test_a_lie_fails_its_client_and_nobody_else(ticking, tmp_path, name):
    lie, reason = LIES[name]
    spoil = lie if callable(lie) else lying(lie)
    honest = Federation(sites(3))
    everyone(honest, ticking, num_rounds=2)
    federation = Federation([*sites(3), Site("site-9", spoil=spoil)])
    made = everyone(federation, ticking, num_rounds=2, records=tmp_path)
    assert statuses(made, 1) == {
        **{f"site-{i}": "completed" for i in (1, 2, 3)},
        "site-9": "failed",
    }
    assert federation.saved[-1]["weights"].tobytes() == honest.saved[-1]["weights"].tobytes()
    assert reason in (tmp_path / "random" / "seed-0" / "answers.jsonl").read_text()


@pytest.mark.parametrize("steps", [1e300, "1e300", float("inf"), -5, "many", [1]])
def test_an_impossible_weight_does_not_own_the_model(ticking, steps):
    def spoil(reply):
        reply.params["weights"] = np.full(3, 1e6)
        reply.meta["NUM_STEPS_CURRENT_ROUND"] = steps
        return FLModelUtils.to_shareable(reply)

    federation = Federation([*sites(4), Site("site-9", spoil=spoil)])
    everyone(federation, ticking, num_rounds=1)
    assert np.abs(federation.saved[-1]["weights"]).max() < 0.2 * 1e6


@pytest.mark.parametrize("bounds", [True, False])
def test_who_says_more_steps_than_before_does_not_take_over_the_model(ticking, bounds):
    """Client 3 did 3 steps in its first round, and says 10^9 in its second: 9 of them weigh."""
    rounds = {1: 3, 2: 10**9}
    liar = Site("site-3")
    honest = liar.train

    def lie(model):
        reply = honest(model)
        reply.meta["NUM_STEPS_CURRENT_ROUND"] = rounds[len(liar.trained)]
        return reply

    liar.train = lie
    federation = Federation([*sites(2), liar])
    everyone(federation, ticking, num_rounds=2, bounds=bounds)
    before = FLModel(params=federation.saved[0])
    replies = [trained(before, i).params["weights"] for i in (1, 2, 3)]
    expected = np.average(replies, axis=0, weights=[1, 2, 9 if bounds else 10**9])
    np.testing.assert_allclose(federation.saved[1]["weights"], expected, rtol=1e-12)


def test_who_said_nothing_of_its_steps_is_not_held_to_it(ticking):
    shy = Site("site-2")
    honest = shy.train

    def train(model):
        reply = honest(model)
        reply.meta = {} if len(shy.trained) == 1 else {"NUM_STEPS_CURRENT_ROUND": 40}
        return reply

    shy.train = train
    federation = Federation([*sites(1), shy])
    everyone(federation, ticking, num_rounds=2)
    before = FLModel(params=federation.saved[0])
    expected = np.average(
        [trained(before, i).params["weights"] for i in (1, 2)], axis=0, weights=[1, 40]
    )
    np.testing.assert_allclose(federation.saved[1]["weights"], expected, rtol=1e-12)


def test_numbers_that_overflow_leave_the_model_as_it_was(ticking):
    federation = Federation([Site("site-9", spoil=lying({"weights": np.full(3, 1.7e308)}))])
    everyone(federation, ticking, num_rounds=1)
    assert np.array_equal(federation.saved[-1]["weights"], initial()["weights"])


def test_odd_metrics_are_left_out_and_the_reply_counts(ticking):
    def spoil(reply):
        odd = {"huge": 10**400, "table": {"a": 1}, "text": "x", "array": np.zeros((2, 3))}
        reply.metrics = {**reply.metrics, **odd, "loss": float("nan"), 7: 1.0}
        return FLModelUtils.to_shareable(reply)

    federation = Federation([*sites(2), Site("site-9", spoil=spoil)])
    made = everyone(federation, ticking, num_rounds=2)
    assert set(statuses(made, 1).values()) == {"completed"}
    metrics = made._run.session.journal.metrics["train_metrics_clientapp"][2]
    assert sorted(metrics) == ["loss", "loss_rms", "loss_std", "num-examples"]
    assert np.isfinite(metrics["loss"])


def test_a_boast_is_bounded_for_the_selector_as_in_flower(ticking):
    def boast(reply):
        reply.metrics |= {"loss": 1e29, "loss_rms": 1e29, "num-examples": 1e29}
        return FLModelUtils.to_shareable(reply)

    def places(**told):
        federation = Federation([*sites(11), Site("site-12", spoil=boast)])
        made = play(federation, ticking, selector="oort", num_rounds=25, **told)
        return sum(names.count("site-12") for names in cohorts(made))

    assert places() < places(bounds=False)


def test_late_failing_and_silent_clients(ticking):
    made = sites(5)
    made[1].seconds = 50.0  # late
    made[2].spoil = failing
    federation = Federation(made)
    gone = federation.sites["site-4"]
    gone.seconds = 5.0
    work = gone.work

    def vanish(shareable):
        federation.gone["site-4"] = 1.0
        return work(shareable)

    gone.work = vanish
    controller = everyone(federation, ticking, num_rounds=1)
    assert statuses(controller, 0) == {
        "site-1": "completed",
        "site-2": "late",
        "site-3": "failed",
        "site-4": "silent",
        "site-5": "completed",
    }


def test_who_never_takes_its_work_is_silent(ticking):
    federation = Federation([*sites(2), Site("site-3", n_asks=1)])
    controller = everyone(federation, ticking, num_rounds=3)
    assert statuses(controller, 0)["site-3"] == "silent"
    assert "site-3" not in cohorts(controller)[1]


def test_who_was_late_is_chosen_again_when_it_asks_for_work(ticking):
    made = sites(3)
    made[0].plan = {0: 32.0}
    federation = Federation(made)
    controller = everyone(federation, ticking, num_rounds=6, late_s=500.0)
    assert statuses(controller, 0)["site-1"] == "late"
    assert "site-1" not in cohorts(controller)[1]
    assert statuses(controller, 5)["site-1"] == "completed"
    assert made[0].trained[0] == 0


def test_first_k_ends_the_round_and_the_tasks(ticking):
    made = sites(4)
    for seconds, site in enumerate(made, start=1):
        site.seconds = 10.0 * seconds
    federation = Federation(made)
    controller = everyone(federation, ticking, num_rounds=1, policy=FirstK(2))
    assert list(statuses(controller, 0).values()) == ["completed", "completed", "late", "late"]
    assert all(task.completion_status is not None for task, _ in federation.tasks)


def test_a_round_without_answers_keeps_the_model(ticking):
    federation = Federation(
        sites(2, spoil=lambda reply: make_reply(ReturnCode.EXECUTION_EXCEPTION))
    )
    everyone(federation, ticking, num_rounds=2)
    assert len(federation.saved) == 2
    assert np.array_equal(federation.saved[-1]["weights"], initial()["weights"])


def test_too_few_answers_are_not_used_and_end_the_run_in_time(ticking):
    made = sites(3)
    made[0].spoil = made[1].spoil = failing
    federation = Federation(made)
    quorum = Quorum(min_answers=2, max_empty_rounds=2)
    with pytest.raises(TooFewAnswers, match="2 rounds in a row"):
        everyone(federation, ticking, num_rounds=5, quorum=quorum)
    assert np.array_equal(federation.saved[-1]["weights"], initial()["weights"])


def test_columns_and_losses_are_asked_for(ticking):
    made = sites(4)
    for site in made:
        site.describe = Describe(num_examples=10 * site.number, loss=lambda m, s=site: s.number)
    federation = Federation(made)
    controller = play(federation, ticking, selector="pow-d", parameters={"candidates": 4})
    assert cohorts(controller) == [["site-3", "site-4"]] * 3  # the largest losses
    assert [asked["ask"] for asked in made[0].asked] == ["identity", "loss", "loss", "loss"]
    columns = controller._run.session.members.columns.take(["num_samples"])
    assert columns["num_samples"].tolist() == [10.0, 20.0, 30.0, 40.0]


def test_changing_columns_are_asked_for_before_every_round(ticking):
    made = sites(4)
    for site in made:
        site.describe = Describe(context=lambda model: [1.0, float(took_part(model)), 1.0])
    federation = Federation(made)
    controller = play(federation, ticking, selector="rbcs-f", num_rounds=3)
    first, second, _ = cohorts(controller)
    for site in made:
        told = [asked["took-part"] for asked in site.asked if asked["ask"] == "columns"]
        assert told == [False, site.name in first, site.name in second]


def test_clients_that_know_no_questions_train_and_the_error_says_what_to_add(ticking):
    federation = Federation(sites(3))
    with pytest.raises(MissingColumn, match=r"Describe\(context="):
        play(federation, ticking, selector="rbcs-f")
    assert [site.trained for site in federation.sites.values()] == [[0]] * 3
    federation = Federation(sites(3, describe=Describe(num_examples=5)))
    with pytest.raises(MissingMetric, match=r"Describe\(loss=evaluate\)"):
        play(federation, ticking, selector="pow-d")

    def silent(reply):
        reply.metrics = {}
        return FLModelUtils.to_shareable(reply)

    with pytest.raises(MissingMetric, match=r"report = LossReport\(\)"):
        play(Federation(sites(3, spoil=silent)), ticking, selector="oort")


@pytest.mark.parametrize(
    ("changes", "sent"),
    [
        ({}, None),
        ({"size": 5}, "of seed 0 with 5 numbers"),
        ({"seed": 3}, "of seed 3 with 64 numbers"),
    ],
)
def test_sketches_arrive_and_those_of_another_length_or_seed_are_refused(ticking, changes, sent):
    def sketching(reply):
        before, after = [np.zeros(9)], [np.arange(9.0)]
        reply.metrics = {"num-examples": 5, **update_report(before, after, **changes)}
        return FLModelUtils.to_shareable(reply)

    federation = Federation(sites(3, spoil=sketching, describe=Describe(num_examples=5)))
    if sent is None:
        learned = play(federation, ticking, selector="divfl")._run.session.selector
        kept = learned.sketch_[learned.is_known_]
        assert len(kept)
        np.testing.assert_allclose(kept, [sketch(np.arange(9.0), 64)] * len(kept), atol=1e-9)
        return
    with pytest.raises(MissingMetric) as caught:
        play(federation, ticking, selector="divfl")
    assert "needs 'update_sketch' of seed 0 with 64 numbers" in str(caught.value)
    assert f"one has 'update_sketch' {sent}" in str(caught.value)


class Median(ModelAggregator):
    """An aggregator of a user's own, that fails on one client."""

    def accept_model(self, model):
        if model.meta["client_name"] == "site-2":
            raise ValueError("not from you")
        self.models.append(model.params["weights"])

    def aggregate_model(self):
        return FLModel(params={"weights": np.median(self.models, axis=0)})

    def reset_stats(self):
        self.models = []


def test_an_aggregator_of_ones_own(ticking):
    federation = Federation(sites(3))
    everyone(federation, ticking, num_rounds=1, aggregator=Median())
    start = FLModel(params=initial())
    expected = np.median([trained(start, i).params["weights"] for i in (1, 3)], axis=0)
    assert np.array_equal(federation.saved[-1]["weights"], expected)


def test_an_aborted_job_ends_at_once_and_its_records_say_so(ticking, tmp_path, caplog):
    federation = Federation(sites(3, seconds=1e6))
    told = {"policy": FixedDeadline(1e5), "records": tmp_path}
    play(federation, ticking, abort_at=ticking.at + 20.0, **told)
    assert ticking.at < 1030.0
    assert federation.saved == []
    folder = tmp_path / "random" / "seed-0"
    assert "the job was aborted" in (folder / "error.txt").read_text()
    assert "the job was aborted" in (folder / "alerts.jsonl").read_text()
    assert not (folder / "open.jsonl").exists()
    assert "stopped after 0 rounds; nothing is saved" in caplog.text


def test_a_hung_newcomer_does_not_stall_the_others(ticking):
    made = [Site(f"site-{i}", describe=Describe(num_examples=7)) for i in (1, 2)]
    hung = Site("site-3")
    hung.work = lambda shareable: (None, 1e9)
    federation = Federation([*made, hung])
    started = ticking.at
    controller = play(
        federation,
        ticking,
        selector="data-weighted",
        wait_for_clients_s=5.0,
        ask_s=2.0,
        start_s=10.0,
    )
    assert cohorts(controller) == [["site-1", "site-2"]] * 3
    assert ticking.at - started < 60.0


class Listener(Follower):
    def __init__(self):
        self.told = []

    def start(self, run, about):
        self.told.append("start")

    def ended(self, run, ended, numbers):
        self.told.append(ended.round)

    def end(self, run):
        self.told.append("end")


def test_followers_are_components_of_the_job(ticking):
    federation, listener = Federation(sites(3)), Listener()
    federation.get_component = {"mine": listener}.get
    play(federation, ticking, followers=["mine"])
    assert listener.told == ["start", 0, 1, 2, "end"]
    federation, listener = Federation(sites(3, spoil=failing)), Listener()
    federation.get_component = {"mine": listener}.get
    with pytest.raises(TooFewAnswers):
        play(federation, ticking, followers=["mine"], quorum={"max_empty_rounds": 1})
    assert listener.told == ["start", 0, "end"]
    with pytest.raises(InvalidInput, match=r"job\.to_server\(component, id='other'\)"):
        play(federation, ticking, followers=["mine", "other"])


def test_models_of_torch(ticking, tmp_path):
    """They stay tensors, on the way and in the checkpoint."""
    fobs.register(TensorDecomposer)
    model = {"w": torch.arange(4.0), "half": torch.ones(2, dtype=torch.bfloat16)}

    def spoil(reply, is_broken=False):
        step = torch.full((4,), torch.nan if is_broken else 1.0)
        params = {"w": torch.arange(4.0) + step, "half": model["half"] * 2}
        return FLModelUtils.to_shareable(FLModel(params=params, metrics=reply.metrics))

    def federation():
        made = [Site(f"site-{i + 1}", spoil=spoil) for i in range(2)]
        made.append(Site("site-3", spoil=partial(spoil, is_broken=True)))
        for site in made:
            site.train = lambda model: FLModel(params={}, metrics={})
        return Federation(made)

    first = federation()
    told = {"model": model, "checkpoint": tmp_path / "run.npz", "num_rounds": 1}
    controller = everyone(first, ticking, **told)
    assert list(statuses(controller, 0).values()) == ["completed", "completed", "failed"]
    saved = controller._run.model.params
    assert saved["w"].tolist() == [1.0, 2.0, 3.0, 4.0]
    again = everyone(federation(), ticking, **told)
    back = again._run.model.params
    assert back["half"].dtype == torch.bfloat16
    assert all(torch.equal(back[key], saved[key]) for key in saved)


ODD_ANSWERS = [
    "text",
    {"columns": "all", "every-round": 5, "loss": "low"},
    {"columns": {"num_samples": "many", 3: 4}, "every-round": [None, 7], "loss": [1.0, 2.0]},
    {"columns": {"num_samples": 1e300, "other": [[1]]}, "loss": float("nan")},
    {"columns": {"num_samples": -5}, "loss": 10**300},
]


class Odd(Describe):
    """Answers every question with the same nonsense."""

    def __init__(self, said):
        self.said = said

    def answer(self, received):
        asked = "ask" in (received.meta.get("turnout") or {})
        return FLModel(metrics={}, meta={"turnout": self.said}) if asked else None


def test_odd_answers_to_questions_harm_nobody(ticking):
    honest = [Site(f"site-{i}") for i in (1, 2)]
    for site in honest:
        site.describe = Describe(num_examples=10, loss=lambda model: 1.0)
    liars = [Site(f"site-{i + 3}", describe=Odd(said)) for i, said in enumerate(ODD_ANSWERS)]
    federation = Federation([*honest, *liars])
    parameters = {"candidates": 7}
    controller = play(federation, ticking, selector="pow-d", parameters=parameters, num_rounds=4)
    assert len(cohorts(controller)) == 4
    assert {"site-1", "site-2"} <= {name for names in cohorts(controller) for name in names}
