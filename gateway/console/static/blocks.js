// The KV cache as a map: one cell per block.

import { coloursOf, theme } from "./colours.js";
import { fit, make } from "./dom.js";

const HEIGHT = 150;

export class BlockMaps {
  #history; #folder;
  #maps = new Map();

  constructor(folder, history) {
    this.#folder = folder;
    this.#history = history;
  }

  draw() {
    const wanted = new Set();
    for (const worker of this.#history.workers.values()) {
      if (worker.gone || !worker.stats) continue;
      worker.stats.blocks.forEach((blocks, index) => {
        const id = `${worker.name}/${index}`;
        wanted.add(id);
        this.#drawOne(this.#map(id), worker, blocks);
      });
    }
    for (const [id, map] of this.#maps) {
      if (wanted.has(id)) continue;
      map.element.remove();
      this.#maps.delete(id);
    }
  }

  #map(id) {
    if (!this.#maps.has(id)) {
      const [text, canvas] = [make("p"), make("canvas")];
      canvas.setAttribute("role", "img");
      const element = make("div", { className: "map" }, text, canvas);
      this.#folder.append(element);
      this.#maps.set(id, { element, text, canvas });
    }
    return this.#maps.get(id);
  }

  #drawOne({ text, canvas }, worker, { window, num_blocks, stride, runs }) {
    const cells = [];
    for (let index = 0; index < runs.length; index += 2) for (let n = 0; n < runs[index + 1]; n++) cells.push(runs[index]);
    const holders = new Map();
    for (const stay of worker.stats.stays) if (stay.left_ms === null) holders.set(stay.place, coloursOf(stay.key));
    const count = (test) => cells.reduce((sum, code) => sum + test(code), 0) * stride;
    const about = `${worker.label}${window === null ? "" : `, layers with a window of ${window}`}: ${num_blocks} blocks, ` +
      `${count((code) => code >= 2)} held (${count((code) => code >= 2 && code % 2 === 1)} shared), ${count((code) => code === 1)} kept for reuse` +
      (stride > 1 ? `; one in ${stride} is drawn` : "");
    if (text.textContent !== about) text.textContent = about;
    canvas.setAttribute("aria-label", about);
    const width = canvas.clientWidth;
    let size = 14;
    while (size > 4 && Math.ceil(cells.length / Math.floor(width / size)) * size > HEIGHT) size -= 0.5;
    const columns = Math.max(1, Math.floor(width / size));
    const { context } = fit(canvas, Math.ceil(cells.length / columns) * size);
    cells.forEach((code, index) => {
      cell(context, (index % columns) * size, Math.floor(index / columns) * size, size - 1, code, holders);
    });
  }
}

function cell(context, x, y, size, code, holders) {
  const colours = code >= 2 ? holders.get((code >> 1) - 2) : null;
  context.fillStyle = code === 0 ? theme.faint : code === 1 ? theme.cached : colours?.prefill ?? theme.soft;
  context.fillRect(x, y, size, size);
  if (code >= 2 && code % 2 === 1) {
    context.fillStyle = theme.card;
    context.beginPath();
    context.arc(x + size / 2, y + size / 2, size * 0.24, 0, 7);
    context.fill();
  }
}
