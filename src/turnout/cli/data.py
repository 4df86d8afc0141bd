"""``turnout data``: what data is there, how to get it, and what a partition looks like."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

from turnout.cli.data_figure import draw_division
from turnout.cli.data_view import print_division
from turnout.cli.options import print_json
from turnout.cli.output import AsJson, console, show, table
from turnout.data import DataMissing, FederatedData, Natural, Partition, Source, divide
from turnout.data.data_files import Files
from turnout.data.download import DOWNLOADS, download
from turnout.data.summary import Division, division
from turnout.errors import InvalidInput
from turnout.experiment.codec import FAMILIES, decode, encode
from turnout.experiment.variants import parse_parameters

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Datasets and how they are divided among clients.",
)

#: Clients if the user does not say and the data does not know.
_DEFAULT_CLIENTS = 20

_SourceArgument = Annotated[
    str, typer.Argument(help="A name from [bold]turnout data list[/], or name:key=value,...")
]


@app.command("list")
def list_sources(as_json: AsJson = False) -> None:
    """Show all datasets: which are there, where, and how to get the others.

    Example: [bold]turnout data list[/]
    """
    rows = [_source_row(name, cls) for name, cls in FAMILIES[Source].items()]
    made = table("Datasets", "name", "what it is", "where")
    made.columns[2].overflow = "fold"
    for row in rows:
        status = row["status"]
        where = {
            "embedded": "[green]embedded[/]",
            "found": f"[green]{escape(row['path'] or '')}[/]",
            "own": "[dim]where you say[/]",
            "missing": f"[yellow]missing.[/] [dim]{escape(row['get_it'])}[/]",
        }[status]
        made.add_row(f"[bold]{row['name']}[/]", escape(row["about"]), where)
    show(made, rows, as_json)


def _source_row(name: str, cls: type) -> dict[str, Any]:
    about = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
    row: dict[str, Any] = {"name": name, "about": about, "path": None, "get_it": ""}
    try:
        source = cls()
    except InvalidInput:  # it needs the path of a file
        return row | {"status": "own"}
    try:
        path = source.find()
    except DataMissing:
        files: Files[Any] = source.files
        missing = f"Wanted: {next(iter(files.forms))} in the data directory. {files.get_it}"
        return row | {"status": "missing", "get_it": missing}
    if path is None:
        return row | {"status": "embedded"}
    return row | {"status": "found", "path": str(path)}


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(DOWNLOADS)}.")],
) -> None:
    """Download a dataset into the data directory, and check it.

    NAME is fashion-mnist, cifar10 or emnist-letters. Set TURNOUT_DATA, or --data-dir in front.

    Example: [bold]turnout --data-dir data data get fashion-mnist[/]
    """
    for path in download(name, show_progress=console.is_terminal):
        console.print(f"[green]complete[/] {escape(str(path))}", highlight=False)


@app.command("show")
def show_partition(
    source: _SourceArgument,
    partition: Annotated[
        str | None,
        typer.Option(
            "--partition",
            help=f"{', '.join(FAMILIES[Partition])}. Default: natural where the data has owners, "
            "else iid.",
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="key=value of the partition; may be given several times."),
    ] = None,
    clients: Annotated[
        int | None, typer.Option("--clients", min=1, help="Default: 20, or all owners.")
    ] = None,
    hold_out: Annotated[
        float, typer.Option("--hold-out", help="Share that each client keeps for evaluation.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Fixes everything.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write a figure: .png, .pdf or .svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show who gets what when a dataset is divided among clients.

    SOURCE is a name from [bold]turnout data list[/], or name:key=value,... with its settings.

    Example: [bold]turnout data show digits --partition dirichlet --param alpha=0.3 --clients 20[/]
    """
    wanted: Source = _decoded(source, [], Source)
    dataset = wanted.load(seed)
    kind = partition or ("iid" if dataset.group is None else "natural")
    way: Partition = _decoded(kind, param or [], Partition)
    n_clients = clients or _n_clients(dataset.group, way)
    data = divide(dataset, way, n_clients, seed, hold_out)
    found = division(data)
    if as_json:
        print_json(_content(data, found, wanted, way, seed))
    else:
        print_division(data, found, f"{data.name}, {_spelled(way)}")
    if out is not None:
        draw_division(data, out, f"{data.name}, {_spelled(way)}, {n_clients} clients")
        if not as_json:
            console.print(f"Figure: {out}", highlight=False)


def _decoded(text: str, more: list[str], base: type) -> Any:
    """Return the source or partition of ``name`` or ``name:key=value,...``."""
    name, _, inner = text.partition(":")
    given = parse_parameters(",".join(part for part in (inner, *more) if part))
    return decode({"kind": name, **given}, base)


def _n_clients(group: Any, way: Partition) -> int:
    if group is None or not isinstance(way, Natural):
        return _DEFAULT_CLIENTS
    return max(1, int((np.bincount(group) >= way.min_samples).sum()))


def _spelled(way: Partition) -> str:
    """Return a partition in words: its first setting, and what is not as usual."""
    fields: Any = dataclasses.fields(way)  # type: ignore[arg-type]
    shown = [
        f"{field.name} {getattr(way, field.name)}"
        for place, field in enumerate(fields)
        if getattr(way, field.name) != field.default or (place == 0 and field.default is not None)
    ]
    kind = str(encode(way)["kind"])
    return f"{kind} ({', '.join(shown)})" if shown else kind


def _content(
    data: FederatedData, found: Division, source: Source, way: Partition, seed: int
) -> dict[str, Any]:
    labels = {} if data.is_text else {"label_counts": found.label_counts.tolist()}
    return {
        "source": encode(source),
        "partition": encode(way),
        "seed": seed,
        "n_clients": data.n_clients,
        "n_classes": data.n_classes,
        "n_test": len(data.y_test),
        "sizes": found.sizes.tolist(),
        "skew": [round(float(value), 6) for value in found.skew],
        **labels,
    }
