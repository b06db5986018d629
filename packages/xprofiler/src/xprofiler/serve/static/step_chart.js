// The steps of a profile as bars: each is as high as its step took, in the colours of its parts.

import { fill, h, s, setAttribute } from "../common/dom.js";
import { formatDuration } from "../common/format.js";
import { partColour, piecesOf, slowestOfEach, ticks } from "./steps.js";

const HEIGHT = 190;
const TOP = 10;
const BOTTOM = 22;
const LEFT = 54;
const WIDEST = 150;
const LABEL_PIXELS = 46;
const LETTER_PIXELS = 7;
const KEYS = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };

/**
 * Build the chart. The pointer and the arrow keys choose a step.
 * @param {Object[]} steps In their order, at least one.
 * @param {{parts: string[], onStep: (step: Object|null) => void}} options `parts` from the floor up; `onStep` receives
 *   the step that is chosen.
 * @returns {{element: HTMLElement, close: () => void}}
 */
export function createStepChart(steps, { parts, onStep }) {
  const shown = slowestOfEach(steps);
  const longest = Math.max(...shown.map((step) => step.duration_us));
  const marks = ticks(longest);
  const scale = (HEIGHT - TOP - BOTTOM) / Math.max(marks[marks.length - 1], longest);
  const least = formatDuration(Math.min(...steps.map((step) => step.duration_us)) / 1e6);
  const drawing = s("svg.step-chart", {
    tabindex: "0", role: "slider", "aria-valuemin": "1", "aria-valuemax": String(shown.length),
    "aria-label": `The time of ${steps.length} steps, ${least} to ${formatDuration(longest / 1e6)}, by its parts`,
    on: { keydown: pressed, pointermove: (event) => choose(at(event)), pointerleave: () => choose(-1), blur },
  });
  const place = h("div.step-place", null, drawing);
  let bars = [];
  let slot = 1;
  let chosen = -1;
  setAttribute(drawing, "aria-valuenow", "1");
  setAttribute(drawing, "aria-valuetext", sentenceOf(shown[0]));

  function draw() {
    const width = place.clientWidth;
    if (!width) return;
    slot = Math.min(WIDEST, (width - LEFT) / shown.length);
    setAttribute(drawing, "width", width);
    setAttribute(drawing, "height", HEIGHT);
    bars = shown.map(barOf);
    fill(drawing, marks.map((mark) => gridLine(mark, width)), bars, names(), s("line.axis", {
      x1: LEFT, x2: width, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM,
    }));
    mark();
  }

  function gridLine(value, width) {
    const y = Math.round(HEIGHT - BOTTOM - value * scale) + 0.5;
    return [
      s("line.grid", { x1: LEFT, x2: width, y1: y, y2: y }),
      s("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, value ? formatDuration(value / 1e6) : "0"),
    ];
  }

  function barOf(step, index) {
    const gap = Math.min(slot * 0.18, 6);
    return s("g", null, piecesOf(step, parts, scale).map(({ part, bottom, height }) => s("rect", {
      x: LEFT + index * slot + gap / 2, y: HEIGHT - BOTTOM - bottom - height, width: Math.max(slot - gap, 0.5), height,
      css: { fill: part === null ? "var(--trough)" : partColour(part, parts.indexOf(part)) },
    })));
  }

  function names() {
    const every = Math.max(1, Math.ceil(LABEL_PIXELS / slot));
    const most = Math.max(3, Math.floor((every * slot) / LETTER_PIXELS));
    return shown.map((step, index) => {
      if (index % every) return null;
      const name = step.name.length > most ? `${step.name.slice(0, most - 1)}…` : step.name;
      return s("text", { x: LEFT + (index + 0.5) * slot, y: HEIGHT - 6, "text-anchor": "middle" }, name);
    });
  }

  function at(event) {
    const index = Math.floor((event.clientX - drawing.getBoundingClientRect().left - LEFT) / slot);
    return index >= 0 && index < shown.length ? index : -1;
  }

  function pressed(event) {
    const ends = { Home: 0, End: shown.length - 1 };
    const next = ends[event.key] ?? (event.key in KEYS ? Math.max(chosen, event.key === "ArrowLeft" ? 0 : -1)
      + KEYS[event.key] : null);
    if (next === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(Math.min(Math.max(next, 0), shown.length - 1));
  }

  function blur() {
    choose(-1);
  }

  function choose(index) {
    if (index === chosen) return;
    chosen = index;
    if (index >= 0) {
      setAttribute(drawing, "aria-valuenow", String(index + 1));
      setAttribute(drawing, "aria-valuetext", sentenceOf(shown[index]));
    }
    onStep(shown[index] ?? null);
    mark();
  }

  function mark() {
    drawing.classList.toggle("has-chosen", chosen >= 0);
    bars.forEach((bar, index) => bar.classList.toggle("is-chosen", index === chosen));
  }

  const observer = new ResizeObserver(draw);
  observer.observe(place);
  return { element: place, close: () => observer.disconnect() };
}

/** Return what is said of a step: its time, and the host that took the longest. */
export function sentenceOf(step) {
  const slowest = step.slowest_host ? `, slowest on ${step.slowest_host}` : "";
  return `step ${step.name}: ${formatDuration(step.duration_us / 1e6)}${slowest}`;
}
