"""session.update: absent keeps, null clears, all or nothing, and the echo is what clients can read."""

from typing import Any

import pytest
from support.realtime_peer import Peer

from protocol.commands import Configure, TurnDetectionSettings
from protocol.session_config import SessionDefaults, TurnDetection, initial
from protocol.session_view import client_view

VAD = {
    "type": "server_vad",
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "idle_timeout_ms": None,
    "create_response": True,
    "interrupt_response": True,
}


@pytest.fixture
def peer() -> Peer:
    return Peer(voices=("alloy", "marin"))


def detect(peer: Peer, turn_detection: dict[str, Any] | None) -> dict[str, Any] | None:
    """Update turn detection; returns its echo."""
    session = peer.updates(audio={"input": {"turn_detection": turn_detection}})["session"]
    echo: dict[str, Any] | None = session["audio"]["input"]["turn_detection"]
    return echo


def test_initial_session_is_the_recorded_shape() -> None:
    """session.created has the keys and defaults of the real service."""
    assert Peer().only_event()["session"] == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_test",
        "model": "test-model",
        "output_modalities": ["audio"],
        "instructions": "Be kind.",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "truncation": "auto",
        "prompt": None,
        "expires_at": 1_800_000_000,
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": VAD,
            },
            "output": {
                "format": {"type": "audio/pcm", "rate": 24000},
                "voice": "alloy",
                "speed": 1.0,
            },
        },
        "include": None,
    }


def test_everything_at_once(peer: Peer) -> None:
    """Every setting is taken over and echoed; keys of other API versions are ignored."""
    tool = {"type": "function", "name": "look", "description": "d", "parameters": {"a": [1]}}
    session = {
        "model": "another-model",
        "output_modalities": ["text"],
        "instructions": "Be brief.",
        "tools": [tool],
        "tool_choice": "required",
        "max_output_tokens": 100,
        "tracing": {"workflow_name": "w"},
        "truncation": {"type": "retention_ratio", "retention_ratio": 0.8},
        "prompt": {"id": "p", "variables": {"a": "b"}},
        "include": ["item.input_audio_transcription.logprobs"],
        "reasoning": {"effort": "low"},
        "parallel_tool_calls": False,
        "temperature": 0.8,
        "modalities": ["text", "audio"],
        "audio": {
            "input": {
                "format": {"type": "audio/pcmu"},
                "transcription": {"model": "m", "language": "de", "prompt": "p", "delay": "low"},
                "noise_reduction": {"type": "far_field", "strength": 0.5},
                "turn_detection": {"type": "semantic_vad", "eagerness": "high"},
            },
            "output": {"format": {"type": "audio/pcma"}, "voice": "marin", "speed": 1.25},
        },
    }
    echo = peer.updates(**session)["session"]
    kept = ["output_modalities", "instructions", "tools", "tool_choice", "max_output_tokens"]
    kept += ["tracing", "truncation", "prompt", "include"]
    assert {key: echo[key] for key in kept} == {key: session[key] for key in kept}
    assert echo["model"] == "test-model"
    assert not {"reasoning", "parallel_tool_calls", "temperature", "modalities"} & set(echo)
    assert echo["audio"] == {
        "input": {
            "format": {"type": "audio/pcmu"},
            "transcription": {"model": "m", "language": "de", "prompt": "p"},
            "noise_reduction": {"type": "far_field"},
            "turn_detection": {
                "type": "semantic_vad",
                "eagerness": "high",
                "create_response": True,
                "interrupt_response": True,
            },
        },
        "output": {"format": {"type": "audio/pcma"}, "voice": "marin", "speed": 1.25},
    }
    configure = peer.commands[-1]
    assert isinstance(configure, Configure)
    assert (configure.input_rate, configure.language) == (8000, "de")
    assert configure.tools == (tool,)
    assert configure.turn_detection == TurnDetectionSettings(eagerness="high")

    assert peer.updates()["session"] == echo  # absent keeps
    cleared = peer.updates(
        output_modalities=None,
        instructions=None,
        tools=None,
        tool_choice=None,
        max_output_tokens=None,
        tracing=None,
        truncation=None,
        prompt=None,
        include=None,
        audio={
            "input": {
                "format": None,
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": VAD,
            },
            "output": {"format": None, "voice": None, "speed": None},
        },
    )["session"]
    assert cleared == Peer().only_event()["session"]  # null clears


