// Runs on the audio thread: the jitter buffer and the playback clock.
//
// In:  {type: "audio", item, samples}   float samples at the context's rate
//      {type: "end", item}              no more audio of this item
//      {type: "flush"}                  stop now
// Out: {type: "report", playing, item, playedMs, bufferedMs, level, audibleSamples, underruns}   20 times a second
//      {type: "finished", item, playedMs}       the whole item was played
//      {type: "flushed", items: [{item, playedMs}]}   the items a flush cut, with what was heard of each
//      {type: "overflow", item}                 past the bound; that chunk is not played
//
// What was played is counted in samples handed to the device. Those still inside the device when a flush comes are
// heard too, so this count is what the listener has heard.

import { rms } from "../audio/pcm.js";

const START_MS = 80; // buffered before an item starts to sound
const MAX_START_MS = 400; // each underrun raises the start mark by half, up to here
const FADE_MS = 5; // a flush fades out this long instead of clicking
const MAX_QUEUED_S = 600; // the bound: a longer answer is cut, never the memory grown
const REPORT_S = 0.05;
const AUDIBLE = 0.001; // -60 dBFS

class Playback extends AudioWorkletProcessor {
  #queue = []; // {item, samples, at}: chunks to play, oldest first
  #items = new Map(); // item -> {played, left, ended}, samples, in playing order; it leaves once ended with none left
  #queued = 0; // samples in #queue
  #playing = false; // false: waiting for the start mark
  #startMs = START_MS;
  #fade = new Float32Array(0); // faded tail of what a flush cut
  #level = 0; // loudest quantum (RMS) since the last report
  #audible = 0; // non-silent samples played since the start
  #underruns = 0;
  #reportedAt = 0; // `currentTime` of the last report

  constructor() {
    super();
    this.port.onmessage = ({ data }) => this.#take(data);
  }

  #take(message) {
    if (message.type === "audio") this.#push(message.item, message.samples);
    else if (message.type === "end") this.#end(message.item);
    else this.#flush();
  }

  #push(item, samples) {
    if (this.#queued + samples.length > MAX_QUEUED_S * sampleRate) {
      this.port.postMessage({ type: "overflow", item });
      return;
    }
    if (!this.#items.has(item)) this.#items.set(item, { played: 0, left: 0, ended: false });
    this.#items.get(item).left += samples.length;
    this.#queue.push({ item, samples, at: 0 });
    this.#queued += samples.length;
  }

  #end(item) {
    const entry = this.#items.get(item);
    if (entry) entry.ended = true;
    this.#retire();
  }

  #flush() {
    const fade = new Float32Array(this.#playing ? (sampleRate * FADE_MS) / 1000 : 0);
    const faded = this.#read(fade);
    this.#fade = fade.subarray(0, faded).map((value, i) => value * (1 - (i + 1) / faded));
    const items = Array.from(this.#items, ([item, entry]) => ({ item, playedMs: this.#ms(entry.played) }));
    this.#items.clear();
    this.#queue = [];
    this.#queued = 0;
    this.#playing = false;
    this.port.postMessage({ type: "flushed", items });
    this.#report();
  }

  process(_inputs, [[output]]) {
    if (this.#fade.length > 0) {
      output.set(this.#fade.subarray(0, output.length));
      this.#fade = this.#fade.subarray(output.length);
    } else if (this.#mayPlay()) {
      this.#level = Math.max(this.#level, this.#play(output));
    }
    if (this.#items.size > 0 && currentTime - this.#reportedAt >= REPORT_S) this.#report();
    return true;
  }

  #mayPlay() {
    if (this.#playing || this.#queued === 0) return this.#playing;
    const nothingToWaitFor = this.#items.get(this.#queue[0].item).ended;
    this.#playing = nothingToWaitFor || this.#ms(this.#queued) >= this.#startMs;
    return this.#playing;
  }

  #play(output) {
    const filled = this.#read(output);
    for (const value of output) if (Math.abs(value) > AUDIBLE) this.#audible += 1;
    this.#retire();
    if (filled < output.length) this.#runDry();
    return rms(output);
  }

  /** The queue is empty: the last item has ended, or the network is late and a longer buffer is called for. */
  #runDry() {
    this.#playing = false;
    if (this.#items.size > 0) {
      this.#underruns += 1;
      this.#startMs = Math.min(MAX_START_MS, this.#startMs * 1.5);
    }
    this.#report();
  }

  /** Moves queued samples into `target`, counting them as played; returns how many. */
  #read(target) {
    let filled = 0;
    while (filled < target.length && this.#queue.length > 0) {
      const chunk = this.#queue[0];
      const part = chunk.samples.subarray(chunk.at, chunk.at + target.length - filled);
      target.set(part, filled);
      filled += part.length;
      chunk.at += part.length;
      const entry = this.#items.get(chunk.item);
      entry.played += part.length;
      entry.left -= part.length;
      if (chunk.at === chunk.samples.length) this.#queue.shift();
    }
    this.#queued -= filled;
    return filled;
  }

  #retire() {
    for (const [item, entry] of this.#items) {
      if (!entry.ended || entry.left > 0) continue;
      this.#items.delete(item);
      this.port.postMessage({ type: "finished", item, playedMs: this.#ms(entry.played) });
    }
  }

  #report() {
    const [item, entry] = this.#items.entries().next().value ?? [null, { played: 0 }];
    this.port.postMessage({
      type: "report",
      playing: this.#playing,
      item,
      playedMs: this.#ms(entry.played),
      bufferedMs: this.#ms(this.#queued),
      level: this.#level,
      audibleSamples: this.#audible,
      underruns: this.#underruns,
    });
    this.#level = 0;
    this.#reportedAt = currentTime;
  }

  #ms(samples) {
    return (samples / sampleRate) * 1000;
  }
}

registerProcessor("playback", Playback);
