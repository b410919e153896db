"""scripts/setup.sh with a stand-in for Python and pip that records what it is asked to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow  # each run takes a few tenths of a second of shell

# Answers as python3.11 and, copied into the venv it "makes", as that venv's python. FAIL is a word in the command
# that makes pip fail.
STAND_IN = """#!/bin/bash
echo "$*" >> "$CALLS"
case "$*" in
  *'"%d.%d"'*) echo "${VERSION:-3.11}" ;;
  "-m venv --clear "*)
    rm -rf "$4"
    mkdir -p "$4/bin" "$4/lib/python3.11/site-packages"
    cp "$0" "$4/bin/python"
    echo "command = $4" > "$4/pyvenv.cfg" ;;
  "-m pip install"*)
    if [[ -n ${FAIL:-} && "$*" == *$FAIL && "$*" != *--extra-index-url* ]]; then
      echo "ERROR: no matching distribution"; exit 1
    fi ;;
  "-m pip uninstall"*) rm -rf "${0%/bin/python}/lib/python3.11/site-packages/${@: -1}" ;;
esac
"""


class Checkout:
    """A copy of what setup.sh needs, and a PATH whose only Python is the stand-in."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "checkout"
        self.calls_file = folder / "calls"
        self.tools = folder / "bin"
        self.tools.mkdir()
        for tool in ("bash", "cat", "cp", "cut", "dirname", "flock", "grep", "mkdir", "rm",
                     "sha256sum", "sleep", "tail"):  # fmt: skip
            found = shutil.which(tool)
            assert found, tool
            (self.tools / tool).symlink_to(found)
        python = self.tools / "python3.11"
        python.write_text(STAND_IN)
        python.chmod(0o755)
        for name in ("scripts", "requirements"):
            shutil.copytree(ROOT / name, self.root / name)
        shutil.copy(ROOT / "pyproject.toml", self.root)

    def setup(self, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run setup.sh; `self.calls` then holds what this run asked Python for."""
        self.calls_file.write_text("")
        return subprocess.run(
            [self.tools / "bash", self.root / "scripts" / "setup.sh", *options],
            env={"PATH": str(self.tools), "CALLS": str(self.calls_file), **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.calls_file.read_text().splitlines()

    @property
    def installs(self) -> list[str]:
        return [call for call in self.calls if call.startswith("-m pip install")]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_torch_comes_alone_then_the_locks_and_nothing_is_resolved(checkout: Checkout) -> None:
    """Four installs, each with --no-deps, and no index beyond the user's own."""
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    root = checkout.root
    endings = [
        "torch==2.13.0+cpu",
        f"-r {root}/requirements/cpu.lock",
        f"-r {root}/requirements/dev.lock",
        f"-e {root}",
    ]
    assert len(checkout.installs) == len(endings)
    for call, ending in zip(checkout.installs, endings, strict=True):
        assert call.endswith(ending)
        assert "--no-deps" in call
        assert "index-url" not in call


def test_the_extra_index_is_asked_for_torch_only_and_only_if_it_must_be(checkout: Checkout) -> None:
    """Where pip finds no CPU torch, PyTorch's index is added for that one package."""
    done = checkout.setup(FAIL="torch==2.13.0+cpu")
    assert done.returncode == 0, done.stderr
    extra = [call for call in checkout.installs if "--extra-index-url" in call]
    assert len(extra) == 1
    assert extra[0].endswith("torch==2.13.0+cpu")


def test_a_second_call_does_nothing(checkout: Checkout) -> None:
    """The stamp is enough: Python is not even started."""
    checkout.setup()
    done = checkout.setup()
    assert (done.returncode, done.stdout, checkout.calls) == (0, "", [])


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements/cpu.lock"])
def test_a_changed_lock_or_project_file_installs_again(checkout: Checkout, name: str) -> None:
    """In the same venv, which is not made anew."""
    checkout.setup()
    path = checkout.root / name
    path.write_text(path.read_text() + "\n")
    checkout.setup()
    assert len(checkout.installs) == 4
    assert not any("venv" in call for call in checkout.calls)


def test_a_failed_install_says_what_failed_and_the_next_call_carries_on(checkout: Checkout) -> None:
    """The end of pip's log and one line on stderr; no stamp, so nothing is taken for finished."""
    done = checkout.setup(FAIL="cpu.lock")
    assert done.returncode == 1
    assert "no matching distribution" in done.stderr
    assert "setup: pip could not install vLLM and the rest" in done.stderr.splitlines()[-1]
    assert checkout.setup().returncode == 0
    assert len(checkout.installs) == 4


def test_what_an_interrupted_install_left_half_done_is_installed_again(checkout: Checkout) -> None:
    """pip writes RECORD last; a folder without one must not count as installed."""
    checkout.setup(FAIL="dev.lock")
    site = checkout.root / ".venv/lib/python3.11/site-packages"
    half, whole = site / "half-1.dist-info", site / "whole-1.dist-info"
    half.mkdir()
    whole.mkdir()
    (whole / "RECORD").touch()
    checkout.setup()
    assert not half.exists()
    assert whole.exists()


def test_a_cuda_torchvision_is_removed_from_a_cpu_environment(checkout: Checkout) -> None:
    """Installed by hand, it would break the import of every model."""
    checkout.setup(FAIL="dev.lock")
    (checkout.root / ".venv/lib/python3.11/site-packages/torchvision").mkdir()
    done = checkout.setup()
    assert "removing torchvision" in done.stdout
    assert any(call.startswith("-m pip uninstall") for call in checkout.calls)


def test_the_gpu_build_takes_its_own_lock_and_a_venv_of_its_own(checkout: Checkout) -> None:
    """A CPU torch would satisfy the GPU lock's pin, so nothing of the other build may stay."""
    checkout.setup()
    assert checkout.setup("--gpu", "--runtime").returncode == 0
    assert any(call.startswith("-m venv --clear") for call in checkout.calls)
    assert checkout.installs[0].endswith("requirements/gpu.lock")
    assert len(checkout.installs) == 2


def test_another_python_is_refused_with_what_to_do(checkout: Checkout) -> None:
    """One line that names the version, a package and the variable."""
    done = checkout.setup(VERSION="3.13")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs Python 3.11" in line
    assert "PYTHON=" in line


def test_an_unknown_option_is_refused(checkout: Checkout) -> None:
    """Before anything is made."""
    done = checkout.setup("--cuda")
    assert done.returncode == 1
    assert "unknown option --cuda" in done.stderr
    assert not (checkout.root / ".venv").exists()


def test_two_at_a_time_install_once(checkout: Checkout) -> None:
    """The one that waits finds the work done."""
    checkout.calls_file.write_text("")
    command = [str(checkout.tools / "bash"), str(checkout.root / "scripts" / "setup.sh")]
    environ = {"PATH": str(checkout.tools), "CALLS": str(checkout.calls_file)}
    both = [
        subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait(60) for process in both] == [0, 0]
    assert len(checkout.installs) == 4


def test_it_can_be_run(checkout: Checkout) -> None:
    """The mode is part of what is committed."""
    assert os.access(ROOT / "scripts" / "setup.sh", os.X_OK)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize(
    ("arguments", "build", "wanted"),
    [
        ((), None, "scripts/setup.sh"),
        (("GPU=1",), None, "scripts/setup.sh --gpu"),
        ((), "gpu", "scripts/setup.sh --gpu"),
        ((), "cpu", "scripts/setup.sh"),
        (("GPU=0",), "gpu", "scripts/setup.sh"),
    ],
)
def test_make_asks_for_the_gpu_build_once_and_keeps_it(
    arguments: tuple[str, ...], build: str | None, wanted: str, tmp_path: Path
) -> None:
    """GPU=1 chooses it, the .venv remembers it, GPU=0 goes back."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    shutil.copy(ROOT / "Makefile", tmp_path)
    if build is not None:
        (tmp_path / ".venv").mkdir()
        (tmp_path / ".venv/setup-build").write_text(f"{build}\n", encoding="utf-8")
    ran = subprocess.run(
        ["make", "--no-print-directory", "-n", "setup", *arguments],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == wanted
