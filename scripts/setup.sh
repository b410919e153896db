#!/usr/bin/env bash
# Make .venv and fill it with the pinned packages and this project. Every make target calls it; a second call
# returns at once, an interrupted one carries on, two at a time take turns. Needs no root and no git metadata.
#
#   scripts/setup.sh [--gpu] [--runtime] [--packages-only]
#
#   --gpu            the CUDA build of vLLM (requirements/gpu.lock) instead of the CPU build
#   --runtime        leave out the test and lint tools (requirements/dev.lock)
#   --packages-only  stop before installing the project itself (a container image's cached layer)
#   PYTHON=…         the Python 3.11 to use, where it is not python3.11 or python3 on the PATH
set -euo pipefail

readonly TORCH="torch==2.13.0+cpu"
readonly TORCH_INDEX="https://download.pytorch.org/whl/cpu" # PyTorch's own wheels, only tried where pip finds none

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv="$root/.venv"
python="$venv/bin/python"
stamp="$venv/setup-stamp"
log="$venv/setup.log"
build=cpu tools=1 project=1 installer=""

say() { printf '%s\n' "setup: $*"; }
fail() {
  printf '%s\n' "setup: $*" >&2
  exit 1
}

main() {
  local option
  for option in "$@"; do
    case $option in
      --gpu) build=gpu ;;
      --runtime) tools=0 ;;
      --packages-only) project=0 ;;
      *) fail "unknown option $option: [--gpu] [--runtime] [--packages-only]" ;;
    esac
  done
  is_done && return
  take_turn
  is_done && return # the one that had the turn before did it

  say "filling $venv ($build build, a few minutes the first time; details in .venv/setup.log)"
  make_venv
  rm -f "$stamp"
  printf '%s\n' "$build" >"$venv/setup-build"
  printf '' >"$log"
  drop_half_installed
  install_packages
  if ((project)); then
    pip_install "metronome itself" --no-build-isolation -e "$root"
  fi
  check_imports
  fingerprint >"$stamp"
  say "ready"
}

# What a finished environment depends on: any change of these installs again.
fingerprint() {
  printf '%s\n' "$root $build tools=$tools project=$project"
  (cd "$root" && sha256sum pyproject.toml scripts/setup.sh requirements/{cpu,dev,gpu}.lock)
}

is_done() { [[ -x $python && -f $stamp && $(<"$stamp") == "$(fingerprint)" ]]; }

