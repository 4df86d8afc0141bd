"""Runs one job in NVFlare's simulator: ``python -m tests.live.nvflare.simulate PLAN.json``.

A plan has the controller's arguments, the clients' names, what they do, and where they write it.
"""

import json
import sys
from pathlib import Path

from nvflare import FedJob
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner

from tests.live.nvflare.actors import Actor
from turnout.live import Prometheus
from turnout.live.nvflare import SelectingFedAvg

#: Where the persistor leaves the model, in the folder of a run.
MODEL = "workspace/server/simulate_job/models/server.npy"


def export(plan, folder):
    """Write the job of a plan to a folder; return the job's own folder."""
    job = FedJob(name="accidents", min_clients=1)
    job.to_server(NPModelPersistor(model=[0.0, 1.0, 2.0]), id="persistor")
    job.to_server(Prometheus(file=plan["metrics"]), id="metrics")
    job.to_server(SelectingFedAvg(**plan["controller"], followers=["metrics"]))
    for name in plan["clients"]:
        job.to(Actor(plan["acts"].get(name, {}), plan["trace"]), name, tasks=["train"])
    job.export_job(str(folder))
    (config,) = folder.glob("**/config_fed_server.json")
    server = json.loads(config.read_text())
    server["server"] = {"task_request_interval": 0.2}  # seconds; by default 2
    config.write_text(json.dumps(server))
    return folder / "accidents"


if __name__ == "__main__":
    here = Path(sys.argv[1]).parent
    plan = json.loads(Path(sys.argv[1]).read_text())
    names = plan["clients"]
    told = {"clients": ",".join(names), "threads": len(names)}
    sys.exit(
        SimulatorRunner(str(export(plan, here / "job")), str(here / "workspace"), **told).run()
    )
