// Changes from the server, as they happen. One connection a tab; it is closed while the tab is hidden, and resumed
// where it ended, so that nothing is missed and a hidden tab costs nothing.

const KINDS = ["hello", "changed", "metrics", "log", "gone", "reset"];
const LONGEST_WAIT_MS = 10_000; // Between two tries to connect.

/**
 * Start to receive changes.
 *
 * @param {object} api Its `change` is called with {kind, data}.
 * @param {(state: "live"|"paused"|"lost") => void} onState Called when the connection changes.
 * @returns {{start: (cursor: string) => void}} `start` connects, once; it lasts as long as the page.
 */
export function createEvents(api, onState) {
  let source = null;
  let cursor = "";
  let timer = 0;
  let waitMs = 1000;
  let isStarted = false;

  function open() {
    if (source || document.hidden || !isStarted) return;
    source = new EventSource(`/api/events?cursor=${encodeURIComponent(cursor)}`);
    source.onopen = () => {
      waitMs = 1000;
      onState("live");
    };
    source.onerror = () => {
      // The browser gives up on a refused connection, and resumes others by itself with an old id: do both here.
      shut();
      onState("lost");
      timer = setTimeout(open, waitMs);
      waitMs = Math.min(waitMs * 2, LONGEST_WAIT_MS);
    };
    for (const kind of KINDS) source.addEventListener(kind, (event) => receive(kind, event));
  }

  function receive(kind, event) {
    if (event.lastEventId) cursor = event.lastEventId;
    let data = {};
    try {
      data = JSON.parse(event.data || "{}");
    } catch {
      return;
    }
    if (data.cursor) cursor = data.cursor;
    api.change({ kind, data });
  }

  function shut() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function onVisibility() {
    if (document.hidden) {
      shut();
      onState("paused");
    } else {
      open();
    }
  }

  document.addEventListener("visibilitychange", onVisibility);
  return {
    start(from) {
      if (from && !cursor) cursor = from;
      isStarted = true;
      open();
    },
  };
}
