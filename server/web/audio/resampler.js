// A streaming, band-limited resampler: a Kaiser-windowed sinc read at fractional positions. Used only where the
// browser cannot run its audio graph at the wire's rate.
//
// The buffer, in input samples:  [0, at - half)  no longer needed · [at - half, at + half]  under the kernel · rest  to come

const ZERO_CROSSINGS = 16; // each side; transition band about 10 % of the lower rate
const PHASES = 128; // rows of the kernel table; positions between rows are interpolated linearly
const KAISER_BETA = 8; // about 80 dB of stop-band attenuation
const PASS_BAND = 0.92; // of the lower Nyquist frequency, leaving room for the transition band

/** Modified Bessel function of the first kind, order zero, by its power series. */
function bessel0(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; term > sum * 1e-12; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/** Kernel rows for positions 0, 1/PHASES, … 1 between two input samples; each row sums to 1. */
function kernelTable(half, cutoff) {
  const rows = [];
  const edge = bessel0(KAISER_BETA);
  for (let phase = 0; phase <= PHASES; phase += 1) {
    const row = new Float32Array(2 * half);
    let sum = 0;
    for (let tap = 0; tap < row.length; tap += 1) {
      const x = tap - (half - 1) - phase / PHASES;
      const inside = Math.max(0, 1 - (x / half) ** 2);
      const sinc = x === 0 ? cutoff : Math.sin(Math.PI * cutoff * x) / (Math.PI * x);
      row[tap] = (sinc * bessel0(KAISER_BETA * Math.sqrt(inside))) / edge;
      sum += row[tap];
    }
    for (let tap = 0; tap < row.length; tap += 1) row[tap] /= sum;
    rows.push(row);
  }
  return rows;
}

/** Converts a stream of float samples from one rate to another; equal rates pass through untouched. */
export class Resampler {
  #step; // input samples per output sample
  #half; // kernel half width, input samples
  #rows; // kernel table
  #kept; // input samples still under the kernel
  #at; // position of the next output in #kept

  constructor(fromHz, toHz) {
    this.#step = fromHz / toHz;
    const scale = Math.min(1, toHz / fromHz);
    this.#half = Math.ceil(ZERO_CROSSINGS / scale);
    this.#rows = fromHz === toHz ? null : kernelTable(this.#half, PASS_BAND * scale);
    this.#kept = new Float32Array(this.#half - 1);
    this.#at = this.#half - 1;
  }

  /** Output samples that the input so far determines. */
  push(input) {
    if (this.#rows === null) return input;
    const data = new Float32Array(this.#kept.length + input.length);
    data.set(this.#kept);
    data.set(input, this.#kept.length);
    const ready = data.length - this.#half - this.#at;
    const output = new Float32Array(Math.max(0, Math.ceil(ready / this.#step)));
    for (let i = 0; i < output.length; i += 1) {
      output[i] = this.#sampleAt(data, this.#at);
      this.#at += this.#step;
    }
    const drop = Math.floor(this.#at) - this.#half + 1;
    this.#kept = data.slice(drop);
    this.#at -= drop;
    return output;
  }

  /** The last output samples, once no input follows. */
  flush() {
    return this.#rows === null ? new Float32Array(0) : this.push(new Float32Array(this.#half));
  }

  #sampleAt(data, position) {
    const whole = Math.floor(position);
    const between = (position - whole) * PHASES;
    const phase = Math.floor(between);
    const share = between - phase;
    const low = this.#rows[phase];
    const high = this.#rows[Math.min(PHASES, phase + 1)];
    let sum = 0;
    for (let tap = 0, at = whole - this.#half + 1; tap < low.length; tap += 1, at += 1) {
      sum += data[at] * (low[tap] + share * (high[tap] - low[tap]));
    }
    return sum;
  }
}
