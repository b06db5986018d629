/** A chart of one metric: uPlot, with a band, a mean, the odd host, attempts, and stripes for NaN and infinity. */

import { withAlpha, writeOver } from "./canvas.js";
import { asBand, extremes, fillBand, shownRange, strokeLine, stripe } from "./curve.js";
import { wheelTurn } from "./gestures.js";
import { centredMean, gapWidth, smoothingWindow } from "./ranges.js";
import { EVERYWHERE, panned, zoomed } from "./span.js";
import { clockTicks, elapsedTicks, logNumbers } from "./time_axis.js";
import { tokens } from "./tokens.js";

const SCRIPT = "/static/vendor/uplot/uPlot.iife.min.js";
const TICK_PIXELS = 95;
const EDGE_PIXELS = 7;
const TICKS_UP = 5;
const WHOLE_STEPS = Array.from({ length: 39 }, (_, index) => [1, 2, 5][index % 3] * 10 ** Math.floor(index / 3));
const LOG_PADDING = 0.06;
const LEAST_RATIO = 1.02;

let loading = null;

/** Load uPlot once; a case file has it already. */
export function loadUplot() {
  if (globalThis.uPlot) return Promise.resolve(globalThis.uPlot);
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = SCRIPT;
    script.addEventListener("load", () => resolve(globalThis.uPlot));
    script.addEventListener("error", () => reject(new Error("the chart library could not be loaded")));
    document.head.append(script);
  });
  return loading;
}

/**
 * Arrange answers of `/points` as one table for uPlot.
 * @param {{points: Object, colour: string, name: string}[]} runs One, or several that lie over each other.
 * @param {{smooth: number, colours: Object}} options `smooth`: 0 to 1.
 * @returns {{data: (number[]|Float64Array)[], series: Object[], bands: Object[]}}
 */
export function chartTable(runs, { smooth, colours, uPlot }) {
  const tables = [];
  const series = [{}];
  const bands = [];
  for (const { points, colour, name } of runs) {
    const isAlone = runs.length === 1;
    const band = asBand(points);
    const hasBand = band.x?.length > 0;
    const { x, y } = hasBand ? { x: band.x, y: band.middle } : points.columns;
    const edges = hasBand ? [band.low, band.high, ...(band.isSpread ? [band.least, band.most] : [])] : [];
    const [xs, middle, low, high, least, most] = withGaps(x, [y, ...edges]);
    const smoothed = centredMean(middle, smoothingWindow(smooth, middle.length));
    const table = [xs];
    const first = series.length;
    if (isAlone && hasBand) {
      if (least) addBand(table, series, bands, first, [most, least], withAlpha(colours.curve, 0.12));
      addBand(table, series, bands, first + (least ? 2 : 0), [high, low], withAlpha(colours.curve, 0.2));
    }
    if (smooth > 0) {
      table.push(middle);
      series.push({ stroke: withAlpha(colour, 0.35), width: 1, points: { show: false } });
    }
    table.push(smoothed);
    series.push({ label: name, stroke: colour, width: 1.6, points: pointsOf(xs), isMain: true });
    tables.push(table);
    if (isAlone && band.oddX?.length) {
      tables.push(withGaps(band.oddX, [band.oddY]));
      const label = points.header.odd?.host ?? "odd";
      series.push({ label, stroke: colours.bad, width: 1.4, points: { show: false } });
    }
  }
  // The columns of uPlot share one x: joined, what another run lacks is undefined and no gap.
  const data = tables.length === 1 ? tables[0] : uPlot.join(tables);
  return { data, series, bands };
}

function addBand(table, series, bands, first, [high, low], fill) {
  table.push(high, low);
  const edge = { stroke: null, width: 0, points: { show: false }, isEdge: true };
  series.push({ ...edge }, { ...edge });
  bands.push({ series: [first, first + 1], fill });
}

function pointsOf(x) {
  return { show: x.length < 60, size: 4 };
}

