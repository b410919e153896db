// The talk button: held by pointer or key; the space bar works anywhere but in a field or on another control.

const TAKES_SPACE = "input, textarea, select, button, summary, a, [contenteditable]";

/** Calls `press()` and `release()`. Where a tool clicks without holding (screen readers, switches), each click toggles. */
export class PushToTalk {
  #button;
  #actions;
  #down = false;

  constructor(button, actions) {
    this.#button = button;
    this.#actions = actions;
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this.#set(true);
    });
    for (const type of ["pointerup", "pointercancel", "blur"]) button.addEventListener(type, () => this.#set(false));
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // a long touch would open one
    button.addEventListener("click", (event) => {
      if (event.detail === 0) this.#set(!this.#down); // no pointer and, by #key, no key: a tool's own click
    });
    document.addEventListener("keydown", (event) => this.#key(event, true));
    document.addEventListener("keyup", (event) => this.#key(event, false));
    window.addEventListener("blur", () => this.#set(false));
  }

  #key(event, down) {
    if (this.#button.hidden || event.repeat) return;
    const onButton = event.target === this.#button && (event.key === " " || event.key === "Enter");
    const anywhere = event.key === " " && !event.target.closest(TAKES_SPACE);
    if (!onButton && !anywhere) return;
    event.preventDefault();
    this.#set(down);
  }

  #set(down) {
    if (down === this.#down) return;
    this.#down = down;
    if (down) this.#actions.press();
    else this.#actions.release();
  }
}
