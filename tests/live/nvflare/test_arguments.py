"""Arguments survive the export of a job, and bad ones are refused where the job is made."""

import inspect
import json
import math
import sys
from types import ModuleType

import pytest
from nvflare import FedJob
from nvflare.app_common.np.recipes import NumpyFedAvgRecipe

from tests.live.nvflare.fake import initial
from turnout.core.bounds import Bounds
from turnout.core.errors import InvalidInput
from turnout.core.schedules import StepAfter
from turnout.live import Guard, LiveSettings, Prometheus, Quorum
from turnout.live.alerts import AlertRules
from turnout.live.nvflare import SelectingFedAvg
from turnout.results.callbacks import MLflow, TensorBoard, WandB
from turnout.worlds import Buffered, FirstK, FixedDeadline, OverSelect

#: Every argument with a value other than its default.
ARGUMENTS = {
    "selector": "e3cs",
    "cohort_size": 4,
    "num_rounds": 9,
    "parameters": {"quota": StepAfter(3, 0.25, 0.5)},
    "guard": Guard(floor=0.25, cap=math.inf),
    "bounds": Bounds(losses=False),
    "policy": OverSelect(FirstK(seconds=60.0), 1.5),
    "quorum": Quorum(min_answers=2, max_empty_rounds=3),
    "seed": 5,
    "checkpoint": "/srv/run.npz",
    "records": "/srv/records",
    "label": "mine",
    "durations": "client",
    "metric_keys": {"loss": "my-loss"},
    "limit_s": 100.0,
    "start_s": 10.0,
    "wait_for_clients_s": 20.0,
    "ask_s": 3.0,
    "late_s": 4.0,
    "poll_s": 0.5,
    "alerts": AlertRules(failures=2),
    "followers": ("metrics",),
    "start_round": 2,
    "persistor_id": "mine",
    "save_filename": "other.pt",
    "stop_cond": "loss <= 1",
    "patience": 3,
    "task_name": "learn",
    "exclude_vars": "bias",
    "aggregation_weights": {"site-1": 2.0},
    "fedprox_mu": 0.5,
    "memory_gc_rounds": 2,
    "allow_empty_global_weights": True,
    "task_check_period": 0.25,
}


def exported(controller, folder):
    """Return the arguments of a controller as they stand in an exported job."""
    job = FedJob(name="exported", min_clients=1)
    job.to_server(controller)
    job.export_job(str(folder))
    (config,) = folder.glob("**/config_fed_server.json")
    (workflow,) = json.loads(config.read_text())["workflows"]
    assert workflow["path"] == "turnout.live.nvflare.controller.SelectingFedAvg"
    return workflow["args"]


def test_every_argument_survives_the_export_of_a_job(tmp_path):
    controller = SelectingFedAvg(**ARGUMENTS)
    written = exported(controller, tmp_path / "first")
    assert written.keys() == ARGUMENTS.keys()
    again = SelectingFedAvg(**written)
    assert exported(again, tmp_path / "second") == written
    settings, expected = again.live_settings, controller.live_settings
    assert settings.bounds.parameters == expected.bounds.parameters
    assert settings.policy == ARGUMENTS["policy"]
    assert settings.quorum == ARGUMENTS["quorum"]
    assert settings.alerts == ARGUMENTS["alerts"]
    assert repr(again.chooser) == repr(controller.chooser)
    assert "cap=inf" in repr(again.chooser)


