// The theme: as the system has it, or light or dark by the user's choice. It is the one state that is not in the URL.

const KEY = "ml-diagnostics-theme";
const NAMES = { system: "as the system", light: "light", dark: "dark" };

/** Return the choice: system, light or dark. */
export function chosenTheme() {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system"; // Storage may be forbidden, as for a file.
  }
}

/** Take the next choice; drawings receive the event "themechange" of the window. */
export function nextTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const other = system === "dark" ? "light" : "dark";
  const order = ["system", other, system];
  const next = order[(order.indexOf(chosenTheme()) + 1) % order.length];
  try {
    if (next === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, next);
  } catch {
    // The choice then holds until the page is closed.
  }
  show(next);
  return NAMES[next];
}

function show(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  window.dispatchEvent(new CustomEvent("themechange"));
}

/** Send "themechange" when the system changes its theme, too; print in the light theme, as paper is white. */
export function startTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", () => window.dispatchEvent(new CustomEvent("themechange")));
  window.addEventListener("beforeprint", () => show("light"));
  window.addEventListener("afterprint", () => show(chosenTheme()));
}
