/** The kinds of tracks of a run: ledger, curve, rows of hosts, events. Each fetches what its span needs. */

import { bucketTitle } from "../buckets.js";
import { endWord } from "../shapes.js";
import { h } from "../../common/dom.js";
import { formatCount, formatDuration, formatInUnit, formatPercent, formatWhole } from "../../common/format.js";
import { asBand, drawCurve, metricTitle, shownRange, withOddInRange } from "./curve.js";
import { appendPoints } from "./live_points.js";
import { cellAt, drawHeat, heatHeight, hostMeans, paintHeat } from "./heat.js";
import { drawAttempts, drawBand, drawEndMark } from "./ledger_band.js";
import { nearestIndex, quantile, sortedFinite } from "./ranges.js";
import { clockText } from "./time_axis.js";

const LEDGER_HEIGHT = 82;
const BAND = { top: 32, height: 44 };
const CURVE_HEIGHT = 72;
const CELL_PIXELS = 2.5;
const MOST_CELLS = 2_000_000; // of all hosts: beyond it, columns get wider
const EVENTS_HEIGHT = 24;
const REACH = 10; // pixels from the hairline within which an event counts as under it
const NEAR_BUCKETS = 3; // the same for values: between attempts there is none

/** Return the parameters of a span: none while the whole is shown, so that answers can be kept. */
export function spanQuery(view, isAll, digits = 3) {
  const width = Math.min(4000, Math.max(1, Math.round(view.width)));
  return isAll ? `width=${width}` : `from=${view.from.toFixed(digits)}&to=${view.to.toFixed(digits)}&width=${width}`;
}

/**
 * Where time went: attempts and buckets.
 * @param {{api: Object, base: string, attempts: () => Object[], titles: Map<string, string>, isAll: () => boolean}} run
 */
export function ledgerTrack({ api, base, attempts, titles, isAll }) {
  let ledger = null;
  const title = (name) => titles.get(name) ?? bucketTitle(name);
  return {
    key: "ledger",
    name: "Where time went",
    get second() {
      return formatCount(attempts().length, "attempt");
    },
    height: LEDGER_HEIGHT,
    async read(view) {
      ledger = await api.columns(`${base}/ledger?${spanQuery(view, isAll())}`);
    },
    draw(context, view, colours) {
      if (ledger) drawBand(context, ledger, view, BAND, colours);
      if (ledger?.header.help) writeNothing(context, "not measured", view, colours);
      drawAttempts(context, attempts(), view, { labelY: 10, lineY: 23 }, colours, formatWhole);
    },
    describe() {
      const ends = attempts().map(({ number, end }) => `attempt ${number} ${endWord(end)}`);
      return `Where time went: ${ends.slice(0, 40).join(", ")}`;
    },
    valueAt(time) {
      const at = bucketAt(ledger, time);
      return at && { value: title(at.bucket), second: at.second, kind: "is-text" };
    },
    table() {
      const rows = attempts().map(({ number, started, ended, end, reason, first_step, last_step }) => [
        number, clockText(started, true), ended === null ? "-" : clockText(ended, true),
        first_step === null ? "-" : `${formatWhole(first_step)} to ${formatWhole(last_step)}`,
        endWord(end), reason ?? "",
      ]);
      return { head: ["Attempt", "Started", "Ended", "Steps", "End", "Reason"], rows };
    },
  };
}

function writeNothing(context, text, view, colours) {
  context.fillStyle = colours.soft;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, view.width / 2, BAND.top + BAND.height / 2);
}

function bucketAt(ledger, time) {
  if (!ledger) return null;
  const { columns, header } = ledger;
  if (columns.shares) {
    const column = Math.floor(((time - header.from) / (header.to - header.from)) * header.width);
    if (column < 0 || column >= header.width) return null;
    const count = header.buckets.length;
    const shares = Array.from(columns.shares.subarray(column * count, (column + 1) * count));
    const most = shares.indexOf(Math.max(...shares));
    if (!(shares[most] > 0)) return null;
    const others = shares.filter((share, index) => share > 0 && index !== most).length;
    return { bucket: header.buckets[most], second: others ? `${formatPercent(100 * shares[most], 0)} here` : "" };
  }
  const { start, end, bucket } = columns;
  for (let index = 0; index < start.length; index += 1) {
    if (start[index] <= time && time < end[index]) {
      return { bucket: header.buckets[bucket[index]], second: formatDuration(end[index] - start[index]) };
    }
  }
  return null;
}

/**
 * A curve of one metric over time; of several hosts their spread and the odd one.
 * @param {{api: Object, base: string, metric: Object, isAll: () => boolean}} options `metric`: `{name, unit, hosts,
 *   points, series, last}`.
 */
