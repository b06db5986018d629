// Groups of hosts that are in the same place, as a list: the sentence of each, its hosts, its frames.

import { h } from "../../common/dom.js";
import { formatCount, formatDuration, formatWhole } from "../../common/format.js";
import { urlOf } from "../router.js";

const MOST_NAMES = 6;
const FEW_NAMES = 2; // so many stand in the sentence itself
const MOST_MOMENTS = 5;

/** Return the stacks of the newest moment at which a process still showed where it was; else the newest of all. */
export async function newestStacks(api, base) {
  const newest = await api.json(`${base}/stacks`);
  if (newest.groups.length || !newest.ended?.length) return newest;
  for (const at of newest.moments.slice(-1 - MOST_MOMENTS, -1).reverse()) {
    const found = await api.json(urlOf(`${base}/stacks`, { at })).catch(() => newest);
    if (found.groups.length) return found;
  }
  return newest;
}

/** Return a group for each way in which processes have ended. */
export function endedGroups(ended) {
  const groups = new Map();
  for (const { name, text, step } of ended) {
    const group = groups.get(text) ?? { kind: "ended", sentence: text, hosts: [], step };
    group.hosts.push(name);
    if (group.step !== step) group.step = null;
    groups.set(text, group);
  }
  return [...groups.values()];
}

/**
 * Build the list.
 * @param {Object[]} groups `{kind, sentence, hosts, frames, step, unchanged_seconds, other_threads}`.
 * @param {{isShort?: boolean}} options `isShort` leaves out frames and other threads.
 */
export function groupList(groups, { isShort = false } = {}) {
  return h("ol.groups", null, groups.map((group) => h("li.group", null,
    h("span.group-mark", { "aria-hidden": "true", classes: [`group-${group.kind}`] }),
    h("div.group-text", null, sentence(group), group.hosts.length > 1 && names(group.hosts),
      !isShort && framesOf(group.frames ?? []), !isShort && otherThreads(group.other_threads ?? [])),
    h("div.group-facts", null,
      group.step !== null && group.step !== undefined && h("div", null, `step ${formatWhole(group.step)}`),
      group.unchanged_seconds > 0 && h("div", null, `unchanged ${formatDuration(group.unchanged_seconds)}`)))));
}

function sentence({ sentence: text, hosts }) {
  const subject = hosts.length <= FEW_NAMES ? hosts.join(", ") : formatCount(hosts.length, "host");
  return h("p.group-sentence", null, h("b", null, subject), " ", text);
}

function names(hosts) {
  if (hosts.length <= FEW_NAMES) return null;
  const shown = hosts.slice(0, MOST_NAMES).join(", ");
  const rest = hosts.length - MOST_NAMES;
  if (rest <= 0) return h("p.second", null, shown);
  return h("details.group-names", null, h("summary.second", null, `${shown} and ${formatWhole(rest)} more`),
    h("p.second", null, hosts.slice(MOST_NAMES).join(", ")));
}

/** Build a list of frames, the innermost first. */
export function framesOf(rows) {
  return rows.length > 0 && h("ol.group-frames", null, rows.map((frame, index) =>
    h("li.mono", { classes: [index === 0 && "is-innermost"] }, h("span", null, frame.function), " ",
      h("span.second", null, place(frame)))));
}

/** Return where a frame is: file and line. */
export function place({ file, line }) {
  if (!file) return "";
  return line ? `${file}:${line}` : file;
}

function otherThreads(threads) {
  return threads.length > 0 && h("details.other-threads", null,
    h("summary", null, formatCount(threads.length, "other thread")),
    threads.map(({ name, text, frames }) => h("section", null,
      h("h3", null, name, text && h("span.second", null, ` ${text}`)), framesOf(frames ?? []))));
}
