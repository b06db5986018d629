// The recorded events that a number or a proof was made of.

import { add, button, fill, h } from "../../common/dom.js";
import { formatClock, formatCount } from "../../common/format.js";

/**
 * Show them in a dialog.
 *
 * @param {object} api
 * @param {string} base The path of the run's answers.
 * @param {string} of What is asked for, as the answer named it.
 * @param {string} title What it was made of them, for the reader.
 */
export async function showEntries(api, base, of, title) {
  const body = h("div.entries", null, h("p.soft", null, "Reading the journal…"));
  const dialog = h("dialog.entries-dialog", { "aria-labelledby": "entries-title" });
  add(dialog, h("div.card-head", null, h("h2", { id: "entries-title" }, title),
    h("div.card-right", null, button("Close", () => dialog.close()))), body);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  try {
    const { entries = [], total = entries.length } = await api.json(`${base}/explain?of=${encodeURIComponent(of)}`);
    fill(body, h("p.soft", null, entries.length < total
      ? `${formatCount(entries.length, "event")} of ${total} in the journal`
        : `${formatCount(total, "event")} in the journal`),
    entries.map(entry));
  } catch (error) {
    fill(body, h("p.problem", null, error.message));
  }
}

function entry({ insert_id: id, time, log, host, payload }) {
  return h("details.entry", null, h("summary", null, h("span.mono", null, formatClock(time)), " ", host, " ",
    h("span.second", null, log)), h("p.faint.mono", null, id), h("pre.payload", null, text(payload)));
}

function text(payload) {
  // Line by line: a line feed in a text node of a pre is wanted here, and only here.
  return JSON.stringify(payload, null, 2).split("\n").flatMap((line) => [line, h("br")]);
}
