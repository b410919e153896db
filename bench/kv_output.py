"""Where the KV benchmarks leave what they saw beside the report: CSV for machines, PNG for eyes."""

import argparse
import csv
import importlib
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import parser

Curve = tuple[Sequence[float], Sequence[float]]  # x, y
_INCHES_WIDE, _INCHES_HIGH = 9.0, 3.6  # of one panel


class NoPlot(RuntimeError):
    """A plot was asked for and cannot be drawn; the message says what to install."""


def kv_parser(name: str, description: str) -> argparse.ArgumentParser:
    """The options that all KV benchmarks share."""
    command = parser(name, description)
    command.add_argument("--csv", type=Path, metavar="FILE", help="also write the data to FILE")
    command.add_argument("--plot", type=Path, metavar="FILE", help="also draw a PNG to FILE")
    return command


def check_plot(wanted: Path | None) -> None:
    """Find out before the work begins whether a plot can be drawn.

    Raises:
        NoPlot: it was asked for and cannot.
    """
    if wanted is not None and importlib.util.find_spec("matplotlib") is None:
        raise NoPlot("--plot takes the package 'matplotlib': pip install matplotlib==3.11.2")


def write_csv(path: Path | None, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a header line and rows to `path`, if there is one."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as sink:
        writer = csv.writer(sink, lineterminator="\n")
        writer.writerow(names)
        writer.writerows(rows)
    print(f"written: {path}")


def draw(
    path: Path | None,
    x_label: str,
    panels: Mapping[str, Mapping[str, Curve]],
    *,
    log_y: bool = False,
) -> None:
    """Draw one panel below the other to `path`, if there is one: y label -> curve name -> points."""
    if path is None:
        return
    figures: Any = importlib.import_module("matplotlib.figure")  # untyped, and slow to import
    figure = figures.Figure(
        figsize=(_INCHES_WIDE, _INCHES_HIGH * len(panels)), layout="constrained"
    )
    for axes, (y_label, curves) in zip(
        figure.subplots(len(panels), squeeze=False)[:, 0], panels.items(), strict=True
    ):
        for name, (xs, ys) in curves.items():
            axes.plot(xs, ys, label=name, linewidth=1.2)
        axes.set(xlabel=x_label, ylabel=y_label)
        axes.set_yscale("log" if log_y else "linear")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"written: {path}")
