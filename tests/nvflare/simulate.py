"""Runs one job in NVFlare's simulator: ``python -m tests.nvflare.simulate PLAN.json``."""

import json
import sys
from pathlib import Path

from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner

from nvflare import FedJob
from tests.nvflare.actors import Actor
from turnout.integrations.nvflare import SelectingFedAvg


def export(plan, folder):
    """Write the job of a plan to a folder; return the job's own folder."""
    job = FedJob(name="accidents", min_clients=1)
    job.to_server(NPModelPersistor(model=[0.0, 1.0, 2.0]), id="persistor")
    job.to_server(SelectingFedAvg(**plan["controller"]))
    for name in plan["clients"]:
        acts = plan.get("acts", {}).get(name, {})
        job.to(Actor(acts, plan.get("trace", "")), name, tasks=["train"])
    job.export_job(str(folder))
    written = Path(folder) / "accidents"
    for config in written.glob("**/config_fed_server.json"):
        server = json.loads(config.read_text())
        server["server"] = {"task_request_interval": 0.2}  # seconds; 2 by default
        config.write_text(json.dumps(server))
    return written


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    here = Path(sys.argv[1]).parent
    job = export(plan, here / "job")
    names = plan["clients"]
    runner = SimulatorRunner(
        str(job), str(here / "workspace"), clients=",".join(names), threads=len(names)
    )
    sys.exit(runner.run())
