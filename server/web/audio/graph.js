// The audio graph's start: one AudioContext for both directions, so that the browser's echo canceller knows what is played.

import { Microphone } from "./microphone.js";
import { WIRE_HZ } from "./pcm.js";
import { Speaker } from "./speaker.js";

const CAPTURE_WORKLET = new URL("../worklets/capture.js", import.meta.url);
const PLAYBACK_WORKLET = new URL("../worklets/playback.js", import.meta.url);

const MICROPHONE = {
  audio: { channelCount: 1, echoCancellation: true, noiseSuppression: true, autoGainControl: true },
};

/** A microphone stream. Raises DOMException as getUserMedia does; `NotSupportedError` on a page that is not secure. */
export async function askForMicrophone() {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new DOMException("no microphone access on this page", "NotSupportedError");
  }
  return navigator.mediaDevices.getUserMedia(MICROPHONE);
}

/** An AudioContext at the wire's rate, or at the device's own where the browser refuses that. Call it in a user gesture. */
export function openContext() {
  try {
    return new AudioContext({ sampleRate: WIRE_HZ, latencyHint: "interactive" });
  } catch {
    return new AudioContext({ latencyHint: "interactive" });
  }
}

/**
 * `{speaker, microphone, close}` on a context; `microphone` is null where `stream` is. Callbacks: `onFrame` and `onEnded`
 * of the microphone, `onReport` of the speaker.
 */
export async function openAudio(context, stream, { onFrame, onEnded, onReport }) {
  const joined = stream ? await joinMicrophone(context, stream) : { context, source: null };
  await loadWorklets(joined.context);
  joined.context.resume(); // not awaited: where sound is not allowed yet, this waits for the next gesture
  const speaker = new Speaker(joined.context, onReport);
  const microphone = stream && new Microphone(joined.context, joined.source, stream, { onFrame, onEnded });
  const close = () => {
    microphone?.close();
    speaker.close();
    joined.context.close();
  };
  return { speaker, microphone, close };
}

/**
 * `{context, source}`: the microphone as a node. Some Firefox versions refuse to join a microphone to a context of
 * another rate (bugzilla 1674892): then a context at the device's rate replaces the given one.
 */
async function joinMicrophone(context, stream) {
  try {
    return { context, source: context.createMediaStreamSource(stream) };
  } catch {
    await context.close();
    const native = new AudioContext({ latencyHint: "interactive" });
    return { context: native, source: native.createMediaStreamSource(stream) };
  }
}

/** Loads both worklets into a context. */
async function loadWorklets(context) {
  await Promise.all([
    context.audioWorklet.addModule(CAPTURE_WORKLET),
    context.audioWorklet.addModule(PLAYBACK_WORKLET),
  ]);
}
