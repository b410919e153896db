"""`python -m bench.gpu_table FOLDER`: one table of what `bench/gpu.sh` left in a folder.

    steps.tsv    a line per step that was run: name, exit status, seconds
    tests.xml    what pytest says of the tests on the GPU
    NAME.json    what each benchmark wrote

Whatever is missing is missing from the table too, and its step says why.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bench.report import Figure, at_most, table

_VERDICTS = ("met", "MISSED")


def step_figures(lines: Sequence[str]) -> list[Figure]:
    """How each step of steps.tsv ended."""
    figures = []
    for line in lines:
        name, status, seconds = line.split("\t")
        ended = "done" if status == "0" else f"failed ({status})"
        figures.append(Figure(f"step: {name}", f"{ended}, {seconds}", "s", "done", status == "0"))
    return figures


def suite_figures(xml: str) -> list[Figure]:
    """Tests by outcome, from pytest's JUnit report."""
    suites = ElementTree.fromstring(xml).iter("testsuite")
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for suite in suites:
        for outcome in counts:
            counts[outcome] += int(suite.get(outcome, 0))
    bad = counts["failures"] + counts["errors"]
    return [
        Figure("tests: passed", counts["tests"] - bad - counts["skipped"]),
        at_most("tests: failed", bad, "", 0),
        Figure("tests: skipped", counts["skipped"]),
    ]


def report_figures(report: Mapping[str, Any]) -> list[Figure]:
    """The figures of a benchmark's JSON object, its name before each."""
    name = report["name"]
    units, targets = report["units"], report["targets"]
    return [
        Figure(
            f"{name}: {figure}",
            value,
            units.get(figure, ""),
            targets.get(figure, {}).get("target", ""),
            targets.get(figure, {}).get("met"),
        )
        for figure, value in report["figures"].items()
    ]


def titled(figures: Sequence[Figure]) -> str:
    """The table, under the names of its columns."""
    title, *lines = table([Figure("figure", "value", "unit", "target"), *figures]).splitlines()
    for line in lines:
        verdict = next((word for word in _VERDICTS if line.endswith(f"  {word}")), None)
        if verdict is not None:
            title = title.ljust(len(line) - len(verdict)) + "met"
            break
    return "\n".join([title, *lines])


def collected(folder: Path) -> list[Figure]:
    """All figures of a folder: steps, tests, benchmarks in the order they were run."""
    steps = (folder / "steps.tsv").read_text(encoding="utf-8").splitlines()
    figures = step_figures(steps)
    tests = folder / "tests.xml"
    if tests.is_file():
        figures += suite_figures(tests.read_text(encoding="utf-8"))
    for name in (line.split("\t")[0] for line in steps):
        file = folder / f"{name}.json"
        if file.is_file():
            figures += report_figures(json.loads(file.read_text(encoding="utf-8")))
    return figures


def main(argv: Sequence[str]) -> int:
    """Print the table; 1 if a step failed."""
    figures = collected(Path(argv[0]))
    print(titled(figures))
    failed = [figure.name for figure in figures if figure.target == "done" and not figure.met]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