def test_null_groups_say_nothing(peer: Peer) -> None:
    """A null where only a group may stand leaves the group alone."""
    before = peer.updates(audio={"output": {"voice": "marin"}})["session"]
    assert peer.updates(audio=None)["session"] == before
    assert peer.updates(audio={"input": None, "output": None})["session"] == before


def test_partial_turn_detection(peer: Peer) -> None:
    """A partial turn_detection adjusts what is in force."""
    assert detect(peer, {"threshold": 0.7}) == {**VAD, "threshold": 0.7}
    assert detect(peer, {"type": "server_vad", "silence_duration_ms": 200}) == {
        **VAD,
        "threshold": 0.7,
        "silence_duration_ms": 200,
    }
    assert detect(peer, {"threshold": None, "idle_timeout_ms": 6000}) == {
        **VAD,
        "silence_duration_ms": 200,
        "idle_timeout_ms": 6000,
    }


def test_turn_detection_off_and_on(peer: Peer) -> None:
    """Null means push to talk; a partial patch then switches detection on with its defaults."""
    assert detect(peer, None) is None
    configure = peer.commands[-1]
    assert isinstance(configure, Configure)
    assert not configure.turn_detection.enabled
    assert detect(peer, {"threshold": 0.7}) == {**VAD, "threshold": 0.7}


def test_another_turn_detection_starts_fresh(peer: Peer) -> None:
    """Another type starts from its defaults and ignores the other's fields."""
    detect(peer, {"threshold": 0.9, "create_response": False})
    semantic = {"eagerness": "auto", "create_response": True, "interrupt_response": True}
    assert detect(peer, {"type": "semantic_vad", "threshold": 0.1}) == {
        "type": "semantic_vad",
        **semantic,
    }
    assert detect(peer, {"type": "server_vad"}) == VAD


def test_defaults_may_be_push_to_talk() -> None:
    """A deployment without turn detection still has defaults for a client that wants it."""
    peer = Peer(turn_detection=None)
    assert detect(peer, {"type": "server_vad"}) == VAD
    peer = Peer(turn_detection=TurnDetection(silence_duration_ms=200))
    assert detect(peer, {"threshold": 0.4}) == {
        **VAD,
        "threshold": 0.4,
        "silence_duration_ms": 200,
    }


def test_partial_transcription(peer: Peer) -> None:
    """Transcription merges too, and names a model even if the client does not."""

    def transcribe(value: dict[str, Any] | None) -> dict[str, Any] | None:
        session = peer.updates(audio={"input": {"transcription": value}})["session"]
        echo: dict[str, Any] | None = session["audio"]["input"]["transcription"]
        return echo

    assert transcribe({}) == {"model": "default", "language": None, "prompt": None}
    assert transcribe({"language": "fr"}) == {"model": "default", "language": "fr", "prompt": None}
    assert transcribe({"model": "m", "keywords": ["a"]}) == {
        "model": "m",
        "language": "fr",
        "prompt": None,
    }
    assert transcribe({"model": None, "language": None}) == {
        "model": "default",
        "language": None,
        "prompt": None,
    }


@pytest.mark.parametrize("voice", ["ash", {"id": "voice_1"}, ""])
def test_unknown_voice_becomes_the_default(peer: Peer, voice: object) -> None:
    """Clients hard-code OpenAI's voices: one we lack is replaced, not refused."""
    echo = peer.updates(audio={"output": {"voice": voice}})["session"]
    assert echo["audio"]["output"]["voice"] == "alloy"