/** Return columns with a null between two values where nothing was recorded; NaN becomes null. */
function withGaps(x, columns) {
  const span = x.length > 1 ? x[x.length - 1] - x[0] : 0;
  const gap = gapWidth(x, span / Math.max(1, x.length));
  const result = [[], ...columns.map(() => [])];
  for (let index = 0; index < x.length; index += 1) {
    if (index > 0 && x[index] - x[index - 1] > gap) {
      result[0].push((x[index] + x[index - 1]) / 2);
      for (let at = 0; at < columns.length; at += 1) result[at + 1].push(null);
    }
    result[0].push(x[index]);
    for (let at = 0; at < columns.length; at += 1) {
      result[at + 1].push(Number.isFinite(columns[at][index]) ? columns[at][index] : null);
    }
  }
  return result;
}

/**
 * Return the range of y of several runs together, and what is outside. A run without finite values has no part in it.
 * @param {{points: Object, replaced?: Object|null}[]} runs
 * @param {{isFull: boolean, isLog: boolean}} options
 */
export function commonRange(runs, { isFull, isLog }) {
  const all = runs.flatMap(({ points, replaced }) => [points.header, ...(isFull && replaced ? [replaced.header] : [])]);
  const finite = all.filter(({ least }) => Number.isFinite(least));
  const headers = finite.length ? finite : all;
  const ranges = headers.map((header) => shownRange(header, isFull));
  let low = Math.min(...ranges.map((range) => range.low));
  let high = Math.max(...ranges.map((range) => range.high));
  const least = Math.min(...headers.map((header) => header.least ?? Number.POSITIVE_INFINITY));
  const greatest = Math.max(...headers.map((header) => header.greatest ?? Number.NEGATIVE_INFINITY));
  if (isLog) {
    const positive = headers.map((header) => (isFull ? header.least : header.lo)).filter((value) => value > 0);
    const highest = Math.max(...headers.map((header) => (isFull ? header.greatest : header.hi) ?? 0));
    low = positive.length ? Math.min(...positive) : Math.max(highest, 1) / 1e4;
    const margin = Math.max(highest / low, LEAST_RATIO) ** LOG_PADDING;
    [low, high] = [low / margin, Math.max(highest, low * LEAST_RATIO) * margin];
  }
  return { low, high, above: greatest > high ? greatest : null, below: least < low ? least : null };
}

/**
 * Build a chart.
 * @param {HTMLElement} place
 * @param {{runs: Object[], x: string, smooth: number, isLog: boolean, isFull: boolean, format: (value) => string,
 *   formatX: (value) => string, width: number, height: number, onSpan: (span: [number, number]|null) => void,
 *   onCursor: (x: number|null, values: Object[]) => void, span: [number, number]|null}} options
 * @returns {Promise<{update: (options: Object) => void, resize: (width: number) => void, close: () => void}>}
 */
