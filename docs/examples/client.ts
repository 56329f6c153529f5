// Orcastream over HTTP, for Node 20 or later, Deno, Bun and browsers: no packages. Where a gateway, Redis or a connection
// breaks, a reply goes on by itself at any gateway, and each part of it comes once.
//
//   const client = new Client({ urls: ["http://127.0.0.1:8000"], model: "orca-demo" });
//   for await (const { text } of client.chat([{ role: "user", content: "Count from 1 to 300" }])) process.stdout.write(text);

export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content: string;
}

export interface Options {
  /** Gateways, any of which will do. */
  urls: string[];
  model: string;
  apiKey?: string;
  /** For how long nobody may answer; 60 s. */
  patienceMs?: number;
  /** A connection without a byte for so long is dead; 60 s. A gateway writes something every 15 s. */
  silenceMs?: number;
}

/** Beside the parameters of the API: an id of your own, under which posting again is the same request. */
export type Parameters = { id?: string } & Record<string, unknown>;

export interface Delta {
  choice: number;
  text: string;
}

export interface Answer {
  id: string;
  choices: { text: string; finishReason: string | null }[];
  usage: { prompt_tokens: number; completion_tokens: number; total_tokens: number } | null;
}

/** The request ended, or was refused, with this code of the protocol. */
export class RequestFailed extends Error {
  readonly code: string;
  readonly status: number | undefined;
  constructor(code: string, message: string, status?: number) {
    super(`${code}: ${message}`);
    this.name = new.target.name;
    this.code = code;
    this.status = status;
  }
}

/** Redis lost acknowledged writes: the answer is no longer what was delivered of it. */
export class ReplyConflict extends RequestFailed {}

/** Nobody answered for `patienceMs`; the request may go on. */
export class Unavailable extends RequestFailed {}

/** Right at the next attempt, perhaps, which is `afterMs` from now at the earliest. */
class Passing extends Error {
  readonly afterMs: number;
  constructor(message: string, afterMs = 0) {
    super(message);
    this.afterMs = afterMs;
  }
}

interface Chunk {
  choices: { index: number; text?: string; delta?: { content?: string | null }; finish_reason?: string | null }[];
  usage?: Answer["usage"];
  event_id?: string;
  error?: { code: string | null; message: string };
}

const PASSING = ["gateway_stopping", "no_worker", "redis_unavailable", "unavailable", "internal_error", "api_keys_unknown", "not_on_disk"];
const FIRST_PAUSE_MS = 50;
const LONGEST_PAUSE_MS = 5000;

export class Client {
  readonly #options: Required<Options>;

  constructor(options: Options) {
    const urls = options.urls.map((url) => url.replace(/\/+$/, ""));
    if (urls.length === 0) throw new TypeError("urls: got none, allowed: at least one");
    this.#options = { apiKey: "", patienceMs: 60_000, silenceMs: 60_000, ...options, urls };
  }

