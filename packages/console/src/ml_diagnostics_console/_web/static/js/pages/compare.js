// What differs between runs: numbers and configs as a table, then the curves over each other.

import { add, card, empty, fill, h, setText } from "../../common/dom.js";
import { formatCount } from "../../common/format.js";
import { SERIES } from "../draw/tokens.js";
import { runPath, urlOf } from "../router.js";
import { askedAxis, choice, legendEntry, replacedBox, smoothing } from "./metric_controls.js";
import { showDiff } from "./diff_table.js";
import { showOverlays } from "./overlays.js";

const MOST = 12;

/** Ask for a comparison; of runs of which some were deleted, those that are left are compared. */
async function compared(api, ids) {
  const ask = (runs) => api.json(urlOf("/api/compare", { runs: runs.join(",") }));
  try {
    return { answer: await ask(ids), missing: [] };
  } catch (error) {
    if (error.status !== 404) throw error;
    const isThere = await Promise.all(ids.map((id) =>
      api.json(`/api/runs/${encodeURIComponent(id)}`).then(() => true, ({ status }) => status !== 404)));
    const there = ids.filter((_, at) => isThere[at]);
    if (there.length === 0 || there.length === ids.length) throw error;
    return { answer: await ask(there), missing: ids.filter((_, at) => !isThere[at]) };
  }
}

/** Show the page. */
export async function show(page, api, state) {
  const ids = state.get("runs").split(",").filter(Boolean);
  const heading = h("h1", null, ids.length ? `Compare ${formatCount(ids.length, "run")}` : "Compare");
  add(page, h("div.page-head", null, heading));
  if (ids.length < 1) {
    add(page, card(null, {}, empty("No run is chosen. Select runs in the list, then press c, or write their ids here:",
      `${location.origin}/compare?runs=first,second`), h("a.button", { href: "/" }, "Choose runs")));
    document.documentElement.dataset.ready = "compare";
    return null;
  }
  const { answer, missing } = await compared(api, ids.slice(0, MOST));
  if (ids.length > MOST) setText(heading, `Compare ${MOST} of ${ids.length} runs`);
  if (missing.length) add(page, h("p.problem", null, `Not found, and left out: ${missing.join(", ")}.`));

  const table = h("div");
  const box = h("input", { type: "checkbox", on: { change: draw } });
  box.checked = state.get("all") === "";
  const count = h("span.second");
  const controls = h("div.controls.metric-controls");
  const charts = h("div.overlays");
  const problem = h("p.second", { role: "status" });
  const again = replacedBox(state, () => overlays.redraw());
  add(page, controls, card("What differs", { id: "what-differs", second: count, right: h("label.check", null, box,
    "only differences") }, table), charts);

  function draw() {
    state.set({ all: box.checked ? "" : "1" });
    const { hidden } = showDiff(table, answer, { onlyDifferences: box.checked });
    setText(count, box.checked && hidden > 0 ? `${formatCount(hidden, "key")} equal, or of one run alone` : "");
  }

  function change(changes) {
    state.set(changes);
    showAxis();
    overlays.redraw();
  }

  function showAxis() {
    const asked = askedAxis(state, "step");
    setText(problem, asked.problem);
    problem.hidden = !asked.problem;
    again.hidden = asked.axis !== "step";
  }

  fill(controls,
    choice("Axis", [["", "Step"], ["elapsed", "Elapsed"]], askedAxis(state, "step").axis === "step" ? "" : "elapsed",
      (x) => change({ x, from: "", to: "" })),
    choice("Scale", [["", "Linear"], ["1", "Log"]], state.get("log"), (log) => change({ log })),
    smoothing(state, () => overlays.redraw()), again,
    h("ul.run-legend", null, answer.runs.map((run, index) => legendEntry(`var(--series-${index % SERIES})`,
      h("a.name.cut", { href: runPath(run.id), title: run.id }, run.id)))), problem);
  showAxis();
  draw();
  const overlays = showOverlays(charts, api, state, answer.runs.map(({ id }) => id), answer.metrics ?? [],
    answer.metrics_about ?? {});
  await overlays.drawn;
  if (page.isConnected) document.documentElement.dataset.ready = "compare";
  return overlays;
}
