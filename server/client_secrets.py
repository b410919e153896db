"""Ephemeral keys: a page gets a secret that opens sessions for some minutes, and never the API key itself.

`POST /v1/realtime/client_secrets` mints one, bound to the settings of the sessions it will open. Pure: the request's
bytes, the random value and the time are arguments. Secrets live in this process only and are gone when it ends.

A secret is found by half of its HMAC under a key that never leaves the store, so how long a look-up takes says nothing
about a secret; the match is confirmed in constant time. No secret is kept here, or shown by a `repr`.
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from protocol import session_config
from protocol.errors import ProtocolError, invalid_value
from protocol.ids import IdFactory
from protocol.session_config import SessionConfig, SessionDefaults
from protocol.session_view import client_view
from protocol.validation import checked
from server.auth import AuthDenied, AuthOk

PREFIX = "ek_"  # the openai-agents SDK refuses others in a browser
MAX_BODY_BYTES = 256 * 1024
_HALF = 16  # bytes of a digest
_REMEMBERED_S = 600.0  # an expired secret is told from an unknown one for so long

EXPIRED = AuthDenied(401, "token_expired", "This client secret has expired; ask for a new one.")
FULL = ProtocolError(
    "too_many_client_secrets",
    "Too many client secrets are waiting to be used; try again when some have expired.",
    type="server_error",
)


class _ExpiresAfter(msgspec.Struct):
    anchor: Literal["created_at"] = "created_at"
    seconds: Annotated[int, msgspec.Meta(ge=10, le=7200)] = 600


class _Body(msgspec.Struct):
    expires_after: _ExpiresAfter | None = None
    session: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Grant:
    """What a secret lets its holder do: enter as `who`, into a session that starts with `config`."""

    who: AuthOk
    config: SessionConfig
    expires_at: float  # on the clock of `ClientSecrets`
    size: int  # bytes of settings, as the client wrote them


class ClientSecrets:
    """The secrets in force. At either bound a new one is refused; those that were given out stay good."""

    __slots__ = ("_bytes", "_grants", "_key", "_max_bytes", "_max_secrets")

    def __init__(
        self, key: bytes, max_secrets: int = 10_000, max_bytes: int = 64 * 1024 * 1024
    ) -> None:
        self._key = key
        self._max_secrets = max_secrets
        self._max_bytes = max_bytes
        # By the first half of the secret's HMAC: (the whole of it, what it grants).
        self._grants: dict[bytes, tuple[bytes, Grant]] = {}
        # Size of all grants together.
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._grants)

    def __repr__(self) -> str:
        return f"ClientSecrets({len(self)} secrets)"

    def add(self, value: str, grant: Grant, now: float) -> bool:
        """Let `value` in until the grant expires; False, and nothing kept, where there is no room."""
        self._forget(now, _REMEMBERED_S)
        if not self._has_room(grant):
            self._forget(now, 0.0)
        if not self._has_room(grant):
            return False
        digest = self._digest(value)
        self._grants[digest[:_HALF]] = digest, grant
        self._bytes += grant.size
        return True

    def grant_of(self, key: str, now: float) -> Grant | AuthDenied | None:
        """What `key` grants, `EXPIRED` if it no longer does, None if it is no secret of ours."""
        if not key.startswith(PREFIX):
            return None
        digest = self._digest(key)
        kept, grant = self._grants.get(digest[:_HALF], (b"", None))
        if not hmac.compare_digest(kept, digest) or grant is None:
            return None
        return grant if now < grant.expires_at else EXPIRED

    def _has_room(self, grant: Grant) -> bool:
        return len(self._grants) < self._max_secrets and self._bytes + grant.size <= self._max_bytes

    def _forget(self, now: float, after_s: float) -> None:
        """Drop what expired more than `after_s` ago. Lifetimes differ, so all are looked at: minting is rare."""
        gone = [k for k, (_, grant) in self._grants.items() if now >= grant.expires_at + after_s]
        for key in gone:
            self._bytes -= self._grants.pop(key)[1].size

    def _digest(self, value: str) -> bytes:
        return hmac.digest(self._key, value.encode("utf-8", "surrogateescape"), hashlib.sha256)


class SecretDesk:
    """Answers requests for secrets: `model` and `defaults` are those of the sessions that will be opened."""

    def __init__(
        self, secrets: ClientSecrets, model: str, defaults: SessionDefaults, ids: IdFactory
    ) -> None:
        self.secrets = secrets
        self._model = model
        self._defaults = defaults
        self._ids = ids

    def issue(
        self, body: bytes, value: str, who: AuthOk, now: float, unix_now: float
    ) -> dict[str, Any] | ProtocolError:
        """Mint `value` as `body` asks, for `who`: the JSON answer, or why there is none (`FULL`: no room).

        `now` is on the clock that `grant_of` is given, `unix_now` is what the client is told.
        """
        asked = _read(body)
        if isinstance(asked, ProtocolError):
            return asked
        config = self._config(asked.session)
        if isinstance(config, ProtocolError):
            return config
        lifetime_s = (asked.expires_after or _ExpiresAfter()).seconds
        if not self.secrets.add(value, Grant(who, config, now + lifetime_s, len(body)), now):
            return FULL
        return {
            "value": value,
            "expires_at": int(unix_now + lifetime_s),
            "session": client_view(config, self._ids.new("sess"), self._model, None),
        }

    def _config(self, asked: dict[str, Any] | None) -> SessionConfig | ProtocolError:
        initial = session_config.initial(self._defaults)
        if asked is None:
            return initial
        return session_config.merged(
            initial, {"type": initial.type, **asked}, self._defaults, voice_locked=False
        )


def _read(body: bytes) -> _Body | ProtocolError:
    if not body.strip():
        return _Body()
    try:
        raw = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return ProtocolError("invalid_json", "The body is not valid JSON.")
    if not isinstance(raw, dict):
        return invalid_value("The body must be a JSON object.")
    return checked(raw, _Body, "")
