/** Points that were appended to a curve, joined to what is already drawn. Pure functions. */

import { quantile, sortedFinite } from "./ranges.js";

const BUCKET_PIXELS = 3;
const MOST_WITHOUT_BAND = 700; // values that are drawn as they are
const MOST_APPENDED = 4000; // values, until all is read again at the screen's resolution

/**
 * Join an answer of `/points?after=` to the answer before it.
 * @param {{header: Object, columns: Object}} before
 * @param {{header: Object, columns: Object}} added Real points only, or with a band of their own.
 * @param {number} pixel The width of a pixel, in units of x.
 * @returns {{header: Object, columns: Object} | null} Null if all has to be read again.
 */
export function appendPoints(before, added, pixel) {
  const { x, y } = added.columns;
  const appended = (before.appended ?? 0) + x.length;
  if (appended > MOST_APPENDED || added.header.reset) return null;
  if (!x.length) return before;
  const hasBand = before.columns.mean_x?.length > 0;
  if (!hasBand && before.columns.x.length + x.length > MOST_WITHOUT_BAND) return null;
  const columns = { ...before.columns, x: joined(before.columns.x, x), y: joined(before.columns.y, y) };
  const tail = hasBand ? tailBucket(before, added, pixel * BUCKET_PIXELS) : { columns: {}, kept: {}, points: [] };
  for (const [name, values] of Object.entries(tail.columns)) columns[name] = joined(tail.kept[name], values);
  const finite = sortedFinite(y);
  const header = { ...before.header, total: added.header.total ?? before.header.total + x.length };
  if (finite.length) {
    header.least = Math.min(header.least ?? finite[0], finite[0]);
    header.greatest = Math.max(header.greatest ?? finite[0], finite[finite.length - 1]);
    header.lo = Math.min(header.lo ?? finite[0], quantile(finite, 0.05));
    header.hi = Math.max(header.hi ?? finite[0], quantile(finite, 0.95));
  }
  if (header.points !== undefined) header.points += x.length;
  header.nonfinite = [...(header.nonfinite ?? []), ...(added.header.nonfinite ?? [])];
  return { header, columns, appended, tail: tail.points };
}

/**
 * Return how long to wait until what was appended is fetched: until it is about two pixels of the drawing.
 * @param {number} seconds The time that a pixel stands for.
 * @param {number} least Seconds.
 * @returns {number} Milliseconds, at most 30 s.
 */
export function appendDelay(seconds, least = 4) {
  return 1000 * Math.min(30, Math.max(least, 2 * (Number.isFinite(seconds) ? seconds : 0)));
}

function joined(before, added) {
  const result = new Float64Array(before.length + added.length);
  result.set(before);
  result.set(added, before.length);
  return result;
}

function tailBucket(before, added, width) {
  // The last bucket is still filling: it is made again from its own values, which are kept until it is full.
  const names = ["mean_x", "mean_y", "p5", "p95"];
  const isOpen = (before.tail?.length ?? 0) > 0;
  const count = before.columns.mean_x?.length ?? 0;
  const kept = Object.fromEntries(names.map((name) => {
    const column = before.columns[name] ?? new Float64Array(0);
    return [name, isOpen ? column.subarray(0, count - 1) : column];
  }));
  let points = isOpen ? [...before.tail] : [];
  const columns = Object.fromEntries(names.map((name) => [name, []]));
  const close = () => {
    const values = sortedFinite(points.map(([, value]) => value));
    const bucketX = points.reduce((sum, [at]) => sum + at, 0) / points.length;
    columns.mean_x.push(bucketX);
    columns.mean_y.push(values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : Number.NaN);
    columns.p5.push(quantile(values, 0.05));
    columns.p95.push(quantile(values, 0.95));
  };
  for (let index = 0; index < added.columns.x.length; index += 1) {
    const at = added.columns.x[index];
    if (points.length && at - points[0][0] > width) {
      close();
      points = [];
    }
    points.push([at, added.columns.y[index]]);
  }
  if (points.length) close();
  return { kept, columns, points };
}
