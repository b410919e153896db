"""What a benchmark found: an aligned table for people, one JSON object for machines."""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("vllm", "torch", "uvicorn", "websockets")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number a benchmark found, and what it should have been."""

    name: str
    value: float | int | str
    unit: str = ""
    target: str = ""  # as a person reads it, e.g. "<= 1.5"
    met: bool | None = None  # None: there is no target


def at_most(name: str, value: float, unit: str, limit: float) -> Figure:
    """A figure that should not exceed `limit`."""
    return Figure(name, value, unit, f"<= {limit:g}", value <= limit)


def at_least(name: str, value: float, unit: str, limit: float) -> Figure:
    """A figure that should reach `limit`."""
    return Figure(name, value, unit, f">= {limit:g}", value >= limit)


def _shown(value: float | int | str) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else value


def table(figures: Sequence[Figure]) -> str:
    """`figures` as aligned text, one line each, numbers flush right."""
    rows = [
        (
            figure.name,
            _shown(figure.value),
            figure.unit,
            figure.target,
            "" if figure.met is None else "met" if figure.met else "MISSED",
        )
        for figure in figures
    ]
    name_width, value_width, unit_width, target_width = (
        max((len(row[column]) for row in rows), default=0) for column in range(4)
    )
    return "\n".join(
        f"{name:<{name_width}}  {value:>{value_width}} {unit:<{unit_width}}"
        f"  {target:<{target_width}}  {verdict}".rstrip()
        for name, value, unit, target, verdict in rows
    )


def cpu_model() -> str:
    """The processor's name, or the architecture where the system does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def machine() -> dict[str, Any]:
    """The machine the figures were taken on, and how busy it is."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.release()}",
    }


def versions() -> dict[str, str]:
    """Versions of what the figures depend on; a missing package is 'absent'."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        found[package] = "absent"
        for distribution in (package, f"{package}-cpu"):  # vLLM's CPU build has a name of its own
            try:
                found[package] = metadata.version(distribution)
                break
            except metadata.PackageNotFoundError:
                continue
    return found


def commit() -> str:
    """The checkout's commit, '-dirty' appended where files differ; 'unknown' outside one."""
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


class Report:
    """Collects a benchmark's figures; stamps the machine's load and the time when it is made."""

    def __init__(self, name: str, argv: Sequence[str]) -> None:
        self.name = name
        self.argv = list(argv)
        self.started = datetime.now(UTC).isoformat(timespec="seconds")
        self.machine = machine()  # the load before the benchmark adds its own
        self.figures: list[Figure] = []

    def add(self, *figures: Figure) -> None:
        self.figures.extend(figures)

    @property
    def missed(self) -> list[Figure]:
        """Figures whose target was not met."""
        return [figure for figure in self.figures if figure.met is False]

    def as_json(self) -> dict[str, Any]:
        """The whole report as one JSON object: plain numbers by name, and what they are beside them."""
        return {
            "name": self.name,
            "figures": {figure.name: figure.value for figure in self.figures},
            "units": {figure.name: figure.unit for figure in self.figures if figure.unit},
            "targets": {
                figure.name: {"target": figure.target, "met": figure.met}
                for figure in self.figures
                if figure.target
            },
            "machine": self.machine,
            "versions": versions(),
            "commit": commit(),
            "started": self.started,
            "argv": self.argv,
        }

    def publish(self, json_file: Path | None) -> None:
        """Print the table; write the JSON object where a file is named."""
        host = self.machine
        where = f"{host['cpu']}, {host['cores']} cores, load {host['load'][0]} at start"
        print(f"\n{self.name}: {where}")
        print(table(self.figures), flush=True)
        if json_file is not None:
            json_file.parent.mkdir(parents=True, exist_ok=True)
            json_file.write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")
            print(f"written: {json_file}")


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """A command line with the options every benchmark has."""
    command = argparse.ArgumentParser(prog=f"metronome bench {name}", description=description)
    command.add_argument("--quick", action="store_true", help="fewer repetitions; minutes at most")
    command.add_argument(
        "--json", type=Path, metavar="FILE", help="also write a JSON object to FILE"
    )
    command.add_argument(
        "--check", action="store_true", help="exit 1 if a figure misses its target"
    )
    return command


def progress(text: str) -> None:
    """One line about what happens now, on standard error, so that tables can be piped."""
    print(f"  {text}", file=sys.stderr, flush=True)
