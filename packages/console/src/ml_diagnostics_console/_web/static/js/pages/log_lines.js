// Lines of logs in a virtual list: 20 px each, with time, host and text. Text enters as text only.

import { h, visible } from "../../common/dom.js";
import { formatClock, formatTimeOfDay } from "../../common/format.js";
import { createVirtual } from "../virtual.js";

const LINE_PX = 20;
const LONGEST = 2000; // Characters of a line that are shown; more would make the list slow.
const COLOURS = new RegExp("\u001b(?:\\[[0-9;:]*[mK]|\\(B|\\[\\?25[lh]|\\[[0-9;]*[A-HJ])", "g");
const ERROR = /\b(?:ERROR|CRITICAL|FATAL|Traceback|made no progress for)\b|^[EF]\d{4} |\w(?:Error|Exception): /;
const WARNING = /\bWARN(?:ING)?\b|^W\d{4} |Warning: |\bretrying\b/;

/** Return a line as a terminal would leave it: without colours, the last state of a progress bar. */
function plainLine(text) {
  const plain = text.replace(COLOURS, "").replace(/\r+$/, "");
  return plain.slice(plain.lastIndexOf("\r") + 1);
}

/** Return "error", "warning" or "" for a line, by its words. */
function levelOf(text) {
  if (ERROR.test(text)) return "error";
  return WARNING.test(text) ? "warning" : "";
}

/**
 * Make a view of lines.
 *
 * @param {HTMLElement} element An element that scrolls.
 * @param {{onTop?: () => void, onBottom?: () => void}} options Called near an end.
 */
export function createLines(element, { onTop = null, onBottom = null } = {}) {
  const body = h("div.log-lines");
  element.append(body);
  let lines = [];
  let shows = { time: false, host: false };
  const list = createVirtual(body, { scroller: element, rowHeight: () => LINE_PX, make });

  function make(index) {
    const { time, host, text, count, level } = lines[index];
    const plain = plainLine(text);
    const shown = visible(plain.slice(0, LONGEST), true);
    return h("div.log-line", { classes: [(level === "error" || level === "warning") && `is-${level}`] },
      shows.time && h("span.log-time", { title: time === null ? null : formatClock(time) },
        time === null ? "            " : formatTimeOfDay(time)),
      shows.host && h("span.log-host", null, host),
      h("span.log-text", null, document.createTextNode(shown || " "), plain.length > LONGEST
        && h("span.faint", null, " …")),
      count > 1 && h("span.log-times", { title: `${count} equal lines` }, `× ${count}`));
  }

  function onScroll() {
    if (onTop && element.scrollTop < LINE_PX * 20) onTop();
    if (onBottom && element.scrollTop + element.clientHeight > element.scrollHeight - LINE_PX * 20) onBottom();
  }
  element.addEventListener("scroll", onScroll, { passive: true });

  return {
    /**
     * Show lines: {time, host, text, count}; a text's words give its level.
     *
     * @param {object[]} next The lines.
     * @param {{keep?: "bottom"|"top"|"place"|"exact", added?: number}} options What stays in view: `place` follows the
     *   end where it was in view; `added` lines were inserted above.
     */
    show(next, { keep = "place", added = 0 } = {}) {
      const wasAtEnd = element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX;
      const before = element.scrollTop;
      lines = next.map((line) => ({ time: null, host: "", count: 1, ...line,
        level: line.level ?? levelOf(line.text) }));
      shows = { time: lines.some(({ time }) => time !== null), host: lines.some(({ host }) => host) };
      list.show(lines.length);
      if (keep === "bottom" || (keep === "place" && wasAtEnd && !added)) element.scrollTop = element.scrollHeight;
      else element.scrollTop = keep === "top" ? 0 : before + added * LINE_PX;
    },
    /** Bring a line into the middle. */
    reveal: (index) => list.reveal(index, { isCentred: true }),
    isAtEnd: () => element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX,
    close() {
      element.removeEventListener("scroll", onScroll);
      list.close();
    },
  };
}

/** Return the lines of a text; equal ones that follow each other are one with a count. */
export function linesOf(text) {
  const lines = [];
  const parts = text.split("\n");
  if (parts.at(-1) === "") parts.pop();
  for (const part of parts) {
    const last = lines.at(-1);
    if (last && last.text === part) last.count += 1;
    else lines.push({ text: part, count: 1 });
  }
  return lines;
}
