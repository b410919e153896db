// Sample formats: the wire carries mono pcm16, little endian, 24 kHz, as base64; Web Audio wants floats.
// Every browser runs on little-endian machines, so Int16Array is the wire layout.

/** Sample rate on the wire, Hz. */
export const WIRE_HZ = 24_000;

// String.fromCharCode takes its bytes as arguments; engines limit their number.
const BYTES_PER_CALL = 0x8000;

/** Base64 text of pcm16 samples. */
export function toBase64(samples) {
  const bytes = new Uint8Array(samples.buffer, samples.byteOffset, samples.byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += BYTES_PER_CALL) {
    text += String.fromCharCode(...bytes.subarray(at, at + BYTES_PER_CALL));
  }
  return btoa(text);
}

/** Float samples in [-1, 1) of base64 pcm16; an odd last byte is left out. */
export function fromBase64(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length & ~1);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return toFloat(new Int16Array(bytes.buffer));
}

/** Float samples of pcm16 samples. */
export function toFloat(samples) {
  const floats = new Float32Array(samples.length);
  for (let i = 0; i < samples.length; i += 1) floats[i] = samples[i] / 32_768;
  return floats;
}

/** One float sample as pcm16, clipped. */
export function toPcm16(value) {
  return Math.max(-32_768, Math.min(32_767, Math.round(value * 32_768)));
}

/** Root mean square of float samples. */
export function rms(samples) {
  let sum = 0;
  for (const value of samples) sum += value * value;
  return samples.length ? Math.sqrt(sum / samples.length) : 0;
}
