"""SIGHUP: keys and quotas change while calls go on, and nothing else does."""

import contextlib
import http.client
import logging
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from admission.controller import Controller
from admission.port import Lease, Rejection, Request
from admission.settings import AdmissionSettings, Quotas, SessionShape
from bench.server_process import ServerProcess, free_port, metronome
from server.auth import KeyRing
from server.config import Config, ConfigError, Problem, default_config_path
from server.config_schema import AdmissionConfig
from server.reload import Reload, changed

SHAPE = SessionShape(0.2, 0.2, 6, 6000, 48)


def _door(quotas: Quotas) -> Controller:
    return Controller(AdmissionSettings(SHAPE, 100, quotas=quotas, paced=False))


def _with(config: Config, **admission: object) -> Config:
    return replace(config, admission=replace(AdmissionConfig(), **admission))  # type: ignore[arg-type]


def _keys(folder: Path, *keys: str) -> Config:
    path = folder / "keys"
    path.write_text("\n".join(keys), encoding="utf-8")
    return replace(Config(), server=replace(Config().server, api_keys_file=str(path)))


def test_a_quota_holds_from_now_on_and_puts_nobody_out() -> None:
    """Three are in; with a quota of two nobody follows until two have left."""
    before, after = Config(), _with(Config(), tenant_sessions=2)
    controller = _door(Quotas())
    inside = [controller.try_admit(0.0, Request("a")) for _ in range(3)]
    Reload(lambda: after, before, KeyRing(), controller)()
    assert controller.active == 3
    assert isinstance(controller.try_admit(1.0, Request("a")), Rejection)
    for lease in inside[:2]:
        assert isinstance(lease, Lease)
        controller.release(2.0, lease)
    assert isinstance(controller.try_admit(3.0, Request("a")), Lease)


def test_whoever_was_premium_leaves_as_premium() -> None:
    """The count of premium sessions stays true when the list of premium tenants changes under them."""
    controller = _door(Quotas(premium=frozenset({"gold"}), reserved=2))
    lease = controller.try_admit(0.0, Request("gold"))
    assert isinstance(lease, Lease)
    Reload(lambda: Config(), Config(), KeyRing(), controller)()
    assert controller.fleet.premium == 1
    controller.release(1.0, lease)
    assert controller.fleet.premium == 0


def test_keys_are_exchanged(tmp_path: Path) -> None:
    """A key that was taken away opens no further call; a new one does."""
    config = _keys(tmp_path, "old")
    ring = KeyRing(["old"])
    reload = Reload(lambda: config, config, ring, None)
    (tmp_path / "keys").write_text("new\n", encoding="utf-8")
    reload()
    assert ring.holds("new")
    assert not ring.holds("old")


def test_a_mistake_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Unreadable file, empty list of keys, every place reserved: said once, and all stays as it was."""
    config = _keys(tmp_path, "old")
    controller, ring = _door(Quotas(default=5)), KeyRing(["old"])

    def broken() -> Config:
        raise ConfigError(Problem("metronome.toml", "is not TOML"))

    Reload(broken, config, ring, controller)()
    Reload(lambda: _with(config, reserved_sessions=100), config, ring, controller)()
    (tmp_path / "keys").write_text("# none\n", encoding="utf-8")
    Reload(lambda: _with(config, tenant_sessions=1), config, ring, controller)()
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 3
    assert controller.settings.quotas == Quotas(default=5)
    assert ring.holds("old")


def test_the_last_key_cannot_be_taken_from_an_open_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without keys everyone would be let in: that must be a decision at start."""
    config = replace(Config(), server=replace(Config().server, host="0.0.0.0"))
    ring = KeyRing(["old"])
    Reload(lambda: config, config, ring, None)()
    assert ring.holds("old")
    assert "not reloaded" in caplog.text


def test_what_needs_a_restart_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Nobody should believe that a model was exchanged."""
    before = Config()
    after = replace(_with(before, tenant_sessions=3), log=replace(before.log, level="debug"))
    assert set(changed(before, after)) == {"admission.tenant_sessions", "log.level"}
    Reload(lambda: after, before, KeyRing(), _door(Quotas()))()
    assert "to change log.level, restart" in caplog.text
    assert "tenant_sessions" not in caplog.text


def _status(port: int, key: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        return connection.getresponse().status


@pytest.mark.socket
@pytest.mark.slow
def test_a_running_server_takes_new_keys_on_sighup(tmp_path: Path) -> None:
    """The real process: the old key is refused, the new one is let in, and the process lives."""
    keys, port = tmp_path / "keys", free_port()
    keys.write_text("old\n", encoding="utf-8")
    config = tmp_path / "sim.toml"
    shipped = default_config_path("sim").read_text(encoding="utf-8")
    assert "[server]" not in shipped
    config.write_text(f'{shipped}\n[server]\napi_keys_file = "{keys}"\n', encoding="utf-8")
    command = metronome("serve", "--config", str(config), "--port", str(port))
    with ServerProcess(command, port, tmp_path / "log") as server:
        server.wait_ready()
        assert (_status(port, "old"), _status(port, "new")) == (200, 401)
        keys.write_text("new\n", encoding="utf-8")
        os.kill(server.pid, signal.SIGHUP)
        assert any(_status(port, "new") == 200 for _ in range(1000))
        assert _status(port, "old") == 401
        assert server.stop() == 0
