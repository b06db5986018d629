// The summary of a profile: what limits the job, figures, steps, operations, what the hosts did, input, hosts.
// The page of `xprofiler serve` and the profiles of `mldiagnostics ui` are both drawn here.

import { add, card, h, setText } from "../common/dom.js";
import { formatCount, formatDuration, formatPercent, formatShort } from "../common/format.js";
import { tableTwin } from "../common/table_twin.js";
import { tile } from "../common/tile.js";
import { activitiesCard, duration, hostsCard, inputCard, operationsCard, shareBar } from "./profile_tables.js";
import { createStepChart, sentenceOf } from "./step_chart.js";
import { partColour, slowestOfEach } from "./steps.js";

/**
 * Show a summary.
 * @param {HTMLElement} place
 * @param {Object} summary What `xprofiler summary --format json` prints.
 * @returns {{close: () => void}}
 */
export function showSummary(place, summary) {
  const steps = summary.steps?.length ? stepsCard(summary) : null;
  add(place, headline(summary), h("section.tiles", { "aria-label": "Figures" }, tiles(summary)), steps?.element,
    operationsCard(summary), activitiesCard(summary),
    h("div.profile-halves", null, hostsCard(summary), inputCard(summary)));
  return { close: () => steps?.close() };
}

function headline(summary) {
  const text = summary.headline || summary.cause?.text || "";
  const found = suggestions(summary);
  return card("Summary", { second: summary.about || summary.device || null },
    text && h("p.profile-cause", null, sentence(text)),
    found.length > 0 && h("ul.suggestions", null, found.map((line) => h("li", null, line))),
    (summary.notes ?? []).map((note) => h("p.problem", null, note)));
}

function suggestions({ slow_host: slow, compilations, utilization = {} }) {
  return [
    slow && `${slow.host} is slower than the others: ${formatShort(slow.ratio)} times their median`
      + `${slow.held_up_percent ? `; it holds them up for ${formatPercent(slow.held_up_percent)} of a step` : ""}.`,
    compilations?.count > 0 && `${formatCount(compilations.count, "program was", "programs were")} compiled while `
      + `steps ran: ${formatDuration(compilations.seconds)}, ${formatPercent(compilations.percent)} of their time.`,
    ...Object.entries(utilization).map(([key, value]) => sentence(`${key}: ${formatPercent(value)}`)),
  ].filter(Boolean);
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}${text.endsWith(".") ? "" : "."}`;
}

function tiles(summary) {
  return [stepTile(summary), busyTile(summary), inputTile(summary), operationTile(summary), hostsTile(summary)]
    .filter(Boolean);
}

function stepTile({ step_times: times }) {
  if (!times) return tile("Mean step", "not known", "no whole step was marked");
  return tile("Mean step", duration(times.mean_us), [h("div", null, `median ${duration(times.median_us)}`),
    h("div", null, `${duration(times.minimum_us)} to ${duration(times.maximum_us)}`)]);
}

function busyTile({ busy_percent: busy, busy_on: where }) {
  const name = where === "host" ? "Hosts busy" : "Devices busy";
  if (busy === null || busy === undefined) return tile(name, "not known", "no device, no XLA operation on the CPU");
  return tile(name, formatPercent(busy), [shareBar(busy), h("div", null, `idle ${formatPercent(100 - busy)}`),
    where === "host" && h("div", null, "XLA's operations on the CPU")]);
}

function inputTile({ input }) {
  const waiting = input?.waiting_percent;
  if (waiting === null || waiting === undefined) return null;
  return tile("Waiting for input", formatPercent(waiting), [shareBar(waiting), h("div", null, "of the mean step")]);
}

function operationTile({ operations = [] }) {
  if (!operations.length) return null;
  const [{ name, percent, runs }] = operations;
  return tile("Slowest operation", formatPercent(percent), [h("div.mono.anywhere", null, name),
    h("div", null, `of all operations' time, ${formatCount(runs, "run")}`)]);
}

function hostsTile({ hosts = [], device_count: cores, device }) {
  return tile("Hosts", String(hosts.length), cores ? `${formatCount(cores, "core")} of ${device}` : device ?? "");
}

function stepsCard({ steps, mean_parts_us: means = {} }) {
  const parts = Object.keys(means);
  const shown = slowestOfEach(steps).length;
  const group = Math.ceil(steps.length / shown);
  const title = group === 1 ? "Steps, on the slowest core" : `The slowest of each ${group} steps, on its slowest core`;
  const second = h("span.second", null, formatCount(steps.length, "step"));
  const chart = createStepChart(steps, {
    parts, onStep: (step) => setText(second, step ? sentenceOf(step) : formatCount(steps.length, "step")),
  });
  const twin = tableTwin(() => [{
    title: "Steps",
    table: () => ({
      head: ["Step", "Duration", ...parts, "Slowest host"],
      rows: steps.map((step) => [step.name, duration(step.duration_us),
        ...parts.map((part) => duration(step.parts_us?.[part])), step.slowest_host ?? ""]),
    }),
  }]);
  const rows = parts.length > 0 && [h("h3.part-title", null, "The mean step"), h("div", null, meanRows(means))];
  const element = card(title, { right: twin.button }, chart.element, rows, twin.panel);
  element.querySelector("h2").append(second);
  return { element, close: chart.close };
}

function meanRows(means) {
  const total = Object.values(means).reduce((sum, spent) => sum + spent, 0) || 1;
  return Object.entries(means).map(([part, spent], index) => {
    const share = (100 * spent) / total;
    return h("div.part-row", { css: { "--colour": partColour(part, index) } },
      h("span.swatch"), h("span.cut", null, part),
      h("span.part-bar", { css: { width: `${share.toFixed(1)}%` }, "aria-hidden": "true" }),
      h("span.number", null, formatPercent(share)), h("span.number.second", null, duration(spent)));
  });
}
