// The beat panel: feed, strip and its words.

import { TickFeed } from "./feed.js";
import { Strip, summary } from "./strip.js";

const TROUBLE = {
  absent: "This server does not publish its ticks.",
  unreachable: "The server's ticks cannot be read at the moment.",
  locked: "The server's ticks need the API key.",
};

const ms = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;

function describe(tickMs, { ticks, late, empty, dropped, onTimePercent, typicalMs, worstMs }) {
  const percent = onTimePercent === 100 ? "100" : onTimePercent.toFixed(1);
  const parts = [`Every ${tickMs} ms`, `${ticks} ticks, ${percent} % on time`, `${late} late`, `${empty} empty`];
  if (dropped) parts.push(`${dropped} dropped`);
  parts.push(`heard after ${ms(typicalMs)}, at most ${ms(worstMs)}`);
  return parts.join(" · ");
}

/** Starts the panel; returns the feed, whose `live` and `key` follow the call. */
export function startBeat({ canvas, words }) {
  const feed = new TickFeed({
    onTicks: () => {
      strip.refresh();
      const shown = summary(strip.shown);
      canvas.dataset.ticks = shown.ticks;
      canvas.dataset.misses = shown.late + shown.empty + shown.dropped;
      words.textContent = describe(feed.tickMs, shown);
    },
    onState: (state) => {
      canvas.dataset.feed = state;
      if (TROUBLE[state]) words.textContent = TROUBLE[state];
    },
  });
  const strip = new Strip(canvas, feed);
  feed.run();
  return feed;
}
