// Errors in words: what happened and what the person can do about it.

/** What to say about a getUserMedia failure. */
export function microphoneTrouble(error) {
  switch (error.name) {
    case "NotAllowedError":
      return "The microphone is blocked for this page. Allow it in the browser's address bar and start again, or type below.";
    case "NotFoundError":
      return "No microphone was found. Plug one in and start again, or type below.";
    case "NotReadableError":
      return "The microphone is in use by another program. Close that one and start again, or type below.";
    case "NotSupportedError":
      return "Browsers give the microphone only to pages opened over https or on localhost. You can type below.";
    default:
      return `The microphone could not be opened (${error.message}). You can type below.`;
  }
}

/** What to say when a call could not begin on this side. */
export function startTrouble(error) {
  if (error.name === "SyntaxError") return "This API key has characters that a browser cannot send.";
  return `This browser could not start its audio (${error.message}).`;
}

const FULL = "The server is full: every place is taken.";
const LOST = "The connection was lost.";
const KEY = "The server did not accept the API key.";

/** By error code, or by close reason where no error event came; these say more than a close code can. */
const BY_ERROR = {
  capacity_exceeded: { words: FULL, retry: true },
  engine_unavailable: { words: "The server's engine is not available at the moment.", retry: true },
  server_draining: { words: "The server is restarting.", retry: true },
  missing_api_key: { words: "This server asks for an API key.", retry: false, needsKey: true },
  invalid_api_key: { words: KEY, retry: false, needsKey: true },
  session_expired: { words: "The session reached its longest duration.", retry: true },
  slow_consumer: { words: "This page could not keep up with the server's audio.", retry: true },
  model_not_found: { words: "The server does not have this model.", retry: false },
};

/** By close code: RFC 6455 section 7.4, and 4000 for a refused handshake. */
const BY_CLOSE = {
  1001: { words: "The server ended the session.", retry: true },
  1008: { words: "The server refused this session.", retry: false },
  1011: { words: "The server had an internal error and ended this session.", retry: true },
  1012: { words: "The server is restarting.", retry: true },
  1013: { words: FULL, retry: true },
  4000: { words: "The server refused this session.", retry: false },
};

/**
 * `{words, retry, needsKey}` for a socket that closed. `error` is the last `error` event's body or null;
 * `wasLive` tells whether a session had begun.
 */
export function closeTrouble(code, reason, error, wasLive) {
  const fallback = { words: wasLive ? LOST : "The server cannot be reached.", retry: true };
  const known = BY_ERROR[error?.code ?? reason] ?? BY_CLOSE[code] ?? fallback;
  const detail = known.retry || known.needsKey ? "" : error?.message || reason;
  return {
    words: detail ? `${known.words} It said: ${detail}` : known.words,
    retry: known.retry,
    needsKey: known.needsKey ?? false,
  };
}

// A reply that ended while our cancel or our next request was under way: nothing a person needs to know.
const HARMLESS = new Set(["response_cancel_not_active", "conversation_already_has_active_response"]);

/** What to say about an `error` event in a session that goes on; null if nothing. */
export function errorWords(error) {
  if (HARMLESS.has(error.code)) return null;
  if (error.code === "input_audio_buffer_commit_empty") return "Too short: hold the button for as long as you speak.";
  return `The server reported a problem: ${error.message}`;
}

/** How a reply that was not completed ended, in a few words. */
export function endingWords(response) {
  const details = response.status_details;
  if (response.status === "failed") return details?.error?.message ?? "The reply failed.";
  if (response.status === "incomplete") return "The reply was cut at its length limit.";
  return null;
}
