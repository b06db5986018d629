// Draws the summary that is in the page of `xprofiler serve`.

import { add, card, h } from "../common/dom.js";
import { showSummary } from "./profile_summary.js";

const place = document.getElementById("profile");
try {
  showSummary(place, JSON.parse(document.getElementById("summary").textContent));
} catch (error) {
  console.error(error);
  const { command } = place.dataset;
  add(place, card("Summary", {}, h("p.problem", null, `It cannot be drawn: ${error.message}. As text: ${command}`)));
}
document.documentElement.dataset.ready = "profile";
