// What the page asks of a session, and how a new session is told of the call so far.

/** The settings sent when a session begins; `mode` is "hands-free" or "push-to-talk". */
export function sessionSettings(mode) {
  const handsFree = { type: "server_vad", create_response: true, interrupt_response: true };
  return {
    type: "realtime",
    output_modalities: ["audio"],
    audio: {
      input: {
        format: { type: "audio/pcm", rate: 24_000 },
        transcription: { model: "default" },
        turn_detection: mode === "hands-free" ? handsFree : null,
      },
      output: { format: { type: "audio/pcm", rate: 24_000 } },
    },
  };
}

/** An item as the server is told of it again after a reconnect: its words, and of a cut reply only those heard. */
export function replayed(item) {
  const type = item.role === "user" ? "input_text" : "output_text";
  const text = item.heardMs === null ? item.text : heardText(item);
  return { id: item.id, type: "message", role: item.role, content: [{ type, text }] };
}

/** The words of an interrupted item that were about heard, by its share of audio played; cut between words. */
export function heardText(item) {
  if (item.heardMs === null || item.receivedMs === 0) return item.heardMs === null ? item.text : "";
  const mark = Math.round((item.text.length * Math.min(item.heardMs, item.receivedMs)) / item.receivedMs);
  const end = item.text.indexOf(" ", mark);
  return end < 0 ? item.text : item.text.slice(0, mark === 0 ? 0 : end);
}
