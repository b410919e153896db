// Loaded first (`node --import`) when a program is to be what a page gets: a WebSocket of the browser's kind, which
// Node 20 lacks. By path, for under the condition "browser" the package `ws` offers none.

import { WebSocket } from './node_modules/ws/wrapper.mjs';

globalThis.WebSocket = WebSocket;
