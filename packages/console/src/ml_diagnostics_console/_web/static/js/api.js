// Answers of the server, or of a case file. Pages see one interface:
//   json(path) -> value                  one request for the same path at the same time
//   columns(path) -> {header, columns}   binary columns as typed arrays over the answer's bytes, not copied
//   text(path) -> {text, size, from, next}
//   onChange(f) -> stop                  f({kind: "changed" | "metrics" | "log" | "gone" | "reset" | "hello", data})
// Errors are ApiError with a sentence for people.

/** A request that failed: `message` is a sentence, `status` the HTTP status, 0 if there was no answer. */
export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

const SHARED_MS = 400;
const MAGIC = 0x31444c4d; // "MLD1", little-endian

/**
 * Make the interface over a source of answers.
 *
 * @param {{get: (path: string, signal?: AbortSignal) => Promise<{bytes: ArrayBuffer, headers: object}>}} source
 *   Where answers come from: netSource() or caseSource(document).
 */
export function createApi(source) {
  const shared = new Map();
  const listeners = new Set();

  function json(path) {
    const known = shared.get(path);
    if (known) return known;
    const answer = source.get(path).then(({ bytes }) => remembered(JSON.parse(new TextDecoder().decode(bytes))));
    shared.set(path, answer);
    const forget = () => shared.get(path) === answer && shared.delete(path);
    answer.then(() => setTimeout(forget, SHARED_MS), forget);
    return answer;
  }

  function remembered(value) {
    if (typeof value?.cursor === "string") api.cursor = value.cursor;
    return value;
  }

  const api = {
    isFile: source.isFile ?? false,
    about: source.about ?? null,
    /** Where the newest answer stood: events go on from there. */
    cursor: "",
    json,
    columns: async (path, signal) => decodeColumns((await source.get(path, signal)).bytes),
    text: async (path, signal) => {
      const { bytes, headers } = await source.get(path, signal);
      const number = (name) => (headers[name] === undefined ? null : Number(headers[name]));
      return {
        text: new TextDecoder().decode(bytes),
        size: number("x-log-size"),
        from: number("x-log-from"),
        next: number("x-log-next"),
      };
    },
    onChange(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    /** Hand a change to all listeners, and forget the answers that it may have made old. */
    change(change) {
      shared.clear();
      for (const listener of [...listeners]) listener(change);
    },
  };
  return api;
}

/** Answers from the server of the page. */
export function netSource() {
  return {
    async get(path, signal) {
      let response;
      try {
        response = await (sentEarly(path) ?? fetch(path, { signal, credentials: "same-origin", cache: "no-store" }));
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new ApiError("The server does not answer. Is `mldiagnostics ui` still running?", 0);
      }
      const bytes = await response.arrayBuffer();
      if (!response.ok) throw new ApiError(sentence(bytes, response.status), response.status);
      return { bytes, headers: Object.fromEntries(response.headers) };
    },
  };
}

/** Return the request that early.js sent, if it was for this path; the first request of the page takes it. */
function sentEarly(path) {
  const { firstAnswer } = globalThis;
  delete globalThis.firstAnswer;
  return firstAnswer?.path === path ? firstAnswer.response : null;
}

function sentence(bytes, status) {
  try {
    const { error } = JSON.parse(new TextDecoder().decode(bytes));
    if (typeof error === "string" && error) return error;
  } catch {
    // Not JSON: what stands between answered.
  }
  return status === 404 ? "There is nothing at this address." : `The server answered with status ${status}.`;
}

/**
 * Answers that lie in the document of a case file, as blocks of gzip in base64:
 *   <script type="text/plain" data-answer="/api/runs/x/points?metric=loss&x=step" data-headers="{...}">H4sI...</script>
 * An answer that was asked for another window or width is taken from the block of the smallest window that holds it.
 *
 * @param {Document} document The case file.
 * @returns {object|null} A source; null if the document is not a case file.
 */
export function caseSource(document) {
  const blocks = new Map();
  for (const element of document.querySelectorAll("script[data-answer]")) {
    const key = parsed(element.dataset.answer);
    const list = blocks.get(key.name) ?? [];
    list.push({ ...key, element, bytes: null });
    blocks.set(key.name, list);
  }
  if (blocks.size === 0) return null;
  const about = document.querySelector("script[data-about]");
  return {
    isFile: true,
    about: about && JSON.parse(about.textContent),
    async get(path) {
      const asked = parsed(path);
      const block = closest(blocks.get(asked.name) ?? [], asked);
      if (!block) throw new ApiError("The case file does not contain this. Ask for the run's page.", 404);
      block.bytes ??= await unzipped(block.element.textContent);
      return { bytes: block.bytes, headers: JSON.parse(block.element.dataset.headers ?? "{}") };
    },
  };
}

/** Parameters that choose a window or a resolution; all others must be equal. */
const WINDOW = ["from", "to", "width", "after"];

function parsed(path) {
  const [name, search = ""] = path.split("?");
  const parameters = new URLSearchParams(search);
  const number = (key, fallback) => (parameters.has(key) ? Number(parameters.get(key)) : fallback);
  const span = { from: number("from", -Infinity), to: number("to", Infinity), width: number("width", 0) };
  for (const key of WINDOW) parameters.delete(key);
  parameters.sort();
  return { name: `${decodeURIComponent(name)}?${parameters}`, ...span };
}

function closest(blocks, asked) {
  const holding = blocks.filter((block) => block.from <= asked.from && block.to >= asked.to);
  const usable = holding.length ? holding : blocks;
  const length = (block) => block.to - block.from;
  return usable.reduce((best, block) => {
    if (best === null || length(block) < length(best)) return block;
    return length(block) === length(best) && block.width > best.width ? block : best;
  }, null);
}

async function unzipped(base64) {
  const bytes = Uint8Array.from(atob(base64.trim()), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

/**
 * Read columns in the wire format: "MLD1", u32 length of the header, the header as JSON, then the columns, each at a
 * multiple of 8 bytes: float64, or bytes where the header says "u8".
 *
 * @param {ArrayBuffer} bytes The answer.
 * @returns {{header: object, columns: Object<string, Float64Array|Uint8Array>}}
 */
export function decodeColumns(bytes) {
  const view = new DataView(bytes);
  if (bytes.byteLength < 8 || view.getUint32(0, true) !== MAGIC) {
    throw new ApiError("The server's answer does not have the form that this page reads. Reload the page.", 0);
  }
  const length = view.getUint32(4, true);
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 8, length)));
  const columns = {};
  let offset = 8 + length;
  for (const [name, count, kind] of header.columns) {
    columns[name] = kind === "u8" ? new Uint8Array(bytes, offset, count) : new Float64Array(bytes, offset, count);
    offset += columns[name].byteLength;
    offset += (8 - (offset % 8)) % 8;
  }
  return { header, columns };
}
