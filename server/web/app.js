// The page: joins the call to the document. What a test may read is in data attributes; nothing is a global.

import { Call } from "./realtime/call.js";
import { PushToTalk } from "./view/push-to-talk.js";
import { Notice } from "./view/notice.js";
import { Transcript } from "./view/transcript.js";
import { loadModel } from "./view/model.js";
import { startBeat } from "./view/beat.js";

const STATE_WORDS = {
  idle: ["Not connected", "Start a call and talk, or type."],
  connecting: ["Connecting", "One moment."],
  listening: ["Listening", "Go ahead."],
  hearing: ["Hearing you", ""],
  thinking: ["Thinking", "The reply is on its way."],
  speaking: ["Speaking", "Talk to interrupt."],
};

const byId = (id) => document.getElementById(id);
const UI_IDS = ["connect", "talk", "mute", "stop", "key", "key-panel", "state", "hint", "stage", "message", "send", "composer"];
const ui = Object.fromEntries(UI_IDS.map((id) => [id, byId(id)]));
const orb = document.querySelector(".orb");
const transcript = new Transcript(byId("transcript"), byId("announcer"));
const notice = new Notice({ box: byId("notice"), words: byId("notice-words"), retry: byId("retry"), dismiss: byId("dismiss") });
let model = null;

const call = new Call({
  onChange: render,
  onItem: (item) => transcript.show(item, call.conversation.items),
  onGone: (id) => transcript.remove(id),
  onNotice: tell,
  onLevel: showLevel,
  onPlayback: (report) => {
    ui.stage.dataset.audibleSamples = report.audibleSamples;
    ui.stage.dataset.underruns = report.underruns;
  },
});
const beat = startBeat({ canvas: byId("strip"), words: byId("beat-words") });

function hintFor(state) {
  if (call.connection === "waiting") return "Waiting to try again.";
  if (state === "listening" && !call.hasMicrophone) return "Without a microphone: type below.";
  if (state === "listening" && call.mode === "push-to-talk") return "Hold the button, or the space bar, while you speak.";
  if (state === "listening" && call.muted) return "You are muted.";
  if (state === "speaking" && !call.hasMicrophone) return "Type, or stop the reply, to interrupt.";
  if (state === "speaking" && call.mode === "push-to-talk") return "Hold the button to interrupt.";
  return STATE_WORDS[state][1];
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // an equal text set again would be announced again
}

function render() {
  const { state, connection } = call;
  const live = connection === "live";
  document.body.dataset.state = state;
  document.body.dataset.mode = call.mode;
  setText(ui.state, STATE_WORDS[state][0]);
  setText(ui.hint, hintFor(state));
  setText(ui.connect, connection === "idle" ? "Start a call" : live ? "End the call" : "Cancel");
  ui.connect.classList.toggle("quiet", connection !== "idle");
  ui.talk.hidden = !(live && call.mode === "push-to-talk" && call.hasMicrophone);
  ui.talk.setAttribute("aria-pressed", String(call.held));
  setText(ui.talk, call.held ? "Let go when you are done" : "Hold to talk");
  ui.mute.hidden = !(live && call.mode === "hands-free" && call.hasMicrophone);
  ui.mute.setAttribute("aria-pressed", String(call.muted));
  setText(ui.mute, call.muted ? "Unmute" : "Mute");
  ui.stop.hidden = !live;
  ui.stop.disabled = !(call.playing || call.conversation.responseId);
  ui.message.disabled = ui.send.disabled = !live;
  beat.live = live;
  if (live) notice.settle();
}

function tell(words, trouble) {
  notice.show(words, trouble);
  if (!trouble.needsKey) return;
  ui["key-panel"].open = true;
  ui.key.focus();
}

function showLevel(who, level) {
  const shown = call.state === "speaking" ? "voice" : "caller";
  if (who !== shown) return;
  const share = (20 * Math.log10(level + 1e-6) + 50) / 40; // as loudness is heard: -50 dBFS is nothing, -10 dBFS full
  orb.style.setProperty("--level", Math.max(0, Math.min(1, share)).toFixed(2));
}

async function toggleCall() {
  if (call.connection !== "idle") {
    call.hangUp();
    notice.settle();
    return;
  }
  notice.hide();
  const key = ui.key.value.trim();
  beat.key = key;
  const starting = call.start({ key, model: model?.id });
  showModel(key);
  await starting;
}

async function showModel(key) {
  model = (await loadModel(key)) ?? model;
  if (!model) {
    setText(byId("model-name"), "model not known yet");
    return;
  }
  setText(byId("model-name"), model.id);
  byId("model-quality").hidden = !model.quality;
  setText(byId("model-quality"), model.quality ?? "");
}

ui.connect.addEventListener("click", toggleCall);
ui.mute.addEventListener("click", () => call.setMuted(!call.muted));
ui.stop.addEventListener("click", () => call.stopReply());
for (const radio of document.querySelectorAll("input[name=mode]")) {
  radio.addEventListener("change", () => call.setMode(radio.value));
}
ui.composer.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = ui.message.value.trim();
  if (text) call.sendText(text);
  ui.message.value = "";
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && call.connection === "live") call.stopReply();
});
notice.onRetry = () => call.retryNow();
new PushToTalk(ui.talk, { press: () => call.press(), release: () => call.release() });
window.addEventListener("online", () => call.retryNow());
window.addEventListener("pagehide", () => call.hangUp());

showModel("");
render();
