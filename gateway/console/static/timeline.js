// The batch as a picture: time runs to the right, one row per place, one bar per request.

import { coloursOf, theme } from "./colours.js";
import { clamp, fit, isSmall } from "./dom.js";

const LAG_MS = 650; // entries come four times a second, so newer data is incomplete
const SPANS_S = [1, 2, 5, 10, 20, 30, 60];
const [HEAD, AXIS, GAP] = [24, 22, 10];
const SYMBOL = { finished: "●", withdrawn: "✕", preempted: "↯", lost: "✕" };
const WORDS = { finished: "finished", withdrawn: "removed: canceled, expired, or ended by a stop string", preempted: "preempted", lost: "its worker is gone" };

export class Timeline {
  #history; #canvas; #labelOf;
  #span = 3;
  #frozenAt = null;
  #layout = [];
  #drawn = [];

  /** `labelOf` returns the text of a request's prompt, if this page knows it. */
  constructor(canvas, history, labelOf) {
    this.#history = history;
    this.#canvas = canvas;
    this.#labelOf = labelOf;
  }

  get seconds() { return SPANS_S[this.#span]; }
  get isPaused() { return this.#frozenAt !== null; }

  zoom(step) { this.#span = clamp(this.#span + step, 0, SPANS_S.length - 1); }

  pause() { this.#frozenAt = this.isPaused ? null : this.#head; }

  /** While paused, scroll back or forward. */
  pan(share) {
    if (this.isPaused) this.#frozenAt = Math.min(this.#head, this.#frozenAt + share * this.seconds * 1000);
  }

  get #head() { return this.#history.now - LAG_MS; }

  draw() {
    const workers = [...this.#history.workers.values()].filter((worker) => !worker.gone || worker.bars.size);
    const row = isSmall() ? 17 : 21;
    let height = 0;
    this.#layout = workers.map((worker) => {
      const dense = worker.rows > 16 ? 14 : worker.rows > 10 ? row - 4 : row;
      const top = height + HEAD;
      height = top + worker.rows * dense + GAP;
      return { worker, top, row: dense };
    });
    const { context, width } = fit(this.#canvas, Math.max(112, height + AXIS - GAP));
    this.#drawn = [];
    if (!workers.length) return;
    const view = this.#view(width);
    context.textBaseline = "middle";
    this.#axis(context, view, width, height - GAP);
    for (const place of this.#layout) this.#worker(context, view, place, width);
    for (const place of this.#layout) this.#takeovers(context, view, place);
  }

  #view(width) {
    const left = isSmall() ? 22 : 30;
    const end = this.#frozenAt ?? this.#head;
    const begin = end - this.seconds * 1000;
    const scale = (width - left - 10) / (end - begin);
    return { left, right: width - 10, begin, end, scale, x: (ms) => left + (ms - begin) * scale };
  }

  #axis(context, view, width, bottom) {
    const step = this.seconds > 20 ? 10 : this.seconds > 5 ? 2 : this.seconds > 2 ? 1 : 0.25;
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "center";
    for (let at = 0; at <= this.seconds; at += step) {
      const x = view.right - at * 1000 * view.scale;
      if (x < view.left) break;
      context.fillStyle = theme.line;
      context.fillRect(x, HEAD, 1, bottom - HEAD + 4);
      context.fillStyle = theme.soft;
      const text = at === 0 ? (this.isPaused ? "paused" : "now") : `−${at} s`;
      context.textAlign = at === 0 ? "right" : "center";
      context.fillText(text, at === 0 ? width - 2 : x, bottom + 13);
    }
  }

  #worker(context, view, { worker, top, row }, width) {
    const { stats } = worker;
    context.textAlign = "left";
    context.font = "600 12px system-ui, sans-serif";
    context.fillStyle = worker.gone ? theme.bad : theme.text;
    context.fillText(worker.label, 0, top - 12);
    const begin = context.measureText(worker.label).width + 8;
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = worker.gone ? theme.bad : theme.soft;
    const more = stats.waiting ? `, ${stats.waiting} waiting in its engine` : "";
    const about = worker.gone ? "is gone" : `${stats.policy}, ${stats.num_places} places${more}`;
    context.fillText(about, begin, top - 12, width - begin);
    for (let place = 0; place < worker.rows; place++) this.#background(context, view, worker, place, top + place * row, row);
    for (const bar of worker.bars.values()) this.#bar(context, view, bar, top + bar.stay.place * row, row);
  }

  /** Draw a gap where the engine computed while this place was empty. */
  #background(context, view, worker, place, y, row) {
    context.fillStyle = theme.faint;
    context.fillRect(view.left, y + 1, view.right - view.left, row - 2);
    context.fillStyle = theme.gap;
    for (const { begin, end } of worker.busy) {
      const [x0, x1] = [Math.max(view.left, view.x(begin)), Math.min(view.right, view.x(end))];
      if (x1 > x0) context.fillRect(x0, y + 1, x1 - x0, row - 2);
    }
    context.fillStyle = theme.soft;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "right";
    context.fillText(String(place + 1), view.left - 6, y + row / 2);
  }

  #bar(context, view, bar, y, row) {
    const [from, to] = [view.x(bar.stay.joined_ms), view.x(bar.left ?? Math.max(bar.end, view.end))];
    if (to < view.left || from > view.right) return;
    const colours = coloursOf(bar.stay.key);
    const [x0, x1] = [Math.max(view.left, from), Math.min(view.right, Math.max(to, from + 2))];
    const [top, height] = [y + 2, row - 4];
    context.save();
    context.beginPath();
    context.roundRect(x0, top, x1 - x0, height, [from >= view.left ? 4 : 0, to <= view.right ? 4 : 0, to <= view.right ? 4 : 0, from >= view.left ? 4 : 0]);
    context.clip();
    context.fillStyle = colours.decode; // in the batch, but not in an iteration: a thin line
    context.fillRect(x0, top + height * 0.38, x1 - x0, height * 0.24);
    for (const run of bar.runs) this.#run(context, view, run, colours, top, height);
    this.#label(context, bar, colours, x0, x1, top, height);
    context.restore();
    if (bar.left !== null && bar.left <= view.end && to >= view.left) this.#end(context, bar, to, y, row);
    this.#drawn.push({ bar, x0, x1, y0: y, y1: y + row });
  }

  #run(context, view, run, colours, top, height) {
    const [x0, x1] = [view.x(run.begin), view.x(run.end)];
    if (x1 < view.left || x0 > view.right) return;
    context.fillStyle = run.isDecode ? colours.decode : colours.prefill;
    context.fillRect(x0, top, Math.max(1, x1 - x0), height);
    if (!run.isDecode) {
      context.fillStyle = theme.card;
      context.fillRect(x1 - 1, top, 1, height); // separates the chunks of one prompt
    } else if (run.marks.length && (x1 - x0) / (run.marks.length + 1) >= 3.5) {
      context.fillStyle = colours.edge;
      for (const mark of run.marks) context.fillRect(view.x(mark) - 0.5, top, 1, height);
    }
  }

  #label(context, bar, colours, x0, x1, top, height) {
    if (x1 - x0 < 34 || height < 10) return;
    const text = this.#labelOf(bar.stay.id) ?? (bar.stay.id ? bar.stay.id.slice(0, 10) : bar.stay.request_class);
    context.font = `${height < 12 ? 9 : 11}px system-ui, sans-serif`;
    context.textAlign = "left";
    const prefill = bar.runs[0] && !bar.runs[0].isDecode ? bar.runs : [];
    const width = context.measureText(text).width;
    context.globalAlpha = 0.82;
    context.fillStyle = colours.decode;
    if (prefill.length) context.fillRect(x0 + 4, top, Math.min(width + 6, x1 - x0 - 6), height);
    context.globalAlpha = 1;
    context.fillStyle = colours.ink;
    context.fillText(text, x0 + 7, top + height / 2 + 0.5);
  }

