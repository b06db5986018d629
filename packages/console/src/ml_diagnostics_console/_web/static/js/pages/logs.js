// What the processes of a run printed: the end of each stream, all of one, lines that match, lines around a step.

import { add, button, card, empty, fill, h, setText } from "../../common/dom.js";
import { formatCount, formatWhole } from "../../common/format.js";
import { urlOf } from "../router.js";
import { createLogFile } from "./log_file.js";
import { createLines } from "./log_lines.js";

const REFRESH_MS = 10_000;
const TYPING_MS = 300;
/** Views: the name in the URL, title, and the parameters that choose it. */
const VIEWS = [
  ["tail", "Tail", { tail: "", level: "" }],
  ["full", "Full log", { tail: "0", level: "" }],
  ["all", "All lines", { tail: "", level: "all" }],
  ["warning", "Warnings", { tail: "", level: "warning" }],
  ["error", "Errors", { tail: "", level: "error" }],
];

/** Show the page. */
export async function show(page, api, state) {
  const base = `/api/runs/${encodeURIComponent(state.run)}`;
  const answer = await api.json(`${base}/logs`);
  const sources = answer.sources ?? [];
  if (sources.length === 0) {
    const sentence = answer.help ? null : "No log yet: nothing that this run printed was kept.";
    add(page, card("Logs", { id: "logs" }, empty(sentence, answer.help)));
    document.documentElement.dataset.ready = "logs";
    return null;
  }
  const logs = createLogs(page, api, state, base, sources, answer);
  await logs.draw();
  document.documentElement.dataset.ready = "logs";
  return logs;
}

