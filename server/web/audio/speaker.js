// Voice out: base64 pcm16 goes to the playback worklet, which owns the jitter buffer and knows what was played.

import { WIRE_HZ, fromBase64 } from "./pcm.js";
import { Resampler } from "./resampler.js";

/** Plays items in order of arrival; `onReport` gets the worklet's reports (see worklets/playback.js). */
export class Speaker {
  #context;
  #node;
  #resampler = null; // of the item now arriving; chunks are converted here, where a long one cannot stall rendering
  #arriving = null; // id of that item
  #flushes = []; // resolvers of flush(), oldest first

  constructor(context, onReport) {
    this.#context = context;
    this.#node = new AudioWorkletNode(context, "playback", { numberOfInputs: 0, outputChannelCount: [1] });
    this.#node.port.onmessage = ({ data }) => {
      if (data.type === "flushed") this.#flushes.shift()?.(data.items);
      else onReport(data);
    };
    this.#node.connect(context.destination);
  }

  /** Queues audio of an item; returns its length in milliseconds. */
  push(itemId, base64) {
    if (this.#arriving !== itemId) {
      this.#arriving = itemId;
      this.#resampler = new Resampler(WIRE_HZ, this.#context.sampleRate);
    }
    const wire = fromBase64(base64);
    const lengthMs = (wire.length / WIRE_HZ) * 1000; // read before the samples are handed over
    this.#post(itemId, this.#resampler.push(wire));
    return lengthMs;
  }

  /** No more audio of this item will come. */
  end(itemId) {
    if (this.#arriving === itemId) {
      this.#post(itemId, this.#resampler.flush());
      this.#arriving = null;
    }
    this.#node.port.postMessage({ type: "end", item: itemId });
  }

  /** Stops at once and forgets what is queued; resolves to `[{item, playedMs}]` of the items that were cut. */
  flush() {
    this.#arriving = null;
    return new Promise((resolve) => {
      this.#flushes.push(resolve);
      this.#node.port.postMessage({ type: "flush" });
    });
  }

  close() {
    this.#node.port.onmessage = null;
    this.#node.disconnect();
    for (const resolve of this.#flushes.splice(0)) resolve([]);
  }

  #post(itemId, samples) {
    if (samples.length === 0) return;
    const whole = samples.byteLength === samples.buffer.byteLength ? samples : samples.slice();
    this.#node.port.postMessage({ type: "audio", item: itemId, samples: whole }, [whole.buffer]);
  }
}
