// The goodput of a fleet: the report that `goodput fleet report --html` writes, which the server has put into the
// document as a template, with its own style and script. Another choice is another document.

import { add, card, empty, h } from "../../common/dom.js";
import { ApiError } from "../api.js";
import { urlOf } from "../router.js";

/** Show the page. */
export async function show(page, api, state) {
  const given = document.getElementById("fleet");
  if (!given) throw new ApiError("The fleet is not in a case file: it is a page of `mldiagnostics ui`.", 404);
  const { problem } = given.dataset;
  if (problem) {
    const shown = card("Fleet", {}, empty(problem));
    if (Object.keys(state.params).length > 0) {
      const back = h("a.button", { href: "/fleet" }, "The newest, by team");
      add(page, h("div.controls.fleet-controls", null, fields(state, navigation(state, shown)), back));
    }
    add(page, shown);
  } else {
    const report = given.content.cloneNode(true).firstElementChild;
    report.querySelector("header").after(controls(state, report));
    add(page, report);
  }
  document.documentElement.dataset.ready = "fleet";
  return null;
}

/** Build the line below the heading: groups, the moment, the price, and the report as a file. */
function controls(state, report) {
  const chosen = report.dataset.by.split(",");
  const all = report.dataset.groups.split(",");
  const { to, go, wait } = navigation(state, report);
  const first = h("div.segments", { role: "group", "aria-label": "Group by" }, all.map((group) => h("a", {
    href: to({ by: group }), "aria-current": group === chosen[0] ? "true" : null,
    on: { click: (event) => event.ctrlKey || event.metaKey || event.shiftKey || wait() },
  }, titled(group))));
  const others = all.filter((group) => group !== chosen[0]);
  const both = () => [chosen[0], second.value].filter(Boolean).join(",");
  const second = h("select", { "aria-label": "Then by", on: { change: () => go({ by: both() }) } },
    h("option", { value: "" }, "then by…"),
    others.map((group) => h("option", { value: group, selected: group === chosen[1] }, `then by ${group}`)));
  return h("div.controls.fleet-controls", null, first, second, fields(state, { go }),
    h("a.button", { href: urlOf("/api/fleet.html", state.params), download: "fleet.html" }, "Save as a file"));
}

/** Build the fields of the moment and the price. */
function fields(state, { go }) {
  const field = (name, parameter, placeholder, title) => {
    const input = h("input", { type: "text", placeholder, spellcheck: "false", autocomplete: "off",
      value: state.get(parameter), on: { change: () => go({ [parameter]: input.value.trim() }) } });
    return h("label.check", { title }, name, input);
  };
  return [
    field("As of", "as_of", "newest", "The newest rows that are not after this time, such as 2026-11-22"),
    field("Price", "cost", "3.22/chip-hour", "A price for all chips, in place of the table of prices"),
  ];
}

/** Return what leads to another report; what is shown meanwhile is marked as busy. */
function navigation(state, shown) {
  const to = (changes) => urlOf("/fleet", { ...state.params, ...changes });
  /** Show that another report is on its way, also to the page that the back button returns to. */
  const wait = () => {
    shown.setAttribute("aria-busy", "true");
    window.addEventListener("pagehide", () => shown.removeAttribute("aria-busy"), { once: true });
  };
  const go = (changes) => {
    wait();
    location.assign(to(changes));
  };
  return { to, go, wait };
}

function titled(group) {
  return group[0].toUpperCase() + group.slice(1);
}
