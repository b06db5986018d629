// The summary of a profile: what took the steps' time, the steps, operations, activities, hosts.

import { add, card, h, setText } from "../../common/dom.js";
import { createStepBars, stepParts } from "../draw/step_bars.js";
import { tableTwin } from "../../common/table_twin.js";
import {
  formatBytes, formatCount, formatDuration, formatPercent, formatShort, formatWhole,
} from "../../common/format.js";
import { tile } from "../../common/tile.js";

const MOST_ROWS = 15;
const OTHERS = "All others";
const PART_SERIES = new Map([
  ["XLA operations", 2], ["Device compute", 2], ["Transfers", 1], ["Calls of JAX and XLA", 0], ["Compilation", 3],
  ["Annotated regions", 4],
]);
const SERIES = 8;
const MICROSECOND = 1e-6;
const duration = (us) => (us === null || us === undefined ? "-" : formatDuration(us * MICROSECOND));

/**
 * Show a summary.
 * @param {HTMLElement} place
 * @param {Object} summary What `xprofiler summary --format json` prints.
 * @param {Object} session
 * @returns {{close: () => void}}
 */
export function showSummary(place, summary, session) {
  const steps = summary.steps ?? [];
  add(place, headline(summary), h("section.tiles", { "aria-label": "Figures" }, tiles(summary, session)));
  const bars = steps.length ? stepsCard(place, steps) : null;
  add(place, h("div.profile-halves", null,
    tableCard("Operations", summary.operations ?? [], {
      second: summary.operations?.length ? "slowest first, all steps and cores" : null,
      head: ["Operation", "Runs", "Self time", "Share"],
      row: (each) => [name(each.name, [each.framework_name, each.bound_by && `bound by ${each.bound_by}`]),
        formatWhole(each.runs), duration(each.self_us), formatPercent(each.percent)],
    }),
    tableCard("What the hosts did", summary.activities ?? [], {
      second: summary.activities?.length ? "in the steps, the longest first" : null,
      head: ["Activity", "Runs", "Time", "Share"],
      row: (each) => [name(each.name, [each.kind]), each.runs ? formatWhole(each.runs) : "-", duration(each.spent_us),
        formatPercent(each.percent)],
    })));
  if ((summary.hosts?.length ?? 0) > 1) add(place, hostsCard(summary));
  return { close: () => bars?.close() };
}

function headline(summary) {
  const { cause, input, notes = [], slow_host: slow, compilations, utilization = {} } = summary;
  const lines = [
    slow && `${slow.host} is slower than the others: ${formatShort(slow.ratio)} times their median`
      + `${slow.held_up_percent ? `; it holds them up for ${formatPercent(slow.held_up_percent)} of a step` : ""}.`,
    compilations?.count > 0 && `${formatCount(compilations.count, "program was", "programs were")} compiled while `
      + `steps ran: ${formatDuration(compilations.seconds)}, ${formatPercent(compilations.percent)} of their time.`,
    input?.conclusion,
    input?.waiting_percent > 0 && `A step waits for input for ${formatPercent(input.waiting_percent)} of its time.`,
    ...Object.entries(utilization).map(([key, value]) => `${key}: ${formatPercent(value)}.`),
    ...notes,
  ].filter(Boolean);
  const text = summary.headline || cause?.text;
  return card("Summary", { second: summary.device || null },
    text && h("p.stack-sentence", null, `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`),
    lines.length > 0 && h("ul.suggestions.soft", null, lines.map((line) => h("li", null, line))));
}

function tiles(summary, session) {
  const times = summary.step_times ?? {};
  const cores = summary.device_count;
  const spread = times.minimum_us ? `${duration(times.minimum_us)} to ${duration(times.maximum_us)}` : "";
  const size = session?.bytes ?? (summary.hosts ?? []).reduce((sum, host) => sum + host.size_bytes, 0);
  return [
    ["Mean step", duration(times.mean_us), spread],
    ["Median step", duration(times.median_us), formatCount(summary.steps?.length ?? 0, "step")],
    [`Busy ${summary.busy_on ?? "device"}`, formatPercent(summary.busy_percent), "of the profiled time"],
    ["Hosts", formatWhole(summary.hosts?.length ?? 0), cores ? formatCount(cores, "core") : ""],
    ["Size", formatBytes(size), ""],
  ].map(([title, figure, second]) => tile(title, figure, second));
}