# One setup at a time: the lock is on the folder itself, so that no lock file is left lying about.
take_turn() {
  command -v flock >/dev/null || return 0
  exec 9<"$root"
  if ! flock --nonblock 9; then
    say "another setup is running, waiting for it"
    flock 9
  fi
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3; do
    if [[ $("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) == 3.11 ]]; then
      command -v "$candidate"
      return
    fi
  done
  fail "needs Python 3.11, the one version the pinned packages are tested on, and found none." \
    "Install it (Debian 12: apt-get install python3.11-venv) or name it: PYTHON=/path/to/python3.11 make …"
}

# A venv of another Python, another folder (its scripts would run that tree) or another build is made anew.
make_venv() {
  if [[ -x $python && $(cat "$venv/setup-build" 2>/dev/null || echo cpu) == "$build" ]] &&
    grep -qsF "$venv" "$venv/pyvenv.cfg" &&
    "$python" -c 'import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
    return
  fi
  local base
  base=$(find_python)
  if "$base" -m venv --clear "$venv" >/dev/null 2>&1; then
    return
  fi
  # Debian keeps the bundled pip in a package of its own; any pip of 22.3 or later can fill a venv from outside.
  if "$base" -m venv --clear --without-pip "$venv" &&
    "$base" -m pip --python "$python" install --quiet --disable-pip-version-check pip; then
    return
  fi
  fail "$base cannot make a virtual environment (Debian: apt-get install python3.11-venv)"
}

# pip writes a package's RECORD last; a folder without one is what an interrupted install left.
drop_half_installed() {
  local info
  for info in "$venv"/lib/python3.11/site-packages/*.dist-info; do
    if [[ -d $info && ! -f $info/RECORD ]]; then
      rm -rf "$info"
    fi
  done
}

install_packages() {
  if [[ $build == cpu ]]; then
    remove_cuda_builds
    run_pip "PyTorch, CPU build" "$TORCH" ||
      pip_install "PyTorch, CPU build, from its own index" --extra-index-url "$TORCH_INDEX" "$TORCH"
  fi
  pip_install "vLLM and the rest" -r "$root/requirements/$build.lock"
  if ((tools)); then
    pip_install "test and lint tools" -r "$root/requirements/dev.lock"
  fi
}

# Beside a CPU torch these, built for CUDA, fail at import, and then no model can be imported either.
remove_cuda_builds() {
  local package
  for package in torchvision torchaudio; do
    if [[ -d $venv/lib/python3.11/site-packages/$package ]]; then
      say "removing $package, which cannot work beside the CPU build of PyTorch"
      "$python" -m pip uninstall --yes --quiet "$package"
    fi
  done
}

pip_install() {
  if ! run_pip "$@"; then
    tail -n 20 "$log" >&2
    fail "pip could not install $1; above is the end of $log"
  fi
}

# run_pip LABEL ARGUMENT…: pip writes to the log; a line says how far it is, redrawn on a terminal, else now and then.
run_pip() {
  local label=$1 began=$SECONDS every=10 shown=0
  shift
  [[ -t 1 ]] && every=1
  "$python" -m pip install --no-deps --no-input --disable-pip-version-check --root-user-action=ignore \
    --progress-bar off "$@" >>"$log" 2>&1 &
  installer=$!
  while kill -0 "$installer" 2>/dev/null; do
    if ((SECONDS - began >= shown + every)); then
      shown=$((SECONDS - began))
      progress "$label" "$shown"
    fi
    sleep 0.2
  done
  local status=0
  wait "$installer" || status=$?
  installer=""
  [[ -t 1 ]] && printf '\r\033[K'
  ((status == 0)) && say "$label: done in $((SECONDS - began)) s"
  return "$status"
}

progress() {
  local packages=("$venv"/lib/python3.11/site-packages/*.dist-info) doing
  doing=$(grep -E '^(Collecting| +Downloading|Installing) ' "$log" | tail -n 1 | cut -c1-60) || true
  if [[ $doing == Installing* ]]; then
    doing="unpacking, ${#packages[@]} packages in place"
  fi
  if [[ -t 1 ]]; then
    printf '\r\033[Ksetup: %s, %d s: %s' "$1" "$2" "${doing:-starting}"
  else
    say "$1, $2 s: ${doing:-starting}"
  fi
}

check_imports() {
  say "checking that the packages work together"
  supply_libnuma
  if [[ $build == cpu ]] && ! (cd / && OMP_NUM_THREADS=1 "$python" -c 'import transformers.models.llama.modeling_llama') >>"$log" 2>&1; then
    tail -n 20 "$log" >&2
    fail "the installed packages do not work together; above is the end of $log"
  fi
}

# vLLM's CPU kernels link libnuma.so.1, which a small Debian lacks. Without root, Debian's own package is unpacked into
# the venv and loaded at Python's start; the loader then finds it by name.
supply_libnuma() {
  local site="$venv/lib/python3.11/site-packages"
  if [[ $build == gpu ]] || "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null; then
    return
  fi
  say "libnuma.so.1 is not installed here: unpacking it into .venv"
  local work found
  work=$(mktemp -d)
  if (cd "$work" && apt-get download -qq libnuma1 && dpkg-deb -x libnuma1_*.deb .) >>"$log" 2>&1 &&
    found=$(find "$work" -name 'libnuma.so.1.*' -type f | head -n 1) && [[ -n $found ]]; then
    cp "$found" "$venv/lib/libnuma.so.1"
    printf 'import ctypes; ctypes.CDLL(%s)\n' "'$venv/lib/libnuma.so.1'" >"$site/libnuma.pth"
  fi
  rm -rf "$work"
  "$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
    fail "vLLM needs the library libnuma.so.1: ask for it to be installed (Debian, Ubuntu: apt-get install libnuma1)"
}

# pip runs in the background, where an interrupt from the keyboard does not reach it.
stop_pip() {
  if [[ -n $installer ]]; then
    kill "$installer" 2>/dev/null || true
  fi
}
trap stop_pip EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

main "$@"
