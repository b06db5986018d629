// What a part without data says: a sentence, and the command or line of code that would fill it.

import { copyable, h } from "../../common/dom.js";

/** The line of a training loop that records a metric. */
export const RECORD = "metrics.record(\"loss\", loss, step=step)";

/**
 * Build it from a sentence of the server, in which code stands in backticks; the first code can be copied.
 * @param {string|null} help
 * @param {string} otherwise The sentence where there is none.
 * @param {string|null} code The code that can be copied instead.
 */
export function emptyWithHelp(help, otherwise, code = null) {
  const parts = (help ?? otherwise).split("`");
  const toCopy = code ?? parts[1];
  return h("div.empty", null, h("p", null, parts.map((part, index) => (index % 2 ? h("span.code", null, part) : part))),
    toCopy && copyable(toCopy));
}
