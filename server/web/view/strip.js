// The strip: every tick of the last seconds as a bar as high as its latency, against the line it has to keep under.
// A speaking tick of a turn-based model owes that playback stays ahead; it is judged at its end and has no latency of its
// own, so its bar is of one low height.

const WINDOW_S = 15;
const EDGE_S = 0.4; // drawn this far behind now, so that a poll's ticks glide in instead of jumping
const TOP_TICKS = 2; // height of the strip, in ticks
const BAR_PX = 3;
const SPEAK_PX = 10; // height of a speaking tick that kept ahead
const COLOURS = { on_time: "--on-time", spoken: "--spoken", late: "--late", empty: "--empty", dropped: "--dropped" };

/** The middle value of numbers, 0 for none. */
function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? 0;
}

/** What the strip shows, counted: `{ticks, late, empty, dropped, onTimePercent, typicalMs, worstMs}`. */
export function summary(ticks) {
  const count = (outcome) => ticks.filter((tick) => tick.outcome === outcome).length;
  const latencies = ticks.filter((tick) => tick.kind !== "speak").map((tick) => tick.ms);
  return {
    ticks: ticks.length,
    late: count("late"),
    empty: count("empty"),
    dropped: count("dropped"),
    onTimePercent: ticks.length ? (100 * count("on_time")) / ticks.length : 100,
    typicalMs: median(latencies),
    worstMs: Math.max(0, ...latencies),
  };
}

/** Draws a feed's ticks on a canvas; glides, unless motion is to be reduced. */
export class Strip {
  #canvas;
  #feed;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");
  #gliding = false;

  constructor(canvas, feed) {
    this.#canvas = canvas;
    this.#feed = feed;
    new ResizeObserver(() => this.#draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Ticks of the window now shown. */
  get shown() {
    const from = this.#edge - WINDOW_S;
    return this.#feed.ticks.filter((tick) => tick.at > from);
  }

  /** New ticks have come. */
  refresh() {
    if (this.#calm.matches) this.#draw();
    else if (!this.#gliding) this.#glide();
  }

  get #edge() {
    return this.#calm.matches ? (this.#feed.ticks.at(-1)?.at ?? 0) : this.#feed.now - EDGE_S;
  }

  #glide() {
    this.#draw();
    this.#gliding = this.shown.length > 0 && !document.hidden;
    if (this.#gliding) requestAnimationFrame(() => this.#glide());
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const scale = devicePixelRatio;
    this.#canvas.width = Math.round(width * scale);
    this.#canvas.height = Math.round(height * scale);
    const pen = this.#canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(this.#canvas);
    this.#drawLine(pen, style, width, height);
    // Misses last, on top: one late tick among many sessions must not hide.
    const shown = this.shown.toSorted((a, b) => Number(b.outcome === "on_time") - Number(a.outcome === "on_time"));
    for (const tick of shown) {
      const x = width * (1 - (this.#edge - tick.at) / WINDOW_S);
      this.#drawTick(pen, style, tick, x, height);
    }
  }

  #drawLine(pen, style, width, height) {
    const y = Math.round(height * (1 - 1 / TOP_TICKS)) + 0.5;
    pen.strokeStyle = style.getPropertyValue("--line");
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.moveTo(0, y);
    pen.lineTo(width, y);
    pen.stroke();
    pen.setLineDash([]);
  }

  /** On time: a solid bar. A miss also differs in shape: its bar is full height with a cross, and hollow if nothing came. */
  #drawTick(pen, style, tick, x, height) {
    const kept = tick.outcome === "on_time";
    const spoken = kept && tick.kind === "speak";
    const colour = style.getPropertyValue(COLOURS[spoken ? "spoken" : tick.outcome] ?? "--late");
    pen.fillStyle = colour;
    pen.strokeStyle = colour;
    if (kept) {
      const share = tick.ms / (this.#feed.tickMs * TOP_TICKS);
      const top = spoken ? SPEAK_PX : height * Math.min(1, Math.max(0.04, share));
      pen.fillRect(x - BAR_PX / 2, height - top, BAR_PX, top);
      return;
    }
    if (tick.outcome === "late") pen.fillRect(x - BAR_PX / 2, 12, BAR_PX, height - 12);
    else pen.strokeRect(x - BAR_PX / 2, 12, BAR_PX, height - 12);
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.moveTo(x - 4, 2);
    pen.lineTo(x + 4, 10);
    pen.moveTo(x + 4, 2);
    pen.lineTo(x - 4, 10);
    pen.stroke();
  }
}
