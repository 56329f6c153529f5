// The playground: sends several prompts at once over the gateway's API; each answer is complete despite broken connections.

import { BackOff, Refused, Turns, call, events, post } from "./api.js";
import { coloursOf } from "./colours.js";
import { $, make } from "./dom.js";

const KEPT = 80;
const turns = new Turns();
const DEMO = [
  "Count from 1 to 100", "Spell orca", "What is iteration-level scheduling?", "Count down from 20 to 1", "What is 7 + 5?",
  "List the days of the week", "What is selective batching?", "Count from 40 to 52", "What is a reply log?",
  "How many days are in September?", "What happens when a worker is killed?", "Count from 1 to 60",
];
const ANY = [
  "Explain continuous batching in three sentences.", "Write a haiku about the sea.", "Name five uses of a paper clip.",
  "What is the capital of Portugal?", "Count from 1 to 50.", "Tell a short story about an orca.", "Say hello in ten languages.",
  "What is a message queue?",
];

const newId = () => `console-${[...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;

/** The feed's key of the request with this id: the start of the id's SHA-256; null if that cannot be computed. */
async function keyOf(id) {
  if (!crypto.subtle) return null;
  const hash = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(id));
  return [...new Uint8Array(hash)].map((byte) => byte.toString(16).padStart(2, "0")).join("").slice(0, 12);
}

/** One prompt and its answer. */
class Answer {
  text = ""; tokens = 0; state = "waiting"; error = null; workers = []; asked = performance.now(); first = null; last = null;
  id = null; // the service's, once it has accepted the request
  hasEnded = false; // at the service; its last events may still be unread
  #ownId = newId();
  #lastEvent = ""; #stopped = false; #cancelling = false;

  /** `changed` is called on every change, `accepted` once the id is known. */
  constructor(prompt, changed, accepted) {
    Object.assign(this, { prompt, changed, accepted });
  }

  get isOpen() { return !["done", "failed", "cancelled"].includes(this.state); }

  /** It has not been sent yet, or its remaining events are read quickly. */
  get isUrgent() { return this.id === null || this.hasEnded; }

  /** Send the prompt and read in turns; after an interruption resume after the last event, at whichever gateway answers. */
  async run(body) {
    const backOff = new BackOff();
    while (this.isOpen) {
      await turns.take(this);
      let failure = null;
      try {
        if (this.isOpen) await this.#turn(body, backOff);
      } catch (error) {
        failure = error;
      }
      turns.give();
      if (failure !== null && this.isOpen) await this.#broke(failure, backOff);
    }
  }

  async #turn(body, backOff) {
    const stop = new AbortController();
    const begun = performance.now();
    const watch = setInterval(() => !this.isUrgent && turns.presses(performance.now() - begun) && stop.abort(), 50);
    try {
      const response = await this.#open(body, stop.signal);
      if (this.state === "reconnecting") this.#become(this.text ? "streaming" : "waiting");
      for await (const event of events(response)) {
        backOff.succeeded();
        this.#take(event);
      }
      if (this.isOpen) throw new TypeError("the stream was interrupted");
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    } finally {
      clearInterval(watch);
    }
  }

  async #open(body, signal) {
    if (this.id !== null) {
      const headers = this.#lastEvent ? { "Last-Event-ID": this.#lastEvent } : {};
      return call(`/v1/requests/${this.id}/events?include_usage=true`, { headers, signal });
    }
    const asked = { ...body, request_id: this.#ownId, stream: true, on_disconnect: "continue" };
    const response = await post("/v1/chat/completions", asked, { signal });
    this.id = response.headers.get("X-Request-Id");
    await this.accepted(this);
    return response;
  }

  async #broke(error, backOff) {
    const isPassing = error instanceof TypeError || error.status === 503 || error.status === 429;
    if (!isPassing) return this.#fail(error.code, error.message);
    if (this.#stopped) return this.#become("cancelled");
    if (error.status !== 429) this.#become("reconnecting");
    await backOff.failed(1000 * (error.retryAfter ?? 0));
  }

  /** `isLast`: the page is closing. */
  async cancel(isLast = false) {
    if (!this.isOpen || this.#cancelling) return;
    this.#stopped = true;
    if (this.id === null) return this.#become("cancelled");
    this.#cancelling = true;
    try {
      await call(`/v1/requests/${this.id}`, { method: "DELETE", keepalive: isLast });
    } catch (error) {
      if (!(error instanceof Refused && error.status === 404)) this.#stopped = false;
    }
    this.#cancelling = false;
  }

  #take({ id, data }) {
    if (data === "[DONE]") return this.#become("done");
    const chunk = JSON.parse(data);
    this.#lastEvent = chunk.event_id ?? id ?? this.#lastEvent;
    if (chunk.served_by) this.workers.push(chunk.served_by.worker);
    if (chunk.error) return this.#fail(chunk.error.code, chunk.error.message);
    const { reasoning_content: thinking = "", content = "" } = chunk.choices?.[0]?.delta ?? {};
    const piece = thinking + content;
    if (piece) {
      this.last = performance.now();
      this.first ??= this.last;
      this.text += piece;
      this.tokens += 1;
    }
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    if (this.isOpen && this.state !== "streaming" && piece) this.state = "streaming";
    this.changed(this);
  }

  #fail(code, message) {
    this.error = message;
    this.#become(code === "cancelled" ? "cancelled" : "failed");
  }

  #become(state) {
    this.state = state;
    this.changed(this);
  }
}

export class Playground {
  #answers = new Set();
  #byId = new Map();
  #elements = new Map();
  #dirty = new Set();
  #model = null;

  constructor() {
    $("ask").addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    $("prompts").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); $("ask").requestSubmit(); }
    });
    $("examples").addEventListener("click", () => { $("prompts").value = this.#examples.join("\n"); $("prompts").focus(); });
    $("cancel-all").addEventListener("click", () => { $("load").value = 0; this.#open.forEach((answer) => answer.cancel()); });
    $("clear").addEventListener("click", () => this.#answers.forEach((answer) => answer.isOpen || this.#remove(answer)));
    window.addEventListener("pagehide", () => this.#open.forEach((answer) => answer.cancel(true)));
    setInterval(() => this.#keepBusy(), 250);
  }

  /** The prompt that this page sent with that id, if any. */
  promptOf = (id) => this.#byId.get(id)?.prompt;

  get #examples() { return /demo/.test(this.#model ?? "") ? DEMO : ANY; }
  get #open() { return [...this.#answers].filter((answer) => answer.isOpen); }

  serves(model) {
    if (this.#model === model) return;
    this.#model = model;
    if (!$("prompts").value) $("prompts").value = this.#examples.slice(0, 6).join("\n");
  }

  send() {
    const prompts = $("prompts").value.split("\n").map((line) => line.trim()).filter(Boolean);
    prompts.forEach((prompt) => this.#ask(prompt));
  }

  /** The request of that id has ended at the service. */
  ended = (id) => {
    const answer = this.#byId.get(id);
    if (answer) answer.hasEnded = true;
  };

  /** Keep the set number of random examples running, started at different times, so that the batch never idles. */
  #keepBusy() {
    const missing = Math.min(64, $("load").valueAsNumber || 0) - this.#open.filter((answer) => !answer.hasEnded).length;
    if (missing <= 0 || !this.#model) return;
    for (let n = 0; n < Math.min(missing, 3); n++) this.#ask(this.#examples[Math.floor(Math.random() * this.#examples.length)]);
  }

  #ask(prompt) {
    if (!this.#model) return;
    const answer = new Answer(prompt, (one) => this.#dirty.add(one), (one) => this.#accepted(one));
    this.#answers.add(answer);
    this.#dirty.add(answer);
    this.#forget();
    answer.run({
      model: this.#model,
      messages: [{ role: "user", content: prompt }],
      priority: $("class").value,
      max_tokens: $("most").valueAsNumber || 400,
      temperature: $("temperature").valueAsNumber || 0,
      stream_options: { include_usage: true },
    });
  }

  async #accepted(answer) {
    this.#byId.set(answer.id, answer);
    answer.key = await keyOf(answer.id);
    this.#dirty.add(answer);
  }

  #forget() {
    const ended = [...this.#answers].filter((answer) => !answer.isOpen);
    ended.slice(0, Math.max(0, this.#answers.size - KEPT)).forEach((answer) => this.#remove(answer));
  }

  #remove(answer) {
    this.#answers.delete(answer);
    this.#byId.delete(answer.id);
    this.#elements.get(answer)?.root.remove();
    this.#elements.delete(answer);
    this.#dirty.delete(answer);
  }

  /** Update the page with all changes. */
  draw() {
    for (const answer of this.#dirty) if (this.#answers.has(answer)) this.#drawOne(answer);
    this.#dirty.clear();
  }

  recolour() { for (const answer of this.#answers) this.#dirty.add(answer); }

  #drawOne(answer) {
    const parts = this.#elementsOf(answer);
    const workers = answer.workers.filter((name, index, all) => name !== all[index - 1]);
    parts.root.dataset.state = answer.state;
    if (answer.key) parts.root.style.setProperty("--swatch", coloursOf(answer.key).prefill);
    parts.state.textContent = answer.state;
    const follows = parts.text.scrollTop + parts.text.clientHeight >= parts.text.scrollHeight - 8;
    parts.text.textContent = answer.state === "failed" ? `${answer.text}\n${answer.error}`.trim() : answer.text;
    if (follows) parts.text.scrollTop = parts.text.scrollHeight;
    parts.stop.hidden = !answer.isOpen;
    const numbers = [];
    if (answer.first !== null) numbers.push(`first token ${Math.round(answer.first - answer.asked)} ms`);
    if (answer.tokens) numbers.push(`${answer.tokens} tokens`);
    if (answer.tokens > 1 && answer.last - answer.first > 100) numbers.push(`${Math.round((answer.tokens - 1) / (answer.last - answer.first) * 1000)} per s`);
    if (workers.length > 1) numbers.push("taken over");
    parts.numbers.textContent = numbers.join("  ·  ");
  }

  #elementsOf(answer) {
    if (!this.#elements.has(answer)) {
      const state = make("span", { className: "state" });
      const stop = make("button", { type: "button", textContent: "✕", ariaLabel: `Cancel: ${answer.prompt}` });
      stop.addEventListener("click", () => answer.cancel());
      const [text, numbers] = [make("div", { className: "text" }), make("div", { className: "numbers" })];
      const root = make("li", { className: "answer" }, make("header", {}, make("h3", {}, answer.prompt), state, stop), text, numbers);
      $("answers").prepend(root);
      this.#elements.set(answer, { root, state, stop, text, numbers });
    }
    return this.#elements.get(answer);
  }
}
