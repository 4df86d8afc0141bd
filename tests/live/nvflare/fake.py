"""NVFlare's server without processes: tasks, clients and events, on a clock of its own."""

import contextlib
import copy
import math
from dataclasses import dataclass, field

import numpy as np
from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.signal import Signal
from nvflare.apis.wf_comm_spec import WFCommSpec
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from turnout.core.types import Status
from turnout.live.nvflare import SelectingFedAvg
from turnout.live.nvflare.client import Describe
from turnout.live.transport import clock

N_WEIGHTS = 3


def initial():
    return {"weights": np.arange(N_WEIGHTS, dtype=np.float64)}


def trained(model, number):
    """Return what an honest client makes of a model: a step towards its own number."""
    weights = np.array(model.params["weights"])
    loss = float(np.square(weights - number).mean())
    weights = weights + 0.3 * (number - weights) + 0.01 * np.sin(weights * 1e3)
    metrics = {"loss": loss, "loss_std": 0.1, "loss_rms": loss, "num-examples": 100 * number}
    meta = {"NUM_STEPS_CURRENT_ROUND": number}
    return FLModel(params={"weights": weights}, metrics=metrics, meta=meta)


@dataclass
class Site:
    """A client. ``spoil`` makes a shareable of an honest reply, None never answers."""

    name: str
    seconds: float = 1.0
    spoil: object = None
    plan: dict = field(default_factory=dict)  #: other seconds by round
    describe: Describe | None = None
    n_asks: float = math.inf  #: how often it asks for work before its process dies
    trained: list = field(default_factory=list)  #: rounds
    asked: list = field(default_factory=list)  #: marks of questions

    @property
    def number(self):
        return int(self.name.rpartition("-")[2])

    def train(self, model):
        return trained(model, self.number)

    def work(self, shareable):
        model = FLModelUtils.from_shareable(shareable)
        if "turnout" in model.meta:
            self.asked.append(model.meta["turnout"])
        answer = None if self.describe is None else self.describe.answer(model)
        if answer is not None:
            return FLModelUtils.to_shareable(answer), 0.0
        self.trained.append(model.current_round)
        reply = self.train(model)
        seconds = self.plan.get(model.current_round, self.seconds)
        made = FLModelUtils.to_shareable(reply) if self.spoil is None else self.spoil(reply)
        return made, seconds


class Federation(WFCommSpec):
    """The communicator and the engine of a controller. Time passes when the controller sleeps."""

    def __init__(self, sites):
        self.sites = {site.name: site for site in sites}
        self.tasks, self.working, self.gone = [], {}, {}
        self.controller, self.task_check_period = None, 0.1
        self.events, self.panics, self.saved = [], [], []

    def get_clients(self):
        return [Client(name, f"token-{name}") for name in self.sites]

    def get_client_disconnect_time(self, client_name):
        return self.gone.get(client_name)

    def broadcast(
        self, task, fl_ctx, targets=None, min_responses=0, wait_time_after_min_received=0
    ):
        assert targets, "NVFlare would send it to everybody"
        assert isinstance(task.timeout, int)
        task.targets = list(targets)
        self.tasks.append((task, clock.now()))

    def cancel_task(self, task, completion_status="cancelled", fl_ctx=None):
        task.completion_status = completion_status

    def step(self):
        """Let every client do what it does at this time."""
        for task, since in self.tasks:
            if clock.now() - since >= task.timeout:
                task.completion_status = task.completion_status or "timeout"
        self.tasks = [entry for entry in self.tasks if entry[0].completion_status is None]
        for site in self.sites.values():
            self._serve(site)

    def _serve(self, site):
        client = Client(site.name, "token")
        if site.name in self.working:
            client_task, result, ready = self.working[site.name]
            if clock.now() < ready:
                return
            del self.working[site.name]
            if client_task.task.completion_status is None and site.name not in self.gone:
                client_task.result = result
                client_task.task.result_received_cb(client_task=client_task, fl_ctx=self.context())
                client_task.result_received_time = clock.now()
        if site.n_asks <= 0 or site.name in self.gone:
            return
        site.n_asks -= 1
        peer, fl_ctx = FLContext(), self.context()
        peer.set_prop(ReservedKey.IDENTITY_NAME, site.name)
        fl_ctx.set_peer_context(peer)
        self.controller.handle_event(EventType.BEFORE_PROCESS_TASK_REQUEST, fl_ctx)
        for task, _ in self.tasks:
            done = task.last_client_task_map.get(site.name)
            if site.name in task.targets and done is None and task.completion_status is None:
                client_task = ClientTask(client, task)
                task.before_task_sent_cb(client_task=client_task, fl_ctx=self.context())
                task.last_client_task_map[site.name] = client_task
                result, seconds = site.work(task.data)
                self.working[site.name] = (client_task, result, clock.now() + seconds)
                return

    # What NVFlare's controllers need besides.
    def get_component(self, component_id):
        return None

    def context(self):
        made = FLContext()
        made.set_prop(ReservedKey.ENGINE, self, private=True, sticky=False)
        return made

    def fire_event(self, event_type, fl_ctx):
        self.events.append(event_type)


def play(federation, ticking, *, abort_at=None, **controller):
    """Run a controller over a federation to the end; return it."""
    told = {"cohort_size": 2, "num_rounds": 3, "persistor_id": "", "model": initial()}
    made = SelectingFedAvg(**{"selector": "random", **told, **controller})
    made.set_communicator(federation)
    abort = Signal()
    sleep = ticking.sleep

    def live(seconds):
        sleep(seconds)
        federation.step()
        if abort_at is not None and ticking.at >= abort_at:
            abort.trigger(True)

    with contextlib.ExitStack() as stack:
        clock.sleep = live
        stack.callback(setattr, clock, "sleep", sleep)
        made.fl_ctx, made.engine, made.abort_signal = federation.context(), federation, abort
        made.save_model = lambda model: federation.saved.append(copy.deepcopy(model.params))
        made.run()
    return made


def cohorts(controller):
    """Return who was chosen, by name, round by round."""
    names, run = _run_of(controller)
    return [[names[i] for i in run.chosen_in(t)] for t in range(run.n_rounds)]


def statuses(controller, t):
    """Return what became of everyone who was chosen in a round, by name."""
    names, run = _run_of(controller)
    part = slice(run.offsets[t], run.offsets[t + 1])
    chosen = zip(run.clients[part], run.status[part], strict=True)
    return {names[i]: Status(int(status)).name.lower() for i, status in chosen}


def _run_of(controller):
    session = controller._run.session
    return session.members.roster.ids, session.journal.run
