// Colors: the page's colors in a form for canvases, and one color per request.

const HUES = [255, 48, 150, 322, 95, 205, 18, 180, 290, 70, 125, 350];
const REMEMBERED = 2000;

const names = ["card", "line", "text", "soft", "faint", "gap", "gap-line", "cached", "accent", "bad", "warn"];
const places = new Map();
let next = 0;
let isDark = false;
export const theme = {};

/** Reread the page's colors after a switch between light and dark. */
export function readTheme() {
  const probe = document.createElement("span");
  document.body.append(probe);
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    theme[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  const chosen = document.documentElement.dataset.theme;
  isDark = chosen ? chosen === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches;
}

/** Toggle and call `changed` on a click, or when the system's mode changes. */
export function watchTheme(button, changed) {
  const update = () => { readTheme(); changed(); };
  button.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark ? "light" : "dark";
    update();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", update);
  update();
}

function hue(key) {
  if (!places.has(key)) {
    if (places.size >= REMEMBERED) places.delete(places.keys().next().value);
    places.set(key, HUES[next++ % HUES.length]);
  }
  return places.get(key);
}

/** The colors of a request, the same wherever it runs: of a prefill chunk, of decode tokens, of text on those. */
export function coloursOf(key) {
  const h = hue(key);
  return isDark
    ? { prefill: `oklch(0.80 0.13 ${h})`, decode: `oklch(0.52 0.10 ${h})`, ink: "#ffffff", edge: `oklch(0.40 0.08 ${h})` }
    : { prefill: `oklch(0.56 0.16 ${h})`, decode: `oklch(0.82 0.09 ${h})`, ink: "#101828", edge: `oklch(0.70 0.11 ${h})` };
}
