"""``turnout data``: list datasets, download them, and show how a partition divides one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from turnout.cli.app import documented
from turnout.cli.output import AsJson, console, print_json, show, table
from turnout.core.errors import InvalidInput, OutputError
from turnout.data import DataMissing, FederatedData, Natural, Partition, Source, divide
from turnout.data.federate import Division, division
from turnout.data.files import DOWNLOADS, Files, download
from turnout.experiment.codec import FAMILIES, decode, encode
from turnout.experiment.variants import parse_parameters
from turnout.report.figure import Axis, Bars, Chart, Heatmap, Panel, stacked
from turnout.report.to_matplotlib import FORMATS, write_figure

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Datasets and how they are divided among clients.",
)

#: Number of clients if neither the user nor the data sets it.
_DEFAULT_CLIENTS = 20


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
        console.print(f"[green]complete[/] {escape(str(path))}")


_WAYS = f"{', '.join(FAMILIES[Partition])}. Default: natural if the data has owners, otherwise iid."


@app.command("show")
@documented
def show_partition(
    source: str,
    *,
    partition: Annotated[str | None, typer.Option(help=_WAYS)] = None,
    param: list[str] | None = None,
    clients: Annotated[int | None, typer.Option(min=1)] = None,
    hold_out: float = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Show which examples each client gets when a dataset is divided.

    SOURCE is a name from [bold]turnout data list[/], or name:key=value,... with its settings.

    Example: [bold]turnout data show digits --partition dirichlet --param alpha=0.3 --clients 20[/]

    Args:
        source: A name from [bold]turnout data list[/], or name:key=value,...
        partition: How the data are divided.
        param: key=value of the partition; may be repeated.
        clients: Number of clients. Default: 20, or one for each owner.
        hold_out: Share of its examples that each client keeps for evaluation, from 0 to below 1.
        seed: Fixes all random draws.
        out: Also write a figure: .png, .pdf or .svg.
        as_json: For programs.
    """
    origin: Source = _decoded(source, [], Source)
    dataset = origin.load(seed)
    kind = partition or ("iid" if dataset.group is None else "natural")
    way: Partition = _decoded(kind, param or [], Partition)
    n_clients = clients or _DEFAULT_CLIENTS
    if clients is None and dataset.group is not None and isinstance(way, Natural):
        n_clients = max(1, int((np.bincount(dataset.group) >= way.min_samples).sum()))
    data = divide(dataset, way, n_clients, seed, hold_out)
    summary = division(data)
    if as_json:
        print_json(_content(data, summary, origin, way, seed))
    else:
        print_division(data, summary, f"{data.name}, {_described(way)}")
    if out is not None:
        draw_division(data, out, f"{data.name}, {_described(way)}, {n_clients} clients")
        if not as_json:
            console.print(f"Figure: {out}")


def _decoded(text: str, more: list[str], base: type) -> Any:
    """Return the source or partition of ``name`` or ``name:key=value,...``."""
    name, _, inner = text.partition(":")
    settings = parse_parameters(",".join(part for part in (inner, *more) if part))
    return decode({"kind": name, **settings}, base)


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


#: Most clients that get a line of their own.
_MOST_LINES = 24
#: Longest bar, and most labels that leave room for bars and names.
_BAR, _MOST_BESIDE = 12, 40

#: How a share is drawn: with the mark of the first limit that it does not exceed.
_SHADES = ((0.0, " "), (0.05, "·"), (0.15, "░"), (0.35, "▒"), (0.65, "▓"), (1.0, "█"))
_COLOURS = (
    *("dodger_blue1", "dark_orange", "green3", "red3", "medium_purple"),
    *("gold3", "deep_pink3", "cyan3", "grey62", "chartreuse3"),
)


def print_division(data: FederatedData, summary: Division, title: str) -> None:
    """Print a line for each client, or for a sample of many, and a summary.

    Args:
        data: The divided dataset.
        summary: Its division in numbers.
        title: Printed above the lines.

    """
    shown = summary.sample(_MOST_LINES)
    steps = _steps(data.n_classes)
    console.print(_lines(data, summary, shown, title))
    if not data.is_text:
        legend = "  ".join(f"{shade} to {step:.0%}" for step, shade in steps[1:])
        console.print(f"[dim]Share of a label among the client's: {legend}[/]")
    if shown.size < data.n_clients:
        number = f"{shown.size} of {data.n_clients} clients"
        console.print(f"[dim]{number}: evenly, ordered by {summary.ordered_by}.[/]")
    console.print(_numbers(data, summary))


