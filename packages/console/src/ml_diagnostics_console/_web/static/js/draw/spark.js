/** A small curve of 28 letters, as it stands in a row of the list of runs. */

import { fitted } from "./canvas.js";
import { tokens } from "./tokens.js";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const TOP = 63;

/** Return the points of a small curve: 0 to 1 from bottom to top, null where nothing was recorded. */
export function decodeSpark(text) {
  return Array.from(text ?? "", (letter) => {
    const level = LETTERS.indexOf(letter);
    return level < 0 ? null : level / TOP;
  });
}

/**
 * Draw a small curve.
 * @param {HTMLCanvasElement} canvas
 * @param {string} text 28 letters of 6 bits each; a space is a gap.
 * @param {{width?: number, height?: number, colour?: string}} options In CSS pixels.
 */
export function drawSpark(canvas, text, { width = 96, height = 24, colour = tokens().curve } = {}) {
  const context = fitted(canvas, width, height);
  const points = decodeSpark(text);
  const step = (width - 3) / Math.max(1, points.length - 1);
  context.strokeStyle = context.fillStyle = colour;
  context.lineWidth = 1.5;
  context.lineJoin = "round";
  context.beginPath();
  points.forEach((level, index) => {
    if (level === null) return;
    const x = 1.5 + index * step;
    const y = 2 + (1 - level) * (height - 4);
    const before = index > 0 && points[index - 1] !== null;
    const after = index + 1 < points.length && points[index + 1] !== null;
    if (before) context.lineTo(x, y);
    else context.moveTo(x, y);
    if (!before && !after) context.lineTo(x + 1.5, y);
  });
  context.stroke();
}
