// Starts the page: chooses where answers come from, and shows what the URL says.

import { ApiError, caseSource, createApi, netSource } from "./api.js";
import { add, button, card, fill, h } from "../common/dom.js";
import { createEvents } from "./events.js";
import { createHeader } from "./frame/header.js";
import { createLive } from "./frame/live.js";
import { closeFooter } from "./frame/footer.js";
import { createRunFrame } from "./frame/run_frame.js";
import { bindKeys, startKeys } from "./keys.js";
import { createRouter } from "./router.js";
import { startTheme } from "./theme.js";

const PAGES = {
  runs: () => import("./pages/runs.js"),
  compare: () => import("./pages/compare.js"),
  fleet: () => import("./pages/fleet.js"),
  overview: () => import("./pages/overview.js"),
  metrics: () => import("./pages/metrics.js"),
  stacks: () => import("./pages/stacks.js"),
  profiles: () => import("./pages/profile.js"),
  logs: () => import("./pages/logs.js"),
  configs: () => import("./pages/configs.js"),
};
const TITLES = { runs: "Runs", compare: "Compare", fleet: "Fleet", missing: "Not found" };

const source = caseSource(document) ?? netSource();
const api = createApi(source);
const main = document.getElementById("main");
const router = createRouter(navigate, { isFile: api.isFile, start: source.about?.start ?? "/" });
const header = createHeader(document.getElementById("top"), api);
const events = api.isFile ? null : createEvents(api, header.setLive);

let frame = null; // The frame of the run that is shown; null on other pages.
let page = null; // What the page's module returned.
let generation = 0;

/** Show the page of a state, scrolled to `top`. */
async function navigate(state, top = 0) {
  const own = ++generation;
  const isFirst = own === 1;
  delete document.documentElement.dataset.ready;
  closePage();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  if (frame && frame.run !== state.run) {
    frame.close();
    frame = null;
  }
  header.show(state);
  document.title = [TITLES[state.page] ?? state.run, "ML Diagnostics"].filter(Boolean).join(" · ");
  let place = main;
  if (state.run !== null && state.page !== "missing") {
    frame ??= createRunFrame(fill(main), api, state, (data) => page?.update?.({ kind: "run", data }));
    place = frame.show(state);
  } else {
    fill(main);
  }
  try {
    if (state.page === "missing") throw new ApiError("There is no page at this address.", 404);
    const module = await PAGES[state.page]();
    if (own !== generation) return;
    const element = h("div.stack", { classes: [`page-${state.page}`] });
    place.append(element);
    const shown = await module.show(element, api, state);
    if (own !== generation) shown?.close?.();
    else page = shown;
  } catch (error) {
    if (own === generation) showProblem(place, error);
  }
  if (own !== generation) return;
  if (top > 0) window.scrollTo(0, top);
  // What had the focus went with the page before: the keyboard goes on in this one.
  if (!isFirst && document.activeElement === document.body) main.focus({ preventScroll: true });
  events?.start(api.cursor);
}

/** The server was started again, or too much was missed: show the same page from its answers, at the same place. */
function showAgain() {
  return navigate(router.state(), window.scrollY);
}

function closePage() {
  page?.close?.();
  page = null;
  closeFooter();
  for (const element of document.querySelectorAll("main .stack[class*='page-']")) element.remove();
}

function showProblem(place, error) {
  if (error.name === "AbortError") return;
  const isExpected = error instanceof ApiError;
  if (!isExpected) console.error(error);
  const sentence = isExpected ? error.message : `This part of the page could not be shown: ${error.message}`;
  const again = button("Try again", () => navigate(router.state()));
  const back = h("a.button", { href: "/" }, "All runs");
  place.querySelector(".page-problem")?.remove();
  for (const element of place.querySelectorAll(".stack[class*='page-']")) element.remove();
  add(place, h("div.page-problem.stack.page-none", null,
    card(isExpected && error.status === 404 ? "Not found" : "Not available", {},
      h("div.empty", null, h("p", null, sentence), h("div.controls", null, again, !api.isFile && back)))));
  document.documentElement.dataset.ready = "problem";
}

const live = createLive(document.getElementById("live"));
api.onChange((change) => {
  live.update(change);
  frame?.update(change);
  if (change.kind === "reset") showAgain();
  else page?.update?.(change);
});

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // The address is the state of the page: in a case file it stands behind the "#".
  main.focus();
});
startTheme();
startKeys();
bindKeys({
  y: () => frame?.copyLink() ?? header.copyLink(),
  t: () => header.nextTheme(),
  "/": () => {
    const field = document.querySelector("[data-filter]");
    field?.focus();
    field?.select();
    return Boolean(field);
  },
  Escape: () => {
    const field = document.activeElement;
    if (field instanceof HTMLElement) field.blur();
    return false;
  },
});
navigate(router.state());