def _lines(data: FederatedData, summary: Division, shown: Any, title: str) -> Table:
    lines = table(escape(title), "client", "examples", "", "skew", numbers=("client", "examples"))
    for column in lines.columns:
        column.no_wrap = True
    if not data.is_text:
        lines.add_column(_heading(data.n_classes), no_wrap=True)
    has_names = bool(data.client_names) and (data.is_text or data.n_classes <= _MOST_BESIDE)
    if has_names:
        lines.add_column("name", max_width=28, no_wrap=True)
    longest = _BAR if data.is_text or data.n_classes <= _MOST_BESIDE else 1
    largest = int(summary.sizes[shown].max())
    steps, shares = _steps(data.n_classes), summary.shares(shown)
    for client, share in zip(shown, shares, strict=True):
        size = int(summary.sizes[client])
        bar = "█" * max(1, round(longest * size / largest))
        cells: list[Any] = [
            str(client),
            str(size),
            f"[blue]{bar}[/]",
            f"{summary.skew[client]:.2f}",
        ]
        if not data.is_text:
            cells.append(_shaded(share, steps))
        if has_names:
            cells.append(escape(data.client_names[client]))
        lines.add_row(*cells)
    return lines


def _steps(n_classes: int) -> list[tuple[float, str]]:
    """Return the largest share that each mark stands for; many labels mean small shares."""
    factor = min(1.0, len(_COLOURS) / n_classes)
    return [(step if step == 1.0 else step * factor, shade) for step, shade in _SHADES]


def _heading(n_classes: int) -> str:
    if n_classes > len(_COLOURS):
        return f"labels 0 .. {n_classes - 1}"
    return " ".join(str(label) for label in range(n_classes))


def _shaded(shares: Any, steps: list[tuple[float, str]]) -> Text:
    gap = " " if len(shares) <= len(_COLOURS) else ""
    text = Text()
    for label, share in enumerate(shares):
        shade = next(mark for step, mark in steps if share <= step + 1e-9)
        text.append(shade + gap, style=_COLOURS[label % len(_COLOURS)])
    return text


def _numbers(data: FederatedData, summary: Division) -> Table:
    numbers = table("", "what", "value", numbers=("value",))
    sizes = summary.sizes
    n_labels = (summary.label_counts > 0).sum(axis=1).mean()
    amounts = f"{len(data.y)} / {len(data.y_holdout)} / {len(data.y_test)}"
    labels = "different next words" if data.is_text else "labels"
    numbers.add_row("clients", str(data.n_clients))
    numbers.add_row("examples to train / to hold out / to test", amounts)
    spread = f"{sizes.min()} / {np.median(sizes):g} / {sizes.max()}"
    numbers.add_row("examples of a client: least / median / most", spread)
    if sizes.max() - sizes.min() > 1:
        numbers.add_row("clients by size, from least to most", _histogram(sizes))
    numbers.add_row(f"{labels} of a client, mean", f"{n_labels:.1f} of {data.n_classes}")
    meaning = "0 = the same labels as all clients together, 1 = none in common"
    numbers.add_row(f"skew, mean ({meaning})", f"{summary.skew.mean():.3f}")
    return numbers


def _histogram(sizes: Any) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    is_wide = high > 20 * low
    edges = np.geomspace(low, high, 17) if is_wide else np.linspace(low, high, 17)
    counts, _ = np.histogram(sizes, bins=edges)
    levels = np.ceil(8 * counts / counts.max()).astype(int)
    drawn = "".join(" ▁▂▃▄▅▆▇█"[level] for level in levels)
    return f"{drawn} (log)" if is_wide else drawn


# The figure of a division -------------------------------------------------------------------------


