// One call: the socket, the microphone, the speaker and the conversation, joined. No DOM.

import { askForMicrophone, openAudio, openContext } from "../audio/graph.js";
import { toBase64 } from "../audio/pcm.js";
import { Conversation } from "./conversation.js";
import { replayed, sessionSettings } from "./session.js";
import { RealtimeSocket } from "./socket.js";
import { errorWords, microphoneTrouble, startTrouble } from "./words.js";

const PRE_ROLL_FRAMES = 10; // 200 ms from before the button was pressed: people speak as they press
const MIN_HOLD_FRAMES = 5; // 100 ms, the least the protocol lets one commit

/**
 * Callbacks: `onChange()` the state moved · `onItem(item)` · `onGone(id)` · `onNotice(words, {lost, needsKey, retryS})` ·
 * `onLevel("caller" | "voice", rms)` · `onPlayback(report)`.
 */
export class Call {
  conversation = new Conversation();
  connection = "idle"; // "idle" · "connecting" · "live" · "waiting" for the next attempt
  mode = "hands-free";
  muted = false;
  held = false; // push to talk: the button is down
  playing = false;
  #callbacks;
  #socket;
  #audio = null; // {speaker, microphone, close} while a call is on; its microphone may be null
  #preRoll = []; // latest frames, push to talk with the button up
  #heldFrames = 0;
  #owesRequest = false; // a response was asked for while another was in progress
  #begun = false; // a session was live before in this call
  #starting = 0; // number of the present start(); a later one or hangUp() outdates it

