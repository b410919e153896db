"""bench/gpu.sh, with stand-ins for the driver, the tests and the benchmarks."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# A benchmark that writes a figure where it is told to; `endless` breaks instead.
METRONOME = """#!/usr/bin/env bash
name=$2
echo "said by $*"
[[ $name == endless ]] && exit 3
while (($#)); do
  if [[ $1 == --json ]]; then
    echo "{\\"name\\": \\"$name\\", \\"figures\\": {\\"x\\": 1}, \\"units\\": {}, \\"targets\\": {}}" >"$2"
  fi
  shift
done
"""
# The table is the real one; the tests are not there.
PYTHON = f"""#!/usr/bin/env bash
case "$*" in
  "-m bench.gpu_table "*) exec {sys.executable} "$@" ;;
  -) echo "CUDA 13.0, packages" ;;
  "-m bench.moshi "*)
    echo '{{"name": "moshi", "figures": {{"y": 2}}, "units": {{}}, "targets": {{}}}}' >"${{@: -1}}" ;;
  *) echo "no tests ran" ;;
esac
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout as far as the script looks at one."""
    (tmp_path / "bench").mkdir()
    for name in ("__init__.py", "gpu.sh", "gpu_table.py", "report.py"):
        shutil.copy(ROOT / "bench" / name, tmp_path / "bench" / name)
    for path, text in (
        (".venv/bin/metronome", METRONOME),
        (".venv/bin/python", PYTHON),
        ("path/nvidia-smi", "#!/usr/bin/env bash\necho 'A card, 24564 MiB, 595.1, 8.9'\n"),
    ):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    return tmp_path


def run(tree: Path, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    path = path or f"{tree / 'path'}:{os.environ['PATH']}"
    command = ["bash", str(tree / "bench/gpu.sh"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={"PATH": path}, timeout=20
    )


def test_a_step_that_breaks_stops_nothing(tree: Path) -> None:
    """The others run, the table comes last, and the exit code tells."""
    done = run(tree)
    assert done.returncode == 1, done.stderr
    table = done.stdout.split("commit ")[-1]
    assert "A card, 24564 MiB" in done.stdout
    for line in ("step: doctor", "failed (3)", "drift: x", "ticks: x", "moshi: y"):
        assert line in table
    assert "endless: x" not in table
    assert (tree / "out/gpu/table.txt").read_text() in done.stdout
    assert "said by bench drift --quick --json" in (tree / "out/gpu/drift.log").read_text()


def test_what_an_earlier_run_left_is_not_in_the_table(tree: Path) -> None:
    """Only what this one found; and all steps done is exit code 0."""
    (tree / ".venv/bin/metronome").write_text(METRONOME.replace("exit 3", "true"))
    (tree / "out/gpu").mkdir(parents=True)
    (tree / "out/gpu/tests.xml").write_text("<testsuite tests='9'/>")
    done = run(tree, "--full", "--moshi", "some/model")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests: passed" not in done.stdout
    assert "said by bench drift --json" in done.stdout
    assert "bench.moshi --model some/model --device cuda" in done.stdout


def test_without_a_driver_nothing_is_measured(tree: Path) -> None:
    """Figures of the CPU would pass for the GPU's."""
    (tree / "path/nvidia-smi").write_text("#!/usr/bin/env bash\nexit 9\n")
    done = run(tree)
    assert done.returncode == 2
    assert "nvidia-smi finds no GPU" in done.stderr
    assert "step" not in done.stdout
