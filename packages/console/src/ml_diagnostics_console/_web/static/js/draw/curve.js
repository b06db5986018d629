/** A curve of many values: a band, the true mean of each bucket, dots for extremes, stripes for NaN and infinity. */

import { withAlpha, writeOver } from "./canvas.js";
import { gapWidth, nearestIndex, paddedRange, quantile, sortedFinite } from "./ranges.js";

const BUCKET_PIXELS = 3; // the server's buckets are about this wide
const EXTREME_BANDS = 3; // heights of the band beyond which a value is an extreme
const ODD_SHARE = 0.01; // of the odd host's values may lie outside, at each end
const MOST_DOTS = 400;
const DOT_RADIUS = 1.4;
const EDGE_PIXELS = 7;
const FEW = 8; // pixels between two values from which each is drawn as a dot

/** Return the name of a metric as people read it: `tpu duty cycle`. */
export function metricTitle(name) {
  return name.replaceAll("_", " ");
}

/**
 * Return the range of y that is shown, and what lies outside of it.
 * @param {Object} header `lo`, `hi` (robust), `least`, `greatest`, `unit`.
 * @param {boolean} isFull True to show all values.
 * @returns {{low: number, high: number, above: number|null, below: number|null}}
 */
export function shownRange({ lo, hi, least, greatest, unit }, isFull = false) {
  const lowest = isFull ? least : lo ?? least;
  const highest = isFull ? greatest : hi ?? greatest;
  const [low, high] = paddedRange(lowest ?? Number.NaN, highest ?? Number.NaN, unit ?? "");
  return {
    low,
    high,
    above: greatest !== null && greatest > high ? greatest : null,
    below: least !== null && least < low ? least : null,
  };
}

/**
 * Return the values that lie far beyond the band of their bucket, the furthest first where there are too many.
 * @param {ArrayLike<number>} x Values as they were recorded.
 * @param {ArrayLike<number>} y
 * @param {{x: ArrayLike<number>, low: ArrayLike<number>, high: ArrayLike<number>}} band
 * @returns {number[]} Their indices, in order.
 */
export function extremes(x, y, band) {
  const found = [];
  let bucket = 0;
  for (let index = 0; index < x.length; index += 1) {
    if (!Number.isFinite(y[index]) || !band.x.length) continue;
    const isNext = () => Math.abs(band.x[bucket + 1] - x[index]) <= Math.abs(band.x[bucket] - x[index]);
    while (bucket + 1 < band.x.length && isNext()) bucket += 1;
    const height = band.high[bucket] - band.low[bucket];
    const beyond = Math.max(y[index] - band.high[bucket], band.low[bucket] - y[index]);
    // Half of the band's height lies within it: from its middle this is three heights.
    if (height > 0 && beyond > (EXTREME_BANDS - 0.5) * height) found.push([index, beyond / height]);
  }
  if (found.length > MOST_DOTS) found.sort((one, other) => other[1] - one[1]).splice(MOST_DOTS);
  return found.map(([index]) => index).sort((one, other) => one - other);
}

/**
 * Return the stretches of a column between gaps, as pairs of indices (last one excluded).
 * @param {ArrayLike<number>} x In order.
 * @param {ArrayLike<number>} y NaN is a gap, too.
 * @param {number} gap The distance in x beyond which two values are not joined.
 */
export function stretches(x, y, gap) {
  const found = [];
  let start = -1;
  for (let index = 0; index <= x.length; index += 1) {
    const isValue = index < x.length && Number.isFinite(y[index]);
    const isJoined = isValue && start >= 0 && x[index] - x[index - 1] <= gap;
    if (start >= 0 && !isJoined) {
      found.push([start, index]);
      start = -1;
    }
    if (isValue && start < 0) start = index;
  }
  return found;
}

/**
 * Return what the answers of `/points` have in common for drawing: a band and a middle line.
 * @param {{header: Object, columns: Object}} points
 * @returns {Object} `x`, `middle`, `low`, `high`; for a spread of hosts also `least`, `most` and `oddX`, `oddY`.
 */
export function asBand({ columns }) {
  if (columns.p10) {
    return {
      x: columns.x, middle: columns.mean, low: columns.p10, high: columns.p90, least: columns.min, most: columns.max,
      oddX: columns.odd_x ?? [], oddY: columns.odd_y ?? [], isSpread: true,
    };
  }
  return { x: columns.mean_x, middle: columns.mean_y, low: columns.p5, high: columns.p95, isSpread: false };
}

