"""``turnout bench``: how long a round takes, beside a floor measured in the same run."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import Progress

from turnout.cli.output import AsJson, console, show, table
from turnout.registry import make, names
from turnout.testing.speed import Speed, measure


def bench(
    selectors: Annotated[
        list[str] | None, typer.Argument(help="Names or module:Class; all by default.")
    ] = None,
    clients: Annotated[int, typer.Option(min=1, help="Number of clients.")] = 100_000,
    cohort: Annotated[int, typer.Option(min=1, help="Clients chosen per round.")] = 100,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds timed per selector.")] = 9,
    as_json: AsJson = False,
) -> None:
    """Time select + observe; the floor is one random vector and one partition of it.

    Example: [bold]turnout bench e3cs oort --clients 1000000[/]
    """
    wanted = selectors or list(names())
    instances = [make(name) for name in wanted]  # bad names are reported before anything runs
    results: dict[str, Speed] = {}
    with Progress(console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task("measuring", total=len(instances))
        for name, selector in zip(wanted, instances, strict=True):
            progress.update(task, description=name)
            results[name] = measure(selector, clients, cohort, repeats)
            progress.advance(task)
    numbers = ("ms per round", "ms floor", "ratio", "bytes/client")
    shown = table(f"{clients:,} clients, cohort {cohort}", "selector", *numbers, numbers=numbers)
    for name, speed in results.items():
        shown.add_row(
            name,
            f"{1e3 * speed.round_s:.2f}",
            f"{1e3 * speed.floor_s:.2f}",
            f"{speed.ratio:.1f}x",
            f"{speed.bytes_per_client:.0f}",
        )
    rows = [
        {
            "selector": name,
            "n_clients": speed.n_clients,
            "round_ms": 1e3 * speed.round_s,
            "floor_ms": 1e3 * speed.floor_s,
            "ratio": speed.ratio,
            "bytes_per_client": speed.bytes_per_client,
        }
        for name, speed in results.items()
    ]
    show(shown, rows, as_json)