export function curveTrack({ api, base, metric, isAll }) {
  const isSpread = metric.hosts > 1;
  const unit = metric.unit ?? "";
  const path = `${base}/points?metric=${encodeURIComponent(metric.name)}&x=time${isSpread ? "&hosts=spread" : ""}`;
  let points = null;
  return {
    key: `curve:${metric.name}`,
    name: metricTitle(metric.name),
    metric: metric.name,
    get second() {
      return isSpread ? formatCount(metric.hosts, "host") : formatCount(points?.header.total ?? metric.points, "value");
    },
    height: CURVE_HEIGHT,
    async read(view) {
      points = withOddInRange(await api.columns(`${path}&${spanQuery(view, isAll())}`));
    },
    /** Return the median of the curve; null while it is not known. */
    typical() {
      const band = points && asBand(points);
      const found = points ? quantile(sortedFinite(band.x?.length ? band.middle : points.columns.y), 0.5) : Number.NaN;
      return Number.isFinite(found) ? found : null;
    },
    /** Fetch what was appended only; return false if all has to be read again. */
    append: isSpread ? null : async (view) => {
      if (!points || !isAll()) return true;
      const added = await api.columns(`${path}&after=${points.header.total}&width=${Math.round(view.width)}`);
      points = appendPoints(points, added, (view.to - view.from) / view.width);
      return points !== null;
    },
    draw(context, view, colours) {
      if (points) drawCurve(context, points, view, colours, (value) => formatInUnit(value, unit));
    },
    describe() {
      if (!points) return metricTitle(metric.name);
      const { low, high } = shownRange(points.header);
      const odd = points.header.odd;
      return `${metricTitle(metric.name)} over time, ${formatInUnit(low, unit)} to ${formatInUnit(high, unit)}`
        + `${odd ? `, ${odd.host} differs: ${odd.text ?? ""}` : ""}`;
    },
    rest() {
      const odd = points?.header.odd;
      const isWhole = points && isAll();
      const last = isSpread && points ? lastFinite(points.columns.mean)
        : isWhole ? lastFinite(points.columns.y) ?? metric.last : metric.last;
      if (points && !isSpread && endsWithoutNumber(points)) return { value: "NaN", kind: "is-bad", second: "last" };
      if (last === null || last === undefined) return null;
      const second = odd ? odd.host : isSpread ? "mean, all alike" : "last";
      return { value: formatInUnit(last, unit), second, secondKind: odd ? "is-bad" : "" };
    },
    valueAt(time) {
      const band = points && asBand(points);
      const [x, y] = band?.x?.length ? [band.x, band.middle] : [points?.columns.x ?? [], points?.columns.y ?? []];
      const index = nearestIndex(x, time);
      if (index < 0 || !isNear(x, index, time)) return null;
      const odd = band?.isSpread ? nearestIndex(band.oddX, time) : -1;
      const second = odd >= 0 ? `${points.header.odd?.host ?? "odd"} ${formatInUnit(band.oddY[odd], unit)}` : "";
      return { value: formatInUnit(y[index], unit), second, secondKind: odd >= 0 ? "is-bad" : "" };
    },
    table() {
      const band = points && asBand(points);
      const format = (value) => formatInUnit(value, unit);
      if (!band?.x?.length) {
        const { x = [], y = [] } = points?.columns ?? {};
        return { head: ["Time", "Value"], rows: Array.from(x, (at, index) => [clockText(at, true), format(y[index])]) };
      }
      const head = band.isSpread ? ["Time", "Mean", "10 %", "90 %"] : ["Time", "Mean", "5 %", "95 %"];
      return { head, rows: Array.from(band.x, (at, index) =>
        [clockText(at, true), ...[band.middle, band.low, band.high].map((column) => format(column[index]))]) };
    },
  };
}

function endsWithoutNumber({ header, columns }) {
  const last = header.nonfinite?.at(-1);
  return Boolean(last) && columns.x.length > 0 && last[1] >= columns.x[columns.x.length - 1];
}

function lastFinite(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) if (Number.isFinite(values[index])) return values[index];
  return null;
}

function isNear(x, index, time) {
  const span = x.length > 1 ? (x[x.length - 1] - x[0]) / x.length : 0;
  return Math.abs(x[index] - time) <= Math.max(span * NEAR_BUCKETS, 1e-3);
}

/**
 * Rows of hosts for one metric of several.
 * @param {{api: Object, base: string, metrics: Object[], isAll: () => boolean, chosen: string,
 *   onChoose: (name: string) => void}} options `chosen`: the metric that is shown first; "" for the first one.
 */
