"""SIGHUP: what may change while calls go on.

Keys and the quotas of `[admission]` are read anew. Nothing that was learned is lost, no lease and no call ends; a key
that was taken away opens no further call. Whatever else changed in the file is named in the log: it needs a restart. A
file that cannot be read, or that has a mistake, changes nothing.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields

from admission.controller import Controller
from server.admitting import quotas_of
from server.auth import KeyRing, refusal_to_bind
from server.config import Config, ConfigError, api_keys, environment

_log = logging.getLogger(__name__)

RELOADED = frozenset(
    {
        "server.api_keys_file",
        "admission.tenant_sessions",
        "admission.quotas",
        "admission.premium",
        "admission.reserved_sessions",
    }
)


class Reload:
    """Brings a running deployment up to date with its file. `controller`: None where the door knows no quotas."""

    def __init__(
        self,
        read: Callable[[], Config],
        config: Config,
        ring: KeyRing,
        controller: Controller | None,
    ) -> None:
        self._read = read
        self._config = config  # as it was started with
        self._ring = ring
        self._controller = controller

    def __call__(self) -> None:
        """Never raises for what a person wrote."""
        try:
            config = self._read()
            self._apply(config)
        except (ConfigError, ValueError) as error:
            _log.error("not reloaded, everything stays as it was: %s", error)
            return
        stale = sorted(set(changed(self._config, config)) - RELOADED)
        if stale:
            _log.warning("reloaded; to change %s, restart", ", ".join(stale))
        else:
            _log.warning("reloaded")

    def _apply(self, config: Config) -> None:
        """All of it or nothing: what can fail comes first."""
        keys = api_keys(config, environment())
        server = self._config.server
        ring = KeyRing(keys)
        if refusal := refusal_to_bind(server.host, ring, allow_anonymous=server.allow_anonymous):
            raise ValueError(refusal)
        if self._controller is not None:
            self._controller.requota(quotas_of(config))
        self._ring.become(ring)


def changed(before: Config, after: Config) -> Iterator[str]:
    """`section.key` of everything that differs, subsections included."""
    yield from _changed(before, after, "")


def _changed(before: object, after: object, prefix: str) -> Iterator[str]:
    for field in fields(before):  # type: ignore[arg-type]  # sections are dataclasses
        old, new = getattr(before, field.name), getattr(after, field.name)
        name = f"{prefix}{field.name}"
        if hasattr(type(old), "__dataclass_fields__"):
            yield from _changed(old, new, f"{name}.")
        elif old != new:
            yield name
