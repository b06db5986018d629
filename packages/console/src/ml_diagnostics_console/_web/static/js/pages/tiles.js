// The figures at the top of the overview.

import {
  formatCount, formatDuration, formatInUnit, formatPercent, formatShort, formatWhole,
} from "../../common/format.js";
import { tile } from "../../common/tile.js";
import { bucketSlug } from "../buckets.js";
import { endOf } from "../run_time.js";

const LOSS = /(^|[_/])loss$/i;
const STEP_TIME = /^step_time$/i;
const NOT_LOST = new Set(["productive", "excluded"]);

/**
 * Build the tiles of a run; what is not known is left out, or says so.
 * @param {Object} run
 * @param {{typicalStep?: number|null, prove?: Function}} options `typicalStep`: the median of the curve of step times,
 *   in seconds; null while it is not known. `prove` makes a number lead to its events.
 */
export function tiles(run, { typicalStep = null, prove = (content) => content } = {}) {
  return [goodput(run), lastStep(run), metric(run, LOSS, "Loss", prove), stepTime(run, typicalStep, prove),
    disruptions(run), wallTime(run)].filter(Boolean);
}

function goodput(run) {
  if (run.goodput === null || run.goodput === undefined) return tile("Goodput", "-", "not measured");
  const lost = (run.ledger ?? []).filter(({ bucket, seconds }) => seconds > 0 && !NOT_LOST.has(bucketSlug(bucket))
    && !(bucketSlug(bucket) === "in-flight" && run.state === "running")); // a step that runs may still end well
  const most = lost.reduce((best, row) => (best === null || row.seconds > best.seconds ? row : best), null);
  return tile("Goodput", formatPercent(run.goodput), most ? `most lost: ${lowered(most.title)}` : "nothing lost");
}

function lowered(title) {
  return /^[A-Z][a-z]/.test(title) ? title[0].toLowerCase() + title.slice(1) : title;
}

function lastStep(run) {
  const second = run.steps ? `of ${formatWhole(run.steps)}` : "";
  return tile("Last step", formatWhole(run.step), second);
}

function metric(run, pattern, name, prove) {
  const found = (run.metrics_list ?? []).find((row) => pattern.test(row.name));
  if (!found) return null;
  const value = run.metrics?.[found.name] ?? found.last;
  // JSON has no NaN: a metric that has values and no last one ended without a number.
  const isNumber = value !== null && value !== undefined;
  const text = !isNumber && found.points ? "NaN" : found.unit ? formatInUnit(value, found.unit) : formatShort(value);
  const second = found.points ? `last of ${formatCount(found.points, "value")}` : "";
  return tile(name, text, second, (content) => prove(content, `metric:${found.name}`, `${name}: the last values`));
}

function stepTime(run, typical, prove) {
  // The last step may be one that saved a checkpoint: the typical one says more.
  const found = (run.metrics_list ?? []).find((row) => STEP_TIME.test(row.name));
  if (!found || typical === null) return metric(run, STEP_TIME, "Step time", prove);
  const last = run.metrics?.[found.name] ?? found.last;
  return tile("Step time", formatDuration(typical), `typical; last ${formatDuration(last)}`,
    (content) => prove(content, `metric:${found.name}`, "Step time: the last values"));
}

function disruptions(run) {
  const count = run.disruptions?.length ?? 0;
  const cost = run.totals?.disruption_seconds;
  return tile("Disruptions", formatWhole(count), count && cost ? `cost ${formatDuration(cost)}` : "");
}

function wallTime(run) {
  const isSilent = run.ended === null && run.state === "silent" && Boolean(run.beat);
  const end = endOf(run, run.now) ?? run.now;
  const began = run.totals?.began ?? run.started;
  const before = run.started - began; // a recorder may start before the run's own record does
  const words = before > 0.01 * (end - began) ? `with ${formatDuration(before)} before the run`
    : isSilent ? "from start to the last sign" : run.ended === null ? "so far" : "from start to end";
  return tile("Wall time", formatDuration(began === null ? null : end - began), words);
}
