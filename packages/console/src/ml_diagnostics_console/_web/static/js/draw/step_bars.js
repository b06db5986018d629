/** The steps of a profile as bars: each is as high as the step took, in the colours of its parts. */

import { fitted, pictureCanvas } from "./canvas.js";
import { onTheme, tokens } from "./tokens.js";

const HEIGHT = 150;
const TOP = 18;
const BOTTOM = 18;
const WIDEST = 52;
const GAP = 2;
const LABEL_PIXELS = 44;

/** Return the names of the parts of all steps, those that take the most time first, and their mean time. */
export function stepParts(steps) {
  const sums = new Map();
  for (const { parts_us: parts } of steps) {
    for (const [name, spent] of Object.entries(parts ?? {})) sums.set(name, (sums.get(name) ?? 0) + spent);
  }
  const sorted = [...sums].sort((one, other) => other[1] - one[1]);
  return sorted.map(([name, sum]) => ({ name, mean_us: sum / steps.length }));
}

/**
 * Build the bars.
 * @param {HTMLElement} place
 * @param {Object[]} steps `{name, duration_us, parts_us}`.
 * @param {{colourOf: (part: string, colours: Object) => string, format: (us: number) => string,
 *   onStep: (step: Object|null) => void}} options
 * @returns {{close: () => void}}
 */
export function createStepBars(place, steps, { colourOf, format, onStep }) {
  const most = Math.max(...steps.map((step) => step.duration_us), 1);
  const least = Math.min(...steps.map((step) => step.duration_us));
  const canvas = pictureCanvas("step-canvas",
    `Duration of ${steps.length} steps, ${format(least)} to ${format(most)}, by their parts`);
  place.append(canvas);
  const parts = stepParts(steps).map(({ name }) => name);
  let slot = 1;
  let pointed = -1;

  function draw() {
    const width = place.clientWidth;
    if (!width) return;
    const colours = tokens();
    const context = fitted(canvas, width, HEIGHT);
    slot = Math.min(WIDEST, width / steps.length);
    const room = HEIGHT - TOP - BOTTOM;
    context.font = `11px ${colours.font}`;
    context.textBaseline = "middle";
    context.fillStyle = colours.grid;
    for (const share of [0, 0.5, 1]) context.fillRect(0, Math.round(TOP + room * (1 - share)), width, 1);
    context.fillStyle = colours.faint;
    context.fillText(format(most), 2, TOP - 9);
    steps.forEach((step, index) => drawStep(context, step, index, { room, colours }));
    drawNumbers(context, colours);
  }

  function drawStep(context, step, index, { room, colours }) {
    const left = index * slot;
    const wide = Math.max(1, slot - (slot > 5 ? GAP : 0));
    let bottom = TOP + room;
    context.globalAlpha = pointed < 0 || pointed === index ? 1 : 0.45;
    for (const part of parts) {
      const height = ((step.parts_us?.[part] ?? 0) / most) * room;
      context.fillStyle = colourOf(part, colours);
      context.fillRect(left, bottom - height, wide, height);
      bottom -= height;
    }
    const rest = TOP + room - (step.duration_us / most) * room;
    if (bottom - rest > 0.5) {
      context.fillStyle = colours.trough;
      context.fillRect(left, rest, wide, bottom - rest);
    }
    context.globalAlpha = 1;
  }

  function drawNumbers(context, colours) {
    context.fillStyle = colours.faint;
    context.textAlign = "center";
    const every = Math.max(1, Math.ceil(LABEL_PIXELS / slot));
    for (let index = 0; index < steps.length; index += every) {
      context.fillText(steps[index].name, Math.max(index * slot + slot / 2, 10), HEIGHT - 7);
    }
    context.textAlign = "left";
  }

  function point(index) {
    if (index === pointed) return;
    pointed = index;
    onStep(index < 0 ? null : steps[index]);
    draw();
  }

  canvas.addEventListener("pointermove", (event) => {
    const index = Math.floor((event.clientX - canvas.getBoundingClientRect().left) / slot);
    point(index >= 0 && index < steps.length ? index : -1);
  });
  canvas.addEventListener("pointerleave", () => point(-1));
  const observer = new ResizeObserver(draw);
  observer.observe(place);
  const stop = onTheme(draw);
  return {
    close() {
      observer.disconnect();
      stop();
    },
  };
}
