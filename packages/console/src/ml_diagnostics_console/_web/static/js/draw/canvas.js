/** A canvas at the resolution of the screen, and text that stays readable over a drawing. */

/**
 * Size a canvas for the screen's resolution and return its cleared context, scaled to CSS pixels.
 * @param {HTMLCanvasElement} canvas
 * @param {number} width In CSS pixels.
 * @param {number} height In CSS pixels.
 * @returns {CanvasRenderingContext2D}
 */
export function fitted(canvas, width, height) {
  const ratio = Math.min(globalThis.devicePixelRatio || 1, 3);
  const columns = Math.max(1, Math.round(width * ratio));
  const rows = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== columns || canvas.height !== rows) {
    canvas.width = columns; // setting the size clears the canvas, also if it is the same: avoid that on each draw
    canvas.height = rows;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Mark when a drawing was first complete: the browser keeps all marks, and a page is open for days. */
export function markOnce(name) {
  if (!performance.getEntriesByName(name, "mark").length) performance.mark(name);
}

/** Make a canvas with the role and the label that a screen reader needs. */
export function pictureCanvas(className, label = "") {
  const canvas = document.createElement("canvas");
  canvas.className = className;
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  return canvas;
}

/**
 * Write text on its own ground, so that a curve behind it does not make it unreadable.
 * @returns {number} The width of the text in CSS pixels.
 */
export function writeOver(context, text, x, y, colour, ground) {
  const { width, actualBoundingBoxAscent: above, actualBoundingBoxDescent: below } = context.measureText(text);
  const left = context.textAlign === "right" ? x - width : x;
  context.fillStyle = withAlpha(ground, 0.86);
  context.fillRect(left - 3, y - above - 2, width + 6, above + below + 4);
  context.fillStyle = colour;
  context.fillText(text, x, y);
  return width;
}

/** Return `colour` (#rrggbb or rgb()) with an opacity. */
export function withAlpha(colour, alpha) {
  const [red, green, blue] = channels(colour);
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** Return red, green and blue, 0 to 255, of a colour written as #rgb, #rrggbb or rgb(r, g, b). */
export function channels(colour) {
  const text = colour.trim();
  if (text.startsWith("#")) {
    const digits = text.length === 4 ? [...text.slice(1)].map((digit) => digit + digit).join("") : text.slice(1, 7);
    return [0, 2, 4].map((index) => Number.parseInt(digits.slice(index, index + 2), 16));
  }
  return (text.match(/[\d.]+/g) ?? ["0", "0", "0"]).slice(0, 3).map(Number);
}
