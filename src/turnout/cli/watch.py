"""``turnout watch``: a page in the browser that follows a run folder."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from turnout.cli.app import documented
from turnout.report.watch import STALLED_S, WatchServer, run_until_interrupted


@documented
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    *,
    port: int = 0,
    no_browser: bool = False,
    stalled_after: float = STALLED_S,
) -> None:
    """Follow a run in the browser while it is written; Ctrl-C stops watching.

    The command only reads the folder. The page is visible on this machine only.

    Example: [bold]turnout watch runs/site --port 8100 --no-browser[/]

    Args:
        run: A run folder, which need not exist yet.
        port: Port on this machine; 0 takes a free one.
        no_browser: Print the address, and do not open a browser.
        stalled_after: Seconds without a change after which the page shows a stall.
    """
    with WatchServer(run, port, stalled_after) as server:
        typer.echo(f"Watching {run} at {server.address} (Ctrl-C stops).")
        if not no_browser:
            Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        run_until_interrupted(server)
    typer.echo("Stopped watching; the run continues.")
