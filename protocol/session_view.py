"""The session as the client sees it and as the engine needs it.

The client's view has exactly the keys of the real service (recorded in mid-2026): pipecat's classes refuse any other
key in `transcription`, and a rate other than 24,000 breaks two clients.
"""

from typing import Any

import msgspec

from protocol.commands import Configure, TruncationSettings, TurnDetectionSettings
from protocol.session_config import SessionConfig, TurnDetection
from protocol.session_patch import LOGPROBS, Retention, TokenLimits, Tool


def client_view(
    config: SessionConfig, session_id: str, model: str, expires_at: int | None
) -> dict[str, Any]:
    """The `session` of session.created and session.updated."""
    expiry = {} if expires_at is None else {"expires_at": expires_at}
    if config.type == "transcription":
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "id": session_id,
            **expiry,
            "audio": {"input": _input_view(config)},
            "include": config.include,
        }
    return {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": model,
        "output_modalities": [config.modality],
        "instructions": config.instructions,
        "tools": config.tools,
        "tool_choice": config.tool_choice,
        "max_output_tokens": config.max_output_tokens,
        "tracing": config.tracing,
        "truncation": config.truncation,
        "prompt": config.prompt,
        **expiry,
        "audio": {
            "input": _input_view(config),
            "output": {
                "format": config.output_format.wire,
                "voice": config.voice,
                "speed": config.speed,
            },
        },
        "include": config.include,
    }


def engine_view(config: SessionConfig) -> Configure:
    """The settings the engine acts on."""
    return Configure(
        instructions=config.instructions,
        turn_detection=_detector_settings(config.turn_detection),
        input_rate=config.input_format.rate,
        language=None if config.transcription is None else config.transcription.language,
        tools=plain_tools(config.tools),
        truncation=_truncation_settings(config.truncation),
        noise_reduction=config.noise_reduction,
        logprobs=_wants_logprobs(config),
        voice=config.voice,
    )


def _wants_logprobs(config: SessionConfig) -> bool:
    """Asked for, and transcripts are told at all."""
    told = config.transcription is not None or config.type == "transcription"
    return told and LOGPROBS in (config.include or ())


def _truncation_settings(wanted: str | Retention) -> TruncationSettings:
    if isinstance(wanted, Retention):
        limits = wanted.token_limits or TokenLimits()
        limit = limits.post_instructions or None
        return TruncationSettings("retention_ratio", wanted.retention_ratio, limit)
    return TruncationSettings("disabled" if wanted == "disabled" else "auto")


def plain_tools(tools: tuple[Tool, ...]) -> tuple[dict[str, Any], ...]:
    """The tools as JSON objects."""
    return tuple(msgspec.to_builtins(tool) for tool in tools)


def _input_view(config: SessionConfig) -> dict[str, Any]:
    reduction = config.noise_reduction
    return {
        "format": config.input_format.wire,
        "transcription": config.transcription,
        "noise_reduction": None if reduction is None else {"type": reduction},
        "turn_detection": _turn_detection_view(config.turn_detection),
    }


def _turn_detection_view(detection: TurnDetection | None) -> dict[str, Any] | None:
    if detection is None:
        return None
    reaction = {
        "create_response": detection.create_response,
        "interrupt_response": detection.interrupt_response,
    }
    if detection.type == "semantic_vad":
        return {"type": "semantic_vad", "eagerness": detection.eagerness, **reaction}
    return {
        "type": "server_vad",
        "threshold": detection.threshold,
        "prefix_padding_ms": detection.prefix_padding_ms,
        "silence_duration_ms": detection.silence_duration_ms,
        "idle_timeout_ms": detection.idle_timeout_ms,
        **reaction,
    }


def _detector_settings(detection: TurnDetection | None) -> TurnDetectionSettings:
    if detection is None:
        return TurnDetectionSettings(enabled=False)
    if detection.type == "semantic_vad":
        return TurnDetectionSettings(
            threshold=detection.threshold,
            prefix_padding_ms=detection.prefix_padding_ms,
            eagerness=detection.eagerness,
        )
    return TurnDetectionSettings(
        threshold=detection.threshold,
        prefix_padding_ms=detection.prefix_padding_ms,
        silence_duration_ms=detection.silence_duration_ms,
        idle_timeout_ms=detection.idle_timeout_ms,
    )
