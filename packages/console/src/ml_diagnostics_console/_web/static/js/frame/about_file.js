// What a case file holds, and what was left out of it.

import { add, button, h, withCode } from "../../common/dom.js";
import { formatDay } from "../../common/format.js";

/**
 * Show it in a dialog.
 *
 * @param {{made: number, version: string, from: string, inside: string[], left_out: string[]}|null} about
 */
export function showAbout(about) {
  const dialog = h("dialog.about-file", { "aria-labelledby": "about-title" });
  const { made = null, version = "", from = "", inside = [], left_out: leftOut = [] } = about ?? {};
  const list = (title, texts) => texts.length > 0 && h("section", null, h("h3", null, title),
    h("ul.sentences", null, texts.map((text) => h("li", null, withCode(text)))));
  add(dialog, h("div.card-head", null, h("h2", { id: "about-title" }, "Case file"),
    h("div.card-right", null, button("Close", () => dialog.close()))),
  h("p.second", null, made !== null && `Made ${formatDay(made)}`, from && ` from ${from}`, version
    && `, version ${version}`,
    ". It asks nothing of any server."), list("Inside", inside), list("Left out", leftOut));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
