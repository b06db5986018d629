// The runs page: what is wrong now, then all runs as a table that is filtered and sorted in the browser.

import { add, button, copyable, fill, h, setAttribute, setText } from "../../common/dom.js";
import { filterRows, needsAttention, sortRows } from "../filter.js";
import { formatWhole } from "../../common/format.js";
import { showAttention } from "../frame/attention.js";
import { showFooter } from "../frame/footer.js";
import { showNotes } from "../frame/notes.js";
import { bindKeys } from "../keys.js";
import { runPath, urlOf } from "../router.js";
import { createVirtual } from "../virtual.js";
import { COLUMNS, runRow, showNumbers } from "./runs_row.js";

const MOST_COMPARED = 12;
const TICK_MS = 1000;
const BEAT_MS = 10_000; // A sign each second would be an endless animation.
const NUMBERS = new Set(["id", "version", "step", "loss", "beat", "metrics"]);
const TYPING_MS = 300; // The URL follows when the typing pauses: browsers bound how often it may change.
const STATES = [
  ["", "All", () => true],
  ["running", "Running", (row) => row.state === "running"],
  ["attention", "Attention", needsAttention],
  ["failed", "Failed", (row) => row.state === "failed"],
  ["completed", "Completed", (row) => row.state === "completed"],
];
const NEW_RUN = "run = machinelearning_run(name=\"my-run\", configs={\"learning_rate\": 1e-3})";
const ELSEWHERE = "mldiagnostics ui --read-from PROJECT";

/** Show the page. */
export async function show(page, api, state) {
  const answer = await api.json("/api/runs");
  if (!page.isConnected) return null; // It was left meanwhile: the bar at the foot is another page's.
  const table = createTable(page, api, state, answer);
  table.start();
  document.documentElement.dataset.ready = "runs";
  return table;
}

