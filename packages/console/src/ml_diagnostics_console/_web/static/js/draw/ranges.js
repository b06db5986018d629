/** The range of an axis of values, and smoothing. Pure functions. */

const LEAST_SHARE = 0.01; // of the value: below it noise would fill the chart
const LEAST_PERCENT_POINTS = 5;
const PADDING = 0.06;
const WIDEST_SMOOTHING = 0.1; // of the buckets, to each side

/** Return the finite numbers of a column, sorted. */
export function sortedFinite(values) {
  return Float64Array.from(values).filter(Number.isFinite).sort();
}

/** Return a quantile of sorted numbers, interpolated; NaN without numbers. */
export function quantile(sorted, share) {
  if (!sorted.length) return Number.NaN;
  const place = Math.min(Math.max(share, 0), 1) * (sorted.length - 1);
  const below = Math.floor(place);
  const above = Math.min(below + 1, sorted.length - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - below);
}

/**
 * Return a range that is wide enough, with space above and below: at least 1 % of the value, or 5 percent points.
 * @param {number} low
 * @param {number} high
 * @param {string} unit
 * @returns {[number, number]}
 */
export function paddedRange(low, high, unit = "") {
  if (!Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  const greatest = Math.max(Math.abs(low), Math.abs(high));
  const least = isPercent(unit) ? LEAST_PERCENT_POINTS : greatest * LEAST_SHARE || 1;
  const span = Math.max(high - low, least);
  const middle = (low + high) / 2;
  const bottom = middle - span * (0.5 + PADDING);
  // What is never below zero has no axis below zero.
  return [low > 0 ? Math.max(bottom, 0) : bottom, middle + span * (0.5 + PADDING)];
}

/** Return true for units of percent. */
export function isPercent(unit) {
  return unit === "%" || unit === "percent";
}

/**
 * Return the half width of the smoothing window, in buckets.
 * @param {number} smooth 0 (none) to 1.
 * @param {number} count The number of buckets.
 */
export function smoothingWindow(smooth, count) {
  if (!(smooth > 0)) return 0;
  return Math.max(1, Math.round(Math.min(smooth, 1) ** 2 * count * WIDEST_SMOOTHING));
}

/**
 * Return the centred mean of each value and its neighbours. Near an edge the window shrinks on both sides, so that
 * nothing lags behind; null and NaN stay gaps and are left out of the means around them.
 * @param {ArrayLike<number|null>} values
 * @param {number} half Neighbours to each side.
 * @returns {(number|null)[]}
 */
export function centredMean(values, half) {
  const count = values.length;
  if (half <= 0) return Array.from(values);
  const sums = new Float64Array(count + 1);
  const counts = new Uint32Array(count + 1);
  for (let index = 0; index < count; index += 1) {
    const isNumber = values[index] !== null && Number.isFinite(values[index]);
    sums[index + 1] = sums[index] + (isNumber ? values[index] : 0);
    counts[index + 1] = counts[index] + (isNumber ? 1 : 0);
  }
  return Array.from({ length: count }, (_, index) => {
    if (counts[index + 1] === counts[index]) return null;
    const reach = Math.min(half, index, count - 1 - index);
    return (sums[index + reach + 1] - sums[index - reach]) / (counts[index + reach + 1] - counts[index - reach]);
  });
}

/**
 * Return the distance of two neighbours in x beyond which nothing was recorded between them.
 * @param {ArrayLike<number>} x In order.
 * @param {number} bucket The width of a bucket, in units of x.
 */
export function gapWidth(x, bucket) {
  if (x.length < 3) return Number.POSITIVE_INFINITY;
  const steps = new Float64Array(x.length - 1);
  for (let index = 1; index < x.length; index += 1) steps[index - 1] = x[index] - x[index - 1];
  steps.sort();
  return Math.max(2.5 * bucket, 8 * steps[steps.length >> 1]);
}

/** Return the index of the value nearest to `wanted` in an ascending column; -1 if it is empty. */
export function nearestIndex(x, wanted) {
  if (!x.length) return -1;
  let low = 0;
  let high = x.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (x[middle] <= wanted) low = middle;
    else high = middle;
  }
  return Math.abs(x[high] - wanted) < Math.abs(wanted - x[low]) ? high : low;
}
