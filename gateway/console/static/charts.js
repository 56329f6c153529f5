// Small charts of the last minute, as SVG.

import { draw, make, quantile } from "./dom.js";

const [HEIGHT, SECONDS] = [84, 60];
const CLASSES = ["realtime", "high", "normal", "low"];

/** A frame with a title, a legend, an axis up to a round number, and the shapes that `parts` returns. */
class Chart {
  constructor(folder, title, unit, legend) {
    this.unit = unit;
    this.svg = draw("svg", { role: "img" });
    this.svg.setAttribute("aria-label", title);
    this.top = make("span", { className: "top" });
    const names = legend.map(([name, style]) => make("span", { className: style }, name));
    folder.append(make("div", { className: "card chart" }, make("h3", {}, title, " ", this.top), make("p", {}, ...names), this.svg));
  }

  show(most, parts) {
    const top = nice(most);
    this.top.textContent = most > 0 ? `up to ${top} ${this.unit}` : "";
    const width = this.svg.clientWidth || 300;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT + 2}`);
    const x = (age) => width * (1 - age / SECONDS);
    const y = (value) => HEIGHT * (1 - Math.min(1, value / top));
    const axis = [0, 0.5, 1].map((share) => draw("line", { class: "axis", x1: 0, x2: width, y1: HEIGHT * share, y2: HEIGHT * share }));
    this.svg.replaceChildren(...axis, ...parts(x, y));
  }
}

function nice(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((step) => step * power >= value);
}

const line = (points, style) => draw("polyline", { class: `line ${style}`, points: points.map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ") });

export class Charts {
  #history; #queue; #ttft; #tbt;

  constructor(folder, history) {
    this.#history = history;
    this.#queue = new Chart(folder, "Queue depth", "requests", CLASSES.map((name) => [name, name]));
    this.#ttft = new Chart(folder, "Time to first token", "ms", [["each request", "weak"], ["median", "strong"]]);
    this.#tbt = new Chart(folder, "Time between tokens", "ms", [["median", "strong"], ["p99", "weak"]]);
  }

  draw() {
    this.#drawQueue();
    const recent = this.#history.recent(SECONDS);
    this.#drawFirst(recent.filter((second) => second.ttft.length));
    this.#drawBetween(recent.filter((second) => second.tbt.length));
  }

  /** Waiting and running requests, stacked by class. */
  #drawQueue() {
    const { queue, now } = this.#history;
    const points = queue.map(({ at, lengths }) => ({ age: (now - at) / 1000, lengths })).filter(({ age }) => age <= SECONDS);
    const sums = points.map(({ lengths }) => CLASSES.reduce((sum, name) => sum + (lengths[name] ?? 0), 0));
    this.#queue.show(Math.max(0, ...sums), (x, y) => {
      const below = points.map(() => 0);
      return CLASSES.toReversed().map((name) => {
        const lower = points.map(({ age }, index) => [x(age), y(below[index])]);
        points.forEach(({ lengths }, index) => { below[index] += lengths[name] ?? 0; });
        const upper = points.map(({ age }, index) => [x(age), y(below[index])]);
        const outline = [...upper, ...lower.reverse()].map(([a, b]) => `${a.toFixed(1)},${b.toFixed(1)}`).join(" ");
        return draw("polygon", { class: `area ${name}`, points: outline });
      });
    });
  }

  #drawFirst(recent) {
    this.#ttft.show(Math.max(0, ...recent.flatMap(({ ttft }) => ttft)), (x, y) => [
      ...recent.flatMap(({ age, ttft }) => ttft.slice(0, 40).map((value) => draw("circle", { class: "dot weak", cx: x(age), cy: y(value), r: 2.2 }))),
      line(recent.map(({ age, ttft }) => [x(age), y(quantile(ttft, 0.5))]), "strong"),
    ]);
  }

  #drawBetween(recent) {
    const high = recent.map(({ tbt }) => quantile(tbt, 0.99));
    this.#tbt.show(Math.max(0, ...high), (x, y) => [
      line(recent.map(({ age }, index) => [x(age), y(high[index])]), "weak"),
      line(recent.map(({ age, tbt }) => [x(age), y(quantile(tbt, 0.5))]), "strong"),
    ]);
  }
}
