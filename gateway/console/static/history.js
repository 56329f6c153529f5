// What the workers did in the last two minutes, assembled from their entries.

import { quantile } from "./dom.js";

export const KEPT_MS = 120_000;
const SECONDS = 60;
const TOGETHER_MS = 25; // decode steps farther apart than this are drawn separately
const LOST_MS = 3500;

/** One request in one place: runs of prefill chunks and of decode tokens, by the server's clock in milliseconds. */
class Bar {
  constructor(stay, worker) {
    Object.assign(this, { worker, stay, runs: [], end: stay.joined_ms, left: null, why: null, lastToken: null });
  }

  add(begin, end, tokens, isDecode) {
    const last = this.runs.at(-1);
    if (isDecode && last?.isDecode && begin - last.end < TOGETHER_MS) {
      last.marks.push(begin);
      last.end = end;
      last.tokens += tokens;
    } else {
      this.runs.push({ begin, end, tokens, isDecode, marks: [] });
    }
    this.end = Math.max(this.end, end);
  }
}

class WorkerHistory {
  constructor(name, number) {
    Object.assign(this, { name, label: `worker ${number}`, bars: new Map(), busy: [], stats: null, gone: false });
  }

  /** Number of rows to draw: up to the highest place used in the kept history. */
  get rows() {
    let most = Math.min(4, this.stats?.num_places ?? 4) - 1;
    for (const bar of this.bars.values()) most = Math.max(most, bar.stay.place);
    return most + 1;
  }

  busyFor(begin, end) {
    const last = this.busy.at(-1);
    if (last && begin - last.end < 40) last.end = end;
    else this.busy.push({ begin, end });
  }
}

export class History {
  workers = new Map();
  seconds = new Map(); // by second: { ttft, tbt, prefill, decode }
  queue = []; // by second: { at, lengths }
  queueNow = null;
  offset = null; // server's clock minus performance.now()
  ended = () => {}; // called with the id of each request that has ended
  #numbers = 0;
  #lastEntry = "";

  /** The newest entry taken: where to resume. */
  get lastEntry() { return this.#lastEntry; }

  get now() { return performance.now() + (this.offset ?? 0); }

  take(message, entryId) {
    if (message.type === "queue") return this.#takeQueue(message);
    if (message.type !== "worker") return;
    if (entryId) this.#lastEntry = entryId;
    let worker = this.workers.get(message.worker);
    if (!worker) this.workers.set(message.worker, (worker = new WorkerHistory(message.worker, ++this.#numbers)));
    if (worker.stats && worker.stats.sent_ms >= message.sent_ms) return; // received before the connection broke
    worker.stats = message;
    worker.gone = false;
    this.#setClock(message.sent_ms);
    const bars = message.stays.map((stay) => this.#bar(worker, stay));
    for (const [begin, took, number] of message.iterations) {
      this.#iteration(worker, message.sent_ms + begin, took, message.batches[number], bars);
    }
    const told = new Set(bars);
    for (const bar of worker.bars.values()) if (bar.left === null && !told.has(bar)) bar.left = bar.end; // its end was not seen
    this.#forget();
  }

  #bar(worker, stay) {
    let bar = worker.bars.get(stay.number);
    if (!bar) {
      worker.bars.set(stay.number, (bar = new Bar(stay, worker)));
      if (stay.continued) bar.before = this.#before(bar);
    }
    if (!bar.counted && stay.first_ms !== null) {
      bar.counted = true;
      const isHere = stay.first_ms >= stay.joined_ms; // neither before a preemption nor before anybody watched
      if (isHere && !stay.continued) this.#second(stay.first_ms).ttft.push(stay.first_ms - stay.arrived_ms);
    }
    bar.stay = stay;
    if (stay.left_ms !== null && stay.left !== "preempted") this.ended(stay.id);
    if (stay.left_ms !== null) Object.assign(bar, { left: stay.left_ms, why: stay.left, end: stay.left_ms });
    return bar;
  }

  /** The bar of the same request at another worker, which this one continues. */
  #before(bar) {
    let found = null;
    for (const worker of this.workers.values()) {
      if (worker === bar.worker) continue;
      for (const other of worker.bars.values()) {
        const same = other.stay.key === bar.stay.key && other.stay.choice === bar.stay.choice;
        if (same && other.stay.joined_ms < bar.stay.joined_ms && (!found || other.end > found.end)) found = other;
      }
    }
    return found;
  }

  #iteration(worker, begin, took, batch, bars) {
    const end = begin + took;
    worker.busyFor(begin, end);
    const second = this.#second(end);
    batch.stays.forEach((number, index) => {
      const [bar, tokens, isDecode] = [bars[number], batch.tokens[index], index < batch.decodes];
      bar.add(begin, end, tokens, isDecode);
      if (isDecode) {
        second.decode += tokens;
        if (bar.lastToken !== null) second.tbt.push(end - bar.lastToken);
      } else {
        second.prefill += tokens;
      }
      bar.lastToken = end;
    });
  }

  #second(ms) {
    const number = Math.floor(ms / 1000);
    if (!this.seconds.has(number)) this.seconds.set(number, { ttft: [], tbt: [], prefill: 0, decode: 0 });
    return this.seconds.get(number);
  }

  /** The fastest entry gives the best estimate of the clocks' offset; the offset may drift. */
  #setClock(sentMs) {
    const offset = sentMs - performance.now();
    this.offset = this.offset === null ? offset : Math.max(offset, this.offset - 0.05);
  }

