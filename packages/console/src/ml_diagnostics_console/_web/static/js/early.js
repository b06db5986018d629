// Runs before the first paint, not as a module. A chosen theme must not flash in the other one, and the first answer
// that the page needs is on its way while the page's code is loaded.
(() => {
  try {
    const theme = localStorage.getItem("ml-diagnostics-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden: then the theme is the system's.
  }
  if (!document.currentScript?.src) return; // A case file has its answers inside.
  const { pathname } = location;
  const [, run] = /^\/runs\/([^/]+)/.exec(pathname) ?? [];
  if (run === undefined && pathname !== "/") return;
  let path = "/api/runs";
  try {
    if (run !== undefined) path += `/${encodeURIComponent(decodeURIComponent(run))}`;
  } catch {
    return; // The address has a wrong escape: the page says so.
  }
  const response = fetch(path, { credentials: "same-origin", cache: "no-store" });
  response.catch(() => {}); // The page, which takes the answer, says what is wrong.
  globalThis.firstAnswer = { path, response };
})();