/**
 * Widen the robust range of an answer so that the odd host's curve lies in it: it is what matters.
 * @param {{header: Object, columns: Object}} points Its header is changed.
 */
export function withOddInRange(points) {
  const odd = sortedFinite(points.columns.odd_y ?? []);
  if (odd.length) {
    points.header.lo = Math.min(points.header.lo ?? odd[0], quantile(odd, ODD_SHARE));
    points.header.hi = Math.max(points.header.hi ?? odd[0], quantile(odd, 1 - ODD_SHARE));
  }
  return points;
}

/**
 * Draw a curve.
 * @param {CanvasRenderingContext2D} context
 * @param {{header: Object, columns: Object}} points The answer of `/points`.
 * @param {{from: number, to: number, width: number, height: number}} view
 * @param {Object} colours What `tokens()` returned.
 * @param {(value: number) => string} format Writes a value with its unit.
 */
export function drawCurve(context, points, view, colours, format) {
  const range = shownRange(points.header);
  const scale = scaleOf(view, range);
  const band = asBand(points);
  const bucket = (BUCKET_PIXELS * (view.to - view.from)) / view.width;
  context.save();
  context.beginPath();
  context.rect(0, 0, view.width, view.height);
  context.clip();
  if (band.isSpread) drawSpread(context, band, scale, colours, bucket);
  else drawSeries(context, points.columns, band, scale, colours, bucket);
  drawNotFinite(context, points.header.nonfinite ?? [], scale, colours);
  context.restore();
  drawEdges(context, range, view, colours, format);
}

function scaleOf(view, range) {
  const across = view.width / (view.to - view.from);
  const up = view.height / (range.high - range.low);
  return {
    ...view,
    x: (value) => (value - view.from) * across,
    // Far outside values stay near the edge: huge coordinates are slow and inexact.
    y: (value) => Math.min(Math.max(view.height - (value - range.low) * up, -view.height), 2 * view.height),
  };
}

function drawSeries(context, columns, band, scale, colours, bucket) {
  const gap = gapWidth(columns.x, bucket);
  const isSparse = columns.x.length < 2 || visibleCount(columns.x, scale) * FEW < scale.width;
  if (isSparse || !band.x.length) {
    strokeLine(context, columns.x, columns.y, scale, { gap, colour: colours.curve, width: 1.5 });
    if (isSparse) drawDots(context, columns.x, columns.y, scale, colours.curve);
    return;
  }
  const bandGap = Math.max(gap, gapWidth(band.x, bucket));
  const colour = withAlpha(colours.curve, 0.28);
  fillBand(context, band.x, band.low, band.high, scale, { gap: bandGap, colour, bucket });
  drawExtremes(context, columns, band, scale, colours);
  strokeLine(context, band.x, band.middle, scale, { gap: bandGap, colour: colours.curve, width: 1.5 });
}

function drawSpread(context, band, scale, colours, bucket) {
  const gap = gapWidth(band.x, bucket);
  fillBand(context, band.x, band.least, band.most, scale, { gap, colour: withAlpha(colours.curve, 0.13), bucket });
  fillBand(context, band.x, band.low, band.high, scale, { gap, colour: withAlpha(colours.curve, 0.2), bucket });
  strokeLine(context, band.x, band.middle, scale, { gap, colour: colours.curve, width: 1.5 });
  const odd = { gap: gapWidth(band.oddX, bucket), colour: colours.bad, width: 1.5 };
  strokeLine(context, band.oddX, band.oddY, scale, odd);
}

function visibleCount(x, scale) {
  let count = 0;
  for (let index = 0; index < x.length; index += 1) count += x[index] >= scale.from && x[index] <= scale.to ? 1 : 0;
  return count;
}

/**
 * Fill what lies between two lines; where there is one value alone, a piece as wide as a bucket.
 * @param {CanvasRenderingContext2D} context
 * @param {ArrayLike<number>} x
 * @param {ArrayLike<number>} low
 * @param {ArrayLike<number>} high
 * @param {{x: (value) => number, y: (value) => number, from?: number}} scale
 * @param {{gap: number, colour: string, bucket?: number}} options `bucket` in units of x.
 */
export function fillBand(context, x, low, high, scale, { gap, colour, bucket = 0 }) {
  context.fillStyle = colour;
  const half = bucket ? scale.x(scale.from + bucket / 2) : 0;
  for (const [first, last] of stretches(x, low, gap)) {
    context.beginPath();
    if (last - first === 1) {
      const top = scale.y(high[first]);
      context.rect(scale.x(x[first]) - half, top, 2 * half, Math.max(1, scale.y(low[first]) - top));
    } else {
      for (let at = first; at < last; at += 1) context.lineTo(scale.x(x[at]), scale.y(high[at]) - 0.5);
      for (let at = last - 1; at >= first; at -= 1) context.lineTo(scale.x(x[at]), scale.y(low[at]) + 0.5);
    }
    context.fill();
  }
}

