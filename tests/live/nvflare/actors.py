"""Clients that behave as they are told; NVFlare copies this file into the job."""

import json
import os
import subprocess
import time

import numpy as np
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from turnout.live.nvflare.client import Describe

#: What NPModelPersistor calls its only array.
KEY = "numpy_key"


class Actor(Executor):
    """Moves the model towards its own centre, unless it is told something else.

    Args:
        acts: What to do in a round, by its number as a text; "*" for all others. Anything but
            "train" is an accident.
        trace: A folder for a line per training, or "".
    """

    def __init__(self, acts=None, trace=""):
        super().__init__()
        self.acts, self.trace = acts or {}, trace

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        name = fl_ctx.get_identity_name()
        number = int(name.rpartition("-")[2])
        model = FLModelUtils.from_shareable(shareable)
        me = Describe(num_examples=100 * number, loss=lambda model: float(number))
        answer = me.answer(model)
        if answer is not None:
            return FLModelUtils.to_shareable(answer)
        act = self.acts.get(str(model.current_round), self.acts.get("*", "train"))
        if self.trace:
            line = {"client": name, "round": model.current_round, "total": model.total_rounds}
            with open(os.path.join(self.trace, f"{name}.jsonl"), "a") as file:
                file.write(json.dumps(line) + "\n")
        weights = np.array(model.params[KEY], dtype=np.float64)
        loss = float(np.square(weights - number).mean())
        weights = weights + 0.3 * (number - weights) + 0.01 * np.sin(weights * 1e3)
        metrics = {"loss": loss, "loss_std": 0.1, "loss_rms": loss, "num-examples": 100 * number}
        reply = FLModel(
            params={KEY: weights}, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": number}
        )
        return getattr(self, f"_{act.partition(' ')[0]}")(reply, act.partition(" ")[2])

    def _train(self, reply, _):
        return FLModelUtils.to_shareable(reply)

    def _sleep(self, reply, seconds):
        time.sleep(float(seconds))
        return FLModelUtils.to_shareable(reply)

    def _die(self, reply, _):
        os._exit(1)

    def _freeze(self, reply, seconds):
        """Answer, and then neither ask for work nor say anything for a while."""
        me = os.getpid()
        steps = f"sleep 4; kill -STOP {me}; sleep {seconds}; kill -CONT {me}"
        subprocess.Popen(["sh", "-c", steps], start_new_session=True)
        return FLModelUtils.to_shareable(reply)

    def _raise(self, reply, _):
        raise ValueError("no data today")

    def _fail(self, reply, _):
        return make_reply(ReturnCode.EXECUTION_EXCEPTION)

    def _nothing(self, reply, _):
        return make_reply(ReturnCode.OK)

    def _nan(self, reply, _):
        reply.params[KEY][0] = np.nan
        return FLModelUtils.to_shareable(reply)

    def _shape(self, reply, _):
        reply.params = {KEY: np.zeros((2, 2))}
        return FLModelUtils.to_shareable(reply)

    def _keys(self, reply, _):
        reply.params = {"others": np.zeros(3)}
        return FLModelUtils.to_shareable(reply)

    def _text(self, reply, _):
        reply.params = {KEY: "all of them"}
        return FLModelUtils.to_shareable(reply)

    def _empty(self, reply, _):
        reply.params = {}
        return FLModelUtils.to_shareable(reply)

    def _steps(self, reply, _):
        reply.meta["NUM_STEPS_CURRENT_ROUND"] = 1e300
        return FLModelUtils.to_shareable(reply)

    def _boast(self, reply, _):
        reply.metrics |= {"loss": 1e300, "num-examples": 1e300, "odd": {"a": [1]}, "text": "x"}
        return FLModelUtils.to_shareable(reply)
