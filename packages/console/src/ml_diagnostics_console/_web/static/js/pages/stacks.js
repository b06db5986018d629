// Stacks of a run at a moment: who waits for whom, as a sentence, a map of hosts, a tree of frames and groups.

import { button, card, copyText, empty, fill, h, setText } from "../../common/dom.js";
import { createHostMap } from "../draw/host_map.js";
import { createIcicle } from "../draw/icicle.js";
import { clockText } from "../draw/time_axis.js";
import { formatAgo, formatCount, formatDuration, formatWhole } from "../../common/format.js";
import { showParts } from "../frame/diagnosis.js";
import { bindKeys } from "../keys.js";
import { urlOf } from "../router.js";
import { framesOf, groupList, newestStacks } from "./groups.js";
import { provers } from "./proof.js";

const RELOAD_MS = 10_000;
const SLIDE_MS = 80;
const TREE_WORDS = "outermost first; width is hosts, the few are kept wide enough to read";
const SPEEDSCOPE = "/static/vendor/speedscope/index.html";

/** Show the page. */
export async function show(page, api, state) {
  const base = `/api/runs/${encodeURIComponent(state.run)}`;
  const prove = provers(api, base);
  const pathAt = (at) => urlOf(`${base}/stacks`, { at: at === null ? "" : at });
  let answer = state.get("at") === "" ? await newestStacks(api, base) : await api.json(pathAt(state.number("at")));
  const sentence = h("p.stack-sentence");
  const pointed = h("p.second.pointed-host", { "aria-hidden": "true" });
  const mapPlace = h("div.map-place");
  const tree = h("div.icicle-place", { tabindex: "0", role: "region", "aria-label": "Stacks of the main threads" });
  const groups = h("div");
  const taken = h("span.second", { role: "status" });
  const slider = h("input.moments", {
    type: "range", min: "0", step: "1", "aria-label": "Moment", on: { input: slide },
  });
  const age = h("span.second");
  const moments = h("div.moment-row", null, step(-1, "Earlier"), slider, step(1, "Later"), age);
  const map = createHostMap(mapPlace, { onHost: showHost, onChoose: openGroup });
  const icicle = createIcicle(tree);
  let timer = 0;
  let slideTimer = 0;
  let isClosed = false;
  const unbind = bindKeys({ ArrowLeft: () => move(-1), ArrowRight: () => move(1) });
  render();
  document.documentElement.dataset.ready = "stacks";

  function render() {
    if (!answer.groups.length && !answer.ended?.length) {
      fill(page, card("Stacks", {}, empty(null, answer.help ?? "No stacks were recorded in this run.")));
      return;
    }
    if (!sentence.isConnected) build();
    if (answer.parts?.length) showParts(sentence, answer.parts);
    else setText(sentence, answer.sentence);
    map.show(answer.hosts);
    icicle.show(answer.icicle);
    tree.parentElement.hidden = answer.icicle.length === 0;
    showGroups();
    const words = answer.at && `taken ${clockText(answer.at, true)}`;
    fill(taken, words && prove(words, `stacks:${answer.at}`, "Stacks of this moment"));
    showMoments();
  }

  /** Show the groups; what was opened stays open when a newer answer replaces them. */
  function showGroups() {
    const wasOpen = [...groups.querySelectorAll("details")].map((each) => each.open);
    fill(groups, groupList(answer.groups), aside(answer));
    const details = [...groups.querySelectorAll("details")];
    if (details.length === wasOpen.length) details.forEach((each, at) => each.toggleAttribute("open", wasOpen[at]));
  }

  function build() {
    const said = h("span.copied", { role: "status" });
    const text = h("pre.folded", { hidden: true, tabindex: "0", "aria-label": "Folded stacks" });
    const copy = button("Copy", () => copyText(answer.folded, said), { hidden: true });
    const folded = button("Folded stacks", toggle, {
      title: "Show the stacks as text, for flame graphs", "aria-expanded": "false",
    });
    const scope = !api.isFile && h("a.button", { target: "_blank", rel: "noopener", on: { click: aim, auxclick: aim } },
      "Open in speedscope");
    function aim() {
      const url = `${location.origin}${urlOf(`${base}/stacks`, { at: answer.at, format: "folded" })}`;
      scope.href = `${SPEEDSCOPE}#profileURL=${encodeURIComponent(url)}&title=${encodeURIComponent(state.run)}`;
    }
    function toggle() {
      text.hidden = copy.hidden = !text.hidden;
      folded.setAttribute("aria-expanded", String(!text.hidden));
      fill(text, answer.folded.split("\n").flatMap((line) => [line, h("br")]));
    }
    if (scope) aim();
    const head = card("Groups", { right: [said, copy, folded, scope] }, text, groups);
    head.querySelector("h2").append(taken);
    fill(page, h("div.stack", null,
      h("section.card", { "aria-label": "Who waits for whom" }, sentence, mapPlace, pointed, moments),
      card("Stacks of the main threads", { second: TREE_WORDS }, tree),
      head));
  }

  function showMoments() {
    const count = answer.moments.length;
    moments.hidden = count < 2;
    const index = nearest(answer.moments, answer.at);
    slider.max = String(Math.max(0, count - 1));
    slider.value = String(index);
    slider.setAttribute("aria-valuetext", answer.at ? clockText(answer.at, true) : "");
    showAge(index, answer.at, `, ${formatAgo(answer.at, Date.now() / 1000)}`);
  }

  function showAge(index, at, ago = "") {
    setText(age, `${formatWhole(index + 1)} of ${formatWhole(answer.moments.length)}, ${clockText(at, true)}${ago}`);
  }

  function slide() {
    clearTimeout(slideTimer);
    const at = answer.moments[Number(slider.value)];
    showAge(Number(slider.value), at);
    slideTimer = setTimeout(() => load(at), SLIDE_MS);
  }

  function move(by) {
    const index = nearest(answer.moments, answer.at) + by;
    if (answer.moments.length < 2 || index < 0 || index >= answer.moments.length) return false;
    load(answer.moments[index]);
    return true;
  }

  function step(by, words) {
    return h("button.icon-button", { type: "button", title: words, "aria-label": words, on: { click: () => move(by) } },
      by < 0 ? "‹" : "›");
  }

  async function load(at) {
    const isNewest = at === null || at >= (answer.moments.at(-1) ?? 0);
    try {
      const found = await api.json(pathAt(isNewest ? null : at));
      if (isClosed) return;
      answer = found;
    } catch (error) {
      if (!isClosed) setText(age, error.message);
      return;
    }
    state.set({ at: isNewest ? "" : at });
    render();
  }

  function showHost(host) {
    const group = host?.group === null || host?.group === undefined ? null : answer.groups[host.group];
    const words = { silent: "nothing received", ended: "ended" }[host?.kind] ?? "";
    setText(pointed, host ? `${host.name}: ${group ? group.sentence : words}` : "");
  }

  function openGroup(host) {
    const element = host.group === null ? null : groups.querySelectorAll(".group")[host.group];
    element?.scrollIntoView({ block: "center" });
  }

  async function reload() {
    timer = 0;
    if (state.get("at") === "" && !document.hidden) await load(null);
  }

  return {
    update({ kind, data }) {
      const isOwn = kind === "changed" && (data.rows ?? []).some(({ id }) => id === state.run);
      if (isOwn && state.get("at") === "") timer ||= setTimeout(reload, RELOAD_MS);
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
      clearTimeout(slideTimer);
      unbind();
      map.close();
      icicle.close();
    },
  };
}

