// Microphone in: a stream becomes 20 ms frames of pcm16 at the wire's rate.

/** Owns the microphone stream; calls `onFrame(Int16Array, level)` for each 20 ms and `onEnded()` when the device goes away. */
export class Microphone {
  #stream;
  #source;
  #node;

  constructor(context, source, stream, { onFrame, onEnded }) {
    this.#stream = stream;
    this.#source = source;
    this.#node = new AudioWorkletNode(context, "capture", { channelCount: 1, channelCountMode: "explicit" });
    this.#node.port.onmessage = ({ data }) => onFrame(data.samples, data.level);
    for (const track of stream.getAudioTracks()) track.addEventListener("ended", onEnded);
    // The node plays silence: only what leads to the destination is sure to be rendered.
    source.connect(this.#node).connect(context.destination);
  }

  /** A muted microphone goes on delivering frames, of silence: the server's turn detection needs to hear the turn end. */
  set muted(muted) {
    for (const track of this.#stream.getAudioTracks()) track.enabled = !muted;
  }

  close() {
    this.#node.port.onmessage = null;
    this.#source.disconnect();
    this.#node.disconnect();
    for (const track of this.#stream.getTracks()) track.stop();
  }
}
