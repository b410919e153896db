// Polls the server's tick record and keeps the last seconds of it, on the server's clock.

const LIVE_MS = 250;
const IDLE_MS = 1_000;
const TROUBLE_MS = 5_000;
const KEPT_S = 30; // the bound: older ticks are forgotten

/**
 * Ticks as they happen: `{at, kind, outcome, ms}`, `at` in seconds on the server's clock. Callbacks: `onTicks()` after a
 * poll that brought some, `onState("live" | "absent" | "unreachable" | "locked")`.
 */
export class TickFeed {
  ticks = []; // oldest first
  tickMs = null; // length of one tick; null: not known yet
  #callbacks;
  #key = "";
  #next = 0; // first sequence number not seen yet
  #lag = Infinity; // least seen of: this page's clock - newest tick, seconds
  #state = "";
  #live = false;
  #wake = () => {}; // ends the wait for the next poll

  constructor(callbacks) {
    this.#callbacks = callbacks;
  }

  /** The key to send along, "" for none. */
  set key(key) {
    this.#key = key;
    if (this.#state === "locked") this.#state = "";
  }

  /** Whether a call is on: then it polls fast, and at once when that begins. */
  set live(live) {
    if (live && !this.#live) this.#wake();
    this.#live = live;
  }

  /** Now, on the server's clock, in seconds; about: the least delay seen is taken for none. */
  get now() {
    return performance.now() / 1000 - this.#lag;
  }

  /** Polls for ever, except while the page is hidden or lacks a key. Ends where the server has no tick record. */
  async run() {
    while (this.#state !== "absent") {
      const pauses = document.hidden || this.#state === "locked";
      const waitMs = pauses ? IDLE_MS : await this.#poll();
      await new Promise((resolve) => {
        this.#wake = resolve;
        setTimeout(resolve, waitMs);
      });
    }
  }

  /** One poll; returns how long to wait for the next, in ms. */
  async #poll() {
    const url = new URL("v1/metronome/ticks", document.baseURI);
    url.searchParams.set("since", this.#next);
    const headers = this.#key ? { Authorization: `Bearer ${this.#key}` } : {};
    const answer = await fetch(url, { headers, cache: "no-store" }).catch(() => null);
    if (answer?.ok) {
      this.#take(await answer.json());
      this.#report("live");
      return this.#live ? LIVE_MS : IDLE_MS;
    }
    if (!answer) this.#restart(); // it may come back as another process, with another clock
    if (answer?.status === 404) this.#report("absent");
    else this.#report(answer?.status === 401 ? "locked" : "unreachable");
    return TROUBLE_MS;
  }

  #take({ tick_ms: tickMs, next, ticks }) {
    if (next < this.#next) this.#restart(); // started again between two polls
    this.tickMs = tickMs;
    this.#next = next;
    if (ticks.length === 0) return;
    for (const [, at, kind, outcome, ms] of ticks) this.ticks.push({ at, kind, outcome, ms });
    const newest = this.ticks.at(-1).at;
    this.#lag = Math.min(this.#lag, performance.now() / 1000 - newest);
    this.ticks = this.ticks.filter((tick) => tick.at > newest - KEPT_S);
    this.#callbacks.onTicks();
  }

  #restart() {
    this.#next = 0;
    this.ticks = [];
    this.#lag = Infinity;
  }

  #report(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.#callbacks.onState(state);
  }
}
