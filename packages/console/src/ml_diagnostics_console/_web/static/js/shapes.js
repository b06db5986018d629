// Status and attempt ends as shapes: each has a form of its own besides its colour, and a word beside it.

import { h, s } from "../common/dom.js";

const CIRCLE = { cx: 8, cy: 8, r: 7 };
const WORDS = {
  running: "Running", completed: "Completed", failed: "Failed", stuck: "Stuck", silent: "Silent", unknown: "Unknown",
};
const STATES = new Set(Object.keys(WORDS));

const SHAPES = {
  running: () => [s("circle.shape-line", { cx: 8, cy: 8, r: 6.25 }), s("circle.shape.shape-dot",
    { cx: 8, cy: 8, r: 3 })],
  completed: () => [s("circle.shape", CIRCLE), s("path.shape-cut", { d: "M4.9 8.3l2.2 2.2 4.1-4.6" })],
  failed: () => [s("circle.shape", CIRCLE), s("path.shape-cut", { d: "M5.6 5.6l4.8 4.8M10.4 5.6l-4.8 4.8" })],
  stuck: () => [s("circle.shape", CIRCLE), s("path.shape-cut", { d: "M6.3 5.3v5.4M9.7 5.3v5.4" })],
  silent: () => [s("circle.shape-line", { cx: 8, cy: 8, r: 6.25, "stroke-dasharray": "2.3 2.2" }),
    s("path.shape-line", { d: "M8 4.6V8l2.3 1.6" })],
  unknown: () => [s("circle.shape-line", { cx: 8, cy: 8, r: 6.25 }),
    s("path.shape-line", { d: "M6.3 6.3a1.75 1.75 0 1 1 2.5 1.6c-.6.3-.8.6-.8 1.2M8 11.3v.1" })],
};

/** Return the word of a state: Running, Completed, Failed, Stuck, Silent, Unknown. */
export function statusWord(state) {
  return WORDS[state] ?? "Unknown";
}

/** Return the class that gives a state's colour. */
function statusClass(state) {
  return `is-${STATES.has(state) ? state : "unknown"}`;
}

/** Return a state's shape alone; the word must stand beside it. */
function statusShape(state) {
  return s("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, (SHAPES[state] ?? SHAPES.unknown)());
}

/** Return a state as shape and word. */
export function status(state) {
  return h("span.status", { classes: [statusClass(state)] }, statusShape(state), statusWord(state));
}

/** Return a state as shape and word on its own ground. */
export function badge(state) {
  return h("span.badge", { classes: [statusClass(state)] }, statusShape(state), statusWord(state));
}

const END_WORDS = { c: "completed", x: "failed", p: "preempted", h: "hung", r: "running", u: "unknown" };
const END_SHAPES = {
  c: () => s("circle.shape", { cx: 5, cy: 5, r: 4.2 }),
  r: () => s("circle.shape", { cx: 5, cy: 5, r: 4.2 }),
  x: () => s("path.shape-line", { d: "M1.4 1.4l7.2 7.2M8.6 1.4l-7.2 7.2" }),
  p: () => s("path.shape", { d: "M5 .8L9.6 9.2H.4z" }),
  h: () => s("path.shape-line", { d: "M2.8 1.4v7.2M7.2 1.4v7.2" }),
  u: () => s("circle.shape-line", { cx: 5, cy: 5, r: 3.7 }),
};

/** Return the word of an attempt's end: completed, failed, preempted, hung, running, unknown. */
export function endWord(letter) {
  return END_WORDS[letter] ?? END_WORDS.u;
}

/** Return the shape of an attempt's end: dot, cross, triangle, two bars, ring. */
function endShape(letter) {
  const known = letter in END_SHAPES ? letter : "u";
  return s("svg", { viewBox: "0 0 10 10", class: `end-${known}`, "aria-hidden": "true" }, END_SHAPES[known]());
}

/**
 * Return the ends of attempts in a row; of many, the last ones after "+3".
 *
 * @param {string} letters One letter each.
 * @param {number} most How many are drawn at most.
 */
export function attemptEnds(letters, most = 6) {
  const shown = [...letters].slice(-most);
  const left = letters.length - shown.length;
  const words = [...letters].map(endWord);
  const text = letters.length === 1 ? `1 attempt: ${words[0]}` : `${letters.length} attempts: ${words.join(", ")}`;
  return h("span.ends", { role: "img", "aria-label": text, title: text }, left > 0 && h("span.soft", null, `+${left}`),
    shown.map(endShape));
}

/** The product's mark: four bars of time. */
export function brandMark() {
  return s("svg.brand-mark", { viewBox: "0 0 20 20", "aria-hidden": "true" },
    s("rect.brand-ground", { width: 20, height: 20, rx: 5 }),
    s("rect.brand-a", { x: 4, y: 5, width: 7, height: 2.4, rx: 1.2 }),
    s("rect.brand-b", { x: 12, y: 5, width: 4, height: 2.4, rx: 1.2 }),
    s("rect.brand-a", { x: 6, y: 8.8, width: 10, height: 2.4, rx: 1.2 }),
    s("rect.brand-c", { x: 4, y: 12.6, width: 4, height: 2.4, rx: 1.2 }),
    s("rect.brand-a", { x: 9, y: 12.6, width: 4, height: 2.4, rx: 1.2 }));
}
