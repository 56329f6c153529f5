// Ask Orcastream, and print the answer as it comes, through restarts of gateways.
//
//   node stream.ts --url http://127.0.0.1:8000,http://127.0.0.1:8001 "Count from 1 to 300"     (Node 22.18 or later)
//   npm install && npx tsc && node build/stream.js "Count from 1 to 300"                       (Node 20 or later)
//
// Exit status: 0 finished, 1 ended with an error or refused, 2 nobody answered for --patience seconds, 3 the answer is
// no longer what was printed.
import { parseArgs } from "node:util";

import { Client, ReplyConflict, RequestFailed, Unavailable } from "./client.ts";

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string", default: process.env.ORCASTREAM_URL ?? "http://127.0.0.1:8000" },
    model: { type: "string", default: process.env.MODEL ?? "orca-demo" },
    key: { type: "string", default: process.env.ORCASTREAM_API_KEY ?? "" },
    patience: { type: "string", default: "60" }, // seconds
  },
});
const [question] = positionals;
if (question === undefined || positionals.length > 1) throw new Error('usage: stream [--url URL,URL] "a question"');

const client = new Client({
  urls: options.url.split(","),
  model: options.model,
  apiKey: options.key,
  patienceMs: 1000 * Number(options.patience),
});
try {
  for await (const { text } of client.chat([{ role: "user", content: question }], { temperature: 0 })) {
    process.stdout.write(text);
  }
  process.stdout.write("\n");
} catch (error) {
  if (!(error instanceof RequestFailed)) throw error;
  console.error(error.message);
  process.exitCode = error instanceof ReplyConflict ? 3 : error instanceof Unavailable ? 2 : 1;
}
