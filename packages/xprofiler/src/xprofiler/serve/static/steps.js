// The steps of a profile as numbers: which are drawn, the marks of their axis, the pieces of a bar. Without a document.

/** More bars would be narrower than two pixels. */
export const MOST_BARS = 300;

/** Return at most so many steps: the slowest of each group of consecutive steps. */
export function slowestOfEach(steps, most = MOST_BARS) {
  const size = Math.max(1, Math.ceil(steps.length / most));
  const shown = [];
  for (let first = 0; first < steps.length; first += size) {
    const group = steps.slice(first, first + size);
    shown.push(group.reduce((slowest, step) => (step.duration_us > slowest.duration_us ? step : slowest)));
  }
  return shown;
}

/** Return three to six round numbers for an axis from 0; the last is not below the longest. */
export function ticks(longest) {
  if (!(longest > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(longest));
  const step = [0.2, 0.5, 1, 2].map((factor) => power * factor).find((size) => longest / size <= 5);
  return Array.from({ length: Math.ceil(longest / step - 1e-9) + 1 }, (_, number) => step * number);
}

/**
 * Return the pieces of a step's bar from the floor up.
 * @param {Object} step
 * @param {string[]} parts The parts, the lowest first.
 * @param {number} scale Pixels of a microsecond.
 * @returns {{part: string|null, bottom: number, height: number}[]} In pixels above the floor; the last piece is the
 *   time that has no part, if there is some, with null.
 */
export function piecesOf(step, parts, scale) {
  const pieces = [];
  let bottom = 0;
  for (const part of parts) {
    const height = (step.parts_us?.[part] ?? 0) * scale;
    if (height <= 0) continue;
    pieces.push({ part, bottom, height });
    bottom += height;
  }
  const rest = step.duration_us * scale - bottom;
  return rest > 0.5 ? [...pieces, { part: null, bottom, height: rest }] : pieces;
}

/** Return the colour of a part by XProf's name of it: a token, or one of the series for a part without a token. */
export function partColour(part, index) {
  const slug = part.toLowerCase().replace(/[^a-z0-9]/g, "-").slice(0, 60);
  return `var(--part-${slug}, var(--series-${index % 8}))`;
}
