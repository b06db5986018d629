/** A card with the chart of one metric, of one run or of several; it is built when it is scrolled into view. */

import { card, fill, h, setText } from "../../common/dom.js";
import { formatCount, formatDuration, formatInUnit, formatLarge, formatWhole } from "../../common/format.js";
import { markOnce } from "./canvas.js";
import { createChart, commonRange } from "./chart.js";
import { asBand, metricTitle, withOddInRange } from "./curve.js";
import { appendPoints } from "./live_points.js";
import { tableTwin } from "../../common/table_twin.js";
import { clockText } from "./time_axis.js";
import { onTheme, SERIES, tokens } from "./tokens.js";

const HEIGHT = 196;
const MARGIN = 120; // around the window, in which charts are drawn before they are seen
const SHORT_UNITS = new Set(["s", "seconds", "%", "percent", "bytes", "bytes/s"]);

/**
 * Build a card.
 * @param {Object} api
 * @param {{name: string, unit: string, hosts: number, has_steps?: boolean, missing?: string[]}} metric `hosts` above 1
 *   shows their spread, where there is one run alone; `missing` names runs that have not recorded it.
 * @param {string[]} runs Ids; the place is the colour.
 * @param {Object} settings `{x: "step"|"time"|"elapsed", smooth: 0..1, isLog, isFull, span: [from, to]|null,
 *   hasReplaced: boolean}`; the last one draws the values of steps that were done again, too.
 * @param {(span: [number, number]|null, axis: string) => void} onSpan Called when a span was dragged; null for all.
 * @returns {{element: HTMLElement, metric: Object, looked: Promise, span: () => Object|null, start: () => void,
 *   show: (settings: Object) => Promise, append: () => Promise, close: () => void}}
 */
