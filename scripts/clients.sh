#!/usr/bin/env bash
# Install the stock Realtime clients that tests/clients runs, each in its pinned version: the Python ones into
# .venv-clients, for they need other versions of things than .venv has; the Node ones beside their programs.
# A second call returns at once. What cannot be installed here is said, and its tests are skipped.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv="$root/.venv-clients"
node="$root/tests/clients/node"
lock="$root/requirements/clients.lock"

say() { printf '%s\n' "clients: $*"; }

# stamped STAMP FILE…: whether the stamp was made from the files as they are.
stamped() {
  local stamp=$1
  shift
  [[ -f $stamp && $(<"$stamp") == "$(fingerprint "$@")" ]]
}

fingerprint() { sha256sum "$@" | cut -d' ' -f1; }

python_clients() {
  local stamp="$venv/clients-stamp"
  if stamped "$stamp" "$lock" && "$venv/bin/python" -c '' 2>/dev/null; then
    return
  fi
  say "filling .venv-clients (a minute the first time)"
  rm -f "$stamp"
  "$root/.venv/bin/python" -m venv --clear "$venv" &&
    "$venv/bin/python" -m pip install --no-deps --no-input --quiet --disable-pip-version-check \
      --root-user-action=ignore -r "$lock" 2>"$venv/install.log" &&
    fingerprint "$lock" >"$stamp"
}

node_clients() {
  local stamp="$node/node_modules/clients-stamp"
  if stamped "$stamp" "$node/package-lock.json"; then
    return
  fi
  if ! command -v npm >/dev/null; then
    say "there is no npm here: the Node clients are not tested"
    return
  fi
  say "npm ci in tests/clients/node"
  (cd "$node" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) &&
    fingerprint "$node/package-lock.json" >"$stamp"
}

python_clients || say "the Python clients could not be installed (.venv-clients/install.log): not tested"
node_clients || say "the Node clients could not be installed: not tested"
