"""``turnout data``: list datasets, download them, and show how a partition divides one."""

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
from turnout.experiment.codec import decode, encode
from turnout.experiment.kinds import FAMILIES
from turnout.experiment.spec import parse_parameters

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Datasets and how they are divided among clients.",
)

#: Number of clients if neither the user nor the data sets it.
_DEFAULT_CLIENTS = 20

_SourceArgument = Annotated[
    str, typer.Argument(help="A name from [bold]turnout data list[/], or name:key=value,...")
]


@app.command("list")
def list_sources(as_json: AsJson = False) -> None:
    """Show all datasets: which are present, where, and how to get the others.

    Example: [bold]turnout data list[/]
    """
    rows = [_source_row(name, cls) for name, cls in FAMILIES[Source].items()]
    listing = table("Datasets", "name", "what it is", "where")
    listing.columns[2].overflow = "fold"
    for row in rows:
        status = row["status"]
        where = {
            "embedded": "[green]embedded[/]",
            "found": f"[green]{escape(row['path'] or '')}[/]",
            "own": "[dim]the path you give[/]",
            "missing": f"[yellow]missing.[/] [dim]{escape(row['get_it'])}[/]",
        }[status]
        listing.add_row(f"[bold]{row['name']}[/]", escape(row["about"]), where)
    show(listing, rows, as_json)


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
    """Download a dataset into the data directory and check it.

    NAME is fashion-mnist, cifar10 or emnist-letters. Set TURNOUT_DATA, or put --data-dir before
    [bold]data[/].

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
            help=f"{', '.join(FAMILIES[Partition])}. Default: natural if the data has owners, "
            "otherwise iid.",
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option("--param", help="key=value of the partition; may be repeated."),
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(
            "--clients", min=1, help="Number of clients. Default: 20, or one for each owner."
        ),
    ] = None,
    hold_out: Annotated[
        float,
        typer.Option(
            "--hold-out",
            help="Share of its examples that each client keeps for evaluation, from 0 to below 1.",
        ),
    ] = 0.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Number that fixes all random draws.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Also write a figure: .png, .pdf or .svg.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which examples each client gets when a dataset is divided.

    SOURCE is a name from [bold]turnout data list[/], or name:key=value,... with its settings.

    Example: [bold]turnout data show digits --partition dirichlet --param alpha=0.3 --clients 20[/]
    """
    origin: Source = _decoded(source, [], Source)
    dataset = origin.load(seed)
    kind = partition or ("iid" if dataset.group is None else "natural")
    way: Partition = _decoded(kind, param or [], Partition)
    n_clients = clients or _n_clients(dataset.group, way)
    data = divide(dataset, way, n_clients, seed, hold_out)
    summary = division(data)
    if as_json:
        print_json(_content(data, summary, origin, way, seed))
    else:
        print_division(data, summary, f"{data.name}, {_described(way)}")
    if out is not None:
        draw_division(data, out, f"{data.name}, {_described(way)}, {n_clients} clients")
        if not as_json:
            console.print(f"Figure: {out}", highlight=False)


def _decoded(text: str, more: list[str], base: type) -> Any:
    """Return the source or partition of ``name`` or ``name:key=value,...``."""
    name, _, inner = text.partition(":")
    settings = parse_parameters(",".join(part for part in (inner, *more) if part))
    return decode({"kind": name, **settings}, base)


def _n_clients(group: Any, way: Partition) -> int:
    if group is None or not isinstance(way, Natural):
        return _DEFAULT_CLIENTS
    return max(1, int((np.bincount(group) >= way.min_samples).sum()))


def _described(way: Partition) -> str:
    """Return a partition with its first setting and all that differ from the default."""
    fields: Any = dataclasses.fields(way)  # type: ignore[arg-type]
    shown = [
        f"{field.name} {getattr(way, field.name)}"
        for place, field in enumerate(fields)
        if getattr(way, field.name) != field.default or (place == 0 and field.default is not None)
    ]
    kind = str(encode(way)["kind"])
    return f"{kind} ({', '.join(shown)})" if shown else kind


def _content(
    data: FederatedData, summary: Division, source: Source, way: Partition, seed: int
) -> dict[str, Any]:
    labels = {} if data.is_text else {"label_counts": summary.label_counts.tolist()}
    return {
        "source": encode(source),
        "partition": encode(way),
        "seed": seed,
        "n_clients": data.n_clients,
        "n_classes": data.n_classes,
        "n_test": len(data.y_test),
        "sizes": summary.sizes.tolist(),
        "skew": [round(float(value), 6) for value in summary.skew],
        **labels,
    }
