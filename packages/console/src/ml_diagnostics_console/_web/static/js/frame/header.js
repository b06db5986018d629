// The line at the top of all pages: where one is, whether it is live, keys, theme.

import { copyText, fill, h, s, setAttribute, setText } from "../../common/dom.js";
import { showList } from "../keys.js";
import { runPath } from "../router.js";
import { brandMark } from "../shapes.js";
import { chosenTheme, nextTheme } from "../theme.js";
import { showAbout } from "./about_file.js";

const NAMES = { compare: "Compare", fleet: "Fleet" };
const LIVE = { live: "live", paused: "paused", lost: "connection lost", file: "case file", waiting: "connecting" };

/**
 * @param {HTMLElement} element The header's element.
 * @param {object} api
 * @returns {{show: (state: object) => void, setLive: (state: string) => void, nextTheme: () => void}}
 */
export function createHeader(element, api) {
  const crumbs = h("nav.crumbs", { "aria-label": "Where you are" });
  const word = h("span.live-word");
  const live = api.isFile
    ? h("button.live.case-button", { type: "button", title: "What this file holds",
      on: { click: () => showAbout(api.about) } },
      h("span.live-dot"), word)
    : h("span.live", { role: "status" }, h("span.live-dot"), word);
  const fleet = h("a", { href: "/fleet" }, "Fleet");
  const hasFleet = "fleet" in document.documentElement.dataset;
  const said = h("span.visually-hidden", { role: "status" });
  const theme = h("button.icon-button", { type: "button", on: { click: change } }, halfMoon());
  const help = h("button.icon-button.help-button", {
    type: "button", "aria-label": "Keys", title: "Keys (?)", on: { click: showList },
  }, h("kbd", null, "?"));
  fill(element, h("div.top-inner", null,
    h(api.isFile ? "span.brand" : "a.brand", { href: api.isFile ? null : "/" }, brandMark(),
      h("span", null, "ML Diagnostics")), crumbs,
    h("div.top-right", null, hasFleet && h("nav.top-nav", { "aria-label": "Pages" }, fleet), said, live, help, theme)));
  nameTheme(chosenTheme());
  setLive(api.isFile ? "file" : "waiting");

  function nameTheme(name) {
    const text = `Theme: ${name === "system" ? "as the system" : name} (t)`;
    theme.title = text;
    theme.setAttribute("aria-label", text);
  }

  function change() {
    const name = nextTheme();
    nameTheme(name);
    setText(said, `Theme: ${name}`);
  }

  function setLive(state) {
    live.dataset.state = state;
    setText(word, LIVE[state] ?? state);
    live.title = state === "lost" ? "The server does not answer; what is shown is from before. It is tried again." : "";
  }

  return {
    setLive,
    nextTheme: change,
    copyLink: () => copyText(location.href, said),
    show(state) {
      const runs = () => !api.isFile && [separator(), h("a", { href: "/" }, "Runs")];
      const separator = () => h("span.separator", { "aria-hidden": "true" }, "›");
      if (state.page === "runs") {
        fill(crumbs);
      } else if (state.run !== null) {
        fill(crumbs, runs(), separator(),
          h("a.name", { href: runPath(state.run), "aria-current": "page" }, state.run));
      } else {
        fill(crumbs, runs(), separator(),
          h("span", { "aria-current": "page" }, NAMES[state.page] ?? "Not found"));
      }
      setAttribute(fleet, "aria-current", state.page === "fleet" && "page");
    },
  };
}

function halfMoon() {
  return s("svg.icon", { viewBox: "0 0 16 16", "aria-hidden": "true" }, s("circle", { cx: 8, cy: 8, r: 5.6 }),
    s("path.icon-full", { d: "M8 2.4a5.6 5.6 0 0 0 0 11.2z" }));
}