def test_voice_is_locked_once_heard(peer: Peer) -> None:
    """After the first audio only the same voice, or none, may be named; nothing else of that update counts."""
    peer.updates(audio={"output": {"voice": "marin"}})
    order = peer.asks()
    peer.connection.response_text(order.response_id, "Hi")
    assert peer.updates(audio={"output": {"voice": "alloy"}})["type"] == "session.updated"
    peer.updates(audio={"output": {"voice": "marin"}})
    peer.connection.response_audio(order.response_id, bytes(960))
    for _ in range(2):  # while it speaks, and after
        peer.events()
        refused = peer.updates(instructions="X", audio={"output": {"voice": "alloy"}})
        assert refused["error"]["code"] == "cannot_update_voice"
        for voice in ("marin", None):
            session = peer.updates(audio={"output": {"voice": voice}})["session"]
            assert session["audio"]["output"]["voice"] == "marin"
            assert session["instructions"] == "Be kind."
        peer.sends("response.cancel")


def test_empty_instructions_restore_the_default(peer: Peer) -> None:
    """An empty string brings the deployment's instructions back."""
    peer.updates(instructions="X")
    assert peer.updates(instructions="")["session"]["instructions"] == "Be kind."


def test_update_leaves_the_answer_in_progress_alone(peer: Peer) -> None:
    """An answer keeps the settings it began with."""
    order = peer.asks()
    peer.updates(output_modalities=["text"], audio={"output": {"format": {"type": "audio/pcmu"}}})
    peer.connection.response_text(order.response_id, "Hi")
    assert peer.types()[-1] == "response.output_audio_transcript.delta"
    assert peer.connection.output_rate(order.response_id) == 24_000


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"output_modalities": ["text", "audio"]}, "invalid_value", "output_modalities"),
        ({"output_modalities": []}, "invalid_value", "output_modalities"),
        ({"output_modalities": ["video"]}, "invalid_value", "output_modalities[0]"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 4097}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": "many"}, "invalid_value", "max_output_tokens"),
        ({"instructions": 5}, "invalid_type", "instructions"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{"type": "mcp", "name": "x"}]}, "invalid_value", "tools[0].type"),
        ({"tool_choice": "never"}, "invalid_value", "tool_choice"),
        ({"include": ["all"]}, "invalid_value", "include[0]"),
        ({"truncation": "some"}, "invalid_value", "truncation"),
        ({"audio": 5}, "invalid_type", "audio"),
        ({"audio": {"output": {"speed": 3}}}, "invalid_value", "audio.output.speed"),
        (
            {"audio": {"output": {"format": {"type": "audio/mp3"}}}},
            "invalid_value",
            "audio.output.format.type",
        ),
        (
            {"audio": {"output": {"format": {"rate": 16000}}}},
            "invalid_value",
            "audio.output.format.rate",
        ),
        (
            {"audio": {"input": {"format": {"type": "audio/pcm", "rate": 16000}}}},
            "invalid_value",
            "audio.input.format.rate",
        ),
        (
            {"audio": {"input": {"turn_detection": {"threshold": 7}}}},
            "invalid_value",
            "audio.input.turn_detection.threshold",
        ),
        (
            {"audio": {"input": {"turn_detection": {"type": "magic"}}}},
            "invalid_value",
            "audio.input.turn_detection.type",
        ),
        (
            {"audio": {"input": {"noise_reduction": {"type": "all"}}}},
            "invalid_value",
            "audio.input.noise_reduction.type",
        ),
    ],
)
def test_bad_updates_change_nothing(
    peer: Peer, session: dict[str, Any], code: str, param: str
) -> None:
    """A bad field refuses the whole update, naming the field."""
    before = peer.updates()["session"]
    error = peer.updates(tracing="auto", **session)["error"]
    assert (error["code"], error["param"]) == (code, f"session.{param}")
    assert peer.updates()["session"] == before


def test_no_expiry_is_left_out() -> None:
    """A session without end names none: null is not an optional number to every client."""
    view = client_view(initial(SessionDefaults()), "sess", "m", None)
    assert "expires_at" not in view
