"""A report reads well and carries what is needed to compare it."""

import json
from pathlib import Path

import pytest

from bench.report import Figure, Report, at_least, at_most, table


def test_the_table_is_aligned_and_names_what_was_missed() -> None:
    """Columns line up, and a missed target is visible without comparing numbers."""
    lines = table(
        [
            at_most("ratio, 20 ms", 1.44, "x", 1.5),
            at_least("sessions held", 240, "", 250),
            Figure("load", "1.20"),
        ]
    ).splitlines()
    assert lines[0].index("1.44") + 4 == lines[1].index("240") + 3 == lines[2].index("1.20") + 4
    assert lines[0].endswith("<= 1.5  met")
    assert lines[1].endswith(">= 250  MISSED")
    assert lines[2].endswith("1.20")


def test_the_json_object_says_what_ran_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures by name, machine, versions, commit, start and arguments are all there."""
    report = Report("frontend", ["--quick"])
    report.add(at_most("ratio", 1.4, "x", 1.5), at_least("held", 240, "sessions", 250))
    report.publish(tmp_path / "deep" / "out.json")
    found = json.loads((tmp_path / "deep" / "out.json").read_text())
    assert found["name"] == "frontend"
    assert found["argv"] == ["--quick"]
    assert found["figures"] == {"ratio": 1.4, "held": 240}
    assert found["units"] == {"ratio": "x", "held": "sessions"}
    assert found["targets"]["ratio"] == {"target": "<= 1.5", "met": True}
    assert [figure.name for figure in report.missed] == ["held"]
    assert set(found["machine"]) >= {"cpu", "cores", "load"}
    assert set(found["versions"]) == {"python", "vllm", "torch", "uvicorn", "websockets"}
    assert found["commit"]
    assert found["started"].endswith("+00:00")
    assert "MISSED" in capsys.readouterr().out
