"""Who is knocking: the key, the subprotocol answer, the dialect and the origin of one handshake.

Pure: headers in, verdict out. Keys are kept and compared as SHA-256 digests, all of them at every
attempt, so neither the time taken nor a stray `repr` says anything about a key.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

GA_SUBPROTOCOL = "realtime"
KEY_SUBPROTOCOL = "openai-insecure-api-key."  # browsers cannot set headers
BETA_SUBPROTOCOL = "openai-beta.realtime-v1"
ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class AuthOk:
    """Let in. `tenant` stands for the key in logs and quotas and cannot be turned back into it."""

    tenant: str


@dataclass(frozen=True, slots=True)
class AuthDenied:
    """Turned away, with the fields of the error that says so."""

    status: int
    code: str
    message: str
    type: str = "invalid_request_error"


class KeyRing:
    """The keys that open the door, as digests. Empty: every key does, and none at all."""

    __slots__ = ("_digests",)

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests: tuple[bytes, ...] = tuple(sorted({_digest(key) for key in keys}))

    def become(self, other: "KeyRing") -> None:
        """Hold the keys of `other` from now on, and no more."""
        self._digests = other._digests

    def __len__(self) -> int:
        return len(self._digests)

    def __repr__(self) -> str:
        return f"KeyRing({len(self)} keys)"

    def holds(self, key: str) -> bool:
        """True if `key` is one of ours. Takes the same time whichever it is, or none."""
        candidate = _digest(key)
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, candidate)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def offered_subprotocols(headers: Mapping[str, str]) -> list[str]:
    """What the client offers, in its order. `headers` has lower-case names here and below."""
    offered = headers.get("sec-websocket-protocol", "").split(",")
    return [name for part in offered if (name := part.strip())]


def presented_key(headers: Mapping[str, str], offered: Sequence[str]) -> str | None:
    """The client's key: `Authorization: Bearer`, else `api-key`, else the browser's subprotocol."""
    scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    if headers.get("api-key", "").strip():
        return headers["api-key"].strip()
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL) and name != KEY_SUBPROTOCOL:
            return name.removeprefix(KEY_SUBPROTOCOL)
    return None


def authenticate(ring: KeyRing, key: str | None) -> AuthOk | AuthDenied:
    """The verdict on `key`. With no keys configured everyone is let in."""
    if not len(ring):
        return AuthOk(ANONYMOUS if key is None else tenant_of(key))
    if key is None:
        return AuthDenied(
            401,
            "missing_api_key",
            "No API key given: send it as 'Authorization: Bearer KEY', as 'api-key: KEY', "
            f"or as the WebSocket subprotocol '{KEY_SUBPROTOCOL}KEY'.",
        )
    if not ring.holds(key):
        return AuthDenied(401, "invalid_api_key", "Incorrect API key provided.")
    return AuthOk(tenant_of(key))


def tenant_of(key: str) -> str:
    """A short name for the holder of `key`: the same each time, and one-way."""
    # A label of its own, so that it is not a prefix of the digest the ring compares.
    return "t_" + hashlib.sha256(b"tenant\0" + _digest(key)).hexdigest()[:12]


def answered_subprotocol(offered: Sequence[str]) -> str | None:
    """The subprotocol to accept with: `realtime` if offered, never one that carries the key.

    A browser fails a connection whose answer it did not offer, and any client that offers some
    and is answered none.
    """
    return GA_SUBPROTOCOL if GA_SUBPROTOCOL in offered else None


def speaks_beta(headers: Mapping[str, str], offered: Sequence[str]) -> bool:
    """True if the client asks for the retired beta dialect, whose events differ from GA's."""
    features = headers.get("openai-beta", "").replace(";", ",").split(",")
    return BETA_SUBPROTOCOL in offered or "realtime=v1" in {name.strip() for name in features}


def origin_allowed(headers: Mapping[str, str], allowed: Sequence[str], ring: KeyRing) -> bool:
    """True unless a web page that is not ours is using its visitor's browser to get in.

    Clients that are not browsers send no `Origin` and pass. A page served by this very host
    passes; but where no key protects the door only under a name that DNS cannot be made to lie
    about (an address, localhost), or any page could rebind its own name to this machine.
    """
    origin = headers.get("origin")
    if origin is None or "*" in allowed:
        return True
    if origin.lower() in {entry.lower() for entry in allowed}:
        return True
    host = headers.get("host", "").lower()
    if not host or origin.lower().partition("://")[2] != host:
        return False
    return bool(len(ring)) or is_unforgeable(host)


def is_unforgeable(host: str) -> bool:
    """True if `host` (as in a `Host` header) is an IP address or localhost."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(_address(name))
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a socket bound to `host`."""
    if host == "localhost":
        return True
    try:
        return _address(host).is_loopback
    except ValueError:
        return False


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    return ipaddress.ip_address(name.strip("[]"))


def refusal_to_bind(host: str, ring: KeyRing, *, allow_anonymous: bool) -> str | None:
    """Why the server must not listen on `host`; None if it may."""
    if len(ring) or allow_anonymous or is_loopback(host):
        return None
    return (
        f"refusing to listen on {host} without API keys: set METRONOME_API_KEYS or "
        "server.api_keys_file, or pass --allow-anonymous to let everyone in"
    )
