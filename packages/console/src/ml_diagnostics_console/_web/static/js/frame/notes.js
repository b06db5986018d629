// What the reader of the data has to say: a source that fails, entries that were left out. Lines, not pop-ups.

import { fill, h } from "../../common/dom.js";

/**
 * @param {HTMLElement} place Where the notes stand.
 * @param {string[]} notes Sentences; equal ones are shown once.
 */
export function showNotes(place, notes) {
  const shown = [...new Set(notes ?? [])];
  const key = JSON.stringify(shown);
  if (place.dataset.notes === key) return;
  place.dataset.notes = key;
  place.hidden = shown.length === 0;
  const [first, ...others] = shown;
  fill(place, first && h("p.problem", null, first), others.length > 0 && h("details", null,
    h("summary", null, others.length === 1 ? "1 more note" : `${others.length} more notes`),
    h("div.notes", null, others.map((note) => h("p.problem", null, note)))));
}
