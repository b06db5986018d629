/** A square for each host, 32 to a row: what it waits for, and which one is odd. */

import { fitted, pictureCanvas } from "./canvas.js";
import { onTheme, tokens } from "./tokens.js";

const IN_ROW = 32;
const SQUARE = 17;
const GAP = 3;

/**
 * Return the places of squares.
 * @param {number} hosts
 * @param {number} width The space that there is, in pixels.
 * @returns {{columns: number, rows: number, step: number, square: number, width: number, height: number}}
 */
export function layOutMap(hosts, width) {
  const columns = Math.max(1, Math.min(IN_ROW, hosts));
  const step = Math.min(SQUARE + GAP, (width + GAP) / columns);
  const square = Math.max(2, step - (step > 8 ? GAP : 1));
  const rows = Math.ceil(hosts / columns);
  const gap = step - square;
  return { columns, rows, step, square, width: columns * step - gap, height: rows * step - gap };
}

/** Return what a map shows, in words. */
export function mapSentence(hosts) {
  const kinds = { most: "wait together", other: "wait elsewhere", odd: "odd", ended: "ended", silent: "silent" };
  const counted = Object.entries(kinds).map(([kind, words]) => [hosts.filter((host) => host.kind === kind), words]);
  const parts = counted.filter(([found]) => found.length).map(([found, words]) =>
    words === "odd" ? `${words}: ${found.map((host) => host.name).slice(0, 5).join(", ")}` : `${found.length} ${words}`,
  );
  return `Map of ${hosts.length} hosts: ${parts.join("; ") || "nothing is known"}`;
}

/**
 * Build a map of hosts.
 * @param {HTMLElement} place Where it is put.
 * @param {{onHost?: (host: Object|null) => void, onChoose?: (host: Object) => void}} options
 * @returns {{show: (hosts: Object[]) => void, close: () => void}} `hosts`: `{name, index, group, kind}`.
 */
export function createHostMap(place, { onHost = () => {}, onChoose = null } = {}) {
  const canvas = pictureCanvas("host-map");
  place.append(canvas);
  let hosts = [];
  let layout = null;
  let pointed = -1;

  const draw = () => {
    const width = place.clientWidth;
    if (!width || !hosts.length) return;
    const colours = tokens();
    layout = layOutMap(hosts.length, width);
    const context = fitted(canvas, layout.width, layout.height);
    hosts.forEach((host, index) => drawSquare(context, host, squareAt(layout, index), colours, index === pointed));
  };
  const indexAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / layout.step);
    const index = Math.floor((event.clientY - box.top) / layout.step) * layout.columns + column;
    return column >= 0 && column < layout.columns && index < hosts.length ? index : -1;
  };
  const point = (index) => {
    if (index === pointed) return;
    pointed = index;
    canvas.title = index < 0 ? "" : `${hosts[index].name}: ${KIND_WORDS[hosts[index].kind] ?? "not known"}`;
    onHost(index < 0 ? null : hosts[index]);
    draw();
  };
  canvas.addEventListener("pointermove", (event) => layout && point(indexAt(event)));
  canvas.addEventListener("pointerleave", () => point(-1));
  canvas.addEventListener("click", (event) => {
    const index = layout ? indexAt(event) : -1;
    if (index >= 0 && onChoose) onChoose(hosts[index]);
  });
  const observer = new ResizeObserver(draw);
  observer.observe(place);
  const stop = onTheme(draw);
  return {
    show(found) {
      hosts = found;
      pointed = -1;
      canvas.hidden = hosts.length === 0;
      canvas.setAttribute("aria-label", mapSentence(hosts));
      draw();
    },
    close() {
      observer.disconnect();
      stop();
    },
  };
}

const KIND_WORDS = {
  most: "waits with most others",
  other: "waits elsewhere",
  odd: "the odd one",
  ended: "ended",
  silent: "nothing received",
};

function squareAt({ columns, step, square }, index) {
  return { x: (index % columns) * step, y: Math.floor(index / columns) * step, size: square };
}

function drawSquare(context, host, { x, y, size }, colours, isPointed) {
  const fill = { most: colours.hostMost, other: colours.hostOther, odd: colours.hostOdd }[host.kind];
  context.beginPath();
  context.roundRect(x, y, size, size, Math.min(3, size / 4));
  if (fill) {
    context.fillStyle = fill;
    context.fill();
  } else {
    context.strokeStyle = colours.faint;
    context.lineWidth = 1;
    context.setLineDash([2, 2]);
    context.beginPath();
    context.roundRect(x + 0.5, y + 0.5, size - 1, size - 1, Math.min(3, size / 4));
    context.stroke();
    context.setLineDash([]);
    if (host.kind === "ended") {
      context.beginPath();
      context.moveTo(x + size * 0.3, y + size * 0.7);
      context.lineTo(x + size * 0.7, y + size * 0.3);
      context.stroke();
    }
  }
  if (isPointed) {
    context.strokeStyle = colours.ink;
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, y + 0.75, size - 1.5, size - 1.5);
  }
}
