/** The span of time that is shown: zoom, move and limits. Pure functions over [from, to] in seconds. */

const LEAST_SECONDS = 0.01;

/** The whole of an axis without limits. */
export const EVERYWHERE = [Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY];

/** Return a span of the same length inside of `whole`, or `whole` if it is longer. */
export function clamped([from, to], whole) {
  const length = Math.min(Math.max(to - from, LEAST_SECONDS), whole[1] - whole[0]);
  const start = Math.min(Math.max(from, whole[0]), whole[1] - length);
  return [start, start + length];
}

/**
 * Return a span zoomed about a time.
 * @param {[number, number]} span
 * @param {number} at The time that stays where it is.
 * @param {number} factor Below 1 zooms in.
 * @param {[number, number]} whole
 */
export function zoomed(span, at, factor, whole) {
  const length = Math.max((span[1] - span[0]) * factor, LEAST_SECONDS);
  const share = (at - span[0]) / (span[1] - span[0]);
  return clamped([at - share * length, at + (1 - share) * length], whole);
}

/** Return a span moved by a share of its length. */
export function panned(span, share, whole) {
  const shift = (span[1] - span[0]) * share;
  return clamped([span[0] + shift, span[1] + shift], whole);
}

/** Return true if two spans differ by less than a pixel in 4,000. */
export function isSame(one, other) {
  const least = (one[1] - one[0]) / 8000;
  return Math.abs(one[0] - other[0]) <= least && Math.abs(one[1] - other[1]) <= least;
}

/**
 * Return the span of the attempt before or after the one that is shown.
 * @param {{started: number, ended: number|null}[]} attempts In order.
 * @param {[number, number]} span
 * @param {[number, number]} whole
 * @param {number} direction -1 or 1.
 * @returns {[number, number] | null} Null if there is none on that side.
 */
export function attemptSpan(attempts, span, whole, direction) {
  if (!attempts.length) return null;
  const spans = attempts.map(({ started, ended }) => {
    const end = ended ?? whole[1];
    const margin = Math.max((end - started) * 0.03, LEAST_SECONDS);
    return clamped([Math.max(started - margin, whole[0]), Math.min(end + margin, whole[1])], whole);
  });
  if (isSame(span, whole)) return spans[direction > 0 ? 0 : spans.length - 1];
  const shown = spans.findIndex((each) => isSame(each, span));
  const middle = (span[0] + span[1]) / 2;
  const nearest = shown >= 0 ? shown : attempts.findLastIndex((attempt) => attempt.started <= middle);
  const index = shown >= 0 ? nearest + direction : direction > 0 ? nearest + 1 : nearest;
  return spans[index] ?? null;
}
