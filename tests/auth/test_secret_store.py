"""Ephemeral keys: what is minted, what it grants, and for how long."""

import json
from typing import Any

import pytest

from protocol.errors import ProtocolError
from protocol.ids import IdFactory
from protocol.session_config import SessionDefaults
from server.auth import AuthOk
from server.client_secrets import EXPIRED, FULL, ClientSecrets, Grant, SecretDesk

WHO = AuthOk("t_minter")
VALUE = "ek_canary-51d0"


def _desk(**bounds: int) -> SecretDesk:
    secrets = ClientSecrets(b"k" * 32, **bounds)
    return SecretDesk(secrets, "tiny", SessionDefaults(instructions="Be kind."), IdFactory("x"))


def _issue(
    desk: SecretDesk, body: Any = None, value: str = VALUE, now: float = 0.0
) -> dict[str, Any] | ProtocolError:
    text = b"" if body is None else json.dumps(body).encode()
    return desk.issue(text, value, WHO, now, unix_now=1_800_000_000.0)


def _issued(desk: SecretDesk, body: Any = None, value: str = VALUE) -> dict[str, Any]:
    answer = _issue(desk, body, value)
    assert isinstance(answer, dict), answer
    return answer


def _granted(desk: SecretDesk, now: float = 1.0) -> Grant:
    grant = desk.secrets.grant_of(VALUE, now)
    assert isinstance(grant, Grant), grant
    return grant


def test_an_empty_request_gives_the_defaults_for_ten_minutes() -> None:
    """The answer has the API's shape: value, expiry in unix seconds, and the session with its id."""
    desk = _desk()
    answer = _issued(desk)
    assert (answer["value"], answer["expires_at"]) == (VALUE, 1_800_000_600)
    session = answer["session"]
    assert (session["type"], session["object"]) == ("realtime", "realtime.session")
    assert session["id"].startswith("sess_")
    assert session["instructions"] == "Be kind."
    assert _granted(desk).who is WHO  # whoever minted it, for quotas and logs


def test_the_session_asked_for_is_bound_to_the_secret() -> None:
    """What is not named keeps the deployment's defaults."""
    desk = _desk()
    audio = {"input": {"turn_detection": {"type": "semantic_vad", "eagerness": "low"}}}
    _issued(desk, {"session": {"type": "realtime", "instructions": "Be brief.", "audio": audio}})
    config = _granted(desk).config
    assert config.instructions == "Be brief."
    assert config.turn_detection is not None
    assert config.turn_detection.eagerness == "low"
    assert config.voice == "alloy"


def test_a_transcription_session_can_be_bound() -> None:
    """The view is a transcription session's."""
    answer = _issued(_desk(), {"session": {"type": "transcription"}})
    assert answer["session"]["object"] == "realtime.transcription_session"


def test_a_secret_grants_until_its_expiry_and_not_at_it() -> None:
    """The lifetime asked for counts from the minting; the boundary belongs to 'expired'."""
    desk = _desk()
    _issued(desk, {"expires_after": {"anchor": "created_at", "seconds": 10}})
    assert isinstance(desk.secrets.grant_of(VALUE, 9.99), Grant)
    assert desk.secrets.grant_of(VALUE, 10.0) is EXPIRED


@pytest.mark.parametrize("key", ["ek_other", "ek_", "sk-1", VALUE + "x", VALUE[:-1], "ek_\udcff"])
def test_other_keys_are_no_secrets_of_ours(key: str) -> None:
    """Not even one that differs in the last character."""
    desk = _desk()
    _issued(desk)
    assert desk.secrets.grant_of(key, 1.0) is None


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"expires_after": {"anchor": "created_at", "seconds": 9}}, "invalid_value", "seconds"),
        ({"expires_after": {"anchor": "created_at", "seconds": 7201}}, "invalid_value", "seconds"),
        ({"expires_after": {"anchor": "last_used", "seconds": 60}}, "invalid_value", "anchor"),
        ({"expires_after": {"anchor": "created_at", "seconds": "x"}}, "invalid_type", "seconds"),
        ({"session": "realtime"}, "invalid_type", "session"),
        ({"session": {"type": "translation"}}, "invalid_value", "session.type"),
        (
            {"session": {"type": "realtime", "audio": {"input": {"format": {"type": "mp3"}}}}},
            "invalid_value",
            "session.audio.input.format.type",
        ),
        ([], "invalid_value", None),
    ],
)
def test_a_mistake_is_named_and_nothing_is_minted(body: Any, code: str, param: str | None) -> None:
    """The same codes and parameter paths as over the socket."""
    desk = _desk()
    error = _issue(desk, body)
    assert isinstance(error, ProtocolError)
    assert error.code == code
    assert (error.param or "").endswith(param or "")
    assert (param is None) == (error.param is None)
    assert len(desk.secrets) == 0


def test_a_body_that_is_not_json_is_named() -> None:
    """Bad JSON is the client's mistake."""
    error = _desk().issue(b"{", VALUE, WHO, 0.0, 0.0)
    assert isinstance(error, ProtocolError)
    assert error.code == "invalid_json"


def test_at_its_bound_the_store_refuses_and_keeps_what_it_gave_out() -> None:
    """A secret that was promised is never dropped for another."""
    desk = _desk(max_secrets=2)
    _issued(desk)
    _issued(desk, value="ek_2")
    assert _issue(desk, value="ek_3") is FULL
    _granted(desk)


def test_settings_count_towards_a_bound_in_bytes() -> None:
    """Few secrets with long instructions fill the store as many short ones do."""
    desk = _desk(max_bytes=1000)
    session = {"type": "realtime", "instructions": "x" * 900}
    _issued(desk, {"session": session})
    assert _issue(desk, {"session": session}, "ek_2") is FULL
    assert isinstance(_issue(desk, {"session": session}, "ek_2", now=600.0), dict)


def test_expired_secrets_make_room() -> None:
    """They are remembered only while nobody needs their place, and for ten minutes at most."""
    desk = _desk(max_secrets=1)
    _issued(desk)
    assert _issue(desk, value="ek_2", now=599.0) is FULL
    assert isinstance(_issue(desk, value="ek_2", now=600.0), dict)
    assert desk.secrets.grant_of(VALUE, 600.0) is None
    roomy = _desk()
    _issued(roomy)
    _issue(roomy, value="ek_2", now=1199.0)
    assert roomy.secrets.grant_of(VALUE, 1199.0) is EXPIRED
    _issue(roomy, value="ek_3", now=1200.0)
    assert roomy.secrets.grant_of(VALUE, 1200.0) is None


def test_the_store_holds_and_shows_no_secret() -> None:
    """Only a keyed digest is kept, so neither a repr nor a dump of the store gives one away."""
    desk = _desk()
    _issued(desk)
    held = [getattr(desk.secrets, name) for name in ClientSecrets.__slots__]
    assert VALUE not in f"{desk.secrets!r} {held!r}"
