// Puts the page together: one feed, and everything drawn from it.

import { BackOff, call, events, post } from "./api.js";
import { BlockMaps } from "./blocks.js";
import { Charts } from "./charts.js";
import { coloursOf, watchTheme } from "./colours.js";
import { $, isStill, make, sleep } from "./dom.js";
import { History } from "./history.js";
import { Playground } from "./playground.js";
import { Timeline } from "./timeline.js";

const SLOW_MS = 400;
const SILENT_MS = 40_000;

const history = new History();
const playground = new Playground();
const timeline = new Timeline($("timeline"), history, playground.promptOf);
const maps = new BlockMaps($("maps"), history);
history.ended = playground.ended;
const charts = new Charts($("charts"), history);

function tell(state, text) {
  if ($("status").textContent === text) return;
  $("status").dataset.state = state;
  $("status").textContent = text;
}

/** Fetch the model's name (with the key, if keys are required), then follow the feed, forever. */
async function run() {
  const backOff = new BackOff();
  for (;;) {
    try {
      const { data } = await (await call("/v1/models")).json();
      $("model").textContent = data[0].id;
      playground.serves(data[0].id);
      await follow(backOff);
      tell("connecting", "reconnecting");
    } catch (error) {
      tell("away", error.status === 429 ? "too many viewers" : "reconnecting");
    }
    await backOff.failed();
  }
}

async function follow(backOff) {
  const stop = new AbortController();
  const headers = history.lastEntry ? { "Last-Event-ID": history.lastEntry } : {};
  const response = await call("/console/events", { headers, signal: stop.signal });
  let silence = setTimeout(() => stop.abort(), SILENT_MS);
  try {
    for await (const { id, data } of events(response)) {
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), SILENT_MS);
      if (data === undefined) continue;
      const message = JSON.parse(data);
      if (message.type === "unavailable") {
        tell("away", "Redis is unavailable");
        continue;
      }
      backOff.succeeded();
      tell("live", "live");
      history.take(message, id);
    }
  } finally {
    clearTimeout(silence);
  }
}

// -- the policy ------------------------------------------------------------------------------------------------

let switching = false;

function drawPolicy() {
  const living = [...history.workers.values()].filter((worker) => !worker.gone && worker.stats);
  const policies = [...new Set(living.flatMap((worker) => worker.stats.policies))].sort();
  const current = [...new Set(living.map((worker) => worker.stats.policy))];
  const select = $("policy");
  if (switching) return;
  const shown = policies.length ? policies : current;
  if ([...select.options].map((option) => option.value).join() !== shown.join() && shown.length) {
    select.replaceChildren(...shown.map((name) => make("option", { value: name }, name)));
  }
  select.disabled = !policies.length;
  select.title = policies.length ? "Switch all workers; static is request-level batching" : "Workers allow switching if allow_policy_switch is on";
  if (current.length === 1 && document.activeElement !== select) select.value = current[0]; // unless somebody is choosing
}

$("policy").addEventListener("change", async ({ target }) => {
  switching = true;
  try {
    await post("/console/policy", { policy: target.value });
    await sleep(1000);
  } catch (error) {
    tell("away", error.message);
  }
  switching = false;
});

// -- drawing, often and less often -----------------------------------------------------------------------------

const number = (value, digits = 0) => (Number.isFinite(value) ? value.toLocaleString("en", { maximumFractionDigits: digits }) : "–");

function drawFigures() {
  const now = history.figures();
  const shown = [
    ["Output", number(now.decode), "tokens/s"], ["Prefill", number(now.prefill), "tokens/s"],
    ["In the batch", number(now.inBatch), `of ${number(now.places)}`], ["Waiting", number(now.waiting), ""],
    ["First token", number(now.ttft), "ms, median"], ["Between tokens", number(now.tbt, 1), `ms, p99 ${number(now.tbtHigh, 1)}`],
    ["Prefix hits", number(now.hits * 100), "%"], ["Preemptions", number(now.preemptions), ""],
  ];
  if (!$("figures").children.length) {
    $("figures").append(...shown.map(([name]) => make("dl", { className: "figure" }, make("dt", {}, name), make("dd"))));
  }
  shown.forEach(([, value, unit], index) => {
    const place = $("figures").children[index].querySelector("dd");
    place.replaceChildren(value, " ", make("small", {}, unit));
  });
}

function drawTable() {
  if (!$("table").closest("details").open) return;
  const rows = history.present.sort((a, b) => a.worker.label.localeCompare(b.worker.label) || a.stay.place - b.stay.place);
  $("table").tBodies[0].replaceChildren(...rows.map(({ worker, stay }) => make("tr", {}, ...[
    worker.label, stay.place + 1, playground.promptOf(stay.id) ?? (stay.id || "–"), stay.request_class, stay.prompt_tokens,
    stay.cached_tokens, stay.output_tokens,
  ].map((text) => make("td", {}, String(text))))));
}

function drawSlowly() {
  if (document.hidden) return;
  $("nothing").hidden = history.workers.size > 0;
  drawFigures();
  drawPolicy();
  drawTable();
  maps.draw();
  charts.draw();
  $("timeline").setAttribute("aria-label", timeline.describe());
}

function drawOften() {
  timeline.draw();
  playground.draw();
  if (isStill()) setTimeout(drawOften, SLOW_MS);
  else requestAnimationFrame(drawOften);
}

// -- controls ----------------------------------------------------------------------------------------------------

function zoom(step) {
  timeline.zoom(step);
  $("span").textContent = `${timeline.seconds} s`;
}

function pause() {
  timeline.pause();
  $("pause").setAttribute("aria-pressed", String(timeline.isPaused));
  $("pause").textContent = timeline.isPaused ? "Resume" : "Pause";
}

const KEYS = { "+": () => zoom(-1), "=": () => zoom(-1), "-": () => zoom(1), " ": pause, ArrowLeft: () => timeline.pan(-0.1), ArrowRight: () => timeline.pan(0.1) };

$("closer").addEventListener("click", () => zoom(-1));
$("farther").addEventListener("click", () => zoom(1));
$("pause").addEventListener("click", pause);
$("timeline").addEventListener("keydown", (event) => {
  if (!KEYS[event.key] || event.ctrlKey || event.metaKey) return;
  event.preventDefault();
  KEYS[event.key]();
});

function showTip(event) {
  const text = timeline.at(event.offsetX, event.offsetY);
  const tip = $("tip");
  tip.hidden = text === null;
  if (text === null) return;
  tip.textContent = text;
  tip.style.left = `${Math.max(0, Math.min(event.offsetX + 12, $("timeline").clientWidth - tip.offsetWidth - 4))}px`;
  tip.style.top = `${event.offsetY + 16}px`;
}

$("timeline").addEventListener("pointermove", showTip);
$("timeline").addEventListener("pointerdown", showTip);
$("timeline").addEventListener("pointerleave", () => { $("tip").hidden = true; });

function paintLegend() {
  const { prefill, decode } = coloursOf("legend");
  document.documentElement.style.setProperty("--legend-prefill", prefill);
  document.documentElement.style.setProperty("--legend-decode", decode);
}

watchTheme($("theme"), () => { paintLegend(); playground.recolour(); maps.draw(); });
zoom(0);
drawSlowly();
drawOften();
setInterval(drawSlowly, SLOW_MS);
run();
