// Runs before the first paint, not as a module: a chosen theme must not flash in the other one.
(() => {
  try {
    const theme = localStorage.getItem("ml-diagnostics-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage may be forbidden: then the theme is the system's.
  }
})();
