"""The table at the end of bench/gpu.sh, from what its steps left behind."""

import json
from pathlib import Path

import pytest

from bench.gpu_table import collected, main, report_figures, suite_figures, titled
from bench.report import Figure, Report, at_most

SUITE = """<?xml version="1.0"?>
<testsuites><testsuite name="pytest" tests="20" failures="2" errors="1" skipped="5"/></testsuites>"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run in which the tests failed and `endless` left nothing."""
    report = Report("drift", ["--quick"])
    report.add(at_most("growth", 1.05, "x", 1.1), Figure("blocks", 42))
    (tmp_path / "drift.json").write_text(json.dumps(report.as_json()))
    moshi = Report("moshi", [])
    moshi.add(at_most("8 sessions, tick p95", 41.5, "ms", 40))
    (tmp_path / "moshi.json").write_text(json.dumps(moshi.as_json()))
    (tmp_path / "tests.xml").write_text(SUITE)
    steps = ("doctor\t0\t2", "tests\t1\t90", "drift\t0\t30", "endless\t137\t5", "moshi\t0\t9")
    (tmp_path / "steps.tsv").write_text("\n".join(steps) + "\n")
    return tmp_path


def test_everything_that_is_there_is_in_the_table(folder: Path) -> None:
    """Steps first, then tests, then each benchmark's figures under its name, in the order of the steps."""
    assert [figure.name for figure in collected(folder)] == [
        "step: doctor",
        "step: tests",
        "step: drift",
        "step: endless",
        "step: moshi",
        "tests: passed",
        "tests: failed",
        "tests: skipped",
        "drift: growth",
        "drift: blocks",
        "moshi: 8 sessions, tick p95",
    ]


def test_a_failed_step_fails_the_run_and_the_table_is_there_all_the_same(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its exit status; and a run whose steps were all done is fine, whatever targets it missed."""
    assert main([str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "failed (137), 5" in shown
    assert "drift: growth" in shown
    (folder / "steps.tsv").write_text("drift\t0\t30\nmoshi\t0\t9\n")
    assert main([str(folder)]) == 0
    assert "MISSED" in capsys.readouterr().out


def test_a_report_comes_back_as_it_was(folder: Path) -> None:
    """Value, unit, target and verdict survive the JSON object."""
    assert report_figures(json.loads((folder / "drift.json").read_text())) == [
        Figure("drift: growth", 1.05, "x", "<= 1.1", True),
        Figure("drift: blocks", 42),
    ]


def test_tests_are_counted_by_outcome() -> None:
    """What is neither failed, broken nor skipped has passed."""
    assert [figure.value for figure in suite_figures(SUITE)] == [12, 3, 5]


def test_columns_have_names_above_them() -> None:
    """The last one too, which most figures leave empty."""
    lines = titled(
        [Figure("a", 1), at_most("b: longer", 20, "ms", 10), Figure("c", 3)]
    ).splitlines()
    assert lines[0].split() == ["figure", "value", "unit", "target", "met"]
    assert lines[0].index("met") == lines[2].index("MISSED")
    assert lines[0].index("target") == lines[2].index("<=")
    assert titled([Figure("a", 1)]).splitlines()[0].split() == ["figure", "value", "unit", "target"]
