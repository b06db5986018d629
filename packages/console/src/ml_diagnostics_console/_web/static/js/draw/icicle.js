/** Stacks of many hosts as an icicle: outermost frames on top, the width is the number of hosts. */

import { formatWhole } from "../../common/format.js";
import { h } from "../../common/dom.js";

const LEAST_WIDTH = 180; // pixels, so that the branch of one host in 64 can be read
const NARROWEST = 64; // where there are too many branches for the space, it scrolls beyond this
const ROW = 25;

/**
 * Return the left edges of frames in pixels: in proportion to hosts, but no branch narrower than can be read.
 * @param {{start: number, width: number}[]} frames `start` and `width` in hosts.
 * @param {number} space Pixels.
 * @returns {{left: (start: number) => number, total: number}} `total`: the width of all, at least the space.
 */
export function layOutIcicle(frames, space) {
  const edges = [...new Set(frames.flatMap(({ start, width }) => [start, start + width]))];
  edges.sort((one, other) => one - other);
  const sizes = edges.slice(1).map((edge, index) => edge - edges[index]);
  const isCovered = sizes.map((_, index) => frames.some((frame) => covers(frame, edges[index], edges[index + 1])));
  const hosts = sizes.reduce((sum, size, index) => sum + (isCovered[index] ? size : 0), 0);
  const count = isCovered.filter(Boolean).length;
  const least = Math.max(Math.min(LEAST_WIDTH, space / Math.max(1, count)), Math.min(NARROWEST, space));
  const total = Math.max(space, least * count);
  const widths = proportional(sizes.map((size, index) => (isCovered[index] ? size : 0)), hosts, total, least);
  const places = new Map();
  let left = 0;
  edges.forEach((edge, index) => {
    places.set(edge, left);
    left += widths[index] ?? 0;
  });
  return { left: (start) => places.get(start) ?? 0, total };
}

function covers({ start, width }, from, to) {
  return start <= from && start + width >= to;
}

function proportional(sizes, hosts, total, least) {
  // Those that would be too narrow get the least width; the others share what remains, until none is too narrow.
  const fixed = new Set();
  for (;;) {
    const free = sizes.reduce((sum, size, index) => sum + (fixed.has(index) ? 0 : size), 0);
    const space = total - fixed.size * least;
    const isNarrow = (size, index) => size > 0 && !fixed.has(index) && (size / free) * space < least - 1e-9;
    const narrow = sizes.findIndex(isNarrow);
    if (narrow < 0) {
      return sizes.map((size, index) => (size === 0 ? 0 : fixed.has(index) ? least : (size / free) * space));
    }
    fixed.add(narrow);
    if (fixed.size === sizes.filter((size) => size > 0).length) {
      return sizes.map((size) => (size > 0 ? total / fixed.size : 0));
    }
  }
}

/**
 * Build an icicle: a frame is an element, so that its text can be selected and read aloud.
 * @param {HTMLElement} place
 * @returns {{show: (frames: Object[]) => void, close: () => void}} `frames`: `{depth, start, width, hosts, function,
 *   place, kind, is_leaf}`.
 */
export function createIcicle(place) {
  const board = h("div.icicle", { role: "list", "aria-label": "Stacks of the main threads, outermost frame first" });
  place.append(board);
  let frames = [];
  let shownWidth = 0;

  const draw = () => {
    const width = place.clientWidth;
    if (!width || !frames.length) return;
    shownWidth = width;
    const { left, total } = layOutIcicle(frames, width);
    const depth = Math.max(...frames.map((frame) => frame.depth));
    board.style.width = `${total}px`;
    board.style.height = `${(depth + 1) * ROW}px`;
    board.replaceChildren(...frames.map((frame) => element(frame, left(frame.start), left(frame.start + frame.width))));
  };
  const observer = new ResizeObserver(() => place.clientWidth !== shownWidth && draw());
  observer.observe(place);
  return {
    show(found) {
      frames = found;
      draw();
    },
    close: () => observer.disconnect(),
  };
}

function element(frame, left, right) {
  const hosts = Array.isArray(frame.hosts) ? frame.hosts.length : frame.hosts ?? frame.width;
  const words = `${frame.function} ${frame.place ?? ""}, ${formatWhole(hosts)} ${hosts === 1 ? "host" : "hosts"}`;
  return h("div.frame", {
    role: "listitem",
    title: words,
    "aria-label": `Depth ${frame.depth + 1}: ${words}`,
    classes: [`frame-${frame.kind}`, frame.is_leaf && "frame-leaf"],
    css: { left: `${left}px`, width: `${Math.max(2, right - left - 2)}px`, top: `${frame.depth * ROW}px` },
  }, h("span.frame-name", null, frame.function), h("span.frame-place", null, frame.place),
  h("span.frame-hosts", null, formatWhole(hosts)));
}