export async function createChart(place, options) {
  const uPlot = await loadUplot();
  let current = options;
  let plot = null;
  let key = "";

  function build() {
    const colours = tokens();
    const table = chartTable(current.runs, { smooth: current.smooth, colours, uPlot });
    const shape = JSON.stringify([table.series.map(({ stroke, label }) => [stroke, label]), table.bands, current.isLog,
      current.x, colours.version, current.height]);
    if (plot && shape === key) {
      plot.setData(table.data, false);
      plot.batch(() => setScales(plot));
      return;
    }
    key = shape;
    plot?.destroy();
    plot = new uPlot(plotOptions(table, colours), table.data, place);
    plot.over.addEventListener("dblclick", () => current.onSpan(null));
    plot.over.addEventListener("wheel", onWheel, { passive: false });
  }

  function onWheel(event) {
    const { min, max } = plot.scales.x;
    const turn = wheelTurn(event);
    if (turn?.zoom) {
      event.preventDefault(); // else the browser zooms the page
      const at = plot.posToVal(event.clientX - plot.over.getBoundingClientRect().left, "x");
      current.onSpan(zoomed([min, max], at, turn.zoom, EVERYWHERE));
    } else if (turn && current.span) {
      event.preventDefault(); // else the browser goes a page back
      current.onSpan(panned([min, max], turn.pan / plot.over.clientWidth, EVERYWHERE));
    }
  }

  function setScales(target) {
    const { low, high } = commonRange(current.runs, current);
    target.setScale("x", spanOf(target.data[0]));
    target.setScale("y", { min: low, max: high });
  }

  function spanOf(x) {
    if (current.span) return { min: current.span[0], max: current.span[1] };
    const [first, last] = x.length ? [x[0], x[x.length - 1]] : [0, 1];
    return last > first ? { min: first, max: last } : { min: first - 1, max: last + 1 };
  }

  function plotOptions({ series, bands, data }, colours) {
    const { low, high } = commonRange(current.runs, current);
    const font = `11.5px ${colours.font}`;
    const axis = { stroke: colours.faint, font, grid: { stroke: colours.grid, width: 1 }, ticks: { show: false } };
    return {
      width: current.width,
      height: current.height,
      padding: [10, 18, 0, 0],
      legend: { show: false },
      scales: {
        x: { time: false, range: (_, min, max) => [min, max], ...spanOf(data[0]) },
        y: { range: (_, min, max) => [min, max], min: low, max: high, distr: current.isLog ? 3 : 1 },
      },
      axes: [
        { ...axis, size: 30, gap: 6, ...xTicks() },
        { ...axis, size: 62, gap: 6, values: (_, splits) => splits.map(labelY), ...logTicks() },
      ],
      series: series.map((each) => ({ ...each, spanGaps: false })),
      bands,
      cursor: {
        sync: { key: `metrics-${current.x}`, setSeries: false, scales: ["x", null] },
        points: { show: (_, index) => !series[index]?.isEdge && series[index]?.isMain, size: 6 },
        drag: { x: true, y: false, setScale: false },
        y: false,
      },
      hooks: {
        drawAxes: [(drawn) => drawReplaced(drawn, current.runs)],
        draw: [(drawn) => drawExtras(drawn, current, colours)],
        setCursor: [(drawn) => reportCursor(drawn, current, series)],
        setSelect: [(drawn) => {
          if (drawn.select.width < 4) return;
          const span = [0, drawn.select.width].map((shift) => drawn.posToVal(drawn.select.left + shift, "x"));
          drawn.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          current.onSpan(span);
        }],
      },
    };
  }

  const labelY = (value) => (value === null ? "" : current.format(value));

  function logTicks() {
    if (!current.isLog) return {};
    return { splits: (_, axis, min, max) => logNumbers(min, max, TICKS_UP), filter: (_, splits) => splits };
  }

  function xTicks() {
    const ticksOf = current.x === "time" ? clockTicks : current.x === "elapsed" ? elapsedTicks : null;
    if (!ticksOf) return { incrs: WHOLE_STEPS, values: (_, splits) => splits.map((value) => current.formatX(value)) };
    let labels = new Map();
    return {
      splits(drawn, _, min, max) {
        const ticks = ticksOf(min, max, Math.max(2, Math.floor(drawn.bbox.width / devicePixelRatio / TICK_PIXELS)));
        labels = new Map(ticks.map((tick) => [tick.at, tick.label]));
        return ticks.map((tick) => tick.at);
      },
      values: (_, splits) => splits.map((value) => labels.get(value) ?? ""),
    };
  }

  build();
  return {
    update(changes) {
      current = { ...current, ...changes };
      build();
    },
    resize(width) {
      current = { ...current, width };
      plot.setSize({ width, height: current.height });
    },
    /** Show another span of what is there already. */
    stretch(span) {
      current = { ...current, span };
      plot.setScale("x", spanOf(plot.data[0]));
    },
    /** Return the span of x that is shown. */
    span: () => [plot.scales.x.min, plot.scales.x.max],
    close: () => plot.destroy(),
  };
}

function reportCursor(plot, current, series) {
  const index = plot.cursor.idx;
  if (plot.cursor.left < 0 || index === null || index === undefined) {
    current.onCursor(null, []);
    return;
  }
  const values = series.flatMap(({ label, stroke }, at) => {
    if (!label) return [];
    const found = nearestValue(plot.data[at], index);
    return found === null ? [] : [{ label, colour: stroke, value: found }];
  });
  current.onCursor(plot.data[0][index], values);
}

function nearestValue(column, index) {
  // Joined runs have values at different x: take the nearest one of each.
  for (let distance = 0; distance < 12; distance += 1) {
    for (const at of [index - distance, index + distance]) {
      const value = column[at];
      if (value !== null && value !== undefined) return value;
    }
  }
  return null;
}

