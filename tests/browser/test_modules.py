"""The page's modules, each by itself, in the browser that will run them."""

import json
from typing import Any

import pytest
from browser.chromium import Page


def run(page: Page, module: str, body: str, **values: Any) -> Any:
    """What `body` returns, with the module's exports as `m` and `values` as `v`."""
    return page.evaluate(
        f"(async () => {{ const m = await import('/{module}'); const v = {json.dumps(values)}; {body} }})()"
    )


TONE = """
    const tone = (hz, rate, n) => Float32Array.from({length: n}, (_, i) => Math.sin(2 * Math.PI * hz * i / rate));
    const convert = (input, from, to, chunk) => {
      const r = new m.Resampler(from, to); const out = [];
      for (let i = 0; i < input.length; i += chunk) out.push(...r.push(input.slice(i, i + chunk)));
      return [...out, ...r.flush()];
    };
    const level = (x) => Math.sqrt(x.slice(200, -200).reduce((s, y) => s + y * y, 0) / (x.length - 400));
"""


@pytest.mark.parametrize(
    "rates", [(48_000, 24_000), (44_100, 24_000), (24_000, 48_000), (16_000, 24_000)]
)
def test_the_resampler_is_the_tone_at_the_new_rate(
    static_page: Page, rates: tuple[int, int]
) -> None:
    """A 1 kHz tone comes out as the same tone, in place and to -60 dB, whatever the chunks."""
    body = """
      const out = convert(tone(1000, v.from, v.from), v.from, v.to, 128);
      const want = tone(1000, v.to, out.length);
      return [out.length, level(out.map((y, i) => y - want[i]))];
    """
    length, error = run(
        static_page, "audio/resampler.js", TONE + body, **{"from": rates[0], "to": rates[1]}
    )
    assert abs(length - rates[1]) <= 1
    assert error < 0.001


def test_the_resampler_lets_nothing_alias(static_page: Page) -> None:
    """A tone above the new Nyquist frequency is gone, not folded down."""
    body = "return level(convert(tone(15_000, 48_000, 48_000), 48_000, 24_000, 128));"
    assert run(static_page, "audio/resampler.js", TONE + body) < 0.001


def test_the_resampler_does_not_care_about_chunks(static_page: Page) -> None:
    """The same samples come out of any cut of the input."""
    body = """
      const input = tone(440, 44_100, 10_000);
      const [a, b] = [128, 1777].map((chunk) => convert(input, 44_100, 24_000, chunk));
      return [a.length - b.length, Math.max(...a.map((y, i) => Math.abs(y - b[i])))];
    """
    difference, error = run(static_page, "audio/resampler.js", TONE + body)
    assert difference == 0
    assert error < 1e-5  # float32 kernel, positions apart by rounding


def test_base64_is_the_pcm(static_page: Page) -> None:
    """pcm16 goes to base64 and back unchanged, beyond one call's worth of bytes too."""
    body = """
      const pcm = Int16Array.from({length: 40_000}, (_, i) => i * 7919);
      return m.fromBase64(m.toBase64(pcm)).every((x, i) => m.toPcm16(x) === pcm[i]);
    """
    assert run(static_page, "audio/pcm.js", body)


PLAY = """
    const context = new OfflineAudioContext(1, 24_000, 24_000);
    await context.audioWorklet.addModule('/worklets/playback.js');
    const node = new AudioWorkletNode(context, 'playback', {numberOfInputs: 0, outputChannelCount: [1]});
    node.connect(context.destination);
    const heard = [];
    node.port.onmessage = ({data}) => heard.push(data);
    const send = (...messages) => messages.forEach((message) => node.port.postMessage(message));
    const audio = (item, ms) => ({type: 'audio', item, samples: new Float32Array(24 * ms).fill(0.5)});
    const at = (s, act) => context.suspend(s).then(async () => {
      act(); await new Promise((resolve) => setTimeout(resolve, 50)); context.resume();
    });
    const render = async () => {
      const samples = (await context.startRendering()).getChannelData(0);
      await new Promise((resolve) => setTimeout(resolve, 50));
      return {ms: samples.filter((x) => x !== 0).length / 24, heard};
    };
"""


