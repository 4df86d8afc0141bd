"""``turnout watch``: a page that follows run folders in the browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from threading import Thread
from typing import Annotated

import typer

from turnout.watch.server import STALLED_S, WatchServer, run_until_interrupted


def watch(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder; it need not exist yet.")
    ],
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Open no browser; only print the address.")
    ] = False,
    stalled_after: Annotated[
        float, typer.Option(help="Seconds without news after which the page says so.")
    ] = STALLED_S,
) -> None:
    """Follow a run in the browser while it is written; Ctrl-C ends it.

    The folder is only read. Nobody but this machine can see the page.

    Example: [bold]turnout watch runs/site --port 8100 --no-browser[/]
    """
    with WatchServer(run, port, stalled_after) as server:
        typer.echo(f"Watching {run} at {server.address} (Ctrl-C ends it).")
        if not no_browser:
            Thread(target=webbrowser.open, args=(server.address,), daemon=True).start()
        run_until_interrupted(server)
    typer.echo("Stopped watching; the run goes on.")