/** Draw a line through values, or a dot where there is one alone. See `fillBand` for the arguments. */
export function strokeLine(context, x, y, scale, { gap, colour, width }) {
  context.strokeStyle = colour;
  context.lineWidth = width;
  context.lineJoin = "round";
  context.beginPath();
  for (const [first, last] of stretches(x, y, gap)) {
    context.moveTo(scale.x(x[first]), scale.y(y[first]));
    if (last - first === 1) context.arc(scale.x(x[first]), scale.y(y[first]), 1, 0, 2 * Math.PI);
    for (let index = first + 1; index < last; index += 1) context.lineTo(scale.x(x[index]), scale.y(y[index]));
  }
  context.stroke();
}

function drawDots(context, x, y, scale, colour) {
  context.fillStyle = colour;
  for (let index = 0; index < x.length; index += 1) {
    if (!Number.isFinite(y[index]) || x[index] < scale.from || x[index] > scale.to) continue;
    context.beginPath();
    context.arc(scale.x(x[index]), scale.y(y[index]), 2, 0, 2 * Math.PI);
    context.fill();
  }
}

function drawExtremes(context, columns, band, scale, colours) {
  const found = extremes(columns.x, columns.y, band);
  context.strokeStyle = withAlpha(colours.curve, 0.4);
  context.fillStyle = colours.curve;
  context.lineWidth = 1;
  const [top, bottom] = [DOT_RADIUS + 0.5, scale.height - DOT_RADIUS - 0.5];
  const last = new Map(); // at an edge, dots stay apart: else many of them are a line
  for (const index of found) {
    const x = scale.x(columns.x[index]);
    // What lies outside is a dot at the edge: it is never cut off silently.
    const y = Math.min(Math.max(scale.y(columns.y[index]), top), bottom);
    const isEdge = y === top || y === bottom;
    if (isEdge && x - (last.get(y) ?? Number.NEGATIVE_INFINITY) < EDGE_PIXELS) continue;
    if (isEdge) last.set(y, x);
    const bucket = nearestIndex(band.x, columns.x[index]);
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(x, scale.y(columns.y[index] > band.high[bucket] ? band.high[bucket] : band.low[bucket]));
    context.stroke();
    context.beginPath();
    context.arc(x, y, DOT_RADIUS, 0, 2 * Math.PI);
    context.fill();
  }
}

function drawNotFinite(context, places, scale, colours) {
  let writtenTo = -1;
  for (const [start, end, , kind] of places) {
    const left = scale.x(start);
    const right = Math.max(scale.x(end), left + 1.5);
    if (right < 0 || left > scale.width) continue;
    stripe(context, left, right, 0, scale.height, colours.bad);
    const text = kind ?? "NaN";
    const width = context.measureText(text).width;
    if (left < writtenTo) continue;
    context.textBaseline = "top";
    const isLeft = right + width + 6 > scale.width;
    context.textAlign = isLeft ? "right" : "left";
    writeOver(context, text, isLeft ? left - 4 : right + 4, 3, colours.bad, colours.sheet);
    writtenTo = right + width + 10;
  }
}

/** Fill a stripe: solid if it is thin; a long one is a veil with an edge where it starts, so that curves stay seen. */
export function stripe(context, left, right, top, height, colour, thick = 1.5) {
  context.fillStyle = colour;
  context.fillRect(left, top, Math.min(right - left, thick), height);
  if (right - left <= 2 * thick) return;
  context.fillStyle = withAlpha(colour, 0.14);
  context.fillRect(left, top, right - left, height);
}

function drawEdges(context, { low, high, above, below }, view, colours, format) {
  context.textAlign = "left";
  context.textBaseline = "top";
  const width = writeOver(context, format(high), 3, 3, colours.faint, colours.sheet);
  if (above !== null) writeOver(context, `↑ ${format(above)}`, 3 + width + 10, 3, colours.soft, colours.sheet);
  context.textBaseline = "bottom";
  const lowWidth = writeOver(context, format(low), 3, view.height - 3, colours.faint, colours.sheet);
  if (below !== null) {
    writeOver(context, `↓ ${format(below)}`, 3 + lowWidth + 10, view.height - 3, colours.soft, colours.sheet);
  }
}
