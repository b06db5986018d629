// Which metrics a run shows as tracks, without being asked. Pure.

const LOSS = /(^|[_/])loss$/i;
const STEP_TIME = /^(.*[_/])?step_time$/i;
const DEVICE = [/duty/i, /tensorcore|gpu_util|device_util/i, /host_cpu_util/i, /cpu_util/i, /device|gpu|cpu/i];
const MEMORY = [/hbm|device_memory/i, /host_memory/i, /memory|rss/i];
const MOST_CURVES = 4;

/**
 * Choose tracks.
 * @param {{name: string, unit: string, hosts: number, points: number}[]} metrics
 * @param {{isLive?: boolean}} options `isLive`: more values may come; else a metric with one value a host is no track,
 *   unless there is nothing else.
 * @returns {{curves: Object[], rows: Object[]}} Curves in order, and the metrics that rows of hosts can show.
 */
export function chooseTracks(metrics, { isLive = true } = {}) {
  if (!isLive) {
    const drawn = metrics.filter(({ points, hosts }) => !(points < 2 * Math.max(1, hosts)));
    if (drawn.length) return chooseTracks(drawn);
  }
  const rows = metrics.filter(({ hosts }) => hosts > 1);
  const isTime = ({ unit }) => unit === "s" || unit === "seconds";
  const first = (test, within = metrics) => within.find((metric) => test(metric) && !curves.includes(metric));
  const curves = [];
  const firstOf = (patterns, isMeant) => patterns.map((pattern) =>
    first(({ name }) => pattern.test(name) && isMeant(name))).find(Boolean);
  const take = (metric) => metric && curves.length < MOST_CURVES && curves.push(metric);
  take(first(({ name }) => name === "loss") ?? first(({ name }) => LOSS.test(name)));
  take(first(({ name }) => name === "step_time") ?? first(({ name }) => STEP_TIME.test(name)));
  if (rows.length) {
    take(first(isTime, rows));
  } else {
    const isMemory = (name) => MEMORY.some((pattern) => pattern.test(name));
    take(firstOf(DEVICE, (name) => !isMemory(name)));
    take(firstOf(MEMORY, () => true));
  }
  // A run without any of these still shows what it has.
  for (const metric of metrics) if (curves.length < 2 && ![...curves, ...rows].includes(metric)) take(metric);
  const duty = rows.findIndex(({ name }) => /duty|utilization/i.test(name));
  if (duty > 0) rows.unshift(...rows.splice(duty, 1));
  return { curves, rows };
}

/**
 * Sort metrics for a list: what a run shows first, then those of steps, then the machine's.
 * @param {{name: string, has_steps: boolean, hosts: number}[]} metrics
 */
export function sortedMetrics(metrics) {
  const { curves } = chooseTracks(metrics.filter(({ has_steps: hasSteps }) => hasSteps));
  const rank = (metric) => {
    const place = curves.indexOf(metric);
    if (place >= 0) return place;
    return metric.has_steps ? 10 : metric.hosts > 1 ? 30 : 20;
  };
  return [...metrics].sort((one, other) => rank(one) - rank(other) || (one.name < other.name ? -1 : 1));
}