function drawExtras(plot, { runs }, colours) {
  const { ctx: context, bbox } = plot;
  const ratio = devicePixelRatio;
  context.save();
  context.beginPath();
  context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  context.clip();
  context.font = `${11 * ratio}px ${colours.font}`;
  context.textBaseline = "top";
  context.textAlign = "left";
  if (runs.length === 1) {
    drawMarks(plot, runs[0].points.header.attempt_marks ?? [], colours, ratio);
    drawDots(plot, runs[0].points, colours, ratio);
  }
  drawNotFinite(plot, runs.flatMap(({ points }) => points.header.nonfinite ?? []), colours, ratio);
  context.restore();
}

/** Draw the values of steps that were done again, faint, below all else. */
function drawReplaced(plot, runs) {
  const { ctx: context, bbox } = plot;
  context.save();
  context.beginPath();
  context.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  context.clip();
  context.lineWidth = devicePixelRatio;
  for (const { replaced, colour } of runs) {
    if (!replaced) continue;
    const { x, y, low, high } = replaced.columns;
    const scale = { x: (value) => plot.valToPos(value, "x", true), y: (value) => plot.valToPos(value, "y", true) };
    const gap = Number.POSITIVE_INFINITY;
    if (runs.length === 1) fillBand(context, x, low, high, scale, { gap, colour: withAlpha(colour, 0.09) });
    strokeLine(context, x, y, scale, { gap, colour: withAlpha(colour, 0.5), width: devicePixelRatio });
  }
  context.restore();
}

function drawMarks(plot, marks, colours, ratio) {
  const { ctx: context, bbox } = plot;
  let writtenTo = Number.NEGATIVE_INFINITY;
  context.strokeStyle = context.fillStyle = colours.faint;
  context.lineWidth = ratio;
  for (const [at, number] of marks.slice(1)) {
    const x = Math.round(plot.valToPos(at, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    context.setLineDash([3 * ratio, 3 * ratio]);
    context.globalAlpha = 0.7;
    context.beginPath();
    context.moveTo(x, bbox.top);
    context.lineTo(x, bbox.top + bbox.height);
    context.stroke();
    context.globalAlpha = 1;
    if (x < writtenTo) continue;
    context.fillText(String(number), x + 3 * ratio, bbox.top + ratio);
    writtenTo = x + (8 + 7 * String(number).length) * ratio;
  }
  context.setLineDash([]);
}

function drawDots(plot, points, colours, ratio) {
  const band = asBand(points);
  if (band.isSpread || !band.x?.length) return;
  const { ctx: context, bbox } = plot;
  context.fillStyle = withAlpha(colours.curve, 0.8);
  const [top, bottom] = [bbox.top + 2 * ratio, bbox.top + bbox.height - 2 * ratio];
  const last = new Map(); // at an edge, dots stay apart: else many of them are a line
  for (const index of extremes(points.columns.x, points.columns.y, band)) {
    const x = plot.valToPos(points.columns.x[index], "x", true);
    const y = Math.min(Math.max(plot.valToPos(points.columns.y[index], "y", true), top), bottom);
    const isEdge = y === top || y === bottom;
    if (isEdge && x - (last.get(y) ?? Number.NEGATIVE_INFINITY) < EDGE_PIXELS * ratio) continue;
    if (isEdge) last.set(y, x);
    context.beginPath();
    context.arc(x, y, 1.4 * ratio, 0, 2 * Math.PI);
    context.fill();
  }
}

function drawNotFinite(plot, places, colours, ratio) {
  const { ctx: context, bbox } = plot;
  for (const [start, end, , kind] of places) {
    const left = plot.valToPos(start, "x", true);
    const right = Math.max(plot.valToPos(end, "x", true), left + 1.5 * ratio);
    stripe(context, left, right, bbox.top, bbox.height, colours.bad, 1.5 * ratio);
    const y = bbox.top + bbox.height - 16 * ratio;
    writeOver(context, kind ?? "NaN", left + 6 * ratio, y, colours.bad, colours.sheet);
  }
}
