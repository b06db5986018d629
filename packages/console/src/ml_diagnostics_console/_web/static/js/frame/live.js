// Announces changes of status to screen readers, at most once a minute.

import { setText } from "../../common/dom.js";
import { statusWord } from "../shapes.js";

const INTERVAL_MS = 60_000;

/**
 * @param {HTMLElement} element The live region.
 * @returns {{update: (change: object) => void}}
 */
export function createLive(element) {
  const states = new Map();
  let waiting = new Map();
  let timer = 0;
  let lastMs = -Infinity;

  function say() {
    timer = 0;
    if (waiting.size === 0) return;
    lastMs = performance.now();
    const parts = [...waiting].slice(0, 3).map(([id, state]) => `${id}: ${statusWord(state)}`);
    setText(element, waiting.size > 3 ? `${parts.join(", ")} and ${waiting.size - 3} more` : parts.join(", "));
    waiting = new Map();
  }

  return {
    update({ kind, data }) {
      if (kind !== "changed") return;
      for (const { id, state } of data.rows ?? []) {
        if (state === undefined || states.get(id) === state) continue;
        states.set(id, state);
        waiting.set(id, state);
      }
      if (waiting.size && !timer) timer = setTimeout(say, Math.max(0, INTERVAL_MS - (performance.now() - lastMs)));
    },
  };
}
