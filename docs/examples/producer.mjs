#!/usr/bin/env node
// Post one request to Orcastream over Redis from Node, and print its tokens as they come.
//
//   npm install && node producer.mjs --url redis://localhost:6379/0 --model orca-demo "[1, 17, 42]"
//
// Prints one line per run of new tokens, `tokens <choice> <position> [ids]`, then `finished {...}` or `error {...}`.
// Exit status: 0 finished, 1 ended with an error, 2 no end in time, 3 the log contradicts what was already printed,
// 4 not confirmed by Redis.
import { randomUUID } from "node:crypto";
import { parseArgs } from "node:util";
import { setTimeout as sleep } from "node:timers/promises";
import { decode, encode } from "@msgpack/msgpack";
import { createClient, RESP_TYPES } from "redis";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string", default: process.env.REDIS_URL ?? "redis://localhost:6379/0" },
    model: { type: "string", default: process.env.MODEL ?? "orca-demo" },
    namespace: { type: "string", default: "orca" },
    priority: { type: "string", default: "normal" },
    id: { type: "string", default: randomUUID() },
    "max-tokens": { type: "string", default: "64" },
    temperature: { type: "string", default: "0" },
    n: { type: "string", default: "1" },
    deadline: { type: "string", default: "60" }, // seconds from now
  },
});
if (positionals.length !== 1) {
  console.error('usage: node producer.mjs [--model NAME] "[1, 17, 42]"');
  process.exit(4);
}
const prompt = JSON.parse(positionals[0]);
const deadlineMs = Number(options.deadline) * 1000;
const graceMs = 5000; // how much longer than the deadline we wait for the event that says so
const checkMs = 3000; // how often we look whether Redis has lost the request, while nothing comes
const keys = `${options.namespace}:{${options.model}}`;
const stream = `${keys}:requests:${options.priority}`;
const lane = (crc32(options.id) & 0xff).toString(16).padStart(2, "0");
const log = `${options.namespace}:reply:{${lane}}:${options.id}`;

