// The gateway's API: the key, calls, and streams of server-sent events.

import { $, sleep } from "./dom.js";

let key = null;
let asking = null;

const address = (path) => new URL(`..${path}`, import.meta.url);

/** The gateway's error response: `status`, and OpenAI's `code` and `message`. */
export class Refused extends Error {
  constructor(status, error, retryAfter) {
    super(error?.message ?? `status ${status}`);
    Object.assign(this, { status, code: error?.code ?? null, retryAfter });
  }
}

/** Fetch; asks for the key if one is required. Throws Refused, or TypeError if nobody answers. */
export async function call(path, { headers = {}, ...options } = {}) {
  for (;;) {
    const used = key;
    const all = used === null ? headers : { ...headers, Authorization: `Bearer ${used}` };
    const response = await fetch(address(path), { ...options, headers: all, credentials: "omit" });
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({}));
    if (response.status !== 401) throw new Refused(response.status, error, response.headers.get("retry-after"));
    if (used === key) await askForKey(used !== null);
  }
}

export const post = (path, body, options = {}) =>
  call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...options });

/** One dialog, however many calls wait for it. */
function askForKey(wasWrong) {
  asking ??= new Promise((done) => {
    const dialog = $("key");
    $("wrong").hidden = !wasWrong;
    $("secret").value = "";
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      key = $("secret").value.trim();
      $("secret").value = "";
      asking = null;
      done();
    }, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** The events of a response: `{ id, data }`; ends when the response does, throws when it is interrupted. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = { data: [] };
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data.length) yield { id: event.id, data: event.data.join("\n") };
          event = { data: [] };
        } else {
          const [, name, text] = /^([^:]*):? ?(.*)$/.exec(line); // a comment has no name
          if (name === "data") event.data.push(text);
          else if (name === "id") event.id = text;
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** A browser opens at most six connections to one server, so streams take turns, those with `isUrgent` first. */
export class Turns {
  #free = 4;
  #waiting = [];

  async take(who) {
    if (this.#free > 0) this.#free -= 1;
    else await new Promise((begin) => this.#waiting.push({ who, begin }));
  }

  give() {
    const urgent = this.#waiting.findIndex(({ who }) => who.isUrgent);
    const [next] = this.#waiting.splice(Math.max(0, urgent), 1);
    if (next) next.begin();
    else this.#free += 1;
  }

  /** Whether a stream that has had its turn for `ms` should make way for a waiting one. */
  presses(ms) { return this.#waiting.length > 0 && (ms > 400 || this.#waiting.some(({ who }) => who.isUrgent)); }
}

/** Pauses between retries: longer each time, with jitter. */
export class BackOff {
  #ms = 400;
  succeeded() { this.#ms = 400; }
  async failed(leastMs = 0) {
    const ms = Math.max(leastMs, this.#ms * (0.75 + Math.random() / 2));
    this.#ms = Math.min(this.#ms * 1.7, 5000);
    await sleep(ms);
  }
}
