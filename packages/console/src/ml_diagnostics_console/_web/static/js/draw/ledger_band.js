/** Where wall time went, as a band of buckets under a line of attempts. */

import { bucketSlug } from "../buckets.js";
import { hatching } from "./tokens.js";

const LEAST_WIDTH = 1.5; // pixels: a piece that is narrower shares its pixel column
const LEAST_HEIGHT = 4; // pixels of everything but productive time in a shared column
const PRODUCTIVE = "productive";
const EXCLUDED = "excluded";
const MARK_SIZE = 4;

/**
 * Lay pieces of time out on pixels, so that nothing short vanishes.
 *
 * Pieces of 1.5 px or more become rectangles. Thinner ones are added to the shares of their pixel columns; such a
 * column is a stack of all that lies in it, rectangles included.
 * @param {ArrayLike<number>} starts In order.
 * @param {ArrayLike<number>} ends
 * @param {ArrayLike<number>} buckets Index of the bucket of each piece.
 * @param {{from: number, to: number, width: number, count: number}} view `count`: the number of buckets.
 * @returns {{rectangles: {left: number, right: number, bucket: number}[], columns: Map<number, Float64Array>}}
 */
export function layOutPieces(starts, ends, buckets, { from, to, width, count }) {
  const rectangles = [];
  const columns = new Map();
  const scale = width / (to - from);
  const wide = [];
  for (let index = 0; index < starts.length; index += 1) {
    const left = Math.max((starts[index] - from) * scale, 0);
    const right = Math.min((ends[index] - from) * scale, width);
    if (right < 0 || left > width || right < left) continue;
    if (right - left >= LEAST_WIDTH) {
      wide.push([left, right, buckets[index]]);
      rectangles.push({ left: Math.round(left), right: Math.round(right), bucket: buckets[index] });
      continue;
    }
    addShares(columns, left, right, buckets[index], { width, count, isNew: true });
  }
  for (const [left, right, bucket] of wide) addShares(columns, left, right, bucket, { width, count, isNew: false });
  return { rectangles, columns };
}

function addShares(columns, left, right, bucket, { width, count, isNew }) {
  const last = Math.min(Math.floor(right), width - 1);
  for (let column = Math.min(Math.floor(left), width - 1); column <= last; column += 1) {
    let shares = columns.get(column);
    if (!shares) {
      if (!isNew) continue;
      columns.set(column, (shares = new Float64Array(count)));
    }
    const share = Math.min(right, column + 1) - Math.max(left, column);
    // A piece shorter than a float can resolve still counts: a moment is shown.
    if (share > 0 || (isNew && shares[bucket] === 0)) shares[bucket] += Math.max(share, 1e-9);
  }
}

/**
 * Divide the height of one pixel column among the buckets in it: each but productive gets at least 4 px, or an equal
 * part where there are too many.
 * @param {ArrayLike<number>} shares One for each bucket, from `at` on.
 * @param {number} height In pixels.
 * @param {number} productive Index of productive time; -1 if there is none.
 * @param {number} count The number of buckets.
 * @param {number} at Where the column starts in `shares`.
 * @returns {{bucket: number, top: number, bottom: number}[]} From the bottom up, productive last.
 */
export function stackColumn(shares, height, productive, count = shares.length, at = 0) {
  let total = 0;
  const present = [];
  for (let bucket = 0; bucket < count; bucket += 1) {
    const share = shares[at + bucket];
    if (!(share > 0)) continue;
    total += share;
    if (bucket !== productive) present.push(bucket);
  }
  if (total <= 0) return [];
  const hasProductive = productive >= 0 && shares[at + productive] > 0;
  const least = Math.min(LEAST_HEIGHT, height / (present.length + (hasProductive ? 1 : 0)));
  const heights = present.map((bucket) => Math.max((shares[at + bucket] / total) * height, least));
  const available = height - (hasProductive ? Math.min(least, (shares[at + productive] / total) * height) : 0);
  shrink(heights, available, least);
  const sum = heights.reduce((one, other) => one + other, 0);
  if (!hasProductive && sum > 0 && sum < height) heights[heights.length - 1] += height - sum;
  const stack = [];
  let bottom = height;
  present.forEach((bucket, index) => {
    stack.push({ bucket, top: bottom - heights[index], bottom });
    bottom -= heights[index];
  });
  if (hasProductive && bottom > 0) stack.push({ bucket: productive, top: 0, bottom });
  return stack;
}

function shrink(heights, available, least) {
  // What is higher than the least height gives way, in proportion to what it has above it.
  const sum = heights.reduce((one, other) => one + other, 0);
  if (sum <= available) return;
  const spare = sum - heights.length * least;
  const share = spare > 0 ? Math.max(0, available - heights.length * least) / spare : 0;
  heights.forEach((height, index) => {
    heights[index] = least + (height - least) * share;
  });
}

/** Return a painter of buckets: a colour each, hatching for excluded time. */
export function bucketPaints(context, names, colours) {
  return names.map((name) =>
    bucketSlug(name) === EXCLUDED
      ? hatching(context, colours.faint, colours.sheet)
      : colours.bucket(name),
  );
}

/** Return the index of productive time in the names of buckets; -1 if it is not there. */
export function productiveIndex(names) {
  return names.findIndex((name) => bucketSlug(name) === PRODUCTIVE);
}

