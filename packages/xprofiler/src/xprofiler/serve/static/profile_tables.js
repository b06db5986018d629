// The tables of a profile's summary: operations, what the hosts did, the input pipeline, hosts.

import { add, card, h } from "../common/dom.js";
import {
  formatBytes, formatCount, formatDuration, formatPercent, formatThreeDigits, formatWhole,
} from "../common/format.js";

const MOST_ROWS = 15;
const OTHERS = "All others";
const KINDS = {
  annotation: "annotation", compilation: "compilation", transfer: "transfer", runtime: "JAX or XLA",
  python: "Python, not annotated",
};

/** Return the text of a time in microseconds; empty if it is not known. */
export function duration(spent) {
  return spent === null || spent === undefined ? "" : formatDuration(spent / 1e6);
}

/** Build the card of the operations, the slowest first. */
export function operationsCard({ operations = [] }) {
  const longest = operations[0]?.self_us || 1;
  const bounds = new Set(operations.map((each) => each.bound_by).filter(Boolean));
  return tableCard("Operations", operations, {
    second: "the slowest first, of all steps and cores",
    none: "None were profiled: the profile has no device, and no XLA operation on the CPU.",
    columns: [
      ["Operation", "name", (each) => named(each.name, [each.category, each.framework_name])],
      ["Runs", "number", (each) => formatWhole(each.runs)],
      ["Self time", "number", (each) => duration(each.self_us)],
      ["Share", "number", (each) => formatPercent(each.percent)],
      ["", "bar", (each) => shareBar((100 * each.self_us) / longest)],
      ["Compute", "number", (each) => rate(each.gflops_per_second, "FLOP")],
      ["Memory", "number", (each) => rate(each.gib_per_second, "iB")],
      ["Bound by", "short", (each) => (bounds.size ? each.bound_by : "")],
    ],
  });
}

/** Build the card of what the hosts did in the thread of the steps; null if that is not known. */
export function activitiesCard({ activities = [], compilations = null, time_shares: shares = "" }) {
  if (!activities.length) return null;
  const compiled = compilations && `Compiled: ${formatCount(compilations.count, "program")} in `
    + `${formatDuration(compilations.seconds)}, ${formatPercent(compilations.percent)} of the steps' time.`;
  return tableCard("On the hosts, in the thread of the steps", activities, {
    intro: [shares, compiled],
    columns: [
      ["Region or function", "name", (each) => named(each.name, [KINDS[each.kind] ?? each.kind])],
      ["Runs", "number", (each) => (each.runs ? formatWhole(each.runs) : "")],
      ["Time", "number", (each) => duration(each.spent_us)],
      ["Share of the steps", "number", (each) => formatPercent(each.percent)],
      ["", "bar", (each) => shareBar(each.percent)],
    ],
  });
}

/** Build the card of the input pipeline; null if nothing was measured. */
export function inputCard({ input = {} }) {
  const parts = Object.entries(input.parts_us ?? {});
  if (!parts.length && !input.conclusion) return null;
  const none = "The hosts did nothing that XProf knows as input, such as tf.data.";
  return tableCard("Input pipeline", parts, {
    intro: [input.conclusion || "XProf measured no wait for input."], none,
    columns: [["On the hosts", "name", ([part]) => part], ["Spent", "number", ([, spent]) => duration(spent)]],
  });
}

/** Build the card of the hosts, the slowest first: when each began, its steps, and what it waited for. */
export function hostsCard({ hosts = [], slow_host: slow = null }) {
  const several = hosts.length > 1;
  const sorted = [...hosts].sort((one, other) => (other.step_us ?? 0) - (one.step_us ?? 0));
  const longest = sorted[0]?.step_us || 1;
  return tableCard("Hosts", sorted, {
    second: several ? `${formatWhole(hosts.length)}, the slowest first` : null,
    none: "The profile has none.",
    columns: [
      ["Host", "name", ({ name }) => named(name, [name === slow?.host && "slower than the others"])],
      ["Mean step", "number", (host) => duration(host.step_us)],
      ["", "bar", ({ name, step_us: spent }) => (several && spent
        ? shareBar((100 * spent) / longest, name === slow?.host) : "")],
      [OTHERS, "number", (host) => (host.waiting_percent === null ? "" : formatPercent(host.waiting_percent))],
      ["Slowest in", "number", ({ slowest_steps: count }) => (several && count ? formatCount(count, "step") : "")],
      ["Started", "number", ({ start_offset_us: late }) => (several && late !== null ? `+${duration(late)}` : "")],
      ["Size", "number", (host) => formatBytes(host.size_bytes)],
    ],
  });
}

/** Return the text of a rate that is given in billions of a unit: 95.2 TFLOP/s. */
export function rate(giga, unit) {
  if (giga === null || giga === undefined) return "";
  return giga >= 1000 ? `${formatThreeDigits(giga / 1000)} T${unit}/s` : `${formatThreeDigits(giga)} G${unit}/s`;
}

/** Build a bar with the length of a percentage; red for the odd one. */
export function shareBar(percent, isOdd = false) {
  const width = `${Math.min(100, Math.max(0, percent)).toFixed(1)}%`;
  return h("span.share-bar", { classes: [isOdd && "is-odd"], "aria-hidden": "true" }, h("span", { css: { width } }));
}

function named(text, below) {
  const second = below.filter(Boolean).join(", ");
  return [h("div.mono.anywhere", null, text), second && h("div.second.anywhere", null, second)];
}

function tableCard(title, rows, { second = null, intro = [], none = "", columns }) {
  const above = intro.filter(Boolean).map((text) => h("p.intro", null, text));
  if (!rows.length) return card(title, {}, above, h("p.second", null, none));
  const filled = columns.filter(([, , cell]) => rows.some((row) => isFilled(cell(row))));
  const body = h("tbody");
  const showRows = (count) => add(body, rows.slice(body.childElementCount, count).map((row) => h("tr", null,
    filled.map(([, kind, cell]) => h("td", { classes: [kind] }, cell(row))))));
  showRows(MOST_ROWS);
  const more = rows.length > MOST_ROWS && h("button.link", { type: "button", on: { click: showAll } },
    `All ${formatWhole(rows.length)}`);

  function showAll() {
    showRows(rows.length);
    more.remove();
  }

  return card(title, { second }, above, h("div.scroll-x", { tabindex: "0", role: "region", "aria-label": title },
    h("table.table.profile-table", null, h("thead", null, h("tr", null, filled.map(([text, kind]) => h("th", {
      scope: "col", classes: [kind],
    }, text || h("span.visually-hidden", null, "Bar"))))), body)), more);
}

function isFilled(content) {
  return content !== "" && content !== null && content !== undefined;
}