  /** The next message of a chat. Nothing is posted before the reply is asked for something. */
  chat(messages: Message[], parameters: Parameters = {}): Reply {
    return new Reply(this.#options, "chatcmpl", "/v1/chat/completions", { ...parameters, messages });
  }

  /** A completion of text, or of token ids. */
  complete(prompt: string | number[], parameters: Parameters = {}): Reply {
    return new Reply(this.#options, "cmpl", "/v1/completions", { ...parameters, prompt });
  }
}

/** One request and its answer: iterate over what is new, or ask for the whole. Who breaks off has left: the request is
 * cancelled after a grace, unless its parameters say `on_disconnect: "continue"`. */
export class Reply implements AsyncIterable<Delta> {
  readonly id: string;
  readonly #options: Required<Options>;
  readonly #path: string;
  readonly #body: string;
  readonly #deltas: AsyncGenerator<Delta, void>;
  #accepted = false;
  #lastId = "";
  #ended = false;
  #failingSince: number | null = null;
  #choices: { text: string; at: number; finishReason: string | null }[] = [];
  #usage: Answer["usage"] = null;

  constructor(options: Required<Options>, prefix: string, path: string, { id, ...body }: Parameters) {
    // A chat's id in the service begins with chatcmpl-, a completion's with cmpl-.
    const own = id ?? crypto.randomUUID();
    this.id = own.startsWith(`${prefix}-`) ? own : `${prefix}-${own}`;
    this.#options = options;
    this.#path = path;
    this.#body = JSON.stringify({ ...body, model: options.model, stream: true, stream_options: { include_usage: true } });
    this.#deltas = this.#run();
  }

  [Symbol.asyncIterator](): AsyncGenerator<Delta, void> {
    return this.#deltas;
  }

  /** The whole answer, also of parts that were iterated over. */
  async result(): Promise<Answer> {
    for await (const _ of this.#deltas);
    if (!this.#ended) throw new RequestFailed("closed", "The reply was closed before its end.");
    const choices = this.#choices.map(({ text, finishReason }) => ({ text, finishReason }));
    return { id: this.id, choices, usage: this.#usage };
  }

  /** Cancel the request; false where it has ended, or was never posted. */
  async cancel(): Promise<boolean> {
    const response = await fetch(`${this.#options.urls[0]}${this.#own}`, { method: "DELETE", headers: this.#headers });
    await response.arrayBuffer();
    return response.ok;
  }

  get #own(): string {
    return `/v1/requests/${encodeURIComponent(this.id)}`;
  }

  get #headers(): Record<string, string> {
    return this.#options.apiKey ? { Authorization: `Bearer ${this.#options.apiKey}` } : {};
  }

  /** One connection after another, to one gateway after another, until the answer is whole. */
  async *#run(): AsyncGenerator<Delta, void> {
    const { urls, patienceMs } = this.#options;
    let pauseMs = FIRST_PAUSE_MS;
    for (let attempt = 0; !this.#ended; attempt++) {
      try {
        for await (const delta of this.#read(urls[attempt % urls.length]!)) {
          pauseMs = FIRST_PAUSE_MS;
          yield delta;
        }
      } catch (error) {
        if (error instanceof RequestFailed) throw error;
        // Grows, and is never the same for everybody.
        pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
        const waitMs = Math.max(pauseMs * (0.5 + Math.random() / 2), error instanceof Passing ? error.afterMs : 0);
        this.#failingSince ??= Date.now();
        if (Date.now() + waitMs - this.#failingSince > patienceMs) throw new Unavailable("unavailable", String(error));
        await new Promise((wake) => setTimeout(wake, waitMs));
      }
    }
  }

  /** One connection: returns at the end of the answer, throws where it broke off before. */
  async *#read(url: string): AsyncGenerator<Delta, void> {
    const silence = new AbortController();
    let alarm = setTimeout(() => silence.abort(), this.#options.silenceMs);
    try {
      const response = await this.#ask(url, silence.signal);
      if (!response.ok || !response.body) await this.#refused(response);
      this.#accepted = true;
      this.#failingSince = null;
      for (const choice of this.#choices) choice.at = this.#lastId ? choice.text.length : 0; // else it comes from its start
      const events = new EventParser();
      const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) {
        clearTimeout(alarm);
        alarm = setTimeout(() => silence.abort(), this.#options.silenceMs);
        for (const data of events.feed(part.value)) {
          yield* this.#take(data);
          if (this.#ended) return;
        }
      }
    } finally {
      clearTimeout(alarm);
      silence.abort();
    }
    throw new Passing("the stream ended before the answer");
  }

  #ask(url: string, signal: AbortSignal): Promise<Response> {
    if (this.#accepted) {
      const headers = { ...this.#headers, ...(this.#lastId && { "Last-Event-ID": this.#lastId }) };
      return fetch(`${url}${this.#own}/events?include_usage=true`, { headers, signal });
    }
    const headers = { ...this.#headers, "Content-Type": "application/json", "Idempotency-Key": this.id };
    return fetch(`${url}${this.#path}`, { method: "POST", headers, signal, body: this.#body });
  }

  /** What an answer other than 200 means. */
  async #refused(response: Response): Promise<never> {
    const told = (await response.json().catch(() => ({}))) as Partial<Chunk>;
    const code = told.error?.code ?? `http_${response.status}`;
    const message = told.error?.message ?? response.statusText;
    if (response.status === 404 && this.#accepted) this.#forgotten(message);
    const passes = response.status === 429 || (response.status >= 500 && response.headers.get("x-should-retry") !== "false");
    if (passes) throw new Passing(`${code}: ${message}`, 1000 * (Number(response.headers.get("retry-after")) || 0));
    throw new RequestFailed(code, message, response.status);
  }

  /** The service has forgotten the request: post it again, and expect the answer from its start. */
  #forgotten(message: string): never {
    this.#accepted = false;
    this.#lastId = "";
    throw new Passing(message);
  }

  /** What one event brings that is new. */
  *#take(data: string): Generator<Delta, void> {
    if (data === "[DONE]") {
      const short = this.#choices.some(({ text, at }) => at < text.length);
      if (short) throw new ReplyConflict("reply_conflict", "The answer is shorter than what was delivered.");
      this.#ended = true;
      return;
    }
    const chunk = JSON.parse(data) as Chunk;
    if (chunk.error) this.#failed(chunk.error.code ?? "server_error", chunk.error.message);
    this.#usage = chunk.usage ?? this.#usage;
    for (const { index, text, delta, finish_reason } of chunk.choices) {
      const added = this.#add(index, text ?? delta?.content ?? "", finish_reason ?? null);
      if (added) yield { choice: index, text: added };
    }
    this.#lastId = chunk.event_id ?? this.#lastId;
  }

  #failed(code: string, message: string): never {
    if (code === "lost") this.#forgotten(message);
    if (PASSING.includes(code)) throw new Passing(`${code}: ${message}`);
    throw code === "reply_conflict" ? new ReplyConflict(code, message) : new RequestFailed(code, message);
  }

  /** Of a choice's text what was not delivered before; what was has to be the same. */
  #add(index: number, text: string, finishReason: string | null): string {
    const choice = (this.#choices[index] ??= { text: "", at: 0, finishReason: null });
    const known = choice.text.slice(choice.at, choice.at + text.length);
    if (!text.startsWith(known)) throw new ReplyConflict("reply_conflict", `${known} was delivered and is now ${text}.`);
    choice.at += text.length;
    choice.finishReason = finishReason ?? choice.finishReason;
    choice.text += text.slice(known.length);
    return text.slice(known.length);
  }
}

/** Server-sent events out of pieces of text. Of an event that a broken connection cut off, nothing counts. */
class EventParser {
  #rest = "";
  #data: string[] = [];

  *feed(piece: string): Generator<string, void> {
    const lines = (this.#rest + piece).split("\n");
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line.startsWith("data:")) this.#data.push(line.slice(5).replace(/^ /, ""));
      else if (line === "" && this.#data.length) {
        yield this.#data.join("\n");
        this.#data = [];
      }
    }
  }
}