  #takeQueue(message) {
    this.queueNow = message;
    this.queue.push({ at: message.at_ms, lengths: message.lengths });
    while (this.queue.length > SECONDS + 5) this.queue.shift();
    this.#setClock(message.at_ms);
    const alive = new Set(message.workers.map((worker) => worker.name));
    for (const worker of this.workers.values()) {
      if (!alive.has(worker.name) && worker.stats.sent_ms < message.at_ms - LOST_MS) this.#lose(worker);
    }
  }

  #lose(worker) {
    worker.gone = true;
    for (const bar of worker.bars.values()) {
      if (bar.left === null) Object.assign(bar, { left: bar.end, why: "lost" });
    }
    if (!worker.bars.size) this.workers.delete(worker.name);
  }

  #forget() {
    const before = this.now - KEPT_MS;
    for (const worker of this.workers.values()) {
      for (const [id, bar] of worker.bars) if (bar.left !== null && bar.end < before) worker.bars.delete(id);
      for (const bar of worker.bars.values()) while (bar.runs[0]?.end < before) bar.runs.shift();
      while (worker.busy[0]?.end < before) worker.busy.shift();
    }
    for (const number of this.seconds.keys()) if (number < before / 1000) this.seconds.delete(number);
  }

  /** The bars that are in a batch now. */
  get present() {
    return [...this.workers.values()].flatMap((worker) => [...worker.bars.values()].filter((bar) => bar.left === null));
  }

  /** The last `seconds`, the oldest first: `{ age, ...sums }`, without empty ones. */
  recent(seconds = SECONDS) {
    const last = Math.floor(this.now / 1000);
    return [...this.seconds].filter(([at]) => at > last - seconds && at <= last)
      .sort(([a], [b]) => a - b).map(([at, sums]) => ({ age: last - at, ...sums }));
  }

  /** Figures of the last full seconds. */
  figures() {
    const recent = this.recent(10).filter((second) => second.age >= 2 && second.age <= 6);
    const all = this.recent(30);
    const rate = (name) => recent.reduce((sum, second) => sum + second[name], 0) / 5;
    const [ttft, tbt] = [all.flatMap((second) => second.ttft), this.recent(10).flatMap((second) => second.tbt)];
    const living = [...this.workers.values()].filter((worker) => !worker.gone && worker.stats);
    const sum = (read) => living.reduce((total, worker) => total + read(worker.stats), 0);
    const [queried, cached] = [sum((stats) => stats.queried_tokens), sum((stats) => stats.cached_tokens)];
    const places = sum((stats) => stats.num_places);
    const lengths = Object.values(this.queueNow?.lengths ?? {});
    const inBatch = this.present.filter((bar) => !bar.worker.gone).length;
    return {
      decode: rate("decode"), prefill: rate("prefill"), inBatch, places,
      waiting: Math.max(0, lengths.reduce((a, b) => a + b, 0) - inBatch),
      ttft: quantile(ttft, 0.5), tbt: quantile(tbt, 0.5), tbtHigh: quantile(tbt, 0.99),
      hits: queried ? cached / queried : NaN, preemptions: sum((stats) => stats.preemptions),
    };
  }
}