function createTable(page, api, state, answer) {
  const rows = new Map(answer.rows.map((row) => [row.id, { ...row }]));
  let offset = answer.now - Date.now() / 1000;
  let nextCursor = answer.next;
  let shown = [];
  let current = -1;
  let selected = new Set(state.get("sel").split(",").filter((id) => id !== ""));
  const beats = new Map();
  let typing = 0;
  let noting = 0;
  let isClosed = false;
  let timer = 0;
  let waiting = 0;
  const now = () => Date.now() / 1000 + offset;

  const notes = h("div.notes", { hidden: true });
  const attention = h("section.card.attention-card", { "aria-label": "What needs attention", hidden: true });
  const segments = h("div.segments", { role: "group", "aria-label": "State" });
  const input = h("input", { type: "text", data: { filter: "" }, "aria-label": "Filter runs", spellcheck: "false",
    autocomplete: "off", placeholder: "name, state:failed, loss<0.5, lr>1e-3, hosts=64",
      on: { input: onType, keydown: onField } });
  input.value = state.get("q");
  const hint = h("span.field-note", { role: "status" });
  const count = h("span.runs-count", { role: "status" });
  const head = h("div.runs-head", { role: "row" });
  const body = h("div.runs-body", { role: "rowgroup" });
  const none = h("div.runs-none.empty", { hidden: true });
  const grid = h("div", { role: "grid", "aria-label": "Runs", "aria-multiselectable": "true",
    on: { click: onClick, focusin: onFocus } }, h("div.runs-head-group", { role: "rowgroup" }, head), body);
  const sheet = h("div.runs-grid", null, grid, none);
  const more = h("div.controls", { hidden: true });
  const controls = h("div.controls.runs-controls", null, segments, h("div.field", null, input, h("kbd", null, "/")),
    hint,
    count);
  const list = createVirtual(body, { rowHeight, make: makeRow });
  const unbind = bindKeys({
    j: () => move(1), ArrowDown: () => current >= 0 && move(1), k: () => move(-1), ArrowUp: () => current >= 0
      && move(-1),
    x: () => shown[current] && toggle(shown[current].id), c: compare,
    Enter: () => (shown[current] ? state.go(runPath(shown[current].id)) : false),
    Escape: () => (selected.size ? clear() : false),
  });

  add(page, h("div.page-head", null, h("h1", null, "Runs"), answer.place && h("span.second.cut", null, answer.place)),
    notes, attention, controls, sheet, more);

  function start() {
    watchNotes(answer, 0);
    showHead();
    showAll();
    showSelection();
    showMore();
    timer = setInterval(() => !document.hidden && tick(), TICK_MS);
  }

  /** Show the notes; while there are some, as that the journal is still read, ask again, less and less often. */
  function watchNotes({ notes: found }, tries) {
    showNotes(notes, found);
    if (!found?.length || api.isFile || isClosed) return;
    noting = setTimeout(async () => {
      try {
        const next = await api.json("/api/runs");
        if (isClosed) return;
        for (const row of next.rows) rows.set(row.id, Object.assign(rows.get(row.id) ?? {}, row));
        showAll();
        watchNotes(next, tries + 1);
      } catch {
        watchNotes({ notes: found }, tries + 1);
      }
    }, Math.min(60_000, 2000 * 1.5 ** tries));
  }

  /** Show what follows from the runs alone, then the list. */
  function showAll() {
    const all = [...rows.values()];
    showSegments(all, now());
    showAttention(attention, sortRows(all, "start.desc", now()), now());
    apply();
  }

  /** Filter, sort and draw; the visible rows are rebuilt. */
  function apply() {
    const all = [...rows.values()];
    const time = now();
    const [, , isOfState] = STATES.find(([key]) => key === state.get("state")) ?? STATES[0];
    const found = filterRows(all.filter((row) => isOfState(row, time)), input.value, time);
    const keep = shown[current]?.id;
    shown = sortRows(found.rows, state.get("sort", "start.desc"), time);
    current = keep === undefined ? -1 : shown.findIndex((row) => row.id === keep);
    setAttribute(input, "aria-invalid", found.problems.length ? "true" : null);
    setText(hint, found.problems.join("; "));
    const isFiltered = input.value.trim() !== "";
    setText(count, isFiltered ? `${formatWhole(shown.length)} of ${formatWhole(all.length)}` : "");
    grid.setAttribute("aria-rowcount", shown.length + 1);
    showNone(all.length);
    list.show(shown.length);
  }

  function showSegments(all, time) {
    const key = state.get("state");
    const focused = segments.contains(document.activeElement) ? document.activeElement.dataset.state : null;
    fill(segments, STATES.map(([name, title, isOfState]) => h("button", {
      type: "button", "aria-pressed": String(name === key), data: { state: name }, on: { click: () => choose(name) },
      title: name === "attention" ? "Stuck, silent, or failed or with a NaN loss within the last day" : null,
    }, title, h("span.count", null, formatWhole(all.reduce((sum, row) => sum + (isOfState(row, time) ? 1 : 0), 0))))));
    if (focused !== null) segments.querySelector(`[data-state="${focused}"]`)?.focus();
  }

  function choose(name) {
    state.set({ state: name });
    showAll();
  }

  function showHead() {
    const [key, direction] = state.get("sort", "start.desc").split(".");
    fill(head, COLUMNS.map(([name, title, column]) => {
      if (!name) return h("div", { role: "columnheader", class: column }, h("span.visually-hidden", null, "Selected"));
      const isSorted = name === key;
      const arrow = isSorted && h("span", { "aria-hidden": "true" }, direction === "asc" ? " ↑" : " ↓");
      return h("div", { role: "columnheader", class: column,
        "aria-sort": isSorted ? (direction === "asc" ? "ascending" : "descending") : null },
      h("button", { type: "button", on: { click: () => sortBy(name) } }, title, arrow));
    }));
  }

  function sortBy(name) {
    const [key, direction] = state.get("sort", "start.desc").split(".");
    const first = name === "name" || name === "status" || name === "loss" ? "asc" : "desc";
    const other = direction === "asc" ? "desc" : "asc";
    state.set({ sort: `${name}.${name === key ? other : first}` });
    showHead();
    head.querySelector("[aria-sort] button")?.focus();
    apply();
  }

  function showNone(total) {
    none.hidden = shown.length > 0;
    grid.hidden = shown.length === 0;
    controls.hidden = total === 0;
    if (shown.length > 0) return;
    if (total === 0) {
      fill(none, h("h2", null, "No run yet"),
        h("p", null, "A run appears as soon as a program records one on this machine:"),
        copyable(NEW_RUN), h("p", null, "Runs of a Google Cloud project:"), copyable(ELSEWHERE));
    } else {
      fill(none, h("p", null, "No run passes the filter."), button("Show all runs", () => {
        input.value = "";
        state.set({ q: "", state: "" });
        showAll();
      }));
    }
  }

  function showMore() {
    more.hidden = !nextCursor;
    if (!nextCursor) return;
    fill(more, h("span.second", null, `The newest ${formatWhole(rows.size)} runs are shown.`),
      button("Load older runs", loadMore));
  }

  async function loadMore() {
    try {
      const older = await api.json(urlOf("/api/runs", { next: nextCursor }));
      for (const row of older.rows) if (!rows.has(row.id)) rows.set(row.id, { ...row });
      nextCursor = older.next;
      showAll();
      showMore();
    } catch (error) {
      showNotes(notes, [error.message, ...(answer.notes ?? [])]);
    }
  }

  function rowHeight() {
    return parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row")) || 44;
  }

  function makeRow(index) {
    const row = shown[index];
    return runRow(row, { index, now: now(), isSelected: selected.has(row.id), isCurrent: index === current,
      onSelect: () => toggle(row.id) });
  }

  function onClick(event) {
    const element = event.target.closest(".run-row");
    if (!element || event.target.closest("a, input, label") || event.defaultPrevented) return;
    if (String(getSelection() ?? "") !== "") return; // The user selected text: that is no click.
    const path = runPath(element.dataset.id);
    if (event.ctrlKey || event.metaKey) window.open(path, "_blank", "noopener");
    else state.go(path);
  }

  /** The row that has the focus is the current one, by whatever means it got there. */
  function onFocus(event) {
    const id = event.target.closest(".run-row")?.dataset.id;
    if (id === undefined || shown[current]?.id === id) return;
    list.shown().get(current)?.classList.remove("is-current");
    current = shown.findIndex((row) => row.id === id);
    list.shown().get(current)?.classList.add("is-current");
  }

  function onType() {
    apply();
    clearTimeout(typing);
    typing = setTimeout(() => state.set({ q: input.value.trim() }), TYPING_MS);
  }

  function onField(event) {
    if (event.key === "ArrowDown" || event.key === "Enter") {
      event.preventDefault();
      input.blur();
      move(1);
    }
  }

  function move(by) {
    if (shown.length === 0) return false;
    list.shown().get(current)?.classList.remove("is-current");
    current = Math.min(shown.length - 1, Math.max(0, current + by));
    const element = list.reveal(current);
    element?.classList.add("is-current");
    element?.querySelector("a")?.focus({ preventScroll: true });
    return true;
  }

  function toggle(id) {
    selected = new Set(selected);
    if (!selected.delete(id)) selected.add(id);
    state.set({ sel: [...selected].join(",") });
    const index = shown.findIndex((row) => row.id === id);
    const element = list.shown().get(index);
    if (element) {
      element.classList.toggle("is-selected", selected.has(id));
      element.setAttribute("aria-selected", String(selected.has(id)));
      element.querySelector("input").checked = selected.has(id);
    }
    showSelection();
    return true;
  }

  function clear() {
    selected = new Set();
    state.set({ sel: "" });
    for (const index of list.shown().keys()) list.renew(index);
    showSelection();
    return true;
  }

  function compareHref() {
    return urlOf("/compare", { runs: [...selected].join(",") });
  }

  function compare() {
    if (selected.size < 2 || selected.size > MOST_COMPARED) return false;
    state.go(compareHref());
    return true;
  }

  function showSelection() {
    showFooter({ ids: [...selected], href: compareHref(), most: MOST_COMPARED, onClear: clear });
  }

  /** Times of what is visible go on; nothing else is touched. */
  function tick() {
    const time = now();
    for (const [index, element] of list.shown()) {
      const row = shown[index];
      if (!row) continue;
      showNumbers(element, row, time);
    }
    showAttention(attention, sortRows([...rows.values()], "start.desc", time), time);
  }

  function update({ kind, data }) {
    if (kind === "gone") {
      for (const id of data.ids ?? []) rows.delete(id);
      showAll();
    }
    if (kind !== "changed") return;
    if (data.now) offset = data.now - Date.now() / 1000;
    let isOrderOld = false;
    for (const fields of data.rows ?? []) {
      const row = rows.get(fields.id);
      if (!row && fields.state === undefined) continue; // A part of a run that this page has not loaded.
      if (!row || (fields.state !== undefined && fields.state !== row.state)) isOrderOld = true;
      const next = row ? Object.assign(row, fields) : { attempts: "", buckets: [], config: {}, metrics: {}, ...fields };
      rows.set(fields.id, next);
      renew(next, fields);
    }
    // What is sorted or filtered by a number that changes is put in order again, but never under the pointer each
    // second.
    if (isOrderOld) showAll();
    else if (!waiting && (input.value || state.get("sort", "start.desc") !== "start.desc")) {
      waiting = setTimeout(() => {
        waiting = 0;
        if (!grid.matches(":hover")) apply();
      }, 5 * TICK_MS);
    }
  }

  /** Show what changed of a run: numbers alone as text, all else by a new row. */
  function renew(row, fields) {
    const index = shown.indexOf(row);
    let element = index < 0 ? null : list.shown().get(index);
    if (!element) return;
    if (Object.keys(fields).every((name) => NUMBERS.has(name))) {
      showNumbers(element, row, now());
    } else {
      const isFocused = element.contains(document.activeElement);
      list.renew(index);
      element = list.shown().get(index);
      if (isFocused) element.querySelector("a").focus({ preventScroll: true });
    }
    const time = performance.now();
    const isEarly = time - (beats.get(row.id) ?? -BEAT_MS) < BEAT_MS;
    if (fields.beat === undefined || row.state !== "running" || isEarly) return;
    beats.set(row.id, time);
    element.querySelector(".col-status").classList.add("beat");
  }

  return {
    start,
    update,
    close() {
      isClosed = true;
      clearInterval(timer);
      clearTimeout(noting);
      clearTimeout(typing);
      clearTimeout(waiting);
      list.close();
      unbind();
    },
  };
}