export function createChartCard(api, metric, runs, settings, onSpan) {
  const facts = h("span.second.chart-facts", null);
  const place = h("div.chart-place", { css: { "min-height": `${HEIGHT}px` } });
  const legend = h("div.chart-legend", { "aria-hidden": "true" });
  const note = h("p.second.chart-note", { hidden: true });
  const unit = metric.unit ?? "";
  const isSpread = metric.hosts > 1 && runs.length === 1;
  const twin = tableTwin(() => (loaded.length ? [{ title: metricTitle(metric.name), table }] : []));
  twin.button.classList.add("small");
  const head = { second: shownUnit(unit), right: [facts, twin.button], classes: ["chart-card"] };
  const element = card(metricTitle(metric.name), head, place, legend, note, twin.panel);
  let current = settings;
  let chart = null;
  let loaded = [];
  let isInView = false;
  let isOld = true; // what is drawn, if anything, was asked for with other settings
  let request = null; // stops what is no longer wanted
  let isClosed = false;

  let resolveLook = null;
  const looked = new Promise((resolve) => (resolveLook = resolve));
  const seen = new IntersectionObserver((entries) => {
    isInView = entries[entries.length - 1].isIntersecting;
    if (isInView && isOld) load().then(resolveLook);
    else if (!isInView) resolveLook();
  }, { rootMargin: `${MARGIN}px` });
  seen.observe(element);
  const sizes = new ResizeObserver(() => chart && place.clientWidth && chart.resize(place.clientWidth));
  sizes.observe(place);
  const stopTheme = onTheme(() => chart?.update({ runs: series() }));

  async function load() {
    request?.abort();
    const own = request = new AbortController();
    isOld = false;
    const width = Math.max(60, place.clientWidth - 70);
    const answers = await Promise.all(runs.map((run) => read(run, width, own.signal)));
    if (own.signal.aborted) return;
    loaded = answers.filter(({ points }) => points !== null);
    const failed = answers.filter(({ points }) => points === null);
    showNote(failed.length ? `Not shown: ${failed.map(({ run, error }) => `${run} (${error})`).join("; ")}` : "");
    if (!loaded.length) return;
    await draw().catch((error) => showNote(error.message));
  }

  function showNote(text) {
    note.hidden = !text;
    setText(note, text);
  }

  /** Without steps, several runs lie over each other by the time since each began: by the clock, they stand apart. */
  function wantedAxis() {
    return runs.length > 1 && metric.has_steps === false ? "elapsed" : current.x;
  }

  async function read(run, width, signal) {
    if (metric.missing?.includes(run)) return { run, points: null, error: "not recorded" };
    const axis = wantedAxis();
    const span = current.span && axis === current.x ? `&from=${current.span[0]}&to=${current.span[1]}` : "";
    const base = `/api/runs/${encodeURIComponent(run)}/points?metric=${encodeURIComponent(metric.name)}`;
    const path = `${base}&x=${axis}`;
    const window = `${span}&width=${width}`;
    const hasReplaced = current.hasReplaced && axis === "step" && !isSpread;
    try {
      const [answer, replaced] = await Promise.all([
        api.columns(`${path}${isSpread ? "&hosts=spread" : ""}${window}`, signal),
        // A case file of a run that was not restarted has none.
        hasReplaced ? api.columns(`${path}&replaced=1${window}`, signal).catch(() => null) : null,
      ]);
      return { run, points: withOddInRange(answer), replaced, path: base };
    } catch (error) {
      return { run, points: null, error: error.message };
    }
  }

  function series() {
    const colours = tokens();
    const colourOf = (run) => (runs.length === 1 ? colours.curve : colours.series[runs.indexOf(run) % SERIES]);
    return loaded.map(({ run, points, replaced }) => ({ points, replaced, name: run, colour: colourOf(run) }));
  }

  async function draw() {
    const axis = loaded[0].points.header.x ?? current.x;
    const options = {
      runs: series(), x: axis, smooth: current.smooth, isLog: current.isLog, isFull: current.isFull,
      span: axis === current.x ? current.span : null, width: place.clientWidth, height: HEIGHT,
      format: (value) => formatInUnit(value, SHORT_UNITS.has(unit) ? unit : ""),
      formatX: (value) => formatStep(value), onSpan: (span) => onSpan(span, axis), onCursor,
    };
    if (chart) chart.update(options);
    else chart = await createChart(place, options);
    place.dataset.points = String(loaded.reduce((sum, { points }) => sum + (points.header.total ?? 0), 0));
    describe();
    onCursor(null, []);
    markOnce(`drawn:${metric.name}`);
    element.dispatchEvent(new CustomEvent("drawn", { bubbles: true }));
  }

  function describe() {
    const { low, high } = commonRange(loaded, current);
    const names = loaded.length > 1 ? ` of ${loaded.map(({ run }) => run).join(", ")}` : "";
    const odd = loaded[0].points.header.odd;
    place.setAttribute("role", "img");
    const axis = loaded[0].points.header.x ?? current.x;
    place.setAttribute("aria-label", `${metricTitle(metric.name)}${names} by ${axis}, `
      + `${formatInUnit(low, unit)} to ${formatInUnit(high, unit)}${odd ? `, ${odd.host} differs` : ""}`);
  }

  function onCursor(x, values) {
    const headers = loaded.map(({ points }) => points.header);
    const axis = headers[0]?.x ?? current.x;
    if (x === null) {
      const { above, below } = commonRange(loaded, current);
      const odd = headers.length === 1 ? headers[0].odd : null;
      setText(facts, [odd ? `${odd.host}: ${odd.text ?? "differs"}` : countText(headers),
        above !== null && `↑ ${formatInUnit(above, unit)}`, below !== null && `↓ ${formatInUnit(below, unit)}`]
        .filter(Boolean).join("  "));
      if (legend.childElementCount) fill(legend);
      return;
    }
    setText(facts, { time: clockText(x, true), elapsed: formatDuration(x) }[axis] ?? `step ${formatStep(x)}`);
    fill(legend, values.map(({ label, colour, value }) => h("span.chart-value", null,
      h("span.chart-swatch", { css: { "--colour": colour } }),
      values.length > 1 && h("span.name.cut", null, label), h("b", null, formatInUnit(value, unit)))));
  }

  function table() {
    const axis = loaded[0].points.header.x ?? current.x;
    const at = (value) => ({ time: clockText(value, true), elapsed: formatDuration(value) }[axis] ?? formatStep(value));
    const rows = loaded.flatMap(({ run, points }) => {
      const band = asBand(points);
      const [x, y] = band.x?.length ? [band.x, band.middle] : [points.columns.x, points.columns.y];
      const name = loaded.length > 1 ? [run] : [];
      return Array.from(x, (value, index) => [at(value), ...name, formatInUnit(y[index], unit)]);
    });
    return { head: [axis[0].toUpperCase() + axis.slice(1), ...(loaded.length > 1 ? ["Run"] : []), "Value"], rows };
  }

  return {
    element,
    metric,
    /** Resolves when the chart is drawn, or known to be out of view. */
    looked,
    /** Return the span of x that is shown, and its axis; null before it is drawn. */
    span: () => chart && { axis: loaded[0]?.points.header.x ?? current.x, shown: chart.span() },
    /** Draw it now if it is in view: an observer says so only after the next frame. */
    start() {
      const { top, bottom } = element.getBoundingClientRect();
      isInView = bottom > -MARGIN && top < innerHeight + MARGIN;
      if (isInView && isOld) load().then(resolveLook);
    },
    /** Show with other settings; what is not in view waits until it is. */
    show(next) {
      const isSame = next.x === current.x && String(next.span) === String(current.span)
        && next.hasReplaced === current.hasReplaced;
      const isStretched = !isSame && next.x === current.x && wantedAxis() === loaded[0]?.points.header.x;
      current = next;
      isOld ||= !isSame || !loaded.length || !isInView;
      if (!isInView) return Promise.resolve();
      // What is there is stretched at once; the finer values follow.
      if (chart && isStretched) chart.stretch(next.span);
      return isOld ? load() : draw();
    },
    /** Fetch what was appended, and draw it. */
    async append() {
      if (!isInView || isOld || !chart || current.span || isSpread || loaded.length !== 1) return;
      const [only] = loaded;
      const { x } = only.points.columns;
      const added = await api.columns(`${only.path}&x=${wantedAxis()}&after=${only.points.header.total}&width=400`);
      const isInOrder = !added.columns.x.length || !x.length || added.columns.x[0] >= x[x.length - 1];
      const pixel = x.length ? (x[x.length - 1] - x[0]) / Math.max(60, place.clientWidth - 70) : 1;
      const points = isInOrder ? appendPoints(only.points, added, pixel) : null;
      if (isClosed || loaded[0] !== only) return;
      if (points === null) {
        await load();
      } else if (points !== only.points) {
        loaded = [{ ...only, points }];
        await draw();
      }
    },
    close() {
      isClosed = true;
      request?.abort();
      seen.disconnect();
      sizes.disconnect();
      stopTheme();
      chart?.close();
    },
  };
}

function countText(headers) {
  const sum = (key) => headers.reduce((total, header) => total + (header[key] ?? 0), 0);
  const [inside, total] = [sum("points"), sum("total")];
  const all = formatCount(total, "value");
  return inside && inside < total ? `${formatWhole(inside)} of ${all}` : all;
}

function shownUnit(unit) {
  return unit && unit !== "1" ? unit : null;
}

/** Return a step in little space: 200k, 1M. */
export function formatStep(value) {
  const size = Math.abs(value);
  if (size >= 1e6 && size % 1e5 === 0) return `${size / 1e6}M`;
  if (size >= 1e4 && size % 1e3 === 0) return `${value / 1e3}k`;
  return Number.isInteger(value) ? value.toLocaleString("en-US") : formatLarge(value);
}
