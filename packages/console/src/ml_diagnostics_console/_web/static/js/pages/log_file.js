// One stream of a process: its last 4,096 bytes, or all of it by ranges of 64 kB.

import { h, setText } from "../../common/dom.js";
import { formatBytes, formatWhole } from "../../common/format.js";
import { urlOf } from "../router.js";
import { createLines, linesOf } from "./log_lines.js";

const TAIL = 4096;
const RANGE = 65_536;
const MOST_CHUNKS = 48; // 3 MB of text are kept in the page at most.

/**
 * Make the card of a stream.
 *
 * @param {object} api
 * @param {string} base The path of the run's answers.
 * @param {{host: string, process_index: number, stream: string, size: number}} source
 * @param {{isFull: boolean, onError: (error: Error) => void}} options
 */
export function createLogFile(api, base, source, { isFull, onError }) {
  const about = h("span.second");
  const view = h("div.log-view", { tabindex: 0, role: "log", "aria-live": "off",
    "aria-label": `${source.stream} of ${source.host}`, classes: [isFull && "is-full"] });
  const element = h("section.card.log-card", null, h("div.card-head", null, h("h2", null, source.stream), about), view);
  const lines = createLines(view, isFull ? { onTop: () => extend(-1), onBottom: () => extend(1) } : {});
  let chunks = [];
  let size = source.size;
  let wanted = "";
  let isBusy = false;
  let isClosed = false;

  function url(parameters) {
    return urlOf(`${base}/logs`, { host: source.host, stream: source.stream, ...parameters });
  }

  async function read(parameters) {
    const answer = await api.text(url(parameters));
    size = answer.size ?? size;
    const from = answer.from ?? 0;
    return { text: answer.text, from, next: answer.next ?? from + answer.text.length };
  }

  async function guarded(work) {
    if (isBusy || isClosed) return;
    isBusy = true;
    try {
      await work();
    } catch (error) {
      if (!isClosed) onError(error);
    } finally {
      isBusy = false;
    }
  }

  function draw(options) {
    const text = chunks.map((chunk) => chunk.text).join("");
    const found = linesOf(text).filter((line) => !wanted || line.text.toLowerCase().includes(wanted));
    lines.show(found, options);
    const first = chunks[0]?.from ?? 0;
    const last = chunks.at(-1)?.next ?? 0;
    if (first === 0 && last >= size) setText(about, formatBytes(size));
    else if (isFull) setText(about, `bytes ${formatWhole(first)} to ${formatWhole(last)} of ${formatWhole(size)}`);
    else setText(about, `last ${formatWhole(last - first)} of ${formatWhole(size)} bytes`);
    view.style.setProperty("--lines", Math.max(2, found.length));
  }

  /** Read a range before or after what is loaded. */
  function extend(direction) {
    return guarded(async () => {
      if (direction < 0) {
        const end = chunks[0]?.from ?? 0;
        if (end === 0) return;
        const before = linesOf(chunks.map(({ text }) => text).join("")).length;
        chunks.unshift(await read({ range: `${Math.max(0, end - RANGE)}-${end}` }));
        const added = linesOf(chunks.map(({ text }) => text).join("")).length - before;
        if (chunks.length > MOST_CHUNKS) chunks.pop();
        draw({ keep: "place", added });
      } else {
        const start = chunks.at(-1)?.next ?? 0;
        if (start >= size) return;
        const chunk = await read({ range: `${start}-${Math.min(size, start + RANGE)}` });
        if (chunk.next <= start) return;
        chunks.push(chunk);
        const dropped = chunks.length > MOST_CHUNKS ? linesOf(chunks.shift().text).length : 0;
        draw({ keep: "exact", added: -dropped });
      }
    });
  }

  return {
    element,
    /** Read the end of the stream. */
    start: () => guarded(async () => {
      const end = size;
      chunks = [isFull ? await read({ range: `${Math.max(0, end - RANGE)}-${end}` }) : await read({ tail: TAIL })];
      draw({ keep: "bottom" });
    }),
    /** Read what is new, if the end is in view. */
    refresh: () => guarded(async () => {
      if (isFull && !lines.isAtEnd()) return;
      const last = chunks.at(-1)?.next ?? 0;
      if (isFull) {
        const chunk = await read({ range: `${last}-${last + RANGE}` });
        if (chunk.next > last) chunks.push(chunk);
      } else {
        chunks = [await read({ tail: TAIL })];
      }
      draw({ keep: "place" });
    }),
    /** Show only lines that contain a part, of what is loaded. */
    filter(part) {
      wanted = part.toLowerCase();
      draw({ keep: "bottom" });
    },
    /** Go to the first line. */
    toStart: () => guarded(async () => {
      chunks = [await read({ range: `0-${Math.min(size, RANGE)}` })];
      draw({ keep: "top" });
    }),
    close() {
      isClosed = true;
      lines.close();
    },
  };
}
