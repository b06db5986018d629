// Which metrics a run shows as tracks, without being asked. Pure.

const LOSS = /(^|[_/])loss$/i;
const STEP_TIME = /^(.*[_/])?step_time$/i;
const DEVICE = /duty|tensorcore|device|gpu|cpu/i;
const MEMORY = /memory|hbm|rss/i;
const MOST_CURVES = 4;

/**
 * Choose tracks.
 * @param {{name: string, unit: string, hosts: number}[]} metrics
 * @returns {{curves: Object[], rows: Object[]}} Curves in order, and the metrics that rows of hosts can show.
 */
export function chooseTracks(metrics) {
  const rows = metrics.filter(({ hosts }) => hosts > 1);
  const isTime = ({ unit }) => unit === "s" || unit === "seconds";
  const first = (test, within = metrics) => within.find((metric) => test(metric) && !curves.includes(metric));
  const curves = [];
  const take = (metric) => metric && curves.length < MOST_CURVES && curves.push(metric);
  take(first(({ name }) => name === "loss") ?? first(({ name }) => LOSS.test(name)));
  take(first(({ name }) => name === "step_time") ?? first(({ name }) => STEP_TIME.test(name)));
  if (rows.length) {
    take(first(isTime, rows));
  } else {
    take(first(({ name }) => DEVICE.test(name) && !MEMORY.test(name)));
    take(first(({ name }) => MEMORY.test(name)));
  }
  // A run without any of these still shows what it has.
  for (const metric of metrics) if (curves.length < 2 && !curves.includes(metric)) take(metric);
  const duty = rows.findIndex(({ name }) => /duty|utilization/i.test(name));
  if (duty > 0) rows.unshift(...rows.splice(duty, 1));
  return { curves, rows };
}