function aside({ ended = [], silent = [], missing = [] }) {
  const parts = [];
  if (ended.length) {
    parts.push(h("section", null, h("h3", null, `Ended: ${formatCount(ended.length, "process", "processes")}`),
      h("ul.ended-list", null, ended.map(({ name, text, step, frames }) => h("li", null, h("b", null, name), " ", text,
        step !== null && step !== undefined && h("span.second", null, ` at step ${formatWhole(step)}`),
        frames?.length > 0 && framesOf(frames))))));
  }
  if (silent.length) {
    const texts = silent.map(({ name, seconds }) => `${name} (${formatDuration(seconds)})`);
    parts.push(h("section", null, h("h3", null, "Nothing received from"), h("p.second", null, texts.join(", "))));
  }
  if (missing.length) {
    const names = missing.map((each) => (typeof each === "object" ? each.name ?? JSON.stringify(each) : each));
    parts.push(h("section", null, h("h3", null, "Without any stack"), h("p.second", null, names.join(", "))));
  }
  return parts.length > 0 && h("div.groups-aside", null, parts);
}

function nearest(moments, at) {
  if (at === null || at === undefined) return Math.max(0, moments.length - 1);
  let best = 0;
  moments.forEach((moment, index) => {
    if (Math.abs(moment - at) < Math.abs(moments[best] - at)) best = index;
  });
  return best;
}
