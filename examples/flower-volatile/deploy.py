"""Train on this machine as on a real federation, with accidents; ends with a report.

    python deploy.py

starts a SuperLink and SuperNodes on the loopback interface, with TLS and SuperNode authentication,
shows that an unregistered node is refused, trains, kills a SuperNode in the middle of a round and
brings it back, kills the server and resumes, and prints what happened round by round.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loopback import Loopback
from processes import wait_until

APP = Path(__file__).resolve().parent
LIMIT_S = 300.0  # for what should take seconds, on a busy machine
CHECK_EVERY_S = 20.0
COUNTS = ("available", "chosen", "completed", "late", "failed", "silent")


def main() -> None:
    """Run the whole story."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended then, too
    folder = options.folder or Path(tempfile.mkdtemp(prefix="flower-volatile-"))
    story = Story(folder, options)
    try:
        with Loopback(folder) as deployment:
            story.tell(deployment)
    finally:
        story.say("all processes ended")
    story.report()


class Story:
    """What happens, in order."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.options = options
        self.records = folder / "runs"
        last, long = options.nodes - 1, 1.5 * options.deadline
        self.config = {
            "selector": options.selector,
            "num-rounds": options.rounds,
            "cohort-size": options.nodes,
            "deadline": options.deadline,
            "wait-for-nodes": options.deadline,
            "records": str(self.records),
            "checkpoint": str(folder / "checkpoint.npz"),
            "faults": f"0:crash@1 1:sleep10@2 {last}:sleep{long:.0f}@2",
        }
        self._begun = self._checked = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line of progress."""
        print(f"{time.monotonic() - self._begun:6.1f} s  {text}", flush=True)

    def tell(self, deployment: Loopback) -> None:
        """Start everything, train, break things, and see it through."""
        names = self.start_nodes(deployment)
        self.refuse_stranger(deployment)
        run = deployment.run(APP, self.config)
        self.say(f"run {run} submitted: {self.options.rounds} rounds with {self.options.selector}")
        self.follow(deployment, run, 1)
        victim, work = names[1], "fault: client 1 sleep in round 2"
        wait_until(lambda: work in deployment.processes.log(victim), LIMIT_S, f"{victim} to work")
        deployment.kill_node(victim)
        self.say(f"SIGKILL {victim} at work; it restarts until the SuperLink takes it back")
        self.follow(deployment, run, 2)
        deployment.kill_server_app()
        deployment.stop_run(run)
        run = deployment.run(APP, self.config)
        self.say(f"SIGKILL the ServerApp; run {run} resumes from the checkpoint")
        self.follow(deployment, run, self.options.rounds)
        self.say(f"run {run} is {deployment.wait(run, limit_s=120.0)}")

    def start_nodes(self, deployment: Loopback) -> list[str]:
        """Register and start the nodes; return their names."""
        self.say(f"SuperLink serves on 127.0.0.1:{deployment.port} with TLS")
        names = [f"node-{i}" for i in range(self.options.nodes)]
        for i, name in enumerate(names):
            deployment.register(name)
            deployment.keep_node(name, {"partition-id": i, "num-partitions": len(names)})
            self.say(f"{name} registered and started")
        return names

    def refuse_stranger(self, deployment: Loopback) -> None:
        """Show that a node whose key is not registered does not get in."""
        deployment.start_node("stranger", {"partition-id": 0, "num-partitions": 1})
        code = deployment.processes.exit_code("stranger", limit_s=120.0)
        reason = next(
            (line for line in deployment.processes.log("stranger").splitlines() if "Exit" in line),
            "no reason given",
        )
        if code == 0:
            raise RuntimeError("a node with an unregistered key was let in")
        self.say(f"a node with an unregistered key is refused ({reason.split(':', 1)[1].strip()})")

    def follow(self, deployment: Loopback, run: str, n_rounds: int) -> None:
        """Wait until so many rounds are recorded, and tell of each."""
        while (done := len(self.rounds())) < n_rounds:
            wait_until(
                lambda done=done: len(self.rounds()) > done,
                LIMIT_S + 3 * self.options.deadline,
                f"round {done + 1}",
                lambda: self.check(deployment, run),
                pause_s=0.5,
            )
            line = self.rounds()[done]
            self.say(f"round {done + 1}: " + ", ".join(f"{line[key]} {key}" for key in COUNTS))

    def check(self, deployment: Loopback, run: str) -> None:
        """Raise if the run has failed; asked now and then, for asking takes seconds."""
        if time.monotonic() - self._checked < CHECK_EVERY_S:
            return
        if deployment.status(run).startswith("finished:failed"):
            raise RuntimeError(
                f"run {run} failed:\n{deployment.processes.log('superlink')[-5000:]}"
            )
        self._checked = time.monotonic()

    def rounds(self) -> list[dict[str, Any]]:
        """Return the rounds recorded so far; a line that is being written does not count yet."""
        rounds = {}
        for path in self.records.glob("*/seed-*/rounds.jsonl"):
            for line in path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    entry = json.loads(line)
                    rounds[entry["round"]] = entry  # the later line of a round counts
        return [rounds[t] for t in sorted(rounds)]

    def report(self) -> None:
        """Print the table of rounds, and write the page."""
        print(f"\n{'round':>5} " + " ".join(f"{name:>9}" for name in COUNTS) + "  accuracy")
        for line in self.rounds():
            counts = " ".join(f"{line[name]:>9}" for name in COUNTS)
            print(f"{line['round'] + 1:>5} {counts}  {line.get('accuracy', float('nan')):8.3f}")
        print(f"\nRun folder: {self.records}", flush=True)
        page = self.records.parent / "report.html"
        command = [sys.executable, "-m", "turnout", "report", str(self.records), "--out", str(page)]
        subprocess.run(command, check=True, timeout=120)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes (default: 3)")
    parser.add_argument("--rounds", type=int, default=6, help="rounds, 4 or more (default: 6)")
    parser.add_argument("--deadline", type=float, default=60.0, help="seconds (default: 60)")
    parser.add_argument("--selector", default="e3cs", help="any selector (default: e3cs)")
    parser.add_argument("--folder", type=Path, help="where all files go (default: a new one)")
    options = parser.parse_args()
    if options.nodes < 2 or options.rounds < 4 or options.deadline < 15.0:
        parser.error("it takes 2 nodes, 4 rounds and deadlines of 15 s to tell the story")
    return options


if __name__ == "__main__":
    main()
