// A list of which only the visible rows are in the document; it scrolls with the page, or in an element of its own.

const SPARE = 6; // Rows above and below, so that a fast scroll shows no gap.

/**
 * Make the list.
 *
 * @param {HTMLElement} element The list's element; its rows get `top` from here, and stand absolutely.
 * @param {object} options
 * @param {HTMLElement|null} options.scroller The element that scrolls; null: the page.
 * @param {() => number} options.rowHeight The height of a row in px; called again when the window changes.
 * @param {(index: number) => HTMLElement} options.make Makes the element of a row.
 */
export function createVirtual(element, { scroller = null, rowHeight, make }) {
  let count = 0;
  let height = rowHeight();
  let rows = new Map();
  let frame = 0;
  const target = scroller ?? window;

  function range(spare) {
    const above = scroller ? scroller.getBoundingClientRect().top + scroller.clientTop : 0;
    const top = above - element.getBoundingClientRect().top;
    const length = scroller ? scroller.clientHeight : window.innerHeight;
    const first = Math.max(0, Math.floor(top / height) - spare);
    return [first, Math.min(count, Math.ceil((top + length) / height) + spare)];
  }

  function draw(isFirst = false) {
    frame = 0;
    const [first, last] = range(isFirst ? 0 : SPARE);
    if (isFirst) schedule(); // What is in view first; the spare rows follow in the next frame.
    for (const [index, row] of rows) {
      if (index < first || index >= last) {
        if (row.contains(document.activeElement)) continue; // Focus must not fall out of the document.
        row.remove();
        rows.delete(index);
      }
    }
    for (let index = last - 1; index >= first; index -= 1) { // From below, so that each row finds the one after it.
      if (rows.has(index)) continue;
      const row = make(index);
      row.style.setProperty("top", `${index * height}px`);
      rows.set(index, row);
      const next = rows.get(index + 1);
      if (next) element.insertBefore(row, next);
      else element.append(row);
    }
  }

  function schedule() {
    frame ||= requestAnimationFrame(() => draw());
  }

  function onResize() {
    const next = rowHeight();
    if (next !== height) {
      height = next;
      list.show(count);
    } else {
      schedule();
    }
  }

  const list = {
    /** Show a list of so many rows, all of them new. */
    show(length) {
      count = length;
      for (const row of rows.values()) row.remove();
      rows = new Map();
      element.style.setProperty("height", `${count * height}px`);
      draw(true);
    },
    /** Rebuild one row, if it is in the document. */
    renew(index) {
      const old = rows.get(index);
      if (!old) return;
      const row = make(index);
      row.style.setProperty("top", `${index * height}px`);
      old.replaceWith(row);
      rows.set(index, row);
    },
    /** The rows in the document, by index. */
    shown: () => rows,
    /** Scroll so that a row is visible, and return its element. */
    reveal(index, { isCentred = false } = {}) {
      const top = index * height;
      if (scroller) {
        const start = scroller.getBoundingClientRect().top + scroller.clientTop - scroller.scrollTop;
        const at = top + element.getBoundingClientRect().top - start;
        const free = scroller.clientHeight - height;
        if (isCentred) scroller.scrollTop = at - free / 2;
        else if (at < scroller.scrollTop) scroller.scrollTop = at;
        else if (at > scroller.scrollTop + free) scroller.scrollTop = at - free;
      } else {
        const at = top + element.getBoundingClientRect().top;
        if (at < height * 2) window.scrollBy(0, at - height * 2);
        else if (at > window.innerHeight - height * 2.5) window.scrollBy(0, at - window.innerHeight + height * 2.5);
      }
      draw();
      return rows.get(index) ?? null;
    },
    close() {
      cancelAnimationFrame(frame);
      target.removeEventListener("scroll", schedule);
      window.removeEventListener("resize", onResize);
    },
  };
  target.addEventListener("scroll", schedule, { passive: true });
  window.addEventListener("resize", onResize);
  return list;
}