function createLogs(page, api, state, base, sources, { help }) {
  const hosts = [...new Set(sources.map(({ host }) => host))];
  const segments = h("div.segments", { role: "group", "aria-label": "What is shown" });
  const input = h("input", { type: "text", data: { filter: "" }, "aria-label": "Search lines", spellcheck: "false",
    autocomplete: "off", placeholder: "Search lines", on: { input: onType, keydown: onEnter } });
  const step = h("input", { type: "text", inputmode: "numeric", "aria-label": "Around step", autocomplete: "off",
    placeholder: "around step", on: { change: onStep } });
  const host = h("select", { "aria-label": "Host", on: { change: () => change({ host: host.value }) } });
  const count = h("span.second", { role: "status" });
  const right = h("div.logs-right");
  const note = h("p.problem", { hidden: true });
  const place = h("div.stack.log-place");
  let parts = [];
  let generation = 0;
  let typing = 0;
  let timer = 0;
  let lastRefresh = 0;
  let isSearch = false;

  input.value = state.get("q");
  step.value = state.get("around").replace(/^step:/, "");
  add(page, h("div.controls.logs-controls", null, segments, h("div.field", null, input, h("kbd", null, "/")),
    h("div.field.step-field", null, step), hosts.length > 1 && host, count, right), note,
  help && h("div.logs-help", null, empty(null, help)), place);
  segments.hidden = step.parentElement.hidden = right.hidden = api.isFile; // A case file has the ends of logs alone.
  timer = setInterval(() => !api.isFile && !document.hidden && performance.now() - lastRefresh >= REFRESH_MS
    && refresh(), 1000);

  function change(changes) {
    state.set(changes);
    draw();
  }

  function onType() {
    if (api.isFile) {
      for (const part of parts) part.filter(input.value.trim());
      return;
    }
    clearTimeout(typing);
    typing = setTimeout(() => change({ q: input.value.trim(), around: "" }), TYPING_MS);
  }

  function onEnter(event) {
    if (event.key === "Enter" && !api.isFile) {
      clearTimeout(typing);
      change({ q: input.value.trim(), around: "" });
    }
  }

  function onStep() {
    const number = step.value.replace(/[^0-9]/g, "");
    step.value = number;
    change({ around: number && `step:${number}`, q: "", level: "" });
    input.value = "";
  }

  function view() {
    if (isSearch) return state.get("level", "all");
    return state.get("tail") === "0" ? "full" : "tail";
  }

  function choose(parameters) {
    if (!parameters.level) input.value = "";
    step.value = "";
    change({ ...parameters, around: "", q: input.value.trim() });
  }

  function showControls(counts = null) {
    const focused = segments.contains(document.activeElement) ? document.activeElement.dataset.view : null;
    fill(segments, VIEWS.map(([name, title, parameters]) => h("button", { type: "button", data: { view: name },
      "aria-pressed": String(name === view() && !state.get("around")), on: { click: () => choose(parameters) } }, title,
    counts?.[name] !== undefined && h("span.count", null, formatWhole(counts[name])))));
    if (focused) segments.querySelector(`[data-view="${focused}"]`)?.focus();
    fill(host, isSearch && h("option", { value: "" }, `All ${hosts.length} hosts`),
      hosts.map((name) => h("option", { value: name }, name)));
    host.value = state.get("host") || (isSearch ? "" : hosts[0]);
    fill(right, view() === "full" && button("Start", () => parts.forEach((part) => part.toStart())),
      !isSearch && button("Refresh", refresh));
  }

  async function draw() {
    const own = ++generation;
    isSearch = !api.isFile && Boolean(state.get("q") || state.get("level") || state.get("around"));
    for (const part of parts) part.close();
    parts = [];
    fill(place);
    note.hidden = true;
    setText(count, "");
    showControls();
    if (isSearch) await drawLines(own);
    else await drawFiles(own);
    lastRefresh = performance.now();
  }

  async function drawFiles(own) {
    const chosen = state.get("host") || hosts[0];
    const isFull = state.get("tail") === "0";
    const streams = sources.filter((source) => source.host === chosen);
    parts = streams.map((source) => createLogFile(api, base, source, { isFull, onError: fail }));
    add(place, parts.map(({ element }) => element));
    if (streams.length === 0) add(place, card(null, {}, empty(`Nothing was kept of host ${chosen}.`)));
    await Promise.all(parts.map((part) => part.start()));
    if (own !== generation) return;
    document.documentElement.dataset.ready = "logs";
  }

  async function drawLines(own) {
    const view = h("div.log-view.is-found", { tabindex: 0, role: "log", "aria-live": "off", "aria-label": "Lines" });
    let found;
    try {
      found = await api.json(urlOf(`${base}/logs`, { q: state.get("q"), level: state.get("level"),
        host: state.get("host"),
        around: state.get("around") }));
    } catch (error) {
      if (own === generation) fail(error);
      return;
    }
    if (own !== generation) return;
    const lines = found.lines ?? [];
    showControls(found.counts);
    const isAll = found.is_complete !== false;
    const isCounted = isAll && !state.get("q") && !state.get("around"); // Beside the view's name.
    setText(count, isCounted ? "" : `${isAll ? "" : "the last "}${formatCount(lines.length, "line")}`);
    if (lines.length === 0) {
      fill(place, card(null, {}, empty(state.get("around") ? "No line is known from around this step."
        : "No line matches.",
        found.help)));
      return;
    }
    add(place, h("section.card.log-card", null, view));
    const list = createLines(view);
    parts = [list];
    view.style.setProperty("--lines", lines.length);
    list.show(lines, { keep: "bottom" });
    if (found.at) {
      const at = lines.findIndex(({ time }) => time !== null && time >= found.at);
      list.reveal(at < 0 ? lines.length - 1 : at);
    }
  }

  function fail(error) {
    if (error.name === "AbortError") return;
    note.hidden = false;
    setText(note, error.message);
  }

  async function refresh() {
    lastRefresh = performance.now();
    if (isSearch) return;
    await Promise.all(parts.map((part) => part.refresh?.()));
  }

  return {
    draw,
    update({ kind, data }) {
      const isOwn = data.id === state.run || (data.ids ?? []).includes(state.run);
      if (kind === "log" && isOwn && performance.now() - lastRefresh >= 1000) refresh();
    },
    close() {
      generation += 1;
      clearInterval(timer);
      clearTimeout(typing);
      for (const part of parts) part.close();
    },
  };
}
