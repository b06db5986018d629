/** Mouse, touch and wheel over a drawing of time. A plain wheel scrolls the page. */

const LEAST_DRAG = 4; // pixels: less is a click
const WHEEL_ZOOM = 0.0022; // of the exponent, for each pixel of the wheel
const LINE = 16; // pixels of a line, for wheels that count lines

/**
 * Return what a turn of the wheel asks for: a zoom by a factor (with Ctrl or the command key), or a move by pixels to
 * the side; null for a plain turn, which scrolls the page.
 * @param {WheelEvent} event
 * @returns {{zoom: number} | {pan: number} | null}
 */
export function wheelTurn(event) {
  const unit = event.deltaMode === 1 ? LINE : 1;
  if (event.ctrlKey || event.metaKey) return { zoom: Math.exp(event.deltaY * unit * WHEEL_ZOOM) };
  return Math.abs(event.deltaX) > Math.abs(event.deltaY) ? { pan: event.deltaX * unit } : null;
}

/**
 * Listen to gestures.
 * @param {HTMLElement} area Where they are made.
 * @param {Object} on `share(event) -> number|null` gives the place from 0 (left) to 1, null outside;
 *   `point(share, event)`, `leave()`, `select(from, to)` while it is dragged, `choose(from, to)` at its end, `cancel()`
 *   `zoom(at, factor)`, `pan(share)` (false where it cannot move further), `all()`, `click(share, event)`, `width()` in
 *   pixels.
 * @returns {() => void} Stops listening.
 */
export function listenToGestures(area, on) {
  let drag = null;
  const stopper = new AbortController();
  const listen = (type, listener, options = {}) =>
    area.addEventListener(type, listener, { signal: stopper.signal, ...options });

  listen("pointerdown", (event) => {
    const share = event.button === 0 && event.isPrimary ? on.share(event) : null;
    if (share === null) return;
    drag = { id: event.pointerId, start: share, x: event.clientX, isDrag: false };
  });
  listen("pointermove", (event) => {
    const share = on.share(event, drag !== null);
    if (drag && event.pointerId === drag.id) {
      if (!drag.isDrag && Math.abs(event.clientX - drag.x) >= LEAST_DRAG) {
        drag.isDrag = true;
        area.setPointerCapture(drag.id);
      }
      if (drag.isDrag && share !== null) on.select(Math.min(drag.start, share), Math.max(drag.start, share));
    }
    if (share === null) on.leave();
    else on.point(share, event);
  });
  listen("pointerup", (event) => {
    if (!drag || event.pointerId !== drag.id) return;
    const { start, isDrag } = drag;
    drag = null;
    const share = on.share(event, isDrag);
    if (isDrag && share !== null) on.choose(Math.min(start, share), Math.max(start, share));
    else if (share !== null) on.click(share, event);
  });
  const cancel = () => {
    drag = null;
    on.cancel();
  };
  listen("pointercancel", cancel);
  listen("pointerleave", () => drag === null && on.leave());
  listen("dblclick", (event) => on.share(event) !== null && on.all());
  listen("keydown", (event) => event.key === "Escape" && drag && cancel());
  listen("wheel", (event) => {
    const share = on.share(event);
    const turn = share === null ? null : wheelTurn(event);
    if (turn?.zoom) {
      event.preventDefault(); // else the browser zooms the page
      on.zoom(share, turn.zoom);
    } else if (turn && on.pan(turn.pan / on.width())) {
      event.preventDefault(); // else the browser goes a page back
    }
  }, { passive: false });
  return () => stopper.abort();
}
