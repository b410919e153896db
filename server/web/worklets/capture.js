// Runs on the audio thread: microphone floats at the context's rate in, 20 ms frames of pcm16 at 24 kHz out.

import { WIRE_HZ, rms, toPcm16 } from "../audio/pcm.js";
import { Resampler } from "../audio/resampler.js";

const FRAME_SAMPLES = (WIRE_HZ * 20) / 1000;

class Capture extends AudioWorkletProcessor {
  #resampler = new Resampler(sampleRate, WIRE_HZ); // `sampleRate` is the context's, a global of this scope
  #frame = new Float32Array(FRAME_SAMPLES);
  #filled = 0;

  process([[channel]]) {
    if (!channel) return true; // the microphone is not connected yet
    for (const value of this.#resampler.push(channel)) {
      this.#frame[this.#filled] = value;
      this.#filled += 1;
      if (this.#filled === FRAME_SAMPLES) this.#deliver();
    }
    return true;
  }

  #deliver() {
    const samples = Int16Array.from(this.#frame, toPcm16);
    this.port.postMessage({ samples, level: rms(this.#frame) }, [samples.buffer]);
    this.#filled = 0;
  }
}

registerProcessor("capture", Capture);
