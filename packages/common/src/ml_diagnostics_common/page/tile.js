// A figure with its name above and a remark below, as the top of a page has them.

import { h } from "./dom.js";

/**
 * Build a tile.
 * @param {string} name
 * @param {string} figure A formatted number or a short text.
 * @param {any} second What stands below it.
 * @param {(content: any) => any} proved Wraps the figure, so that it leads to its events.
 */
export function tile(name, figure, second, proved = (content) => content) {
  return h("div.tile", null, h("div.tile-name", null, name),
    h("div.tile-figure", { classes: [figure === "NaN" && "is-bad"] }, proved(withSmallUnits(figure))),
    h("div.tile-second", { title: typeof second === "string" ? second : null }, second));
}

/** Return a text with its units in small letters: 5 d 21 h. */
function withSmallUnits(text) {
  return (text === "NaN" ? [text] : text.split(/([^\d.,+\-\s]\S*)/)).map((part, index) => {
    if (index % 2 === 0) return part;
    return h("span.tile-unit", null, part);
  });
}
