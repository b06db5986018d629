// The configs of a run, or what differs from another one.

import { add, button, card, empty, fill, h, setText } from "../../common/dom.js";
import { formatCount } from "../../common/format.js";
import { LAST_COMPLETED, urlOf } from "../router.js";
import { showDiff, showSections } from "./diff_table.js";

const TYPING_MS = 250;
const HELP = "run = machinelearning_run(name=\"my-run\", configs={\"learning_rate\": 1e-3})";

/** Show the page. */
export async function show(page, api, state) {
  const base = `/api/runs/${encodeURIComponent(state.run)}`;
  const place = h("div.stack");
  const title = h("span.second", { role: "status" });
  const box = h("input", { type: "checkbox", on: { change: draw } });
  box.checked = state.get("all") === "";
  const only = h("label.check", null, box, "only differences");
  const input = h("input", { type: "text", data: { filter: "" }, "aria-label": "Search keys and values",
    spellcheck: "false",
    autocomplete: "off", placeholder: "Search keys and values", on: { input: onType } });
  input.value = state.get("q");
  const known = h("datalist", { id: "known-runs" });
  const other = h("input", { type: "text", list: "known-runs", "aria-label": "Compare with another run",
    spellcheck: "false",
    autocomplete: "off", placeholder: "Compare with a run…", on: { change: onOther, focus: listRuns } });
  other.value = state.get("against");
  const near = h("span.controls");
  const nothing = h("p.second", { role: "status", hidden: true });
  let answer = null;
  let typing = 0;
  let runs = null;
  let isClosed = false;

  add(page, h("div.controls", null, h("div.field", null, input, h("kbd", null, "/")),
    h("div.field.other-run", null, other, known), near, title), nothing, place);
  if (state.get("against") === LAST_COMPLETED) await chooseCompleted();
  await load();
  suggest();

  async function load() {
    answer = await api.json(urlOf(`${base}/configs`, { against: state.get("against") }));
    draw();
    document.documentElement.dataset.ready = "configs";
  }

  function draw() {
    const isOne = answer.runs.length === 1;
    state.set({ all: box.checked ? "" : "1" });
    const part = input.value.trim();
    if (isOne && !answer.rows?.length) {
      const sentence = answer.help ? null : "This run has recorded no configs:";
      fill(place, card(null, {}, empty(sentence, answer.help ?? HELP)));
      setText(title, "");
    } else if (isOne) {
      const { shown, hidden } = showSections(place, answer.rows, part);
      setText(title, hidden ? `${shown} of ${shown + hidden} keys` : formatCount(shown, "key"));
    } else {
      const table = h("div");
      const { shown } = showDiff(table, answer, { onlyDifferences: box.checked, part });
      setText(title, "");
      const second = box.checked ? formatCount(shown, "key") : null;
      fill(place, card(box.checked ? "What differs" : "Configs", { id: "configs", second, right: only }, table));
    }
  }

  function onType() {
    draw();
    clearTimeout(typing);
    typing = setTimeout(() => state.set({ q: input.value.trim() }), TYPING_MS);
  }

  async function onOther() {
    await choose(other.value.trim());
  }

  async function choose(id) {
    const before = state.get("against");
    if (id === before) return;
    other.value = id;
    state.set({ against: id }, { push: true });
    try {
      await load();
      other.removeAttribute("aria-invalid");
      other.title = "";
    } catch (error) {
      other.setAttribute("aria-invalid", "true");
      other.title = error.message;
      setText(title, error.message);
      state.set({ against: before });
    }
    suggest();
  }

  async function listRuns() {
    if (api.isFile || known.childElementCount) return;
    runs ??= (await api.json("/api/runs")).rows;
    fill(known, runs.filter((row) => row.id !== state.run).map((row) => h("option", { value: row.id }, row.state)));
  }

  /** Return the last run of the group that completed before this one, or after it; null if there is none. */
  async function findCompleted() {
    runs ??= (await api.json("/api/runs")).rows;
    const own = runs.find((row) => row.id === state.run);
    const completed = runs.filter((row) => row.group === own?.group && row.state === "completed" && row.id !== own.id);
    const row = completed.find(({ started }) => started < own.started) ?? completed.at(-1);
    return row ? { id: row.id, text: `${row.started < own.started ? "Last" : "Next"} completed: ${row.name || row.id}` }
      : null;
  }

  /** Compare with the last run of the group that completed: "what was different from the run that worked?" */
  async function chooseCompleted() {
    const good = await findCompleted().catch(() => null); // Without one, the configs of this run are shown.
    state.set({ against: good?.id ?? "" });
    other.value = state.get("against");
    nothing.hidden = good !== null;
    if (!good) setText(nothing, "No other run of its group has completed: these are the configs of this run.");
  }

  async function suggest() {
    if (api.isFile) {
      other.parentElement.hidden = true;
      return;
    }
    const good = await findCompleted().catch(() => null); // A suggestion only.
    if (isClosed) return;
    const against = state.get("against");
    fill(near, good && good.id !== against && button(good.text, () => choose(good.id)),
      against && button("This run alone", () => choose("")),
      against && h("a.button", { href: urlOf("/compare", { runs: `${state.run},${against}` }) }, "Compare curves"));
  }

  return {
    close() {
      isClosed = true;
      clearTimeout(typing);
    },
  };
}
