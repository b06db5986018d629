// The URL is the state: what a page shows is worked out from its path and its parameters, and nothing is kept
// elsewhere.
// In a case file the same paths stand behind the "#", since a file has no others.

/** In place of a run in `against`: the last one of the group that completed. No id has a space. */
export const LAST_COMPLETED = "last completed";

const RUN_TABS = ["overview", "metrics", "stacks", "profiles", "logs", "configs"];

/**
 * Parse a path with parameters.
 *
 * @param {string} url For example "/runs/digits-7/logs?level=error".
 * @returns {{page: string, run: string|null, session: string|null, params: Object<string, string>, path: string}}
 *   `page` is runs, compare, fleet, overview, metrics, stacks, profiles, logs, configs or missing.
 */
export function parse(url) {
  const [path, search = ""] = url.split("#")[0].split("?");
  const params = Object.fromEntries(new URLSearchParams(search));
  const parts = path.split("/").filter(Boolean).map(unescaped);
  const base = { path, params, run: null, session: null };
  if (parts.length === 0) return { ...base, page: "runs" };
  if (["compare", "fleet"].includes(parts[0]) && parts.length === 1) return { ...base, page: parts[0] };
  if (parts[0] !== "runs" || parts.length < 2) return { ...base, page: "missing" };
  const [, run, tab = "overview", session = null] = parts;
  const isKnown = RUN_TABS.includes(tab) && parts.length <= (tab === "profiles" ? 4 : 3);
  return { ...base, page: isKnown ? tab : "missing", run, session };
}

function unescaped(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Return a path with parameters; those that are null, undefined or "" are left out. Commas stay readable. */
export function urlOf(path, params = {}) {
  const shown = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(shown.map(([key, value]) => [key, String(value)])).toString();
  return search ? `${path}?${search.replaceAll("%2C", ",").replaceAll("%3A", ":")}` : path;
}

/** Return the path of a page of a run: runPath("digits-7", "logs"). */
export function runPath(run, tab = "overview", session = null) {
  const base = `/runs/${encodeURIComponent(run)}`;
  if (tab === "overview") return base;
  return session ? `${base}/${tab}/${encodeURIComponent(session)}` : `${base}/${tab}`;
}

/**
 * Make the router.
 *
 * @param {(state: object, top: number) => void} onNavigate Called when another page, or the same with other parameters,
 *   is to be shown; `top` is how far it was scrolled when it was left, for a page that the back button returns to.
 * @param {{isFile?: boolean, start?: string}} options `isFile`: the state stands behind "#"; `start` is its first path.
 */
export function createRouter(onNavigate, { isFile = false, start = "/" } = {}) {
  const inFile = () => (location.hash.startsWith("#/") ? location.hash.slice(1) : start);
  const current = () => (isFile ? inFile() : location.pathname + location.search);
  const shown = (url) => (isFile ? `#${url}` : url);
  let newest = null; // The state of the page that is shown.

  /** Return what the URL says; the state that was returned before no longer changes the URL. */
  function state() {
    const found = parse(current());
    const own = {
      ...found,
      /** Return a parameter, or the fallback if it is not in the URL. */
      get: (name, fallback = "") => found.params[name] ?? fallback,
      /** Return a parameter as a number, or the fallback if it is not a finite one. */
      number: (name, fallback = null) => {
        const number = Number(found.params[name]);
        return found.params[name] && Number.isFinite(number) ? number : fallback;
      },
      /** Rewrite parameters in the URL; the page shows the change itself. `push` makes a step for the back button. */
      set: (changes, { push = false } = {}) => {
        if (newest !== own) return; // A page that was left still answers a timer or a request.
        Object.assign(found.params, changes);
        for (const [key, value] of Object.entries(found.params)) {
          if (value === null || value === undefined || value === "") delete found.params[key];
        }
        const url = urlOf(parse(current()).path, found.params);
        if (url === current()) return;
        if (push) history.pushState(null, "", shown(url));
        else history.replaceState(history.state, "", shown(url));
      },
      /** Go to another page. */
      go,
    };
    newest = own;
    return own;
  }

  function go(url) {
    if (url === current()) return;
    history.replaceState({ top: window.scrollY }, "");
    history.pushState(null, "", shown(url));
    window.scrollTo(0, 0);
    onNavigate(state(), 0);
  }

  document.addEventListener("click", (event) => {
    const isPlain = event.button === 0 && !event.ctrlKey && !event.metaKey && !event.shiftKey && !event.altKey;
    const link = event.target instanceof Element ? event.target.closest("a[href]") : null;
    if (!link || event.defaultPrevented || !(isPlain || isFile) || link.target || link.hasAttribute("download")) return;
    const href = link.getAttribute("href");
    // The server puts the fleet's report into the document.
    if (!href.startsWith("/") || /^\/((api|static|xprof)\/|fleet(\?|$))/.test(href)) return;
    event.preventDefault();
    go(href);
  });
  window.addEventListener("popstate", (event) => onNavigate(state(), event.state?.top ?? 0));

  return { state };
}
