"""Keys, subprotocols, dialects and origins of a handshake."""

import hmac
import logging
from collections.abc import Sequence

import pytest

from server.auth import (
    ANONYMOUS,
    AuthDenied,
    AuthOk,
    KeyRing,
    answered_subprotocol,
    authenticate,
    is_loopback,
    offered_subprotocols,
    origin_allowed,
    presented_key,
    refusal_to_bind,
    speaks_beta,
    tenant_of,
)

CANARY = "sk-canary-6f1d"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"authorization": "Bearer k"}, "k"),
        ({"authorization": "bearer   k "}, "k"),
        ({"authorization": "Bearer ek_abc"}, "ek_abc"),
        ({"authorization": "Basic k"}, None),
        ({"authorization": "Bearer"}, None),
        ({"authorization": "Bearer "}, None),
        ({"authorization": "k"}, None),
        ({"api-key": " k "}, "k"),
        ({"api-key": ""}, None),
        ({"authorization": "Basic x", "api-key": "k"}, "k"),
        ({"authorization": "Bearer a", "api-key": "b"}, "a"),
        ({"sec-websocket-protocol": "realtime, openai-insecure-api-key.k"}, "k"),
        ({"sec-websocket-protocol": "openai-insecure-api-key.a.b"}, "a.b"),
        ({"sec-websocket-protocol": "openai-insecure-api-key."}, None),
        ({"sec-websocket-protocol": "realtime"}, None),
        ({"api-key": "a", "sec-websocket-protocol": "openai-insecure-api-key.b"}, "a"),
        ({}, None),
    ],
)
def test_where_a_key_is_found(headers: dict[str, str], expected: str | None) -> None:
    """A key comes as bearer token, as api-key header, or in a subprotocol, in that order."""
    assert presented_key(headers, offered_subprotocols(headers)) == expected


@pytest.mark.parametrize(
    ("keys", "presented", "code"),
    [
        (["a", "b"], "a", None),
        (["a", "b"], "b", None),
        (["a", "b"], "c", "invalid_api_key"),
        (["a", "b"], "A", "invalid_api_key"),
        (["ab"], "a", "invalid_api_key"),
        (["a"], "ab", "invalid_api_key"),
        (["a"], "", "invalid_api_key"),
        (["a"], "\udcff", "invalid_api_key"),  # what ASGI servers may make of a non-ASCII byte
        (["schlüssel"], "schlüssel", None),
        (["a"], None, "missing_api_key"),
        ([], "whatever", None),
        ([], None, None),
    ],
)
def test_who_is_let_in(keys: list[str], presented: str | None, code: str | None) -> None:
    """Only a configured key opens the door; with none configured everyone is let in."""
    verdict = authenticate(KeyRing(keys), presented)
    if code is None:
        assert isinstance(verdict, AuthOk)
    else:
        assert isinstance(verdict, AuthDenied)
        assert (verdict.status, verdict.code) == (401, code)


def test_the_tenant_is_the_same_each_time_and_another_for_another_key() -> None:
    """A tenant stands for its key, and nobody's is anonymous."""
    ring = KeyRing(["a", "b"])
    assert authenticate(ring, "a") == authenticate(ring, "a") == AuthOk(tenant_of("a"))
    assert tenant_of("a") != tenant_of("b")
    assert authenticate(KeyRing(), None) == AuthOk(ANONYMOUS)


