/** The colours and type of drawings: CSS custom properties, read once for a theme. */

import { bucketSlug } from "../buckets.js";

const NAMES = [
  "ground", "sheet", "raised", "ink", "soft", "faint", "line", "line-soft", "trough", "grid", "accent", "curve",
  "good", "bad", "hung", "warn", "info", "heat-below", "heat-middle", "heat-above",
  "host-most", "host-other", "host-odd",
];
/** How many colours there are for runs that are drawn over each other. */
export const SERIES = 8;
const HATCH = 6; // pixels between two lines of hatching

let read = null;
let watching = false;
const listeners = new Set();

/**
 * Return the colours of the theme that is shown.
 * @returns {Object} One text for each name (`lineSoft` for `--line-soft`), `series` (8 texts), `font`, `mono`,
 *   `bucket(name)` and `version`, which changes with the theme.
 */
export function tokens() {
  if (read === null) {
    read = readTokens(getComputedStyle(document.documentElement));
    watch();
  }
  return read;
}

/** Call `listener` after each change of the theme; return a function that stops it. */
export function onTheme(listener) {
  watch();
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Return a pattern of thin diagonal lines: excluded time. */
export function hatching(context, line, ground) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = HATCH;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, HATCH, HATCH);
  pen.strokeStyle = line;
  pen.lineWidth = 1;
  pen.beginPath();
  for (const shift of [-HATCH, 0, HATCH]) {
    pen.moveTo(shift, HATCH);
    pen.lineTo(shift + HATCH, 0);
  }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function readTokens(style) {
  const colour = (property, otherwise = "") => style.getPropertyValue(property).trim() || otherwise;
  const found = { version: (readTokens.version = (readTokens.version ?? 0) + 1) };
  for (const name of NAMES) {
    found[name.replace(/-(\w)/g, (_, letter) => letter.toUpperCase())] = colour(`--${name}`, "#808080");
  }
  found.series = Array.from({ length: SERIES }, (_, index) => colour(`--series-${index}`, found.accent));
  found.font = colour("--sans", "system-ui, sans-serif");
  found.mono = colour("--mono", "ui-monospace, monospace");
  const buckets = new Map();
  found.bucket = (name) => {
    if (!buckets.has(name)) buckets.set(name, colour(`--bucket-${bucketSlug(name)}`, found.soft));
    return buckets.get(name);
  };
  return found;
}

function watch() {
  if (watching) return;
  watching = true;
  const changed = () => {
    read = null;
    for (const listener of [...listeners]) listener();
  };
  window.addEventListener("themechange", changed);
}
