"""The client's side, without a server."""

import numpy as np
import nvflare.client as flare
import pytest
from nvflare.app_common.abstract.fl_model import FLModel

from turnout.core.errors import InvalidInput
from turnout.live.nvflare.client import Describe, LossReport, poll_data, took_part


def question(ask, **told):
    return FLModel(params={"w": np.ones(2)}, meta={"turnout": {"ask": ask, **told}})


def said(answer):
    return answer.meta["turnout"]


def test_work_is_left_to_the_script():
    me = Describe(num_examples=3)
    assert me.answer(FLModel(params={})) is None
    assert me.answer(FLModel(params={}, meta={"turnout": "something"})) is None


def test_columns_that_stay_and_columns_that_change():
    me = Describe(
        num_examples=lambda model: 7,
        features=np.array([1, 0, 1]),
        context=lambda model: [float(took_part(model)), 2.0],
        columns={"expected_duration": 3, "battery": lambda model: model.params["w"].sum()},
    )
    fixed = {"num_samples": 7.0, "features": [1.0, 0.0, 1.0], "expected_duration": 3.0}
    asked = said(me.answer(question("identity")))
    assert asked == {"columns": fixed, "every-round": ["battery", "context"]}
    told = said(me.answer(question("columns", **{"took-part": True})))
    assert told == {"columns": {"context": [1.0, 2.0], "battery": 2.0}}


def test_the_loss_of_a_polled_model():
    me = Describe(loss=lambda model: model.params["w"].sum() + (poll_data(model) == "mini-batch"))
    assert said(me.answer(question("loss", **{"poll-data": "mini-batch"}))) == {"loss": 3.0}
    assert said(me.answer(question("loss", **{"poll-data": "all"}))) == {"loss": 2.0}
    assert said(Describe().answer(question("loss"))) == {}
    assert said(Describe().answer(question("something of a later version"))) == {}


def test_receive_answers_questions_and_returns_the_work(monkeypatch):
    work = FLModel(params={"w": np.zeros(2)})
    inbox = [question("identity"), question("columns"), work, None]
    sent = []
    monkeypatch.setattr(flare, "receive", lambda timeout: inbox.pop(0))
    monkeypatch.setattr(flare, "send", sent.append)
    me = Describe(num_examples=3)
    assert me.receive() is work
    assert [sorted(said(answer)) for answer in sent] == [["columns", "every-round"], ["columns"]]
    assert me.receive() is None


@pytest.mark.parametrize(
    "told",
    [{"num_examples": "many"}, {"features": [[1, 2], [3, 4]]}, {"loss": 3.0}],
)
def test_values_that_cannot_be_sent_are_refused_at_once(told):
    with pytest.raises(InvalidInput, match=next(iter(told))):
        Describe(**told)


def test_a_report_fits_the_metrics_of_a_model():
    report = LossReport()
    report.add([0.5, 1.5])
    assert FLModel(params={}, metrics=report.metrics()).metrics["loss"] == 1.0