@pytest.mark.parametrize("presented", ["first", "last", "wrong", ""])
def test_every_key_is_compared_whatever_is_presented(
    presented: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look-up makes one constant-time comparison per key, of digests of one length, no fewer."""
    compared: list[tuple[int, int]] = []
    genuine = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return genuine(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    KeyRing(["first", "middle", "last"]).holds(presented)
    assert compared == [(32, 32)] * 3


def test_no_key_ever_shows(caplog: pytest.LogCaptureFixture) -> None:
    """Neither the ring, nor a verdict, nor a tenant, nor a log of them contains a key."""
    caplog.set_level(logging.DEBUG)
    ring = KeyRing([CANARY])
    verdicts = [authenticate(ring, CANARY), authenticate(ring, CANARY + "x")]
    logging.getLogger("test").info("%r %s %r", ring, ring, verdicts)
    assert "KeyRing(1 keys)" in caplog.text
    assert CANARY not in caplog.text
    assert all(CANARY.encode() not in digest for digest in ring._digests)


@pytest.mark.parametrize(
    ("offered", "answer"),
    [
        (["realtime"], "realtime"),
        (["openai-insecure-api-key.k", "realtime", "openai-agents-sdk.1"], "realtime"),
        (["openai-insecure-api-key.k"], None),
        (["openai-beta.realtime-v1"], None),
        (["realtimes"], None),
        ([], None),
    ],
)
def test_the_answer_is_realtime_or_nothing(offered: Sequence[str], answer: str | None) -> None:
    """Exactly `realtime` is answered where it is offered; the key never is."""
    assert answered_subprotocol(offered) == answer


@pytest.mark.parametrize(
    ("headers", "beta"),
    [
        ({"openai-beta": "realtime=v1"}, True),
        ({"openai-beta": "assistants=v2, realtime=v1"}, True),
        ({"openai-beta": "realtime=v2"}, False),
        ({"sec-websocket-protocol": "realtime, openai-beta.realtime-v1"}, True),
        ({"sec-websocket-protocol": "realtime"}, False),
        ({}, False),
    ],
)
def test_the_beta_dialect_is_recognised(headers: dict[str, str], beta: bool) -> None:
    """The header or the subprotocol of the beta gives it away."""
    assert speaks_beta(headers, offered_subprotocols(headers)) is beta


LISTED = ("https://app.example.org",)


@pytest.mark.parametrize(
    ("origin", "host", "keys", "allowed"),
    [
        (None, "127.0.0.1:8000", [], True),
        ("http://127.0.0.1:8000", "127.0.0.1:8000", [], True),
        ("http://[::1]:8000", "[::1]:8000", [], True),
        ("http://localhost:8000", "LOCALHOST:8000", [], True),
        ("http://127.0.0.1:9000", "127.0.0.1:8000", [], False),
        ("https://evil.example", "127.0.0.1:8000", [], False),
        ("http://evil.example:8000", "evil.example:8000", [], False),  # DNS rebinding
        ("https://voice.example", "voice.example", ["k"], True),
        ("https://evil.example", "voice.example", ["k"], False),
        ("https://app.example.org", "voice.example", [], True),
        ("https://APP.example.org", "voice.example", [], True),
        ("https://app.example.org.evil", "voice.example", [], False),
        ("null", "127.0.0.1:8000", [], False),
        ("null", "", [], False),
        ("", "127.0.0.1:8000", [], False),
        ("http://[", "[", [], False),
    ],
)
def test_which_web_pages_may_connect(
    origin: str | None, host: str, keys: list[str], allowed: bool
) -> None:
    """Our own page and listed ones may; a foreign page, or one with a rebound name, may not."""
    headers = {"host": host} | ({} if origin is None else {"origin": origin})
    assert origin_allowed(headers, LISTED, KeyRing(keys)) is allowed


def test_a_star_lets_every_page_in() -> None:
    """'*' in the list switches the check off."""
    assert origin_allowed({"host": "a", "origin": "null"}, ("*",), KeyRing())


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("localhost.example.org", False),
    ],
)
def test_what_counts_as_loopback(host: str, loopback: bool) -> None:
    """Addresses only this machine can reach; a name other than localhost may be anything."""
    assert is_loopback(host) is loopback
    refused = refusal_to_bind(host, KeyRing(), allow_anonymous=False)
    assert (refused is None) is loopback


def test_keys_or_consent_open_other_addresses() -> None:
    """Beyond loopback the server listens with keys, or if told to let everyone in."""
    refusal = refusal_to_bind("0.0.0.0", KeyRing(), allow_anonymous=False)
    assert refusal is not None
    assert "--allow-anonymous" in refusal
    assert refusal_to_bind("0.0.0.0", KeyRing(["k"]), allow_anonymous=False) is None
    assert refusal_to_bind("0.0.0.0", KeyRing(), allow_anonymous=True) is None
