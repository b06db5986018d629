// The controls above charts: axis, scale, range, smoothing, and the runs that lie over this one.

import { button, fill, h, setText } from "../../common/dom.js";
import { SERIES } from "../draw/tokens.js";
import { bindKeys } from "../keys.js";
import { urlOf } from "../router.js";

/** The line of a training loop that records a metric. */
export const RECORD = "metrics.record(\"loss\", loss, step=step)";

const AXES = ["step", "time", "elapsed"];
const MOST_RUNS = 12;
const LONGEST_SHOWN = 40;
const MOST_OFFERED = 500;
const SMOOTH_MS = 60;

/**
 * Return the axis that the URL asks for.
 * @param {Object} state
 * @param {string} byDefault
 * @returns {{axis: string, problem: string}} `problem`: a sentence where the URL asks for one that there is not.
 */
export function askedAxis(state, byDefault) {
  const asked = state.get("x") || byDefault;
  if (AXES.includes(asked)) return { axis: asked, problem: "" };
  const shown = asked.length > LONGEST_SHOWN ? `${asked.slice(0, LONGEST_SHOWN - 1)}…` : asked;
  return { axis: byDefault, problem: `“${shown}” is no axis; the charts are by ${byDefault}.` };
}

/**
 * Build the box that shows the values of steps that were done again; it writes into the URL.
 * @param {Object} state
 * @param {() => void} onChange
 */
export function replacedBox(state, onChange) {
  const box = h("input", { type: "checkbox", on: { change: () => {
    state.set({ replaced: box.checked ? "1" : "" });
    onChange();
  } } });
  box.checked = state.get("replaced") === "1";
  const title = "Of steps that were done again after a restart the last values count; the earlier ones are drawn faint";
  return h("label.check", { title }, box, "Replaced values");
}

/**
 * Build buttons of which one is pressed.
 * @param {string} label
 * @param {[string, string][]} options Value and title.
 * @param {string} shown The value of the pressed one.
 * @param {(value: string) => void} onChoose
 */
export function choice(label, options, shown, onChoose) {
  const buttons = options.map(([value, title]) => h("button", {
    type: "button", "aria-pressed": String(value === shown), on: { click: (event) => choose(value, event.target) },
  }, title));

  function choose(value, button) {
    if (button.getAttribute("aria-pressed") === "true") return;
    for (const each of buttons) each.setAttribute("aria-pressed", String(each === button));
    onChoose(value);
  }
  return h("div.segments", { role: "group", "aria-label": label }, buttons);
}

/** Build the slider of smoothing; it writes into the URL. */
export function smoothing(state, onChange) {
  let timer = 0;
  const slider = h("input", { type: "range", min: "0", max: "1", step: "0.05", "aria-label": "Smoothing",
    value: state.get("smooth", "0"), on: { input() {
      clearTimeout(timer);
      timer = setTimeout(() => {
        state.set({ smooth: slider.value === "0" ? "" : slider.value });
        onChange();
      }, SMOOTH_MS);
    } } });
  return h("label.check", null, "Smooth", slider);
}

/** Build the entry of a run in a legend: a line in the colour of its curve, and what names it. */
export function legendEntry(colour, ...name) {
  return h("li", null, h("span.chart-swatch", { css: { "--colour": colour } }), name);
}

/**
 * Build the controls; they write into the URL.
 * @param {{api: Object, state: Object, run: Object, onSettings: () => void, onRuns: () => void}} options
 * @returns {{element: HTMLElement, update: () => void, close: () => void}}
 */
export function metricControls({ api, state, run, onSettings, onRuns }) {
  const runs = () => state.get("with").split(",").filter(Boolean);
  const hasSteps = (run.metrics_list ?? []).some(({ has_steps: has }) => has);
  const segments = h("div.controls-part");
  const legend = h("ul.run-legend", { "aria-label": "Runs that are shown" });
  const whole = button("All", () => showWhole(), { class: "button small", title: "Show all (0)", hidden: true });
  const again = replacedBox(state, onSettings);
  const problem = h("p.second.axis-problem", { role: "status" });
  const overlay = h("div.overlay-choice", null, button("Overlay other runs…", openChoice, { class: "link" }));
  const element = h("div.controls.metric-controls", null, segments,
    smoothing(state, onSettings), again, whole, legend, !api.isFile && overlay, problem);

  const isAlone = () => runs().length === 0;
  const axis = () => askedAxis(state, hasSteps ? "step" : isAlone() ? "time" : "elapsed");
  const change = (changes) => {
    state.set(changes);
    update();
    onSettings();
  };

  /** Show what follows from the runs that are drawn. */
  function showRuns() {
    const axes = [hasSteps && ["step", "Step"], isAlone() && ["time", "Time"], ["elapsed", "Elapsed"]].filter(Boolean);
    fill(segments,
      choice("Axis", axes, axis().axis, (x) => change({ x: x === axes[0][0] ? "" : x, from: "", to: "" })),
      choice("Scale", [["", "Linear"], ["1", "Log"]], state.get("log"), (log) => change({ log })),
      choice("Range", [["", "Robust"], ["full", "Full"]], state.get("y"), (y) => change({ y })));
    fill(legend, [run.id, ...runs()].map((id, index) => legendEntry(
      isAlone() ? "var(--curve)" : `var(--series-${index % SERIES})`, h("bdi.name.cut", { title: id }, id),
      index > 0 && h("button.remove", {
        type: "button", "aria-label": `Remove ${id}`, on: { click: () => remove(id) },
      }, "×"))));
    update();
  }

  /** Show what follows from the URL. */
  function update() {
    const asked = axis();
    setText(problem, asked.problem);
    problem.hidden = !asked.problem;
    again.hidden = asked.axis !== "step" || !(run.attempt_list?.length > 1 || !isAlone());
    whole.hidden = !state.get("from");
  }

  function setRuns(ids) {
    state.set({ with: ids.join(",") });
    showRuns();
    onRuns();
  }

  function remove(id) {
    setRuns(runs().filter((each) => each !== id));
  }

  async function openChoice() {
    let rows = [];
    try {
      ({ rows } = await api.json("/api/runs"));
    } catch (error) {
      fill(overlay, h("span.second", null, error.message));
      return;
    }
    const near = rows.filter(({ id }) => id !== run.id && !runs().includes(id));
    near.sort((one, other) => Number(other.group === run.group) - Number(one.group === run.group));
    const offered = near.slice(0, MOST_OFFERED).map(({ id }) => h("option", { value: id }));
    const options = h("datalist", { id: "overlay-runs" }, offered);
    const input = h("input", {
      type: "text", list: "overlay-runs", placeholder: "Name of a run", "aria-label": "Run to lay over this one",
      on: { change: take, keydown: (event) => event.key === "Escape" && closeChoice() },
    });
    function take() {
      if (near.some(({ id }) => id === input.value) && runs().length < MOST_RUNS - 1) setRuns([...runs(), input.value]);
      closeChoice();
    }
    fill(overlay, h("div.field", null, input), options,
      h("a", { href: urlOf("/compare", { runs: [run.id, ...runs()].join(",") }) }, "Compare"));
    input.focus();
  }

  function closeChoice() {
    fill(overlay, button("Overlay other runs…", openChoice, { class: "link" }));
  }

  const showWhole = () => change({ from: "", to: "" });

  const close = bindKeys({ 0: () => (state.get("from") ? showWhole() : false) });
  showRuns();
  return { element, update, close };
}
