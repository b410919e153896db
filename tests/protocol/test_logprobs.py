"""`include: ["item.input_audio_transcription.logprobs"]`."""

from support.realtime_peer import Peer

from protocol.commands import Configure, TokenLogprob

LOGPROBS = ["item.input_audio_transcription.logprobs"]
SCORES = (TokenLogprob("caf", -0.25, [99, 97, 102]), TokenLogprob("é", -2.0, [195, 169]))


def _asked_for(peer: Peer) -> bool:
    """Whether the engine was last told to work probabilities out."""
    return next(c for c in reversed(peer.commands) if isinstance(c, Configure)).logprobs


def _turn(peer: Peer) -> str:
    """The item of a spoken turn."""
    peer.did(peer.connection.speech_started(10))
    item_id: str = peer.did(peer.connection.speech_stopped(400))[0].item_id  # type: ignore[union-attr]
    peer.events()
    return item_id


def test_the_engine_works_probabilities_out_only_for_who_is_told_them() -> None:
    """They need `include` and transcription both; the echo holds what was asked for."""
    peer = Peer()
    assert not _asked_for(peer)
    assert peer.updates(include=LOGPROBS)["session"]["include"] == LOGPROBS
    assert not _asked_for(peer)  # no transcript is told
    peer.updates(audio={"input": {"transcription": {"model": "any"}}})
    assert _asked_for(peer)
    peer.updates(include=None)
    assert not _asked_for(peer)


def test_a_transcription_session_can_have_them_too() -> None:
    """It tells all its transcripts."""
    peer = Peer(type="transcription")
    peer.sends("session.update", session={"type": "transcription", "include": LOGPROBS})
    assert _asked_for(peer)


def test_delta_and_completed_carry_every_token() -> None:
    """With its text, its bytes and its probability; without any, the key is absent."""
    peer = Peer()
    peer.updates(include=LOGPROBS, audio={"input": {"transcription": {"model": "any"}}})
    peer.connection.transcribed(_turn(peer), "café", 1.5, SCORES)
    for event in peer.events():
        assert event["logprobs"] == [
            {"token": "caf", "logprob": -0.25, "bytes": [99, 97, 102]},
            {"token": "é", "logprob": -2.0, "bytes": [195, 169]},
        ]
    peer.sends("response.cancel")
    peer.connection.transcribed(_turn(peer), "tea", 0.5)
    assert all("logprobs" not in event for event in peer.events())
