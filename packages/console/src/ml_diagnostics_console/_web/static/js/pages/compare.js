// What differs between runs: numbers and configs as a table, then the curves over each other.

import { add, card, empty, fill, h, setText } from "../../common/dom.js";
import { formatCount } from "../../common/format.js";
import { runPath, urlOf } from "../router.js";
import { askedAxis, replacedBox } from "./metric_controls.js";
import { seriesSwatch, showDiff } from "./diff_table.js";
import { showOverlays } from "./overlays.js";

const MOST = 12;
const SMOOTH_MS = 60;

/** Show the page. */
export async function show(page, api, state) {
  const ids = state.get("runs").split(",").filter(Boolean);
  const heading = h("h1", null, ids.length === 1 ? "Compare 1 run" : `Compare ${ids.length} runs`);
  add(page, h("div.page-head", null, heading));
  if (ids.length < 1) {
    add(page, card(null, {}, empty("No run is chosen. Select runs in the list, then press c, or write their ids here:",
      `${location.origin}/compare?runs=first,second`), h("a.button", { href: "/" }, "Choose runs")));
    document.documentElement.dataset.ready = "compare";
    return null;
  }
  const answer = await api.json(urlOf("/api/compare", { runs: ids.slice(0, MOST).join(",") }));
  if (ids.length > MOST) setText(heading, `Compare ${MOST} of ${ids.length} runs`);

  const table = h("div");
  const box = h("input", { type: "checkbox", on: { change: draw } });
  box.checked = state.get("all") === "";
  const count = h("span.second");
  const controls = h("div.controls.compare-controls");
  const charts = h("div.overlays");
  const problem = h("p.second", { role: "status" });
  const again = replacedBox(state, () => overlays.redraw());
  let smoothing = 0;
  add(page, controls, card("What differs", { id: "what-differs", second: count, right: h("label.check", null, box,
    "only differences") }, table), charts);

  function draw() {
    state.set({ all: box.checked ? "" : "1" });
    const { hidden } = showDiff(table, answer, { onlyDifferences: box.checked });
    setText(count, box.checked && hidden > 0 ? `${formatCount(hidden, "key")} equal, or of one run alone` : "");
  }

  function choice(name, label, options) {
    const group = h("div.segments", { role: "group", "aria-label": label });
    const shown = () => (name !== "x" ? state.get(name) : askedAxis(state, "step").axis === "step" ? "" : "elapsed");
    const render = () => fill(group, options.map(([value, title]) => h("button", {
      type: "button", "aria-pressed": String(shown() === value), on: { click: () => {
        state.set({ [name]: value, ...(name === "x" ? { from: "", to: "" } : {}) });
        render();
        showAxis();
        overlays.redraw();
      } },
    }, title)));
    render();
    return group;
  }

  function showAxis() {
    const asked = askedAxis(state, "step");
    setText(problem, asked.problem);
    problem.hidden = !asked.problem;
    again.hidden = asked.axis !== "step";
  }

  const smooth = h("input", { type: "range", min: "0", max: "1", step: "0.05", "aria-label": "Smoothing",
    value: state.get("smooth", "0"), on: { input: () => {
      clearTimeout(smoothing);
      smoothing = setTimeout(() => {
        state.set({ smooth: smooth.value === "0" ? "" : smooth.value });
        overlays.redraw();
      }, SMOOTH_MS);
    } } });
  fill(controls, choice("x", "Axis", [["", "Step"], ["elapsed", "Elapsed"]]),
    choice("log", "Scale", [["", "Linear"], ["1", "Log"]]),
    h("label.check.smooth", null, "Smooth", smooth), again,
    h("ul.legend", null, answer.runs.map((run, index) => h("li", null, seriesSwatch(index),
      h("a.name", { href: runPath(run.id) }, run.id)))), problem);
  showAxis();
  draw();
  const overlays = showOverlays(charts, api, state, answer.runs.map(({ id }) => id), answer.metrics ?? [],
    answer.metrics_about ?? {});
  await overlays.drawn;
  if (page.isConnected) document.documentElement.dataset.ready = "compare";
  return overlays;
}
