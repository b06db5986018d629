/** Tracks on one clock: a column of drawings with one axis of time, one hairline and one zoom for all. */

import { bindKeys } from "../keys.js";
import { formatDuration } from "../../common/format.js";
import { fill, h, setText } from "../../common/dom.js";
import { fitted, markOnce, pictureCanvas } from "./canvas.js";
import { listenToGestures } from "./gestures.js";
import { attemptSpan, clamped, isSame, panned, zoomed } from "./span.js";
import { clockText, clockTicks } from "./time_axis.js";
import { onTheme, tokens } from "./tokens.js";

const AXIS_HEIGHT = 26;
const TICK_PIXELS = 105;
const LEAST_WIDTH = 60;
const STEP_IN = 0.5;
const EXTEND_MS = 1_500;
const LEAST_SELECTION = 1e-6;

/**
 * Build tracks.
 *
 * A track is `{key, name, second, height, draw(context, view, colours)}` and may have: `read(view) -> Promise` (fetch
 * what the span needs), `describe() -> text` (label of the canvas), `rest() -> {value, second, kind}` (what stands on
 * the right), `valueAt(time, share) -> {value, second}`, `onClick(time)`, `nameNode` (an element in place of the name).
 * @param {HTMLElement} place
 * @param {{whole: [number, number], span?: [number, number]|null, attempts?: Object[],
 *   onSpan?: (span: [number, number]|null) => void}} options Times in seconds since 1970.
 */
