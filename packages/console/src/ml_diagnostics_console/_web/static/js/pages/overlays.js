// The curves of several runs over each other, a chart a metric, the most differing first.

import { add, button, empty, fill, h } from "../../common/dom.js";
import { formatCount } from "../../common/format.js";
import { askedAxis, RECORD } from "./metric_controls.js";

const FIRST = 24; // Charts that are there at once; each is drawn when it is scrolled into view.

/**
 * Show the charts.
 *
 * @param {HTMLElement} place A grid.
 * @param {object} api
 * @param {object} state The URL: x, log, smooth, replaced, from, to.
 * @param {string[]} runs Ids in the order of their colours.
 * @param {string[]} names Metrics, the most differing first.
 * @param {Object<string, {unit: string, has_steps: boolean, missing: string[]}>} about What is known of each.
 * @returns {{redraw: () => void, close: () => void, drawn: Promise<void>}} `drawn` ends when the first chart is there.
 */
export function showOverlays(place, api, state, runs, names, about) {
  const cards = [];
  let isClosed = false;
  const drawn = start();

  /** Metrics without steps are drawn by the time since each run began: by the clock, runs stand side by side. */
  function settings(hasSteps = true) {
    const [from, to] = [state.number("from"), state.number("to")];
    return {
      x: hasSteps && askedAxis(state, "step").axis === "step" ? "step" : "elapsed",
      smooth: Math.min(1, Math.max(0, state.number("smooth", 0))),
      isLog: state.get("log") === "1",
      isFull: state.get("y") === "full",
      hasReplaced: state.get("replaced") === "1",
      span: hasSteps && from !== null && to !== null && to > from ? [from, to] : null,
    };
  }

  async function start() {
    if (names.length === 0) {
      fill(place, h("section.card", null, empty("These runs have no metric in common that could be drawn.", RECORD)));
      return;
    }
    const { createChartCard } = await import("../draw/chart_card.js");
    if (isClosed) return;
    const first = new Promise((resolve) => {
      place.addEventListener("drawn", resolve, { once: true });
      setTimeout(resolve, 4000);
    });
    build(createChartCard, FIRST);
    await first;
  }

  function build(createChartCard, most) {
    for (const name of names.slice(cards.length, most)) {
      const { unit = "", has_steps: hasSteps = true, missing = [] } = about[name] ?? {};
      const metric = { name, unit, hosts: 1, points: 0, missing };
      const card = createChartCard(api, metric, runs, settings(hasSteps), onSpan);
      cards.push({ card, hasSteps });
      place.append(card.element);
    }
    for (const { card } of cards) card.start();
    const left = names.length - cards.length;
    if (left > 0) {
      const more = h("div.controls.overlays-more", null, button(`Show ${formatCount(left, "more metric")}`, () => {
        more.remove();
        build(createChartCard, cards.length + FIRST);
      }));
      add(place, more);
    }
  }

  function onSpan(span, axis) {
    if (axis !== settings().x) return; // A chart by time among charts by step keeps its own span.
    const digits = axis === "step" ? 0 : 3;
    state.set({ from: span?.[0].toFixed(digits), to: span?.[1].toFixed(digits) });
    redraw();
  }

  function redraw() {
    for (const { card, hasSteps } of cards) card.show(settings(hasSteps));
  }

  return {
    redraw,
    drawn,
    close() {
      isClosed = true;
      for (const { card } of cards) card.close();
    },
  };
}