function partSeries(part, parts) {
  if (part === OTHERS) return null;
  const others = parts.filter(({ name: each }) => !PART_SERIES.has(each)).map(({ name: each }) => each);
  return PART_SERIES.get(part) ?? others.indexOf(part) + PART_SERIES.size - 1;
}

function stepsCard(place, steps) {
  const parts = stepParts(steps);
  const mean = steps.reduce((sum, step) => sum + step.duration_us, 0) / steps.length;
  const second = h("span.second", { role: "status" }, formatCount(steps.length, "step"));
  const drawing = h("div.steps-place");
  const series = (part) => {
    const index = partSeries(part, parts);
    return index === null ? null : index % SERIES;
  };
  const twin = tableTwin(() => [{
    title: "Steps",
    table: () => ({
      head: ["Step", "Duration", ...parts.map(({ name: part }) => part)],
      rows: steps.map((step) => [step.name, duration(step.duration_us),
        ...parts.map(({ name: part }) => duration(step.parts_us?.[part] ?? null))]),
    }),
  }]);
  const rows = parts.map(({ name: part, mean_us: spent }) => {
    const colour = partColour(series(part));
    const share = (100 * spent) / mean;
    return h("div.part-row", null,
      h("span.swatch", { css: { "--colour": colour } }), h("span.cut", null, part),
      h("span.part-bar", { css: { "--colour": colour, width: `${share.toFixed(1)}%` } }),
      h("span.number", null, formatPercent(share)), h("span.number.second", null, duration(spent)));
  });
  const element = card("Steps", { right: twin.button }, drawing, h("div.part-rows", null, rows), twin.panel);
  element.querySelector("h2").append(second);
  add(place, element);
  return createStepBars(drawing, steps, {
    colourOf: (part, colours) => (series(part) === null ? colours.line : colours.series[series(part)]),
    format: duration,
    onStep(step) {
      const slowest = step?.slowest_host ? `, slowest on ${step.slowest_host}` : "";
      const words = step && `step ${step.name}: ${duration(step.duration_us)}${slowest}`;
      setText(second, words ?? formatCount(steps.length, "step"));
    },
  });
}

function partColour(series) {
  return series === null ? "var(--line)" : `var(--series-${series})`;
}

function name(text, seconds) {
  const second = seconds.filter(Boolean).join(", ");
  return h("div", null, h("div.mono.anywhere", null, text), second && h("div.second.anywhere", null, second));
}

function tableCard(title, rows, { second, head, row }) {
  if (!rows.length) return null;
  const body = h("tbody");
  const showRows = (count) => add(body, rows.slice(body.childElementCount, count).map((each) => h("tr", null,
    row(each).map((cell, index) => h("td", { classes: [index > 0 && "number"] }, cell)))));
  showRows(MOST_ROWS);
  const more = rows.length > MOST_ROWS && h("button.link", { type: "button", on: { click() {
    showRows(rows.length);
    more.remove();
  } } }, `All ${formatWhole(rows.length)}`);
  return card(title, { second }, h("div.scroll-x", null, h("table.table", null,
    h("thead", null, h("tr", null, head.map((text, index) => h("th", {
      scope: "col", classes: [index > 0 && "number"],
    }, text)))), body)), more);
}

function hostsCard({ hosts, steps = [] }) {
  const sorted = [...hosts].sort((one, other) => (other.step_us ?? 0) - (one.step_us ?? 0));
  return tableCard("Hosts", sorted, {
    second: "slowest first",
    head: ["Host", "Mean step", "Waits", "Slowest in", "Starts after", "Size"],
    row: (host) => [host.name, duration(host.step_us), formatPercent(host.waiting_percent),
      `${formatWhole(host.slowest_steps)} of ${formatWhole(steps.length)}`,
      host.start_offset_us === null ? "-" : duration(host.start_offset_us), formatBytes(host.size_bytes)],
  });
}