export function createTracks(place, { whole, span = null, attempts = [], onSpan = () => {} }) {
  const state = { whole, shown: span ? clamped(span, whole) : [...whole], isAll: span === null, width: 0 };
  const rows = new Map();
  const hairline = h("div.hairline", { hidden: true }, h("span.hairline-time", null));
  const selection = h("div.selection", { hidden: true });
  const over = h("div.tracks-over", null, selection, hairline);
  const axis = { key: "axis", name: "", height: AXIS_HEIGHT, draw: drawAxis, describe: describeSpan };
  const board = h("div.tracks", { tabindex: "0", role: "group", "aria-label": "The run on one clock" }, over);
  let frame = 0;
  let dirty = null; // keys of tracks that are to be drawn; null for all
  let pointed = null;
  let extendedMs = Number.NEGATIVE_INFINITY;
  place.append(board);

  const view = () => ({ from: state.shown[0], to: state.shown[1], width: state.width, now: state.whole[1] });

  function add(track) {
    const canvas = pictureCanvas("track-canvas", track.name);
    const value = h("div.track-value", null);
    const title = track.nameNode ?? h("span.track-title", null, track.name);
    const name = h("div.track-name", null, title, h("span.track-second", null));
    const plot = h("div.track-plot", { css: { height: `${track.height}px` } }, canvas);
    const element = h("div.track", { data: { track: track.key } }, name, value, plot);
    board.append(element);
    rows.set(track.key, { track, canvas, plot, value, name, element, isReading: false, isStale: true, error: "" });
    requestDraw();
    return track;
  }

  function draw() {
    frame = 0;
    if (!measure()) return;
    const colours = tokens();
    const ticks = clockTicks(...state.shown, Math.max(2, Math.floor(state.width / TICK_PIXELS)));
    for (const [key, row] of rows) if (dirty === null || dirty.has(key)) drawRow(row, ticks, colours);
    dirty = new Set();
    drawHairline();
  }

  function drawRow(row, ticks, colours) {
    const { track, canvas } = row;
    if (canvas.parentElement.style.height !== `${track.height}px`) row.plot.style.height = `${track.height}px`;
    const context = fitted(canvas, state.width, track.height);
    const shown = { ...view(), height: track.height, ticks };
    context.font = `11px ${colours.font}`;
    drawGrid(context, shown, colours);
    track.draw(context, shown, colours);
    const label = track.describe?.() ?? track.name;
    if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
    setText(row.name.lastElementChild, track.second ?? "");
  }

  /** Draw a track again with the next frame; without its key, all of them. */
  function requestDraw(key = null) {
    if (key === null) dirty = null;
    else dirty?.add(key);
    frame ||= requestAnimationFrame(draw);
  }

  function measure() {
    const plot = rows.values().next().value?.plot;
    const width = plot ? Math.floor(plot.clientWidth) : 0;
    if (width < LEAST_WIDTH) return false; // the style sheet is still on its way
    over.style.left = `${plot.offsetLeft}px`;
    over.style.width = `${width}px`;
    if (width !== state.width) {
      state.width = width;
      dirty = null;
      readAll();
    }
    return true;
  }

  async function read(row) {
    if (!row.track.read || !state.width) {
      row.isStale = false;
      return;
    }
    row.isStale = true;
    if (row.isReading) return;
    row.isReading = true;
    row.element.classList.add("is-reading");
    while (row.isStale && board.isConnected) {
      row.isStale = false;
      try {
        await row.track.read(view());
        row.error = "";
      } catch (error) {
        row.error = error.message;
      }
      requestDraw(row.track.key);
    }
    row.isReading = false;
    row.element.classList.remove("is-reading");
    row.element.classList.toggle("has-error", Boolean(row.error));
    row.plot.dataset.error = row.error;
    settle();
  }

  function readAll() {
    delete board.dataset.settled;
    for (const row of rows.values()) read(row);
  }

  function settle() {
    if ([...rows.values()].some((row) => row.isReading || row.isStale)) return;
    cancelAnimationFrame(frame);
    draw();
    board.dataset.settled = state.shown.map((time) => time.toFixed(3)).join(" ");
    board.dispatchEvent(new CustomEvent("settled"));
    markOnce("tracks-settled");
  }

  function setSpan(wanted, isQuiet = false) {
    const found = wanted === null ? [...state.whole] : clamped(wanted, state.whole);
    state.isAll = wanted === null || isSame(found, state.whole);
    const isChanged = found[0] !== state.shown[0] || found[1] !== state.shown[1];
    state.shown = found;
    if (isChanged) {
      requestDraw();
      readAll();
    }
    if (!isQuiet) onSpan(state.isAll ? null : [...state.shown]);
    return isChanged;
  }

  /** Let the end of the whole move on, pixel by pixel; what is shown moves with it unless a span was chosen. */
  function extend(to) {
    const pixel = (state.whole[1] - state.whole[0]) / (state.width || 1);
    if (!(to >= state.whole[1] + pixel) || performance.now() - extendedMs < EXTEND_MS) return;
    extendedMs = performance.now();
    state.whole = [state.whole[0], to];
    if (!state.isAll) return;
    state.shown = [...state.whole];
    requestDraw();
  }

  function drawHairline() {
    hairline.hidden = pointed === null || !state.width;
    for (const row of rows.values()) {
      const share = pointed?.key === row.track.key ? pointed.share : null;
      const at = pointed === null ? null : row.track.valueAt?.(pointed.time, share);
      showValue(row, at ?? row.track.rest?.() ?? null, Boolean(at));
    }
    if (pointed === null) return;
    const share = (pointed.time - state.shown[0]) / (state.shown[1] - state.shown[0]);
    hairline.style.transform = `translateX(${(share * state.width).toFixed(1)}px)`;
    hairline.classList.toggle("is-right", share > 0.75);
    setText(hairline.firstElementChild, clockText(pointed.time, state.shown[1] - state.shown[0] < 86_400));
  }

  function point(found) {
    if (found === null && pointed === null) return;
    pointed = found;
    drawHairline();
  }

  const timeAt = (share) => state.shown[0] + share * (state.shown[1] - state.shown[0]);
  const keyOf = (event) => event.target.closest?.(".track")?.dataset.track ?? null;
  const stopGestures = listenToGestures(board, {
    width: () => state.width || 1,
    share(event, isDragged = false) {
      if (!isDragged && !event.target.closest?.(".track-plot")) return null;
      const box = over.getBoundingClientRect();
      return state.width ? Math.min(1, Math.max(0, (event.clientX - box.left) / state.width)) : null;
    },
    point(share, event) {
      const box = event.target.closest?.(".track-plot")?.getBoundingClientRect();
      point({ time: timeAt(share), key: keyOf(event), share: box ? (event.clientY - box.top) / box.height : null });
    },
    leave: () => point(null),
    select(from, to) {
      selection.hidden = false;
      selection.style.transform = `translateX(${from * state.width}px)`;
      selection.style.width = `${(to - from) * state.width}px`;
    },
    choose(from, to) {
      selection.hidden = true;
      if (to - from > LEAST_SELECTION) setSpan([timeAt(from), timeAt(to)]);
    },
    cancel() {
      selection.hidden = true;
    },
    zoom: (share, factor) => setSpan(zoomed(state.shown, timeAt(share), factor, state.whole)),
    pan: (share) => !state.isAll && setSpan(panned(state.shown, share, state.whole)),
    all: () => setSpan(null),
    click: (share, event) => rows.get(keyOf(event))?.track.onClick?.(timeAt(share)),
  });
  const centre = () => pointed?.time ?? (state.shown[0] + state.shown[1]) / 2;
  const zoomBy = (factor) => setSpan(zoomed(state.shown, centre(), factor, state.whole));
  const stepAttempt = (direction) => {
    const found = attemptSpan(attempts, state.shown, state.whole, direction);
    if (found) setSpan(found);
  };
  const stopKeys = bindKeys({
    "+": () => zoomBy(STEP_IN),
    "=": () => zoomBy(STEP_IN),
    "-": () => zoomBy(1 / STEP_IN),
    0: () => setSpan(null),
    "[": () => stepAttempt(-1),
    "]": () => stepAttempt(1),
    ArrowLeft: () => !state.isAll && setSpan(panned(state.shown, -0.2, state.whole)),
    ArrowRight: () => !state.isAll && setSpan(panned(state.shown, 0.2, state.whole)),
  });
  const observer = new ResizeObserver(() => measure() && requestDraw());
  observer.observe(board);
  const stopTheme = onTheme(() => requestDraw());
  add(axis);

  function drawAxis(context, shown, colours) {
    context.fillStyle = colours.faint;
    context.font = `11.5px ${colours.font}`;
    context.textBaseline = "middle";
    context.textAlign = "center";
    let writtenTo = -10;
    for (const tick of shown.ticks) {
      const x = ((tick.at - shown.from) / (shown.to - shown.from)) * shown.width;
      const half = context.measureText(tick.label).width / 2;
      const middle = Math.max(x, half);
      if (middle - half < writtenTo + 8 || x + half > shown.width + 2) continue;
      context.fillText(tick.label, middle, 10);
      writtenTo = middle + half;
    }
  }

  function describeSpan() {
    const [from, to] = state.shown;
    return `Time from ${clockText(from)} to ${clockText(to)}, ${formatDuration(to - from)}`;
  }

  return {
    board, add, setSpan, extend, requestDraw, stepAttempt,
    span: () => [...state.shown],
    isAll: () => state.isAll,
    view,
    tracks: () => [...rows.values()].map((row) => row.track).filter((track) => track !== axis),
    setAttempts(found) {
      attempts = found;
    },
    /** Fetch one track again. */
    refresh(key) {
      const row = rows.get(key);
      return row ? read(row) : null;
    },
    close() {
      stopGestures();
      stopKeys();
      stopTheme();
      observer.disconnect();
      cancelAnimationFrame(frame);
    },
  };
}

function showValue(row, found, isPointed) {
  const key = found ? `${found.value} ${found.second ?? ""} ${found.kind ?? ""}` : "";
  row.value.classList.toggle("is-pointed", isPointed);
  if (row.valueKey === key) return;
  row.valueKey = key;
  fill(row.value, found && h("span.track-number", { classes: [found.kind] }, found.value),
    found?.second && h("span.track-second", { classes: [found.secondKind] }, found.second), found?.node);
}

function drawGrid(context, view, colours) {
  context.fillStyle = colours.grid;
  for (const tick of view.ticks) {
    context.fillRect(Math.round(((tick.at - view.from) / (view.to - view.from)) * view.width), 0, 1, view.height);
  }
}
