// @openai/agents-realtime: an agent with a tool, and the history that the session keeps.
// Run with `--conditions=browser` it is what a page gets, on Node's own WebSocket, which is the browsers' kind; the key
// goes into a subprotocol.

import { RealtimeAgent, RealtimeSession, tool } from '@openai/agents-realtime';
import { isBrowserEnvironment } from '@openai/agents-realtime/_shims';
import { z } from 'zod';
import * as common from './common.mjs';

const calls = [];
const getWeather = tool({
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: z.object({ city: z.string() }),
  execute: async (args) => {
    calls.push({ name: 'get_weather', arguments: JSON.stringify(args) });
    return common.WEATHER;
  },
});

async function connect(baseUrl, apiKey) {
  const url = `${baseUrl.replace('http', 'ws')}/realtime?model=gpt-realtime`;
  const agent = new RealtimeAgent({ name: 'Metronome', instructions: 'Be brief.', tools: [getWeather] });
  // region: how to point it here
  // const url = 'ws://127.0.0.1:8000/v1/realtime?model=gpt-realtime';
  const session = new RealtimeSession(agent, { transport: 'websocket' });
  await session.connect({ apiKey, url });
  // endregion
  return session;
}

/** What a page's own server gives the page: a key that opens one session. */
async function ephemeralKey(baseUrl, key) {
  const headers = { authorization: `Bearer ${key}`, 'content-type': 'application/json' };
  const answer = await fetch(`${baseUrl}/realtime/client_secrets`, { method: 'POST', headers, body: '{}' });
  return (await answer.json()).value;
}

async function open(baseUrl, key) {
  return connect(baseUrl, isBrowserEnvironment() ? await ephemeralKey(baseUrl, key) : key);
}

/** One session, its events sorted into what a caller notices. */
class Talk {
  news = new common.News();
  interruptions = 0;
  ends = 0; // answers that have ended

  constructor(session) {
    this.session = session;
    this.begin();
    session.on('audio', (event) => this.#tell(() => this.sound.add(event.data)));
    session.on('audio_interrupted', () => this.#tell(() => (this.interruptions += 1)));
    session.on('history_updated', () => this.#tell(() => {}));
    session.on('error', ({ error }) => {
      throw error;
    });
    session.transport.on('turn_started', () => this.begin());
    session.transport.on('audio_transcript_delta', (event) => this.#tell(() => (this.words += event.delta)));
    session.transport.on('turn_done', () => this.#tell(() => (this.ends += 1)));
    session.transport.on('item_update', (item) => this.#tell(() => this.#update(item)));
  }

  #tell(change) {
    change();
    this.news.tell();
  }

  #update(item) {
    if (item.type === 'message' && item.role === 'assistant' && item.status === 'completed') {
      this.itemWords = item.content[0].transcript;
    }
  }

  /** A new answer begins or is expected; how many have ended before it. */
  begin() {
    this.sound = new common.Sound();
    this.words = '';
    this.itemWords = '';
    return this.ends;
  }

  /** What was noticed of the answer that followed the `ended`-th. */
  async answer(ended) {
    await this.news.until(() => this.ends > ended);
    return common.turn(this.sound, this.words, this.itemWords);
  }

  /** The history as the client has it. */
  told() {
    return this.session.history
      .filter((item) => item.type === 'message')
      .map(({ role, content: [part] }) => [role, part?.text ?? part?.transcript ?? '']);
  }
}

async function bargeIn(talk, speech) {
  for (let tries = 0; tries < common.TRIES; tries += 1) {
    const ended = talk.begin();
    const before = talk.interruptions;
    talk.session.sendMessage(common.LONG);
    await talk.news.until(() => talk.sound.length > 0);
    await common.speak((pcm) => talk.session.sendAudio(pcm.buffer), speech);
    await talk.news.until(() => talk.ends > ended);
    const answer = await talk.answer(ended + 1);
    if (talk.interruptions > before) return { ...answer, interrupted: true };
  }
  return { interrupted: false };
}

const where = isBrowserEnvironment() ? 'browser' : 'Node';
const version = common.versionOf('@openai/agents-realtime');
await common.run(`@openai/agents-realtime (${where})`, version, async (baseUrl, key, speech, report) => {
  const first = new Talk(await open(baseUrl, key));
  let ended = first.begin();
  if (!common.ONLY_SPOKEN) {
    first.session.sendMessage(common.TYPED);
    report.typed = await first.answer(ended);
  }

  ended = first.begin();
  await common.speak((pcm) => first.session.sendAudio(pcm.buffer), speech);
  report.spoken = await first.answer(ended);
  await first.news.until(() => first.told().at(-2)[1]);
  report.spoken.heard = first.told().at(-2)[1];
  if (common.ONLY_SPOKEN) return;

  ended = first.begin();
  first.session.sendMessage(common.ASK_TOOL);
  report.tool = { ...(await first.answer(ended + 1)), calls };

  report.barge_in = await bargeIn(first, speech);
  await first.news.until(() => first.told().every(([, words]) => words));
  report.history = first.told();
  first.session.close();

  const second = new Talk(await open(baseUrl, key));
  ended = second.begin();
  second.session.sendMessage(common.TYPED);
  report.second = await second.answer(ended);
});
