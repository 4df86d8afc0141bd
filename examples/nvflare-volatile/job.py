"""The job: NVFlare's FedAvg with a selector, on volatile clients in NVFlare's simulator."""

from __future__ import annotations

import argparse
from pathlib import Path

from nvflare import FedJob
from nvflare.app_common.np.np_model_persistor import NPModelPersistor
from nvflare.client.config import ExchangeFormat
from nvflare.fuel.utils.constants import FrameworkType
from nvflare.job_config.script_runner import ScriptRunner

from turnout.live.nvflare import SelectingFedAvg
from turnout.worlds import FixedDeadline

HERE = Path(__file__).resolve().parent


def made(options: argparse.Namespace) -> FedJob:
    """Return the job."""
    job = FedJob(name="volatile", min_clients=1)  # fewer than that alive would end it
    job.to_server(NPModelPersistor(model=[[0.0] * 10] * 65), id="persistor")
    job.to_server(
        SelectingFedAvg(
            options.selector,
            cohort_size=options.cohort,
            num_rounds=options.rounds,
            policy=FixedDeadline(options.deadline),
            seed=options.seed,
            records=options.out.resolve() / "records",
            checkpoint=options.out.resolve() / "checkpoint.npz",
        )
    )
    script = ScriptRunner(
        script=str(HERE / "client.py"),
        script_args=f"--clients {options.clients} --crash {options.crash} --sleep {options.sleep}",
        framework=FrameworkType.NUMPY,
        server_expected_format=ExchangeFormat.NUMPY,
    )
    for i in range(options.clients):
        job.to(script, f"site-{i + 1}", tasks=["train"])
    return job


def main() -> None:
    """Run the job in the simulator, or write it to a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--selector", default="e3cs")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--cohort", type=int, default=3, help="answers wanted per round")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--deadline", type=float, default=20.0, help="seconds of a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crash", type=float, default=0.1, help="chance that a model diverges")
    parser.add_argument("--sleep", type=float, default=0.1, help="chance to be far too late")
    parser.add_argument("--out", type=Path, default=Path("runs/nvflare"), help="records and more")
    parser.add_argument("--export", type=Path, help="write the job here, and do not run it")
    options = parser.parse_args()
    job = made(options)
    if options.export is not None:
        job.export_job(str(options.export))
        return
    job.simulator_run(
        str(options.out.resolve() / "workspace"), threads=options.clients, log_config="concise"
    )


if __name__ == "__main__":
    main()
