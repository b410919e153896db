#!/usr/bin/env bash
# Everything there is to measure on a GPU, in one go: the tests that need one, the benchmarks, and one table at the end.
# Wants `scripts/setup.sh --gpu` before it. What each step said is left in out/gpu/. Exits 1 if a step failed; a target
# that was missed is in the table.
#
#   bench/gpu.sh [--full] [--moshi MODEL]
#
#   --full         the benchmarks at full length rather than --quick
#   --moshi MODEL  a folder or hub id for the Moshi benchmark; otherwise the tiny random model
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
readonly root bin="$root/.venv/bin" out="$root/out/gpu"
length=(--quick) moshi=tiny-random failed=0

fail() {
  printf '%s\n' "gpu: $*" >&2
  exit 2
}

main() {
  while (($#)); do
    case $1 in
      --full) length=() ;;
      --moshi)
        moshi=${2:?--moshi needs a folder or a hub id}
        shift
        ;;
      *) fail "unknown option $1: [--full] [--moshi MODEL]" ;;
    esac
    shift
  done
  cd "$root"
  [[ -x $bin/python ]] || fail "there is no .venv: scripts/setup.sh --gpu"
  mkdir -p "$out"
  rm -f "$out"/*.json "$out"/*.log "$out"/steps.tsv "$out"/tests.xml
  describe | tee "$out/machine.txt"

  step doctor "$bin/metronome" doctor
  step tests "$bin/python" -m pytest -m gpu -q -rs --junitxml="$out/tests.xml" tests/gpu
  local name
  for name in drift endless encode ticks; do
    step "$name" "$bin/metronome" bench "$name" "${length[@]}" --json "$out/$name.json"
  done
  step moshi "$bin/python" -m bench.moshi --model "$moshi" --device cuda --json "$out/moshi.json"

  printf '\n'
  cat "$out/machine.txt"
  printf '\n'
  "$bin/python" -m bench.gpu_table "$out" | tee "$out/table.txt" || failed=1
  return "$failed"
}

# GPU, driver and versions; refuses a machine where the figures would be those of the CPU.
describe() {
  command -v nvidia-smi >/dev/null || fail "there is no nvidia-smi: is the NVIDIA driver installed?"
  nvidia-smi --query-gpu=name,memory.total,driver_version,compute_cap --format=csv,noheader ||
    fail "nvidia-smi finds no GPU"
  "$bin/python" - <<'PYTHON'
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import torch

if not torch.cuda.is_available():
    sys.exit(f"gpu: torch {torch.__version__} sees no CUDA device; scripts/setup.sh --gpu installs the CUDA build")


def of(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return f"{name} absent"


packages = ("vllm", "torch", "triton", "flashinfer-python", "moshi", "transformers")
print(f"CUDA {torch.version.cuda}, Python {platform.python_version()}, " + ", ".join(map(of, packages)))
PYTHON
  printf 'commit %s\n' "$(git describe --always --dirty --exclude='*' 2>/dev/null || echo unknown)"
}

# step NAME COMMAND…: run it whatever became of the others, and write down how it ended.
step() {
  local name=$1 began=$SECONDS status=0
  shift
  printf '\n== %s: %s\n' "$name" "$*"
  "$@" 2>&1 | tee "$out/$name.log" || status=$?
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - began))" >>"$out/steps.tsv"
}

main "$@"
