// The transcript: one list entry per turn, rewritten as its words arrive, announced once it is complete.

import { heardText } from "../realtime/session.js";

const SPEAKERS = { user: "You", assistant: "Model" };
const FINISHED = new Set(["done", "interrupted", "failed"]);

/** What stands in for words that have not come. */
function placeholder(item) {
  if (item.status !== "pending") return "";
  return item.role === "user" ? "Writing down what you said…" : "…";
}

/** How an interrupted item ended, in words. */
function interruption(item) {
  if (item.heardMs === null) return "Interrupted.";
  return `Interrupted after ${(item.heardMs / 1000).toFixed(1)} s; the faded words were not heard.`;
}

function element(tag, className, text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

/** Draws items into an ordered list; speaks finished ones through a polite live region. */
export class Transcript {
  #list;
  #announcer;
  #entries = new Map(); // item id -> list entry
  #announced = new Set(); // ids
  #follows = true; // the end is in view, and is to stay so

  constructor(list, announcer) {
    this.#list = list;
    this.#announcer = announcer;
    list.addEventListener("scroll", () => (this.#follows = this.#isAtEnd), { passive: true });
    // A message above the list, a phone turned round: what was said last stays in view.
    new ResizeObserver(() => this.#follow()).observe(list);
  }

  get #isAtEnd() {
    return this.#list.scrollHeight - this.#list.scrollTop - this.#list.clientHeight < 80;
  }

  #follow() {
    if (this.#follows) this.#list.scrollTop = this.#list.scrollHeight;
  }

  /** Draws one item at its place in `items`. */
  show(item, items) {
    const entry = this.#entries.get(item.id) ?? this.#insert(item, items);
    const heard = heardText(item);
    entry.dataset.status = item.status;
    entry.setAttribute("aria-busy", String(!FINISHED.has(item.status)));
    entry.querySelector(".heard").textContent = heard || placeholder(item);
    entry.querySelector(".unheard").textContent = item.text.slice(heard.length);
    entry.querySelector(".note").textContent = item.note ?? (item.status === "interrupted" ? interruption(item) : "");
    this.#announce(item, heard);
    this.#follow();
  }

  remove(id) {
    this.#entries.get(id)?.remove();
    this.#entries.delete(id);
    this.#announced.delete(id);
  }

  #insert(item, items) {
    const entry = element("li", "turn");
    entry.dataset.role = item.role;
    entry.dataset.itemId = item.id;
    const words = element("p", "words");
    words.append(element("span", "heard"), element("span", "unheard"));
    entry.append(element("p", "speaker", SPEAKERS[item.role] ?? item.role), words, element("p", "note"));
    const next = items[items.indexOf(item) + 1];
    this.#list.insertBefore(entry, this.#entries.get(next?.id) ?? null);
    this.#entries.set(item.id, entry);
    return entry;
  }

  #announce(item, heard) {
    if (!FINISHED.has(item.status) || this.#announced.has(item.id) || heard === "") return;
    this.#announced.add(item.id);
    this.#announcer.textContent = `${SPEAKERS[item.role] ?? item.role}: ${heard}`;
  }
}
