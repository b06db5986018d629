// How long a run has lasted: until when its clock goes.

/**
 * Return when the clock of a run ends, in seconds since 1970: at its end; now while it runs or is stuck; else, as
 * nothing is known of the time after it, at its last sign. Null if that is not known.
 *
 * @param {{state: string, ended?: number|null, beat?: number|null}} run
 * @param {number} now Seconds since 1970.
 */
export function endOf(run, now) {
  return run.ended ?? (run.state === "running" || run.state === "stuck" ? now : run.beat ?? null);
}

/** Return how long a run has lasted, in seconds; null if that is not known. See `endOf` for the arguments. */
export function durationOf(run, now) {
  const end = endOf(run, now);
  if (run.started === null || run.started === undefined || end === null) return null;
  return Math.max(0, end - run.started);
}
