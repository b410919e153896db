// The connection: one WebSocket at a time, opened again when it is lost and a new attempt can help.

import { closeTrouble } from "./words.js";

const RETRY_S = [1, 2, 4, 8, 15]; // then every 15 s, until the person stops it
const OPEN_TIMEOUT_MS = 10_000; // from the attempt to `session.created`
const STEADY_MS = 10_000; // a session that lasted this long was a success: a server that ends each at once is not pestered
// The bound of audio the network has not taken: about 10 s as base64. Past it frames are left out, and reported.
const MAX_UNSENT_BYTES = 640_000;

/** The session's address beside the page, so that a proxy may serve both under any path. */
export function sessionUrl(model) {
  const url = new URL("v1/realtime", document.baseURI);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  if (model) url.searchParams.set("model", model);
  return url;
}

/**
 * Keeps a session open. Callbacks: `onLive()` when a session has begun, `onEvent(event)` for every server event,
 * `onLost({words, needsKey, retryS})` when it ended by itself (`retryS` null: no new attempt follows),
 * `onCongested()` when audio had to be left out.
 */
export class RealtimeSocket {
  #callbacks;
  #socket = null;
  #target = null; // {key, model}; null: closed, or given up
  #live = false; // `session.created` has arrived on the present socket
  #liveAt = 0; // when, on the page's clock
  #error = null; // last error event of the present socket
  #failures = 0; // attempts since a session was steady
  #timer = 0; // the next attempt, or the present one's deadline

  constructor(callbacks) {
    this.#callbacks = callbacks;
  }

  /** Starts connecting. Raises DOMException `SyntaxError` for a key that cannot travel in a subprotocol. */
  open(target) {
    this.#target = target;
    this.#failures = 0;
    this.#connect();
  }

  get live() {
    return this.#live;
  }

  send(event) {
    if (this.#live) this.#socket.send(JSON.stringify(event));
  }

  /** Sends microphone audio, or leaves it out where the network is seconds behind. */
  sendAudio(base64) {
    if (!this.#live) return;
    if (this.#socket.bufferedAmount > MAX_UNSENT_BYTES) this.#callbacks.onCongested();
    else this.send({ type: "input_audio_buffer.append", audio: base64 });
  }

  retryNow() {
    if (this.#target && !this.#socket) this.#connect();
  }

  close() {
    this.#target = null;
    this.#drop();
  }

  #connect() {
    this.#drop();
    const { key, model } = this.#target;
    const protocols = key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"];
    const socket = new WebSocket(sessionUrl(model), protocols);
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = ({ code, reason }) => this.#lost(code, reason);
    this.#timer = setTimeout(() => this.#lost(1006, ""), OPEN_TIMEOUT_MS);
  }

  #receive(event) {
    if (event.type === "session.created") {
      clearTimeout(this.#timer);
      this.#live = true;
      this.#liveAt = performance.now();
      this.#callbacks.onLive();
    } else if (event.type === "error") {
      this.#error = event.error;
    }
    this.#callbacks.onEvent(event);
  }

  #lost(code, reason) {
    const trouble = closeTrouble(code, reason, this.#error, this.#live);
    if (this.#live && performance.now() - this.#liveAt > STEADY_MS) this.#failures = 0;
    this.#drop();
    if (!trouble.retry) this.#target = null;
    const retryS = trouble.retry ? RETRY_S[Math.min(this.#failures, RETRY_S.length - 1)] : null;
    this.#failures += 1;
    if (retryS !== null) this.#timer = setTimeout(() => this.#connect(), retryS * 1000);
    this.#callbacks.onLost({ words: trouble.words, needsKey: trouble.needsKey, retryS });
  }

  #drop() {
    clearTimeout(this.#timer);
    if (this.#socket) {
      this.#socket.onmessage = null;
      this.#socket.onclose = null;
      this.#socket.close();
    }
    this.#socket = null;
    this.#live = false;
    this.#error = null;
  }
}
