#!/usr/bin/env node
// Ask Orcastream over HTTP from Node 18 or later, and print the answer as it comes, through restarts of gateways:
// no packages, one request, any number of connections.
//
//   node stream.mjs --url http://127.0.0.1:8000,http://127.0.0.1:8001 --model orca-demo "Count from 1 to 300"
//
// Exit status: 0 finished, 1 ended with an error or refused, 2 nobody answered for --patience seconds, 3 the answer is
// no longer what was printed.
import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";
import { setTimeout as sleep } from "node:timers/promises";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string", default: process.env.ORCASTREAM_URL ?? "http://127.0.0.1:8000" },
    model: { type: "string", default: process.env.MODEL ?? "orca-demo" },
    key: { type: "string", default: process.env.ORCASTREAM_API_KEY ?? "" },
    id: { type: "string", default: randomUUID() },
    patience: { type: "string", default: "60" }, // seconds
  },
});
if (positionals.length !== 1) throw new Error('usage: node stream.mjs [--url URL,URL] "a question"');

const SILENCE_MS = 60_000; // a gateway writes at least a comment every 15 s
const PASSING = new Set(["gateway_stopping", "no_worker", "redis_unavailable", "unavailable", "internal_error"]);
PASSING.add("api_keys_unknown").add("not_on_disk");

class Passing extends Error { // may be right at the next attempt, `afterMs` from now at the earliest
  constructor(message, afterMs = 0) {
    super(message);
    this.afterMs = afterMs;
  }
}
class Final extends Error { // is about the request
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// The id of the request is ours: to post it again under it is safe. `chatcmpl-` is how the ids of chats begin.
const id = options.id.startsWith("chatcmpl-") ? options.id : `chatcmpl-${options.id}`;
const state = { accepted: false, lastId: "", printed: "", at: 0 };

/** What comes next in the stream under way; what was printed before, and comes again, is compared and left out. */
function take(text) {
  const overlap = state.printed.slice(state.at, state.at + text.length);
  if (!text.startsWith(overlap)) throw new Final(3, `reply_conflict: ${overlap} was printed and is now ${text}`);
  state.at += text.length;
  state.printed += text.slice(overlap.length);
  process.stdout.write(text.slice(overlap.length));
}

/** The service has forgotten the request: post it again, and expect the answer from its start. */
function forgotten(message) {
  Object.assign(state, { accepted: false, lastId: "" });
  throw new Passing(message);
}

/** One event; true at the end of the answer. */
function dispatch(eventId, data) {
  if (data === "[DONE]") {
    if (state.at < state.printed.length) throw new Final(3, "reply_conflict: the answer is shorter than what was printed");
    return true;
  }
  const event = JSON.parse(data);
  if (event.error) {
    const told = `${event.error.code}: ${event.error.message}`;
    if (event.error.code === "lost") forgotten(told);
    if (PASSING.has(event.error.code)) throw new Passing(told);
    throw new Final(event.error.code === "reply_conflict" ? 3 : 1, told);
  }
  for (const choice of event.choices) take(choice.delta.content ?? "");
  if (eventId) state.lastId = eventId; // only of an event that is whole: see the blank line below
  return false;
}

function request(url, signal) {
  const headers = { "Content-Type": "application/json", ...(options.key && { Authorization: `Bearer ${options.key}` }) };
  if (state.accepted) {
    if (state.lastId) headers["Last-Event-ID"] = state.lastId;
    return fetch(`${url}/v1/requests/${encodeURIComponent(id)}/events`, { headers, signal });
  }
  const messages = [{ role: "user", content: positionals[0] }];
  const body = { model: options.model, messages, temperature: 0, stream: true };
  headers["Idempotency-Key"] = id;
  return fetch(`${url}/v1/chat/completions`, { method: "POST", headers, signal, body: JSON.stringify(body) });
}

/** What an answer other than 200 means. */
async function refused(response) {
  const error = (await response.json().catch(() => ({})))?.error ?? {};
  const told = `HTTP ${response.status} ${error.code ?? ""}: ${error.message ?? response.statusText}`;
  if (response.status === 404 && state.accepted) forgotten(told);
  const passing = response.status === 429 || (response.status >= 500 && response.headers.get("x-should-retry") !== "false");
  if (!passing) throw new Final(1, told);
  throw new Passing(told, 1000 * (Number(response.headers.get("retry-after")) || 0));
}

/** One connection: returns at the end of the answer, throws where it broke off before. */
async function read(url, connected) {
  const silence = new AbortController();
  let alarm = setTimeout(() => silence.abort(), SILENCE_MS);
  try {
    const response = await request(url, silence.signal);
    if (!response.ok) await refused(response);
    state.accepted = true;
    if (!state.lastId) state.at = 0; // it comes from the start
    else state.at = state.printed.length;
    connected();
    let rest = "", eventId = "", data = "";
    for await (const piece of response.body.pipeThrough(new TextDecoderStream())) {
      clearTimeout(alarm);
      alarm = setTimeout(() => silence.abort(), SILENCE_MS);
      const lines = (rest + piece).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("id: ")) eventId = line.slice(4);
        else if (line.startsWith("data: ")) data = line.slice(6);
        else if (line === "" && data) { // of an event that a broken connection cut off, nothing counts
          if (dispatch(eventId, data)) return;
          eventId = data = "";
        }
      }
    }
  } finally {
    clearTimeout(alarm);
    silence.abort();
  }
  throw new Passing("the stream ended before the answer");
}

const urls = options.url.split(",").map((url) => url.replace(/\/$/, ""));
let failingSince = null, pauseMs = 50;
for (let attempt = 0; ; attempt++) {
  const before = state.printed.length;
  try {
    await read(urls[attempt % urls.length], () => (failingSince = null));
    break;
  } catch (error) {
    if (error instanceof Final) {
      console.error(error.message);
      process.exit(error.status);
    }
    // Passing, or a connection that broke: another gateway, after a pause that grows and is never the same for everybody
    failingSince ??= Date.now();
    pauseMs = state.printed.length > before ? 50 : Math.min(2 * pauseMs, 5000);
    const waitMs = Math.max(pauseMs * (0.5 + Math.random() / 2), error.afterMs ?? 0);
    if (Date.now() + waitMs - failingSince > 1000 * Number(options.patience)) {
      console.error(`gave up: ${error.message}`);
      process.exit(2);
    }
    await sleep(waitMs);
  }
}
process.stdout.write("\n");
