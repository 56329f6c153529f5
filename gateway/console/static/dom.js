// Small helpers for the document. Nothing here, or anywhere else, parses text into elements.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; texts become text nodes. */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An SVG element with attributes. */
export function draw(tag, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.textContent = text;
  return element;
}

/** Resize a canvas to its displayed size, `height` CSS pixels high, and clear it; its context uses CSS pixels. */
export function fit(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.style.height !== `${height}px`) canvas.style.height = `${height}px`;
  const width = canvas.clientWidth;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width };
}

/** The value below which a share of the sorted copy of `values` lies; NaN if empty. */
export function quantile(values, share) {
  if (!values.length) return NaN;
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

export const clamp = (value, least, most) => Math.min(most, Math.max(least, value));
export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const isSmall = () => window.matchMedia("(max-width: 40rem)").matches;
export const isStill = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