def test_playback_plays_an_item_whole_and_says_so(static_page: Page) -> None:
    """Every sample is played once, and the item is reported finished with its length."""
    body = "at(0, () => send(audio('a', 60), audio('a', 140), {type: 'end', item: 'a'})); return render();"
    result = run(static_page, "audio/pcm.js", PLAY + body)
    assert result["ms"] == pytest.approx(200, abs=0.1)
    finished = [message for message in result["heard"] if message["type"] == "finished"]
    assert finished == [{"type": "finished", "item": "a", "playedMs": 200}]


def test_playback_waits_until_the_jitter_buffer_is_filled(static_page: Page) -> None:
    """40 ms are not played by themselves: a late second chunk would leave a hole."""
    result = run(
        static_page, "audio/pcm.js", PLAY + "at(0, () => send(audio('a', 40))); return render();"
    )
    assert result["ms"] == 0


def test_a_flush_stops_at_once_and_tells_what_was_heard(static_page: Page) -> None:
    """400 ms into the first of two items: silence after a 5 ms fade, and both with what was played of them."""
    body = """
      at(0, () => send(audio('a', 900), audio('b', 500)));
      at(0.4, () => send({type: 'flush'}));
      return render();
    """
    result = run(static_page, "audio/pcm.js", PLAY + body)
    assert result["ms"] == pytest.approx(405, abs=6)
    (flushed,) = [message for message in result["heard"] if message["type"] == "flushed"]
    assert [entry["item"] for entry in flushed["items"]] == ["a", "b"]
    assert flushed["items"][0]["playedMs"] == pytest.approx(result["ms"], abs=0.2)
    assert flushed["items"][1]["playedMs"] == 0


def test_an_underrun_is_counted_and_refills_the_buffer(static_page: Page) -> None:
    """Audio that comes late is played after a refill; nothing of it is lost."""
    body = """
      at(0, () => send(audio('a', 100)));
      at(0.4, () => send(audio('a', 200)));
      return render();
    """
    result = run(static_page, "audio/pcm.js", PLAY + body)
    assert result["ms"] == pytest.approx(300, abs=0.1)
    assert max(m.get("underruns", 0) for m in result["heard"]) >= 1


TURN: list[dict[str, Any]] = [
    {"type": "input_audio_buffer.speech_started", "item_id": "u"},
    {"type": "input_audio_buffer.speech_stopped", "item_id": "u"},
    {"type": "input_audio_buffer.committed", "item_id": "u", "previous_item_id": None},
    {"type": "response.created", "response": {"id": "r", "conversation_id": "c"}},
    {"type": "response.output_item.added", "response_id": "r", "item": {"id": "a", "type": "message"}},
    {"type": "response.output_audio_transcript.delta", "item_id": "a", "delta": "Four words are "},
    {"type": "response.output_audio.delta", "item_id": "a", "content_index": 0, "delta": "AAAA"},
]  # fmt: skip
PLAYED = """
    const talk = new m.Conversation();
    const kinds = (events) => events.flatMap((e) => talk.apply(e)).map((effect) => effect.kind);
"""


def test_a_late_transcript_finds_its_turn(static_page: Page) -> None:
    """The caller's words may arrive amid the reply: they stand before it all the same."""
    body = """
      kinds(v.turn);
      kinds([{type: 'conversation.item.input_audio_transcription.completed', item_id: 'u', transcript: 'Say four.'}]);
      return talk.items.map((item) => [item.role, item.text, item.status]);
    """
    items = run(static_page, "realtime/conversation.js", PLAYED + body, turn=TURN)
    assert items == [["user", "Say four.", "done"], ["assistant", "Four words are ", "streaming"]]