  #end(context, bar, x, y, row) {
    context.font = `${row < 16 ? 9 : 11}px system-ui, sans-serif`;
    context.textAlign = "left";
    context.fillStyle = bar.why === "finished" ? coloursOf(bar.stay.key).prefill : bar.why === "preempted" ? theme.warn : theme.bad;
    context.fillText(SYMBOL[bar.why] ?? "", x + 3, y + row / 2 + 0.5);
  }

  /** Draw a line from where a request stopped at the previous worker to where it continues. */
  #takeovers(context, view, { worker, top, row }) {
    for (const bar of worker.bars.values()) {
      if (!bar.stay.continued) continue;
      const x = view.x(bar.stay.joined_ms);
      const y = top + bar.stay.place * row + row / 2;
      if (x < view.left || x > view.right) continue;
      context.strokeStyle = context.fillStyle = coloursOf(bar.stay.key).prefill;
      const from = bar.before && this.#layout.find((one) => one.worker === bar.before.worker);
      if (from) {
        const [bx, by] = [clamp(view.x(bar.before.end), view.left, view.right), from.top + bar.before.stay.place * from.row + from.row / 2];
        context.lineWidth = 1.5;
        context.setLineDash([4, 3]);
        context.beginPath();
        context.moveTo(bx, by);
        context.bezierCurveTo(bx + (x - bx) * 0.5, by, bx + (x - bx) * 0.5, y, x, y);
        context.stroke();
        context.setLineDash([]);
      }
      context.font = "12px system-ui, sans-serif";
      context.textAlign = "right";
      context.fillText("⇄", x - 2, y);
    }
  }

  /** Describe what is at a point of the canvas; null if nothing. */
  at(x, y) {
    const found = this.#drawn.findLast((one) => x >= one.x0 && x <= one.x1 && y >= one.y0 && y <= one.y1);
    if (!found) return null;
    const { stay, left, why, worker } = found.bar;
    const lines = [
      this.#labelOf(stay.id) ?? (stay.id || "a request of another tenant"),
      `${worker.label}, place ${stay.place + 1}, class ${stay.request_class}`,
      `prompt ${stay.prompt_tokens} tokens, ${stay.cached_tokens} of them cached`,
      `output ${stay.output_tokens} tokens`,
    ];
    if (stay.first_ms !== null && !stay.continued) lines.push(`first token after ${Math.round(stay.first_ms - stay.arrived_ms)} ms`);
    if (stay.continued) lines.push("taken over, continued at the next token");
    if (left !== null) lines.push(WORDS[why] ?? why);
    return lines.join("\n");
  }

  /** Describe the picture in a sentence or two. */
  describe() {
    return this.#layout.map(({ worker }) => {
      const present = [...worker.bars.values()].filter((bar) => bar.left === null).length;
      return `${worker.label}: ${worker.gone ? "gone" : `${present} of ${worker.stats.num_places} places taken, policy ${worker.stats.policy}`}`;
    }).join("; ") || "No worker has reported yet";
  }
}