  constructor(callbacks) {
    this.#callbacks = callbacks;
    this.#socket = new RealtimeSocket({
      onLive: () => this.#begin(),
      onEvent: (event) => this.#receive(event),
      onLost: (trouble) => this.#lost(trouble),
      onCongested: () => callbacks.onNotice("The network is too slow: some of your speech was left out.", {}),
    });
  }

  get hasMicrophone() {
    return Boolean(this.#audio?.microphone);
  }

  /** "idle" · "connecting" · "listening" · "hearing" · "thinking" · "speaking". */
  get state() {
    if (this.connection === "idle") return "idle";
    if (this.connection !== "live") return "connecting";
    if (this.held || this.conversation.callerSpeaking) return "hearing";
    if (this.playing) return "speaking";
    return this.conversation.awaiting ? "thinking" : "listening";
  }

  /** Connects; call it in a user gesture. Without a microphone the call goes on, typed. */
  async start({ key, model }) {
    this.#starting += 1;
    const start = this.#starting;
    for (const { id } of this.conversation.items) this.#callbacks.onGone(id);
    this.conversation = new Conversation();
    this.#become("connecting");
    try {
      const audio = await this.#prepareAudio();
      if (start !== this.#starting) {
        audio.close();
        return;
      }
      this.#audio = audio;
      this.setMuted(this.muted);
      this.#socket.open({ key, model });
    } catch (error) {
      this.hangUp();
      this.#callbacks.onNotice(startTrouble(error), { lost: true, needsKey: error.name === "SyntaxError" });
    }
  }

  hangUp() {
    this.#starting += 1;
    this.#socket.close();
    this.#closeAudio();
    this.conversation.beginSession().forEach((effect) => this.#carryOut(effect));
    this.#begun = false;
    this.held = false;
    this.#become("idle");
  }

  /** Does not wait for the next attempt. */
  retryNow() {
    if (this.connection !== "waiting") return;
    this.#become("connecting");
    this.#socket.retryNow();
  }

  setMode(mode) {
    this.release();
    this.mode = mode;
    this.#preRoll = [];
    this.#socket.send({ type: "session.update", session: sessionSettings(mode) });
    if (mode === "push-to-talk") this.#socket.send({ type: "input_audio_buffer.clear" });
    this.conversation.callerSpeaking = false;
    this.#callbacks.onChange();
  }

  setMuted(muted) {
    this.muted = muted;
    if (this.hasMicrophone) this.#audio.microphone.muted = muted;
    this.#callbacks.onChange();
  }

  /** Push to talk: the button went down. */
  press() {
    if (this.mode !== "push-to-talk" || this.held || this.connection !== "live" || !this.hasMicrophone) return;
    this.stopReply();
    this.held = true;
    this.#socket.send({ type: "input_audio_buffer.clear" });
    for (const frame of this.#preRoll) this.#socket.sendAudio(frame);
    this.#preRoll = [];
    this.#heldFrames = 0;
    this.#callbacks.onChange();
  }

  /** Push to talk: the button came up; what was said is a turn. */
  release() {
    if (!this.held) return;
    this.held = false;
    if (this.#heldFrames < MIN_HOLD_FRAMES) {
      this.#socket.send({ type: "input_audio_buffer.clear" });
      this.#callbacks.onNotice("Hold the button for as long as you speak.", {});
    } else {
      this.#socket.send({ type: "input_audio_buffer.commit" });
      this.#requestReply();
    }
    this.#callbacks.onChange();
  }

  async sendText(text) {
    await this.stopReply(); // what was heard must be settled before the next reply is asked for
    const content = [{ type: "input_text", text }];
    this.#socket.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
    this.#requestReply();
    this.#callbacks.onChange();
  }

  /** Stops the reply in progress and its voice; the server learns what was heard of it. */
  async stopReply() {
    const responseId = this.conversation.responseId;
    if (responseId) this.#socket.send({ type: "response.cancel", response_id: responseId });
    await this.#silence();
  }

  #requestReply() {
    this.conversation.awaiting = true;
    this.#owesRequest = this.conversation.responseId !== null;
    if (!this.#owesRequest) this.#socket.send({ type: "response.create" });
  }

  #begin() {
    this.conversation.beginSession().forEach((effect) => this.#carryOut(effect));
    this.#owesRequest = false;
    this.#socket.send({ type: "session.update", session: sessionSettings(this.mode) });
    if (this.#begun) this.#replay();
    this.#begun = true;
    this.#become("live");
  }

  /** A new session knows nothing of the call so far: tell it. */
  #replay() {
    for (const item of this.conversation.items.map(replayed)) {
      if (item.content[0].text) this.#socket.send({ type: "conversation.item.create", item });
    }
  }

  #receive(event) {
    for (const effect of this.conversation.apply(event)) this.#carryOut(effect);
    if (event.type === "error") {
      const words = errorWords(event.error);
      if (words) this.#callbacks.onNotice(words, {});
    }
    this.#callbacks.onChange();
  }

  #carryOut(effect) {
    const { kind, item } = effect;
    if (kind === "item") this.#callbacks.onItem(item);
    else if (kind === "gone") this.#callbacks.onGone(effect.id);
    else if (kind === "audio") item.receivedMs += this.#audio?.speaker.push(item.id, effect.base64) ?? 0;
    else if (kind === "audio-end") this.#audio?.speaker.end(item.id);
    else if (kind === "barge-in") this.#silence();
    else if (kind === "response-done" && this.#owesRequest) this.#requestReply();
  }

  /** Stops the voice at once; tells the server, for each item that was cut, how much of it was heard. */
  async #silence() {
    for (const effect of this.conversation.cutReply()) this.#carryOut(effect);
    this.playing = false;
    for (const { item: id, playedMs } of (await this.#audio?.speaker.flush()) ?? []) {
      const heardMs = Math.floor(playedMs);
      const contentIndex = this.conversation.find(id)?.contentIndex ?? 0;
      this.#socket.send({ type: "conversation.item.truncate", item_id: id, content_index: contentIndex, audio_end_ms: heardMs });
      for (const effect of this.conversation.heard(id, heardMs)) this.#carryOut(effect);
    }
  }

  #lost(trouble) {
    this.held = false;
    this.#silence();
    this.#callbacks.onNotice(trouble.words, { lost: true, needsKey: trouble.needsKey, retryS: trouble.retryS });
    if (trouble.retryS === null) this.hangUp();
    else this.#become("waiting");
  }

  #become(connection) {
    this.connection = connection;
    this.#callbacks.onChange();
  }

  #hear(samples, level) {
    if (this.connection !== "live") return;
    const listening = this.mode === "hands-free" || this.held;
    this.#callbacks.onLevel("caller", listening ? level : 0);
    const frame = toBase64(samples);
    if (this.held) this.#heldFrames += 1;
    if (listening) this.#socket.sendAudio(frame);
    else this.#preRoll = [...this.#preRoll.slice(1 - PRE_ROLL_FRAMES), frame];
  }

  #report(report) {
    if (report.type === "report") {
      this.playing = report.playing;
      this.#callbacks.onLevel("voice", report.level);
      this.#callbacks.onPlayback(report);
      this.#callbacks.onChange();
    } else if (report.type === "overflow") {
      this.#callbacks.onNotice("The reply is longer than this page can hold; its end will not be heard.", {});
    }
  }

  async #prepareAudio() {
    const context = openContext(); // before anything is awaited: it must begin in the user's gesture
    const stream = await askForMicrophone().catch((error) => {
      this.#callbacks.onNotice(microphoneTrouble(error), {});
      return null;
    });
    return openAudio(context, stream, {
      onFrame: (samples, level) => this.#hear(samples, level),
      onEnded: () => this.#callbacks.onNotice("The microphone was unplugged or taken away. You can type below.", {}),
      onReport: (report) => this.#report(report),
    });
  }

  #closeAudio() {
    this.#audio?.close();
    this.#audio = null;
    this.playing = false;
  }
}
