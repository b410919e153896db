"""Between the protocol's neutral commands and the engine's values, which do not know each other. Pure."""

from engine.kv_policy import KvPolicy
from engine.listener import Usage
from engine.models.base import Message, SessionSetup, TurnDetection
from engine.response import ResponseRequest
from engine.speech.ports import ScoredToken
from protocol.commands import Configure, CreateResponse, TokenLogprob, TruncationSettings
from protocol.response import ResponseUsage


def setup_of(command: Configure) -> SessionSetup:
    """The session settings that a model looks at."""
    turn = command.turn_detection
    return SessionSetup(
        instructions=command.instructions,
        turn_detection=TurnDetection(
            enabled=turn.enabled,
            threshold=turn.threshold,
            prefix_padding_ms=turn.prefix_padding_ms,
            silence_duration_ms=turn.silence_duration_ms,
            idle_timeout_ms=turn.idle_timeout_ms,
            eagerness=turn.eagerness,
        ),
        input_rate=command.input_rate,
        language=command.language,
        tools=command.tools,
        voice=command.voice,
        policy=policy_of(command.truncation),
        noise_reduction=command.noise_reduction,
        scores_words=command.logprobs,
    )


_AS_MUCH_AS_THERE_IS = 1_000_000  # tokens; the engine narrows it to what the deployment reserves


def policy_of(truncation: TruncationSettings) -> KvPolicy | None:
    """The client's wish for its context: None leaves it to the deployment.

    OpenAI's `retention_ratio` says what stays when the limit is reached, which is our window; the rest is the slack.
    """
    if truncation.mode == "auto":
        return None
    if truncation.mode == "disabled":
        return KvPolicy("unbounded")
    limit = max(2, truncation.post_instructions or _AS_MUCH_AS_THERE_IS)
    window = min(max(1, round(truncation.retention_ratio * limit)), limit - 1)
    return KvPolicy("anchored", window, limit - window)


def request_of(command: CreateResponse) -> ResponseRequest:
    """The answer to decode."""
    choice = command.tool_choice
    named = choice["name"] if isinstance(choice, dict) else ""
    return ResponseRequest(
        response_id=command.response_id,
        instructions=command.instructions,
        messages=tuple(Message(m.role, m.text, m.item_id, m.call) for m in command.messages),
        audio=command.audio,
        voice=command.voice,
        speed=command.speed,
        max_output_tokens=command.max_output_tokens,
        out_of_band=command.out_of_band,
        pending_items=frozenset(m.item_id for m in command.messages if m.audio),
        tools=command.tools,
        tool_choice="required" if named else choice,
        only_tool=named,
        parallel_calls=command.parallel_tool_calls,
    )


def logprob_of(token: ScoredToken) -> TokenLogprob:
    """One token of a transcript."""
    return TokenLogprob(token.text, token.logprob, list(token.spelling))


def usage_of(usage: Usage) -> ResponseUsage:
    """What the client is told a response consumed."""
    return ResponseUsage(
        input_tokens=usage.input_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        input_audio_ms=usage.input_audio_ms,
        output_audio_ms=usage.output_audio_ms,
    )
