// Has the Zod schemas of @openai/agents-realtime read every event in a file; prints those they refuse, one a line.

import { readFileSync } from 'node:fs';
// Not exported, hence by path.
import {
  parseRealtimeEvent,
  realtimeServerEventSchema,
} from './node_modules/@openai/agents-realtime/dist/openaiRealtimeEvents.mjs';

for (const text of readFileSync(process.argv[2], 'utf8').split('\n').filter(Boolean)) {
  if (!parseRealtimeEvent({ data: text }).isGeneric) continue;
  const event = JSON.parse(text);
  const { error } = realtimeServerEventSchema.safeParse(event);
  console.log(JSON.stringify({ type: event.type, complaint: error.issues.slice(0, 3) }));
}
