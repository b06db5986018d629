// The first card of the runs page: what is stuck, what failed within the hour, what runs; a sentence each.

import { fill, h } from "../../common/dom.js";
import { formatAge, formatDuration } from "../../common/format.js";
import { runPath } from "../router.js";
import { durationOf } from "../run_time.js";
import { status } from "../shapes.js";

const MOST = 5;
const HOUR = 3600;

/** Return the rows of the card: stuck, failed within the hour, running; newest first within each. */
function attentionRows(rows, now) {
  const recent = (row) => now - (row.ended ?? row.beat ?? 0) < HOUR;
  const kinds = [
    (row) => row.state === "stuck",
    (row) => row.state === "failed" && recent(row),
    (row) => row.state === "running",
  ];
  return kinds.flatMap((isKind) => rows.filter(isKind));
}

/**
 * Show the card.
 *
 * @param {HTMLElement} place A section; hidden where nothing needs attention.
 * @param {object[]} rows All runs, newest first.
 * @param {number} now Seconds since 1970.
 */
export function showAttention(place, rows, now) {
  const all = attentionRows(rows, now);
  const shown = all.slice(0, MOST);
  const key = JSON.stringify(shown.map((row) => [row.id, row.state, sentence(row), when(row, now)]).concat(all.length));
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.hidden = shown.length === 0;
  const left = all.length - shown.length;
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  fill(place, h("ul", null, shown.map((row) => line(row, now))),
    left > 0 && h("a.attention-more", { href: moreHref(all.slice(MOST)) }, `and ${left} more`));
  if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

function moreHref(rest) {
  return rest.every((row) => row.state === "running") ? "/?state=running" : "/?state=attention";
}

function when(row, now) {
  if (row.state !== "failed") return formatDuration(Math.floor(durationOf(row, now) ?? 0));
  return `${formatAge(now - (row.ended ?? row.beat))} ago`;
}

function sentence({ state, verdict, reason }) {
  return verdict || reason || (state === "running" ? "" : "The reason is not known.");
}

function line(row, now) {
  return h("li", null, h("a.attention", { href: runPath(row.id) }, status(row.state),
    h("bdi.attention-name.cut", null, row.name || row.id),
    h("span.attention-text", null, sentence(row)),
    h("span.attention-when", null, when(row, now))));
}
