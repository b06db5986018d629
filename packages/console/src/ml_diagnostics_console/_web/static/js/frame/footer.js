// The bar at the foot of the runs page: what is selected, and "Compare n".

import { button, fill, h } from "../../common/dom.js";

let place = null;

/**
 * Show the bar, or change it; nothing is shown while nothing is selected.
 *
 * @param {{ids: string[], href: string, most: number, onClear: () => void}} selection
 */
export function showFooter({ ids, href, most, onClear }) {
  if (ids.length === 0) {
    closeFooter();
    return;
  }
  place ??= document.getElementById("foot");
  const isTooMany = ids.length > most;
  const link = ids.length < 2 || isTooMany
    ? h("button.button.primary", { type: "button", disabled: true }, `Compare ${ids.length}`)
    : h("a.button.primary", { href }, `Compare ${ids.length}`, h("kbd", null, "c"));
  const hint = isTooMany ? `at most ${most} can be compared` : ids.length < 2 ? "select another one to compare" : null;
  fill(place, h("div.foot", { role: "region", "aria-label": "Selected runs" },
    h("span.foot-count", null, ids.length === 1 ? "1 run selected" : `${ids.length} runs selected`),
    hint && h("span.second", null, hint), h("span.foot-space"), button("Clear", onClear), link));
}

/** Remove the bar. */
export function closeFooter() {
  place?.replaceChildren();
}