#: Most clients that get a bar of their own.
_MOST_BARS = 60
#: Bars show shares where the largest client has more than this many times the median.
_WIDE = 5
#: Most words of a text that get a row.
_MOST_WORDS = 30
_N_BINS = 15
#: The colours of labels: Tableau's twenty, of which every second one is a light shade.
_LABELS = (
    *("#1f77b4", "#aec7e8", "#ff7f0e", "#ffbb78", "#2ca02c", "#98df8a", "#d62728"),
    *("#ff9896", "#9467bd", "#c5b0d5", "#8c564b", "#c49c94", "#e377c2", "#f7b6d2"),
    *("#7f7f7f", "#c7c7c7", "#bcbd22", "#dbdb8d", "#17becf", "#9edae5"),
)


def draw_division(data: FederatedData, path: Path, title: str = "") -> Path:
    """Write a figure of the labels of each client and of the spread of sizes.

    Args:
        data: The divided dataset.
        path: The file to write. Its ending, ``.png``, ``.pdf`` or ``.svg``, sets the format.
        title: A line above the figure.

    Returns:
        The path.
    """
    if path.suffix.removeprefix(".") not in FORMATS:
        raise InvalidInput(f"path must end in .{', .'.join(FORMATS)}, got {path}.", field="path")
    try:
        write_figure(division_figure(data, title), [path])
    except OutputError as error:
        raise InvalidInput(f"path {error}", field="path") from error
    return path


def division_figure(data: FederatedData, title: str = "") -> Chart:
    """Return the figure of a division.

    Few clients are stacked bars. Many clients or many labels are a matrix, in which clients with
    the same main label are side by side.

    Args:
        data: The divided dataset.
        title: A line above the figure.
    """
    shown = division(data)
    low, high = int(shown.sizes.min()), int(shown.sizes.max())
    has_bars = shown.sizes.size <= _MOST_BARS and data.n_classes <= len(_LABELS)
    has_bars = has_bars and not data.is_text
    panels = [_bars(shown) if has_bars else _matrix(shown, data)]
    if high - low <= 1:  # a histogram would show nothing
        each = str(low) if low == high else f"{low} or {high}"
        title = ", ".join(part for part in (title, f"{each} examples each") if part)
    else:
        panels.append(_sizes(shown))
    head = ("division", title, "", panels, len(panels), 7.0, title)
    return Chart(*head, legend="right", legend_title="label")


def _bars(shown: Division) -> Panel:
    """Return a bar for each client, cut by label; all of one height where sizes differ a lot."""
    n_classes = shown.label_counts.shape[1]
    colours = _LABELS[::2] if 2 * n_classes <= len(_LABELS) else _LABELS
    client = np.arange(shown.sizes.size)
    is_wide = shown.sizes.max() > _WIDE * np.median(shown.sizes)
    heights = shown.shares(client) if is_wide else shown.label_counts
    bars = [
        Bars(str(number), colours[number], client, heights[:, number].astype(float))
        for number in range(n_classes)
    ]
    x = Axis("client", is_whole=True, low=-0.7, high=client.size - 0.3)
    y = Axis("share of the client's examples" if is_wide else "examples", is_share=is_wide)
    return Panel(stacked(bars), x, y, height=3.4, share=3.0)


def _matrix(shown: Division, data: FederatedData) -> Panel:
    """Return a column for each client and a row for each label, dark where the client has many."""
    rows = np.arange(data.n_classes)
    if data.is_text:  # the most frequent word is on top
        rows = np.argsort(-shown.label_counts.sum(axis=0), kind="stable")[:_MOST_WORDS][::-1]
    values = (shown.label_counts[np.ix_(shown.order, rows)] / shown.n_labels[shown.order, None]).T
    label = "share of the client's labels"
    mark = Heatmap("", 0, values, label, (0.0, None), scale="blues")
    words = data.words if data.is_text else None
    ticks = {float(place): words[row] for place, row in enumerate(rows)} if words else {}
    x = Axis(f"client, ordered by {shown.ordered_by}")
    y = Axis("next word" if data.is_text else "label", ticks=ticks, tick_size=6.0)
    return Panel([mark], x, y, height=3.4, share=3.0)


def _sizes(shown: Division) -> Panel:
    low, high = int(shown.sizes.min()), int(shown.sizes.max())
    is_wide = high > 20 * low
    edges = (np.geomspace if is_wide else np.linspace)(low, high, _N_BINS + 1)
    bars = Bars.histogram(shown.sizes, edges, "#4c72b0")
    x, y = Axis("examples of a client", is_log=is_wide), Axis("clients", is_whole=True)
    return Panel([bars], x, y, height=3.4)
