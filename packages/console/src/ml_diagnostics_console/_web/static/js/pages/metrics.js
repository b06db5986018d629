// The metrics of a run: a list, and a chart for each one that is wanted, built when it is scrolled into view.

import { add, empty, fill, h, setText } from "../../common/dom.js";
import { loadUplot } from "../draw/chart.js";
import { appendDelay } from "../draw/live_points.js";
import { createChartCard } from "../draw/chart_card.js";
import { EVERYWHERE, panned, zoomed } from "../draw/span.js";
import { formatCount, formatInUnit } from "../../common/format.js";
import { bindKeys } from "../keys.js";
import { askedAxis, metricControls, RECORD } from "./metric_controls.js";
import { chooseTracks, sortedMetrics } from "./track_choice.js";

const MOST_CHARTS = 24; // beyond it, only what is chosen in the list is drawn
const MOST_LISTED = 300;
const PIXELS = 450; // of a chart, about
const MOST_RUNS = 12;
const LONGEST_MS = 4_000;

/** Show the page. */
export async function show(page, api, state) {
  loadUplot().catch(() => {}); // on its way while the list is fetched; a chart reports its failure
  const run = await api.json(`/api/runs/${encodeURIComponent(state.run)}`);
  const metrics = sortedMetrics(run.metrics_list ?? []);
  if (!metrics.length) {
    add(page, h("section.card", null, empty("No metric was recorded in this run yet. Record them in the training loop:",
      RECORD)));
    document.documentElement.dataset.ready = "metrics";
    return null;
  }
  const isListFirst = metrics.length > MOST_CHARTS;
  const names = (key) => new Set(state.get(key).split(",").filter(Boolean));
  const byDefault = new Set(chooseTracks(metrics).curves.map(({ name }) => name));
  const chosen = isListFirst && state.get("show") ? names("show") : byDefault;
  const hidden = names("hide");
  const isShown = ({ name }) => (isListFirst ? chosen.has(name) : !hidden.has(name));
  const cards = new Map();
  const charts = h("div.charts");
  const others = () => state.get("with").split(",").filter((id) => id && id !== run.id).slice(0, MOST_RUNS - 1);
  let runs = [run.id, ...others()];
  const known = new Map(); // of the other runs: the names of their metrics
  let timer = 0;
  let isClosed = false;
  const pending = new Set();

  const controls = metricControls({ api, state, run, onSettings: () => showAll(), onRuns: rebuild });
  const list = metricList();
  add(page, controls.element, h("div.metrics-body", null, list.element, charts));
  const zoomBy = (factor) => () => changeSpan((span) => zoomed(span, (span[0] + span[1]) / 2, factor, EVERYWHERE));
  const move = (share) => () => state.get("from") !== "" && changeSpan((span) => panned(span, share, EVERYWHERE));
  await learnMetrics();
  build();
  const unbind = bindKeys({
    "+": zoomBy(0.5), "=": zoomBy(0.5), "-": zoomBy(2), ArrowLeft: move(-0.2), ArrowRight: move(0.2),
  });
  Promise.race([
    Promise.all([...cards.values()].map((card) => card.looked)),
    new Promise((resolve) => setTimeout(resolve, LONGEST_MS)),
  ]).then(() => { // Not awaited: until the page is returned, it cannot be closed.
    if (isClosed) return;
    document.documentElement.dataset.ready = "metrics";
    cards.get(state.get("show"))?.element.scrollIntoView({ block: "nearest" }); // One that a verdict leads to.
  });

  function settings() {
    const [from, to] = [state.number("from"), state.number("to")];
    return {
      x: axis(),
      smooth: Math.min(1, Math.max(0, state.number("smooth", 0))),
      isLog: state.get("log") === "1",
      isFull: state.get("y") === "full",
      span: from !== null && to !== null && to > from ? [from, to] : null,
      hasReplaced: state.get("replaced") === "1",
    };
  }

  function axis() {
    const { axis: x } = askedAxis(state, metrics.some(({ has_steps: has }) => has) ? "step" : "time");
    return x === "time" && runs.length > 1 ? "elapsed" : x; // by the clock, runs would stand side by side
  }

  function build() {
    const wanted = metrics.filter(isShown);
    for (const [name, card] of cards) {
      if (wanted.some((metric) => metric.name === name)) continue;
      card.close();
      card.element.remove();
      cards.delete(name);
    }
    wanted.forEach((metric, index) => {
      if (!cards.has(metric.name)) cards.set(metric.name, newCard(metric));
      const { element } = cards.get(metric.name);
      if (charts.children[index] !== element) charts.insertBefore(element, charts.children[index] ?? null);
    });
    const none = () => h("section.card.no-charts", null, empty("Choose metrics in the list to see their charts."));
    if (!wanted.length) fill(charts, none());
    else charts.querySelector(".no-charts")?.remove();
    for (const card of cards.values()) card.start();
  }

  /** Show all charts with the settings of the URL, that of a metric first: its answer is waited for. */
  function showAll(first = null) {
    const now = settings();
    for (const card of new Set([cards.get(first), ...cards.values()])) card?.show(now);
  }

  async function learnMetrics() {
    await Promise.all(others().filter((id) => !known.has(id)).map(async (id) => {
      const other = await api.json(`/api/runs/${encodeURIComponent(id)}`).catch(() => null);
      if (other) known.set(id, new Set((other.metrics_list ?? []).map(({ name }) => name)));
    }));
  }

  function newCard(metric) {
    const missing = runs.filter((id) => known.has(id) && !known.get(id).has(metric.name));
    return createChartCard(api, { ...metric, missing }, runs, settings(), (...span) => onSpan(...span, metric.name));
  }

  async function rebuild() {
    await learnMetrics();
    runs = [run.id, ...others()];
    for (const card of cards.values()) card.close();
    cards.clear();
    fill(charts);
    build();
  }

  function onSpan(span, of, name = null) {
    if (of !== axis()) return; // a chart by time among charts by step keeps its own span
    const digits = of === "step" ? 0 : 3;
    state.set({ from: span?.[0].toFixed(digits), to: span?.[1].toFixed(digits) });
    showAll(name);
    controls.update();
  }

  /** Change the span that is shown by keys: zoom about its middle, or move it. */
  function changeSpan(change) {
    const found = [...cards.values()].map((card) => card.span()).find((each) => each?.axis === axis());
    if (!found) return false;
    onSpan(change(found.shown), found.axis);
    return true;
  }

  function metricList() {
    const rows = h("div.metric-rows", null);
    const field = h("input", {
      type: "search", placeholder: "Filter metrics", "aria-label": "Filter metrics", data: { filter: "" },
      on: { input: draw },
    });
    const more = h("p.second", null);
    const search = metrics.length > 12 && h("div.field", null, field);
    const element = h("nav.metric-list", { "aria-label": "Metrics" }, search, rows, more);

    function draw() {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = metrics.filter(({ name }) => words.every((word) => name.toLowerCase().includes(word)));
      const listed = found.slice(0, MOST_LISTED);
      const groups = [["Training", listed.filter(({ has_steps: has }) => has)],
        ["Machine", listed.filter(({ has_steps: has, hosts }) => !has && hosts <= 1)],
        ["For each host", listed.filter(({ has_steps: has, hosts }) => !has && hosts > 1)]];
      fill(rows, groups.filter(([, part]) => part.length).map(([title, part]) =>
        h("section", null, h("h2.second", null, title), part.map(row))));
      const rest = found.length - listed.length;
      setText(more, rest > 0 ? `${formatCount(rest, "more metric")}: narrow the filter` : "");
    }

    function row(metric) {
      const box = h("input", { type: "checkbox", on: { change: () => toggle(metric, box.checked) } });
      box.checked = isShown(metric);
      const isLost = metric.points > 0 && (metric.last === null || metric.last === undefined); // JSON has no NaN
      return h("label.metric-row", { title: metric.name }, box, h("span.cut", null, metric.name),
        h("span.metric-last", { classes: [isLost && "is-bad"] },
          isLost ? "NaN" : formatInUnit(metric.last, compactUnit(metric.unit))));
    }

    draw();
    return { element };
  }

  function toggle({ name }, isWanted) {
    if (isListFirst) {
      chosen[isWanted ? "add" : "delete"](name);
      state.set({ show: [...chosen].join(",") });
    } else {
      hidden[isWanted ? "delete" : "add"](name);
      state.set({ hide: [...hidden].join(",") });
    }
    build();
  }

  function appendAll() {
    timer = 0;
    for (const name of pending) cards.get(name)?.append().catch(() => {});
    pending.clear();
  }

  return {
    update({ kind, data }) {
      if (kind !== "metrics" || !data[run.id]) return;
      for (const name of Object.keys(data[run.id])) pending.add(name);
      timer ||= setTimeout(appendAll, appendDelay(((run.now - (run.started ?? run.now)) || 0) / PIXELS));
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
      controls.close();
      unbind();
      for (const card of cards.values()) card.close();
    },
  };
}

function compactUnit(unit) {
  return ["s", "seconds", "%", "percent", "bytes", "bytes/s"].includes(unit) ? unit : "";
}
