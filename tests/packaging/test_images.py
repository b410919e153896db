"""The Dockerfile and the files beside it: facts that can be checked without a container engine."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are a package of their own

from engine.work import KvSnapshot
from server.dials import Readings
from server.metrics import Metrics

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"

type_of_instruction = re.compile(r"^([A-Z]+)\s+(.*)$")


def stages() -> dict[str, list[tuple[str, str]]]:
    """Stage name -> its instructions, preceded by those of the stages it is built on."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    found: dict[str, list[tuple[str, str]]] = {}
    current = ""
    for line in text.splitlines():
        match = type_of_instruction.match(line)
        if match is None:
            continue
        if match[1] == "FROM":
            base, current = match[2].split(" AS ")
            found[current] = [*found.get(base, []), ("FROM", base)]
        else:
            found[current].append((match[1], match[2]))
    return found


def last(stage: str, instruction: str) -> str:
    """The argument of the last such instruction, the one that holds."""
    return [argument for name, argument in stages()[stage] if name == instruction][-1]


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_runs_without_root(target: str) -> None:
    """The user is a number, so that an orchestrator can see that it is not root."""
    assert last(target, "USER") == "10001:10001"


@pytest.mark.parametrize("target", ["cpu", "gpu"])
def test_an_image_is_probed_where_it_listens(target: str) -> None:
    """Port 8000, /livez, and the server as the first process."""
    assert last(target, "EXPOSE") == "8000"
    assert "http://127.0.0.1:8000/livez" in last(target, "HEALTHCHECK")
    assert json.loads(last(target, "ENTRYPOINT")) == ["metronome"]
    assert json.loads(last(target, "CMD"))[0] == "serve"


@pytest.mark.parametrize(("target", "flags"), [("cpu", ""), ("gpu", "--gpu ")])
def test_an_image_is_filled_by_the_scripts_of_a_checkout(target: str, flags: str) -> None:
    """Packages, project and weights, by setup.sh and the command line."""
    runs = [text for name, text in stages()[f"{target}-built"] if name == "RUN"]
    assert any(f"scripts/setup.sh {flags}--runtime --packages-only" in run for run in runs)
    assert any(
        f"scripts/setup.sh {flags}--runtime && metronome models fetch" in run for run in runs
    )


def test_the_image_without_a_named_target_is_the_cpu_one() -> None:
    """A build takes the last stage."""
    assert list(stages())[-1] == "cpu"


def test_what_a_build_needs_is_in_its_context() -> None:
    """.dockerignore lets through each package, the configurations, and what the wheel's metadata names."""
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert allowed == {
        "pyproject.toml", "README.md", "LICENSE", "NOTICE", "scripts", "requirements",
        "server", "engine", "protocol", "admission", "bench", "configs",
    }  # fmt: skip
    assert all((ROOT / name).exists() for name in allowed)


def loaded(name: str) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((DOCKER / name).read_text())
    return content


def test_the_composed_server_is_locked_down() -> None:
    """Read-only root, no capabilities, no new privileges, and no start without keys."""
    server = loaded("compose.yaml")["services"]["metronome"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert server["security_opt"] == ["no-new-privileges:true"]
    assert server["environment"]["METRONOME_API_KEYS"].startswith("${METRONOME_API_KEYS:?")
    assert all(port.startswith("127.0.0.1:") for port in server["ports"])
    assert server["build"]["target"] in stages()


def test_prometheus_scrapes_the_composed_server_and_reads_its_rules() -> None:
    """Service name and port agree, and every mounted file exists."""
    compose, prometheus = loaded("compose.yaml"), loaded("prometheus.yml")
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == ["metronome:8000"]
    mounts = [str(volume).split(":")[:2] for volume in compose["services"]["prometheus"]["volumes"]]
    files = {target: source for source, target in mounts if source.startswith("./")}
    assert all((DOCKER / source).is_file() for source in files.values())
    assert f"/etc/prometheus/{prometheus['rule_files'][0]}" in files


def rules() -> list[dict[str, Any]]:
    return [rule for group in loaded("alerts.yml")["groups"] for rule in group["rules"]]


def test_every_metric_in_a_rule_is_one_the_server_exposes() -> None:
    """A renamed metric would leave its alert silent for ever."""
    for rule in rules():
        assert not unknown_metrics(rule["expr"]), rule.get("alert", rule.get("record"))


def test_every_metric_on_the_dashboard_is_one_the_server_exposes() -> None:
    """A panel that stays empty looks like good news."""
    dashboard = json.loads((DOCKER / "grafana" / "metronome.json").read_text())
    targets = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", ())]
    variables = [str(v["query"]) for v in dashboard["templating"]["list"]]
    assert len(targets) > 20
    for expression in targets + variables:
        assert not unknown_metrics(expression), expression


class Dials:
    def readings(self) -> Readings:
        kv = KvSnapshot(32, 100, 100, 0, 0)
        return Readings(0, 1, kv, engine_up=True, engine_stalled=False, draining=False)


def unknown_metrics(expression: str) -> set[str]:
    """Names of ours in a PromQL expression that the server does not expose."""
    metrics = Metrics("m", 0.1)
    metrics.gauges = Dials()
    exposed = set(re.findall(r"^# TYPE (\w+)", metrics.render().decode(), re.MULTILINE))
    used = re.findall(r"\bmetronome_\w+", expression)
    return {name for name in used if re.sub(r"_(bucket|sum|count)$", "", name) not in exposed}


def test_every_alert_says_how_urgent_it_is_and_what_happens() -> None:
    """A severity of page or ticket, and a summary that names the instance."""
    alerts = [rule for rule in rules() if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in ("page", "ticket")
        assert "$labels.instance" in alert["annotations"]["summary"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["hadolint", "Dockerfile"], ["shellcheck", "scripts/setup.sh", ".ci/run"]]
)
def test_the_linters_find_nothing(command: list[str]) -> None:
    """hadolint on the Dockerfile, shellcheck on the scripts."""
    tool = shutil.which(command[0], path=str(Path(sys.executable).parent))
    assert tool, f"{command[0]} is in dev.lock"
    done = subprocess.run(
        [tool, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