def test_followers_survive_the_export_of_a_job(tmp_path, monkeypatch):
    for library in ("mlflow", "wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, library, ModuleType(library))
    followers = {
        "metrics": Prometheus(9100, host="0.0.0.0", file=tmp_path / "turnout.prom"),
        "board": TensorBoard(tmp_path / "board"),
        "mlflow": MLflow("phones", run_name="first", tracking_uri="sqlite:///mlflow.db"),
        "wandb": WandB("phones", mode="offline", tags=["a"]),
    }
    job = FedJob(name="followed", min_clients=1)
    for name, follower in followers.items():
        job.to_server(follower, id=name)
    job.to_server(SelectingFedAvg("random", cohort_size=2, followers=list(followers)))
    job.export_job(str(tmp_path / "job"))
    (config,) = tmp_path.glob("job/**/config_fed_server.json")
    written = {one["id"]: one["args"] for one in json.loads(config.read_text())["components"]}
    for name, follower in followers.items():
        again, arguments = type(follower)(**written[name]), inspect.signature(type(follower))
        kept = set(arguments.parameters) - {"more"}
        assert {key: getattr(again, key) for key in kept} == {
            key: getattr(follower, key) for key in kept
        }
    assert WandB(**written["wandb"]).options == {"mode": "offline", "tags": ["a"]}


class SelectingRecipe(NumpyFedAvgRecipe):
    """As the how-to has it."""

    def _create_controller(self, persistor_id, model_params, model_aggregator):
        return SelectingFedAvg(
            "e3cs",
            cohort_size=2,
            num_rounds=self.num_rounds,
            persistor_id=persistor_id,
            model=model_params,
            aggregator=model_aggregator,
        )


def test_a_recipe_with_another_controller(tmp_path):
    script = tmp_path / "client.py"
    script.write_text("")
    recipe = SelectingRecipe(
        model=[0.0, 1.0], min_clients=2, num_rounds=7, train_script=str(script)
    )
    recipe.export(str(tmp_path / "job"))
    (config,) = (tmp_path / "job").glob("**/config_fed_server.json")
    (workflow,) = json.loads(config.read_text())["workflows"]
    told = {"selector": "e3cs", "cohort_size": 2, "num_rounds": 7}
    assert told.items() <= workflow["args"].items()
    assert SelectingFedAvg(**workflow["args"]).num_rounds == 7


def test_nothing_but_what_was_given_is_exported(tmp_path):
    written = exported(SelectingFedAvg("random", cohort_size=2), tmp_path)
    empty = {"parameters": {}, "aggregation_weights": {}}
    assert written == {"selector": "random", "cohort_size": 2, **empty}
    assert SelectingFedAvg(**written).live_settings.bounds is not None


@pytest.mark.parametrize(
    ("told", "match"),
    [
        ({"selector": "e3sc"}, "e3cs"),
        ({"parameters": {"quoat": 1}}, "quota"),
        ({"parameters": {"quota": 7.0}}, "quota"),
        ({"policy": {"kind": "fixed-dedline"}}, "fixed-deadline"),
        ({"policy": FixedDeadline}, "policy"),
        ({"policy": {"kind": "fixed-deadline", "seconds": -1.0}}, "seconds"),
        ({"quorum": {"min_answers": 9}}, "min_answers must be at most cohort_size"),
        ({"quorum": {"answers": 2}}, "quorum"),
        ({"guard": {"floor": 3.0}}, "floor"),
        ({"guard": 0.5}, "guard must be Guard or a table"),
        ({"bounds": {"losse": False}}, "bounds"),
        ({"alerts": {"failures": 0}}, "failures"),
        ({"alerts": "all"}, "alerts must be AlertRules or a table"),
        ({"cohort_size": 0}, "cohort_size"),
        ({"num_rounds": -1}, "num_rounds"),
        ({"seed": -1}, "seed"),
        ({"limit_s": 0}, "limit_s"),
        ({"limit_s": "inf"}, "limit_s must be"),
        ({"settings": LiveSettings(evaluate_s=3.0)}, "evaluate_s has no effect in NVFlare"),
        ({"settings": LiveSettings(followers=[Prometheus()])}, "name the ids in followers="),
        ({"durations": "both"}, "durations"),
        ({"schedule": Buffered(2, 3)}, "schedule Buffered lets rounds overlap, and NVFlare's"),
        ({"schedule": {"kind": "semi-synchronous"}}, "and NVFlare's FedAvg waits"),
        ({"schedule": {"kind": "bufered"}}, "buffered"),
        ({"checkpoint": "run.npz"}, "checkpoint must be an absolute path on the server"),
        ({"records": "records"}, "records must be an absolute path on the server"),
        ({"ask_sec": 3.0}, "unknown argument 'ask_sec'. Did you mean 'ask_s'"),
        ({"evaluate_s": 3.0}, "unknown argument 'evaluate_s'"),
    ],
)
def test_bad_arguments_are_refused_where_the_job_is_made(told, match):
    with pytest.raises(InvalidInput, match=match):
        SelectingFedAvg(**{"selector": "e3cs", "cohort_size": 3, "model": initial(), **told})


def test_the_label_of_a_selector_that_is_given_by_its_path_is_its_class():
    made = SelectingFedAvg("turnout.selectors.e3cs:E3CS", cohort_size=3, model=initial())
    assert made.live_settings.label == "E3CS"