def test_audio_after_an_interruption_is_not_played(static_page: Page) -> None:
    """Deltas of a reply that was cut change nothing, though they are still on the wire."""
    body = """
      kinds(v.turn); talk.cutReply(); talk.heard('a', 700);
      const late = kinds([v.turn.at(-1), v.turn.at(-2)]);
      const done = kinds([{type: 'response.done', response: {id: 'r', status: 'cancelled', status_details: null}}]);
      return [late, done.at(-1), talk.items[1].status, talk.items[1].heardMs, talk.awaiting];
    """
    answer = run(static_page, "realtime/conversation.js", PLAYED + body, turn=TURN)
    assert answer == [[], "response-done", "interrupted", 700, False]


@pytest.mark.parametrize(
    ("response", "note"),
    [
        ({"status": "completed"}, "There was no reply to this."),
        ({"status": "failed", "status_details": {"error": {"message": "No room."}}}, "No room."),
        ({"status": "cancelled"}, None),
    ],
)
def test_a_reply_that_never_came_is_told(
    static_page: Page, response: dict[str, Any], note: str | None
) -> None:
    """A response without items leaves a word under the turn it should have answered."""
    body = """
      kinds([...v.turn.slice(0, 4), {type: 'response.done', response: {id: 'r', ...v.response}}]);
      return talk.items[0].note;
    """
    said = run(static_page, "realtime/conversation.js", PLAYED + body, turn=TURN, response=response)
    assert said == note


@pytest.mark.parametrize(
    ("heard_ms", "text"),
    [(0, ""), (150, "one"), (600, "one two three"), (5_000, "one two three four")],
)
def test_words_heard_are_cut_between_words(static_page: Page, heard_ms: int, text: str) -> None:
    """About as much of the words as of the audio was heard; never half a word."""
    body = "return m.heardText({text: 'one two three four', receivedMs: 1000, heardMs: v.ms});"
    assert run(static_page, "realtime/session.js", body, ms=heard_ms) == text


@pytest.mark.parametrize(
    ("code", "reason", "error", "says", "retry", "key"),
    [
        (1013, "", {"code": "capacity_exceeded"}, "full", True, False),
        (1008, "", {"code": "invalid_api_key"}, "key", False, True),
        (1008, "", {"code": "origin_not_allowed", "message": "Not from there."}, "Not from there.", False, False),
        (1008, "slow_consumer", None, "keep up", True, False),
        (1012, "", None, "restarting", True, False),
        (1006, "", None, "lost", True, False),
        (4000, "beta", None, "beta", False, False),
    ],
)  # fmt: skip
def test_a_close_is_told_in_words(
    static_page: Page, code: int, reason: str, error: object, says: str, retry: bool, key: bool
) -> None:
    """Each way a session ends has its sentence, and is tried again only where that can help."""
    body = "return m.closeTrouble(v.code, v.reason, v.error, true);"
    told = run(static_page, "realtime/words.js", body, code=code, reason=reason, error=error)
    assert says in told["words"]
    assert (told["retry"], told["needsKey"]) == (retry, key)


def test_a_server_that_ends_every_session_at_once_is_not_pestered(static_page: Page) -> None:
    """Each attempt waits longer than the one before, though a session began each time; 15 s is the longest."""
    body = """
      const real = window.WebSocket;
      window.WebSocket = class {
        constructor() {
          queueMicrotask(() => {
            this.onmessage({data: JSON.stringify({type: 'session.created'})});
            this.onclose({code: 1011, reason: ''});
          });
        }
        close() {}
      };
      const waits = [];
      const socket = new m.RealtimeSocket({
        onLive() {}, onEvent() {},
        onLost: ({retryS}) => waits.push(retryS),
      });
      socket.open({key: '', model: null});
      for (let tries = 0; tries < 7; tries += 1) {
        await new Promise((resolve) => setTimeout(resolve));
        socket.retryNow();
      }
      socket.close();
      window.WebSocket = real;
      return waits;
    """
    assert run(static_page, "realtime/socket.js", body) == [1, 2, 4, 8, 15, 15, 15]
