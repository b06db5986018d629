/** The table beside a drawing: the same content as text, built only when it is asked for. */

import { add, fill, h } from "./dom.js";

const MOST_ROWS = 500;

/**
 * Build a button that shows and hides the tables of drawings.
 * @param {() => {title: string, table: () => {head: string[], rows: (string|number)[][]}}[]} drawings
 * @returns {{button: HTMLElement, panel: HTMLElement}} The panel belongs below the drawings.
 */
export function tableTwin(drawings) {
  const panel = h("div.table-twin", { hidden: true });
  const button = h("button.button.quiet", {
    type: "button", "aria-expanded": "false", on: { click: toggle },
  }, "As table");

  function toggle() {
    panel.hidden = !panel.hidden;
    button.setAttribute("aria-expanded", String(!panel.hidden));
    if (panel.hidden) panel.replaceChildren();
    else show(0);
  }

  function show(chosen) {
    const found = drawings();
    if (!found.length) {
      fill(panel, h("p.second", null, "Nothing is drawn yet."));
      return;
    }
    const drawing = found[Math.min(chosen, found.length - 1)];
    const select = h("select", { "aria-label": "Drawing", on: { change: () => show(select.selectedIndex) } },
      found.map(({ title }, index) => h("option", { selected: index === chosen }, title)));
    fill(panel, found.length > 1 && select, tableOf(drawing.title, drawing.table()));
    if (found.length > 1) select.focus();
  }

  return { button, panel };
}

const align = (at) => [at > 0 && "number"];

/** Build a table that scrolls in itself; long ones are cut, and say so. */
export function tableOf(title, { head, rows }) {
  const shown = rows.slice(0, MOST_ROWS);
  const place = h("div.table-scroll", { tabindex: "0", role: "region", "aria-label": title });
  add(place, h("table.table", null,
    h("caption.visually-hidden", null, title),
    h("thead", null, h("tr", null, head.map((text, at) => h("th", { scope: "col", classes: align(at) }, text)))),
    h("tbody", null, shown.map((row) => h("tr", null, row.map((cell, at) => h("td", { classes: align(at) }, cell)))))));
  if (rows.length > shown.length) add(place, h("p.second", null, `The first ${MOST_ROWS} of ${rows.length} rows.`));
  return place;
}