/** CRC-32 as gzip has it; `node:zlib` of Node 18 does not offer it. */
function crc32(text) {
  let crc = -1;
  for (const byte of Buffer.from(text)) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

class Gap extends Error {} // tokens are missing before these
class Conflict extends Error {} // the log disagrees with what was already printed

const printed = new Map(); // choice -> its tokens so far; positions define the reply, not entry ids

/** Print what is new in an event; Gap or Conflict where it does not fit on what is there. */
function fold(event) {
  for (const { choice, position, tokens } of event.output ?? []) {
    if (!printed.has(choice)) printed.set(choice, []);
    const known = printed.get(choice);
    if (position > known.length) throw new Gap();
    const overlap = known.slice(position, position + tokens.length);
    if (overlap.some((token, index) => token !== tokens[index])) throw new Conflict(`choice ${choice}: ${overlap}`);
    const fresh = tokens.slice(overlap.length);
    if (fresh.length > 0) {
      console.log("tokens", choice, known.length, JSON.stringify(fresh));
      known.push(...fresh);
    }
  }
  for (const [choice, ending] of (event.choices ?? []).entries()) {
    const known = printed.get(choice)?.length ?? 0;
    if (ending.tokens > known) throw new Gap();
    if (ending.tokens < known && !event.error) {
      throw new Conflict(`choice ${choice} ended after ${ending.tokens} tokens, there are ${known}`);
    }
  }
}

// No command is repeated behind our back: a repeated XADD would post the request twice.
const entries = []; // of the stream, that are the request
const client = createClient({
  url: options.url,
  RESP: 2,
  disableOfflineQueue: true,
  // Before it has posted, it gives up; afterwards it connects until its deadline.
  socket: { reconnectStrategy: (retries, cause) => (entries.length > 0 ? Math.min(200 * retries, 2000) : cause) },
});
client.on("error", (error) => console.error(`redis: ${error.message}`));
const asBytes = { typeMapping: { [RESP_TYPES.BLOB_STRING]: Buffer } };

/** The fields of the request entry; its deadline is on the server's clock. */
async function entry() {
  const [seconds, microseconds] = (await client.sendCommand(["TIME"])).map(Number);
  const deadline = seconds * 1000 + Math.floor(microseconds / 1000) + deadlineMs;
  const payload = {
    prompt,
    max_tokens: Number(options["max-tokens"]),
    temperature: Number(options.temperature),
    n: Number(options.n),
  };
  const fields = ["id", options.id, "v", "1", "deadline", String(Math.floor(deadline))];
  return [...fields, "payload", Buffer.from(encode(payload))];
}

async function post() {
  entries.push(await client.sendCommand(["XADD", stream, "*", ...fields]));
}

/** No entry of it waits or runs and, read after that, its log has no end. */
async function isLost() {
  const places = entries.map((entryId) => [stream, entryId]);
  const seen = await client.sendCommand(["GET", `${keys}:seen:${options.id}`]);
  if (seen) {
    const [name, entryId] = seen.split(" ");
    places.push([`${keys}:requests:${name}`, entryId]);
  }
  for (const [place, entryId] of places) {
    if ((await client.sendCommand(["XRANGE", place, entryId, entryId])).length > 0) return false;
  }
  const newest = await client.sendCommand(["XRANGE", log, "-", "+"], asBytes);
  return !newest.some(([, [, type]]) => ["finished", "error"].includes(type.toString()));
}

let checked = Date.now(), missed = false;

/** Post it again where Redis has forgotten it, twice in a row: a worker that had it puts it back itself. */
async function look() {
  if (Date.now() - checked < checkMs) return;
  checked = Date.now();
  const before = missed;
  try {
    missed = await isLost();
  } catch (error) {
    if (error.message.startsWith("NOPERM")) return; // who may not read the queue has its deadline
    throw error;
  }
  if (!before || !missed) return;
  console.error("lost by Redis, posted again");
  await post();
}

/** Read the reply log until its terminal; returns the exit status. */
async function follow() {
  const giveUp = Date.now() + deadlineMs + graceMs;
  const holes = new Set();
  let cursor = "0-0";
  while (Date.now() < giveUp) {
    let answer;
    try {
      answer = await client.sendCommand(["XREAD", "COUNT", "100", "BLOCK", "1000", "STREAMS", log, cursor], asBytes);
      if (!answer) await look();
    } catch {
      await sleep(200);
      cursor = "0-0"; // the server may have come back with less than it had: fold from the start
      continue;
    }
    for (const [id, fields] of answer?.[0][1] ?? []) {
      cursor = id.toString();
      const named = new Map();
      for (let index = 0; index < fields.length; index += 2) named.set(fields[index].toString(), fields[index + 1]);
      const type = named.get("type").toString();
      const event = decode(named.get("payload"), { useBigInt64: true }); // the seed has up to 64 bits
      const terminal = type === "finished" || type === "error";
      try {
        fold(event);
      } catch (error) {
        if (!(error instanceof Gap)) throw error;
        if (!holes.has(cursor)) {
          holes.add(cursor);
          cursor = "0-0"; // something is missing: read from the start again
          break;
        }
        if (terminal) throw new Conflict("the log ended with tokens missing");
        continue; // missing in the log itself: a later epoch writes it again
      }
      if (type === "started") console.error(`started by ${event.worker}`);
      if (terminal) {
        delete event.output;
        console.log(type, JSON.stringify(event));
        return type === "error" ? 1 : 0;
      }
    }
  }
  console.error(`no end of ${log} in time`);
  return 2;
}

let fields;
try {
  await client.connect();
  fields = await entry();
  await post();
  process.exitCode = await follow();
} catch (error) {
  if (entries.length > 0 && !(error instanceof Conflict)) throw error;
  console.error(`${entries.length > 0 ? "reply_conflict" : "not confirmed"}: ${error.message}`);
  process.exitCode = entries.length > 0 ? 3 : 4;
} finally {
  if (client.isOpen) client.destroy();
}
