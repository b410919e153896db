// What the Node client programs share; the same conversation as in ../programs/common.py, which says what it consists
// of. A program is called `PROGRAM BASE_URL API_KEY SPEECH_FILE [spoken]` and prints its report, JSON, as its last line.

import { readFileSync } from 'node:fs';

const RATE = 24_000; // Hz, pcm16 mono
const CHUNK_MS = 50;
const TIMEOUT_S = 300;

export const ONLY_SPOKEN = process.argv[5] === 'spoken';
const PACE = ONLY_SPOKEN ? 1 : 4; // times as fast as life

export const TRIES = 8; // questions until an answer is long enough to be interrupted
export const TYPED = 'Tell me something about rivers.';
export const ASK_TOOL = 'Please use get_weather for Paris.';
export const LONG = 'Tell me a long story, please.';
export const WEATHER = 'It is foggy in Paris.';

/** Audio as it arrives. */
export class Sound {
  #pieces = [];

  add(pcm) {
    this.#pieces.push(Buffer.from(pcm));
  }

  get length() {
    return this.#pieces.reduce((sum, piece) => sum + piece.length, 0);
  }

  /** Root mean square, 0-1. */
  get loudness() {
    const pcm = Buffer.concat(this.#pieces);
    let sum = 0;
    let count = 0;
    for (let at = 0; at + 1 < pcm.length; at += 14) {
      sum += pcm.readInt16LE(at) ** 2;
      count += 1;
    }
    return count ? Math.sqrt(sum / count) / 32_768 : 0;
  }
}

/** One answer as its caller noticed it: how it sounded, what was streamed and what the item says. */
export function turn(sound, words, itemWords, more = {}) {
  return {
    audio_s: sound.length / 2 / RATE,
    loudness: sound.loudness,
    words,
    item_words: itemWords,
    ...more,
  };
}

/** Say something into the microphone and then be silent for a second. */
export async function speak(send, pcm) {
  const size = ((RATE * CHUNK_MS) / 1000) * 2;
  for (let start = 0; start < pcm.length + RATE * 2; start += size) {
    const chunk = Buffer.alloc(size);
    pcm.subarray(start, start + size).copy(chunk);
    send(chunk);
    await new Promise((resolve) => setTimeout(resolve, CHUNK_MS / PACE));
  }
}

/** Lets one part of a program wait for what another is told. */
export class News {
  #waiting = [];

  tell() {
    const waiting = this.#waiting;
    this.#waiting = [];
    waiting.forEach((resolve) => resolve());
  }

  async until(condition) {
    while (!condition()) await new Promise((resolve) => this.#waiting.push(resolve));
  }
}

/** Run a program and print its report, whole or as far as it came. */
export async function run(client, version, program) {
  const [baseUrl, key, speechFile] = process.argv.slice(2);
  const report = { client, version };
  const timer = setTimeout(() => fail(report, new Error(`not done in ${TIMEOUT_S} s`)), TIMEOUT_S * 1000);
  process.on('unhandledRejection', (error) => fail(report, error));
  process.on('uncaughtException', (error) => fail(report, error));
  await program(baseUrl, key, readFileSync(speechFile), report);
  clearTimeout(timer);
  console.log(JSON.stringify(report));
  process.exit(0);
}

function fail(report, error) {
  console.error(error);
  console.log(JSON.stringify(report));
  process.exit(1);
}

/** The version of an installed package. */
export function versionOf(name) {
  const file = new URL(`./node_modules/${name}/package.json`, import.meta.url);
  return JSON.parse(readFileSync(file, 'utf8')).version;
}
