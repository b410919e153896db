// What was said: server events in, items and effects out. No DOM, no audio, no socket, no clock.

import { endingWords } from "./words.js";

const MAX_ITEMS = 500; // the bound: beyond it the oldest items leave the page (the server keeps its own history)

/** One turn. `status`: "pending" (no words yet) · "streaming" · "done" · "interrupted" · "failed". */
function newItem(id, role, typed) {
  return {
    id,
    role, // "user" or "assistant"
    typed, // written rather than spoken
    text: "",
    status: "pending",
    contentIndex: null, // of its audio part; null: no audio has come
    receivedMs: 0, // audio received
    heardMs: null, // audio played before it was interrupted; null: not interrupted
    note: null, // how it ended, in words, if not well
  };
}

/**
 * The conversation as the page knows it. `apply(event)` returns effects, in order:
 * `{kind: "item", item}` it changed · `{kind: "gone", id}` · `{kind: "audio", item, base64}` to play ·
 * `{kind: "audio-end", item}` · `{kind: "barge-in"}` the caller began to speak · `{kind: "response-done"}`.
 */
export class Conversation {
  items = []; // in the order of the conversation
  callerSpeaking = false;
  awaiting = false; // a reply is owed: the turn is over, or a response has been asked for or begun
  responseId = null; // the response in progress, in the default conversation
  #byId = new Map();
  #itemsOf = new Map(); // items of the response in progress: id -> item

  apply(event) {
    const effects = HANDLERS[event.type]?.call(this, event) ?? [];
    while (this.items.length > MAX_ITEMS) {
      const oldest = this.items.shift();
      this.#byId.delete(oldest.id);
      effects.push({ kind: "gone", id: oldest.id });
    }
    return effects;
  }

  find(id) {
    return this.#byId.get(id);
  }

  /** A new socket: what was under way is over, the words stay. */
  beginSession() {
    const effects = this.cutReply();
    this.callerSpeaking = false;
    this.awaiting = false;
    this.responseId = null;
    this.#itemsOf.clear();
    return effects;
  }

  /** The reply in progress is cut short: its audio still to come is not to be played. Returns effects. */
  cutReply() {
    return Array.from(this.#itemsOf.values(), (item) => {
      item.status = "interrupted";
      return { kind: "item", item };
    });
  }

  /** The listener heard only the first `heardMs` of an item. Returns effects. */
  heard(id, heardMs) {
    const item = this.find(id);
    if (!item) return [];
    item.status = "interrupted";
    item.heardMs = heardMs;
    return [{ kind: "item", item }];
  }

  /** Adds an item after `previousId` (last, where that is unknown), or returns the one that is there. */
  add(id, role, { previousId = undefined, typed = false } = {}) {
    const known = this.find(id);
    if (known) return known;
    const item = newItem(id, role, typed);
    const after = this.items.findIndex((other) => other.id === previousId);
    if (previousId === null) this.items.unshift(item);
    else this.items.splice(after < 0 ? this.items.length : after + 1, 0, item);
    this.#byId.set(id, item);
    return item;
  }

  track(item) {
    this.#itemsOf.set(item.id, item);
  }

  endResponse(response) {
    const ending = endingWords(response);
    const effects = [];
    for (const item of this.#itemsOf.values()) {
      item.note = ending;
      if (response.status === "cancelled") item.status = "interrupted";
      else if (item.status !== "interrupted") item.status = response.status === "failed" ? "failed" : "done";
      effects.push({ kind: "audio-end", item }, { kind: "item", item });
    }
    const asked = this.items.at(-1);
    if (effects.length === 0 && asked && response.status !== "cancelled") {
      asked.note = ending ?? "There was no reply to this.";
      effects.push({ kind: "item", item: asked });
    }
    this.#itemsOf.clear();
    this.responseId = null;
    this.awaiting = false;
    return effects;
  }
}

function addText({ item_id: id, delta }) {
  const item = this.find(id);
  if (!item || item.status === "interrupted") return [];
  item.text += delta;
  item.status = "streaming";
  return [{ kind: "item", item }];
}

/** The final words. An interrupted item keeps what it had: the rest was neither heard nor remembered. */
function setText(id, text) {
  const item = this.find(id);
  if (!item || item.status === "interrupted") return [];
  item.text = text;
  return [{ kind: "item", item }];
}

const HANDLERS = {
  "input_audio_buffer.speech_started"() {
    this.callerSpeaking = true;
    return [{ kind: "barge-in" }];
  },
  "input_audio_buffer.speech_stopped"() {
    this.callerSpeaking = false;
    this.awaiting = true;
    return [];
  },
  "input_audio_buffer.committed"(event) {
    this.callerSpeaking = false;
    return [{ kind: "item", item: this.add(event.item_id, "user", { previousId: event.previous_item_id }) }];
  },
  "conversation.item.added"({ item: wire, previous_item_id: previousId }) {
    if (wire.type !== "message" || wire.role === "system") return [];
    const typed = wire.content.some((part) => part.type === "input_text");
    const item = this.add(wire.id, wire.role, { previousId, typed });
    if (typed && item.text === "") {
      item.text = wire.content.map((part) => part.text ?? "").join("");
      item.status = "done";
    }
    return [{ kind: "item", item }];
  },
  "conversation.item.deleted"({ item_id: id }) {
    if (!this.find(id)) return [];
    this.items = this.items.filter((item) => item.id !== id);
    return [{ kind: "gone", id }];
  },
  "conversation.item.input_audio_transcription.delta": addText,
  "conversation.item.input_audio_transcription.completed"({ item_id: id, transcript }) {
    const item = this.find(id);
    if (!item) return [];
    Object.assign(item, { text: transcript.trim(), status: "done" });
    if (item.text === "") {
      item.note ??= "No words were understood.";
      this.awaiting = this.responseId !== null; // the server may leave a noise unanswered
    }
    return [{ kind: "item", item }];
  },
  "conversation.item.input_audio_transcription.failed"({ item_id: id, error }) {
    const item = this.find(id);
    if (!item) return [];
    Object.assign(item, { status: "failed", note: error?.message ?? "This could not be transcribed." });
    return [{ kind: "item", item }];
  },
  "response.created"({ response }) {
    if (response.conversation_id === null) return []; // out of band: not part of what is said
    this.responseId = response.id;
    this.awaiting = true;
    return [];
  },
  "response.output_item.added"({ response_id: responseId, item: wire }) {
    if (wire.type !== "message" || responseId !== this.responseId) return [];
    const item = this.add(wire.id, "assistant");
    this.track(item);
    return [{ kind: "item", item }];
  },
  "response.output_text.delta": addText,
  "response.output_audio_transcript.delta": addText,
  "response.output_text.done"({ item_id: id, text }) {
    return setText.call(this, id, text);
  },
  "response.output_audio_transcript.done"({ item_id: id, transcript }) {
    return setText.call(this, id, transcript);
  },
  "response.output_audio.delta"({ item_id: id, content_index: contentIndex, delta }) {
    const item = this.find(id);
    if (!item || item.status === "interrupted") return []; // late audio of a reply that was cut
    item.contentIndex = contentIndex;
    return [{ kind: "audio", item, base64: delta }];
  },
  "response.output_audio.done"({ item_id: id }) {
    const item = this.find(id);
    return item ? [{ kind: "audio-end", item }] : [];
  },
  "response.done"({ response }) {
    if (response.id !== this.responseId) return [];
    return [...this.endResponse(response), { kind: "response-done" }];
  },
};
