// openai-node: the raw event stream over TLS, kept in order by `previous_item_id` and read back item by item.

import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import * as common from './common.mjs';

function connect(baseURL, apiKey) {
  // region: how to point it here
  const client = new OpenAI({ baseURL, apiKey }); // https://127.0.0.1:8000/v1
  return new OpenAIRealtimeWS({ model: 'gpt-realtime' }, client);
  // endregion
}

const WEATHER_TOOL = {
  type: 'function',
  name: 'get_weather',
  description: 'The weather in a city.',
  parameters: {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
  },
};

/** One session. */
class Talk {
  order = []; // item ids
  heard = ''; // what the server understood of the caller
  calls = [];
  events = []; // of the answer under way
  retrieved = null;
  news = new common.News();

  constructor(socket) {
    this.socket = socket;
    socket.on('event', (event) => {
      this.#note(event);
      this.events.push(event);
      this.news.tell();
    });
    socket.on('error', (error) => {
      throw error;
    });
  }

  #note(event) {
    if (event.type === 'conversation.item.added') {
      const after = event.previous_item_id;
      const at = after === null ? 0 : this.order.indexOf(after) + 1;
      this.order.splice(at, 0, event.item.id);
    } else if (event.type === 'conversation.item.input_audio_transcription.completed') {
      this.heard = event.transcript;
    } else if (event.type === 'response.function_call_arguments.done') {
      const { call_id, name } = event;
      this.calls.push({ call_id, name, arguments: event.arguments });
    } else if (event.type === 'conversation.item.retrieved') {
      this.retrieved = event.item;
    }
  }

  saw(type) {
    return this.events.some((event) => event.type === type);
  }

  async until(type) {
    await this.news.until(() => this.saw(type));
  }

  /** The events up to the end of the next answer, as its caller noticed it. */
  async answer() {
    await this.until('response.done');
    const end = this.events.findIndex((event) => event.type === 'response.done');
    const events = this.events.splice(0, end + 1);
    const sound = new common.Sound();
    let words = '';
    let itemWords = '';
    for (const event of events) {
      if (event.type === 'response.output_audio.delta') sound.add(Buffer.from(event.delta, 'base64'));
      if (event.type === 'response.output_audio_transcript.delta') words += event.delta;
      if (event.type === 'response.output_item.done' && event.item.type === 'message') {
        itemWords = event.item.content[0].transcript;
      }
    }
    return common.turn(sound, words, itemWords, { status: events.at(-1).response.status });
  }

  says(text) {
    const content = [{ type: 'input_text', text }];
    this.socket.send({ type: 'conversation.item.create', item: { type: 'message', role: 'user', content } });
    this.socket.send({ type: 'response.create' });
  }

  append(pcm) {
    this.socket.send({ type: 'input_audio_buffer.append', audio: pcm.toString('base64') });
  }

  /** Every message, read back from the server in order. */
  async history() {
    const told = [];
    for (const item_id of this.order) {
      this.retrieved = null;
      this.socket.send({ type: 'conversation.item.retrieve', item_id });
      await this.news.until(() => this.retrieved !== null);
      if (this.retrieved.type !== 'message') continue;
      const [part] = this.retrieved.content;
      told.push([this.retrieved.role, part.text ?? part.transcript]);
    }
    return told;
  }
}

async function bargeIn(talk, speech) {
  for (let tries = 0; tries < common.TRIES; tries += 1) {
    talk.says(common.LONG);
    await talk.until('response.output_audio.delta');
    await common.speak((pcm) => talk.append(pcm), speech);
    const interrupted = await talk.answer();
    const after = await talk.answer();
    if (interrupted.status === 'cancelled') return { ...after, interrupted: true };
  }
  return { interrupted: false };
}

await common.run('openai-node', common.versionOf('openai'), async (baseUrl, key, speech, report) => {
  const first = new Talk(connect(baseUrl, key));
  await first.until('session.created');
  first.socket.send({
    type: 'session.update',
    session: {
      type: 'realtime',
      tools: [WEATHER_TOOL],
      audio: { input: { transcription: { model: 'whisper-1' } } },
    },
  });
  await first.until('session.updated');

  if (!common.ONLY_SPOKEN) {
    first.says(common.TYPED);
    report.typed = await first.answer();
  }

  await common.speak((pcm) => first.append(pcm), speech);
  report.spoken = { ...(await first.answer()), heard: first.heard };
  if (common.ONLY_SPOKEN) return;

  first.says(common.ASK_TOOL);
  await first.answer();
  const item = { type: 'function_call_output', call_id: first.calls[0].call_id, output: common.WEATHER };
  first.socket.send({ type: 'conversation.item.create', item });
  first.socket.send({ type: 'response.create' });
  report.tool = { ...(await first.answer()), calls: first.calls };

  report.barge_in = await bargeIn(first, speech);
  report.history = await first.history();
  first.socket.close();

  const second = new Talk(connect(baseUrl, key));
  await second.until('session.created');
  second.says(common.TYPED);
  report.second = await second.answer();
});