export function heatTrack({ api, base, metrics, isAll, chosen, onChoose }) {
  let metric = metrics.find(({ name }) => name === chosen) ?? metrics[0];
  let heat = null;
  let picture = null;
  let paintedWith = null;
  const select = h("select.track-select", {
    "aria-label": "Metric of the rows of hosts",
    on: {
      change() {
        metric = metrics[select.selectedIndex];
        onChoose(metric === metrics[0] ? "" : metric.name);
      },
    },
  }, metrics.map((each) => h("option", { value: each.name, selected: each === metric }, metricTitle(each.name))));
  const format = (value) => formatInUnit(value, metric.unit ?? "");
  return {
    key: "heat",
    name: "Hosts",
    nameNode: metrics.length > 1 ? select : h("span.track-title", null, metricTitle(metric.name)),
    get second() {
      return `${formatCount(heat?.header.hosts.length ?? metric.hosts, "host")}, a row each`;
    },
    get height() {
      return heatHeight(heat?.header.hosts.length ?? metric.hosts);
    },
    async read(view) {
      const name = encodeURIComponent(metric.name);
      const width = Math.min(view.width / CELL_PIXELS, MOST_CELLS / metric.hosts);
      const cells = { ...view, width };
      heat = await api.columns(`${base}/heat?metric=${name}&${spanQuery(cells, isAll())}`);
      picture = null;
    },
    draw(context, view, colours) {
      if (!heat) return;
      if (!picture || paintedWith !== colours.version) {
        picture = paintHeat(heat, colours);
        paintedWith = colours.version;
      }
      drawHeat(context, heat, picture, view, colours);
    },
    describe() {
      const odd = heat?.header.odd;
      return `${metricTitle(metric.name)} of ${heat?.header.hosts.length ?? metric.hosts} hosts: `
        + (odd ? `${odd.host} differs, ${odd.text ?? ""}` : "all alike");
    },
    rest() {
      if (!heat) return null;
      const { odd, lo, hi } = heat.header;
      const [least, most] = [lo, hi].map((value) => h("span", null, format(value)));
      const node = h("span.heat-legend", null, least, h("span.heat-ramp", null), most);
      if (!odd) return { value: "all alike", kind: "is-plain", node };
      return { value: odd.host, second: odd.text ?? "", node };
    },
    valueAt(time, share) {
      if (!heat) return null;
      const row = share ?? (heat.header.odd ? (heat.header.odd.index + 0.5) / heat.header.hosts.length : 0);
      const cell = cellAt(heat, time, row);
      return cell && { value: cell.host, second: cell.value === null ? "nothing recorded" : format(cell.value) };
    },
    table() {
      const rows = heat ? hostMeans(heat).map(({ host, mean }) => [host, mean === null ? "-" : format(mean)]) : [];
      return { head: ["Host", "Mean over what is shown"], rows };
    },
  };
}

/**
 * Events of the run as marks.
 * @param {{events: () => Object[]}} options `{time, kind, text}` each.
 */
export function eventsTrack({ events }) {
  let shown = null;
  return {
    key: "events",
    name: "Events",
    get second() {
      return events().length ? "" : "none";
    },
    height: EVENTS_HEIGHT,
    draw(context, view, colours) {
      shown = view;
      for (const event of events()) {
        const x = ((event.time - view.from) / (view.to - view.from)) * view.width;
        if (x < -6 || x > view.width + 6) continue;
        drawEvent(context, event.kind, Math.min(Math.max(x, 6), view.width - 6), colours);
      }
    },
    describe() {
      const texts = events().slice(0, 30).map(({ time, text }) => `${clockText(time)} ${text}`);
      return `Events: ${texts.join("; ") || "none"}`;
    },
    valueAt(time) {
      if (!shown || !events().length) return null;
      const distance = (event) => Math.abs(event.time - time);
      const nearest = events().reduce((best, event) => (distance(event) < distance(best) ? event : best));
      const pixels = (Math.abs(nearest.time - time) / (shown.to - shown.from)) * shown.width;
      return pixels <= REACH ? { value: nearest.text, second: clockText(nearest.time, true), kind: "is-text" } : null;
    },
    table: () => ({
      head: ["Time", "Kind", "Event"],
      rows: events().map(({ time, kind, text }) => [clockText(time, true), kind, text]),
    }),
  };
}

function drawEvent(context, kind, x, colours) {
  const y = EVENTS_HEIGHT / 2;
  const mark = { failed: "x", preempted: "p", hung: "h" }[kind];
  if (mark) {
    drawEndMark(context, mark, x, y, colours);
    return;
  }
  context.beginPath();
  if (kind === "checkpoint") {
    context.fillStyle = colours.good;
    context.rect(x - 3, y - 3, 6, 6);
  } else if (kind === "profile") {
    context.fillStyle = colours.accent;
    for (const [dx, dy] of [[0, -5], [5, 0], [0, 5], [-5, 0]]) context.lineTo(x + dx, y + dy);
  } else {
    context.fillStyle = colours.faint;
    context.arc(x, y, 3, 0, 2 * Math.PI);
  }
  context.fill();
}