/**
 * Draw the band of buckets.
 * @param {CanvasRenderingContext2D} context
 * @param {{header: Object, columns: Object}} ledger The answer of `/ledger`: pieces, or shares of columns.
 * @param {{from: number, to: number, width: number}} view
 * @param {{top: number, height: number}} place
 * @param {Object} colours What `tokens()` returned.
 */
export function drawBand(context, ledger, view, { top, height }, colours) {
  const names = ledger.header.buckets;
  const paints = bucketPaints(context, names, colours);
  const productive = productiveIndex(names);
  context.save();
  context.beginPath();
  context.roundRect(0, top, view.width, height, 4);
  context.clip();
  context.fillStyle = colours.trough;
  context.fillRect(0, top, view.width, height);
  if (ledger.columns.shares) {
    drawShares(context, ledger, view, { top, height, paints, productive });
  } else {
    const { start, end, bucket } = ledger.columns;
    const laidOut = layOutPieces(start, end, bucket, { ...view, width: Math.round(view.width), count: names.length });
    for (const { left, right, bucket: index } of laidOut.rectangles) {
      context.fillStyle = paints[index];
      context.fillRect(left, top, Math.max(1, right - left), height);
    }
    for (const [column, shares] of laidOut.columns) {
      drawStack(context, stackColumn(shares, height, productive), { left: column, width: 1, top, paints });
    }
  }
  context.restore();
}

function drawShares(context, ledger, view, { top, height, paints, productive }) {
  const { width, from, to, buckets } = ledger.header;
  const scale = view.width / (view.to - view.from);
  const column = ((to - from) / width) * scale;
  for (let index = 0; index < width; index += 1) {
    const left = (from - view.from) * scale + index * column;
    if (left > view.width || left + column < 0) continue;
    const stack = stackColumn(ledger.columns.shares, height, productive, buckets.length, index * buckets.length);
    const start = Math.floor(left);
    drawStack(context, stack, { left: start, width: Math.max(1, Math.floor(left + column) - start), top, paints });
  }
}

function drawStack(context, stack, { left, width, top, paints }) {
  for (const { bucket, top: upper, bottom } of stack) {
    context.fillStyle = paints[bucket];
    context.fillRect(left, top + upper, width, bottom - upper);
  }
}

/**
 * Draw the line of attempts: number and steps where they fit, and a mark for each end.
 * @param {Object[]} attempts `{number, started, ended, end, first_step, last_step}`.
 * @param {{from: number, to: number, width: number, now: number}} view
 * @param {(number) => string} formatNumber
 */
export function drawAttempts(context, attempts, view, { labelY, lineY }, colours, formatNumber) {
  const scale = view.width / (view.to - view.from);
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (const attempt of attempts) {
    const ended = attempt.ended ?? view.now;
    const left = (attempt.started - view.from) * scale;
    const right = (ended - view.from) * scale;
    if (right < 0 || left > view.width) continue;
    const shownLeft = Math.max(left, 0);
    const shownRight = Math.min(right, view.width);
    context.strokeStyle = colours.ink;
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(shownLeft, lineY);
    context.lineTo(Math.max(shownRight, shownLeft + 1), lineY);
    context.stroke();
    const text = fittingLabel(context, attempt, shownRight - shownLeft - 12, formatNumber);
    context.fillStyle = colours.soft;
    if (text) context.fillText(text, (shownLeft + shownRight) / 2, labelY);
    if (right <= view.width + 1) drawEndMark(context, attempt.end, Math.min(right, view.width - 5), lineY, colours);
  }
}

function fittingLabel(context, attempt, space, formatNumber) {
  const number = String(attempt.number);
  const hasSteps = attempt.first_step !== null && attempt.last_step !== null;
  const steps = hasSteps ? `${formatNumber(attempt.first_step)} to ${formatNumber(attempt.last_step)}` : "";
  const candidates = hasSteps ? [`${number}  ·  steps ${steps}`, `${number}  ·  ${steps}`, number] : [number];
  return candidates.find((text) => context.measureText(text).width <= space) ?? "";
}

/** Draw an end: cross (failed), triangle (preempted), two bars (hung), dot (completed), ring (running). */
export function drawEndMark(context, end, x, y, colours) {
  const size = MARK_SIZE;
  context.lineWidth = 2;
  context.beginPath();
  if (end === "x") {
    context.strokeStyle = colours.bad;
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
    context.stroke();
  } else if (end === "p") {
    context.fillStyle = colours.warn;
    context.moveTo(x, y - size - 1);
    context.lineTo(x + size + 1, y + size);
    context.lineTo(x - size - 1, y + size);
    context.fill();
  } else if (end === "h") {
    context.fillStyle = colours.hung;
    context.fillRect(x - 3.5, y - size - 1, 2.5, 2 * size + 2);
    context.fillRect(x + 1, y - size - 1, 2.5, 2 * size + 2);
  } else if (end === "c") {
    context.fillStyle = colours.good;
    context.arc(x, y, size, 0, 2 * Math.PI);
    context.fill();
  } else if (end === "r") {
    context.strokeStyle = colours.accent;
    context.fillStyle = colours.sheet;
    context.arc(x, y, size - 0.5, 0, 2 * Math.PI);
    context.fill();
    context.stroke();
  } else {
    context.strokeStyle = colours.faint;
    context.arc(x, y, size - 1, 0, 2 * Math.PI);
    context.stroke();
  }
}
