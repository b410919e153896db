// One message at a time, in words, with a countdown where a new attempt follows by itself.

/** Shows notices; `onRetry` is called when the person does not want to wait. */
export class Notice {
  onRetry = () => {};
  #parts;
  #lost = false; // the present notice is about the connection and ends when it is back
  #countdown = 0;

  constructor(parts) {
    this.#parts = parts;
    parts.dismiss.addEventListener("click", () => this.hide());
    parts.retry.addEventListener("click", () => this.onRetry());
  }

  show(words, { lost = false, retryS = null } = {}) {
    clearInterval(this.#countdown);
    this.#lost = lost;
    this.#parts.box.hidden = false;
    this.#parts.words.textContent = retryS === null ? words : `${words} Trying again in ${retryS} s.`;
    this.#parts.retry.hidden = retryS === null;
    this.#parts.retry.textContent = "Try now";
    if (retryS !== null) this.#count(retryS);
  }

  /** The connection is well, or no longer wanted: what was said of it no longer holds. */
  settle() {
    if (this.#lost) this.hide();
  }

  hide() {
    clearInterval(this.#countdown);
    this.#lost = false;
    this.#parts.box.hidden = true;
    this.#parts.words.textContent = "";
  }

  /** Counts on the button, not in the alert, which would be read out each second. */
  #count(seconds) {
    let left = seconds;
    this.#countdown = setInterval(() => {
      left -= 1;
      this.#parts.retry.textContent = left > 0 ? `Try now (${left})` : "Trying…";
      if (left <= 0) clearInterval(this.#countdown);
    }, 1000);
  }
}
