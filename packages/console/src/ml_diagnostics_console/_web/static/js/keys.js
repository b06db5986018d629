// Keys of the page. Each part binds its own while it is shown; `?` lists all of them.

import { add, button, h } from "../common/dom.js";

const bindings = new Set();

/** All keys, by where they work, as the list shows them. */
const LIST = [
  ["Everywhere", [
    ["?", "this list"], ["t", "theme: light, dark, as the system"], ["y", "copy the link to what is shown"],
    ["/", "filter or search"], ["Esc", "leave a field, close a list"],
  ]],
  ["Runs", [
    ["j k", "row below, above"], ["Enter", "open the run"], ["x", "select the run"], ["c", "compare the selected runs"],
  ]],
  ["A run", [
    ["1 to 6", "overview, metrics, stacks, profiles, logs, configs"], ["+ −", "zoom in, out"], ["0", "show all"],
    ["← →", "move the window"], ["[ ]", "the attempt before, after"],
  ]],
  ["Mouse", [
    ["*drag", "select a span"], ["*double click", "show all"], ["*Ctrl and wheel", "zoom at the pointer"],
    ["*sideways scroll", "move the window"],
  ]],
];

/**
 * Bind keys.
 *
 * @param {Object<string, (event: KeyboardEvent) => (boolean|void)>} actions By `event.key`; an action that returns
 * false
 *   leaves the key to others.
 * @returns {() => void} Unbinds them.
 */
export function bindKeys(actions) {
  bindings.add(actions);
  return () => bindings.delete(actions);
}

/** True if an event's target takes text, so that keys belong to it. */
function takesText(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target.isContentEditable || target.tagName === "TEXTAREA" || target.tagName === "SELECT") return true;
  return target.tagName === "INPUT" && !["checkbox", "radio", "button", "range"].includes(target.type);
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.isComposing) return;
  if (takesText(event.target)) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  const isPressable = event.target instanceof HTMLElement && event.target.closest("button, a[href], summary");
  if (isPressable && (event.key === "Enter" || event.key === " ")) return;
  const isRange = event.target instanceof HTMLInputElement && event.target.type === "range";
  if (isRange && event.key.startsWith("Arrow")) return;
  for (const actions of [...bindings].reverse()) {
    const action = actions[event.key];
    if (action && action(event) !== false) {
      event.preventDefault();
      return;
    }
  }
}

/** Start to listen, and bind `?`. */
export function startKeys() {
  document.addEventListener("keydown", onKey);
  bindKeys({ "?": showList });
}

/** Show the list of keys. */
export function showList() {
  const dialog = h("dialog.keys", { "aria-labelledby": "keys-title" });
  const close = button("Close", () => dialog.close());
  add(dialog, h("div.card-head", null, h("h2", { id: "keys-title" }, "Keys"), close),
    h("div.keys-groups", null, LIST.map(([title, keys]) => h("section", null, h("h3", null, title),
      h("dl", null, keys.map(([key, text]) => [h("dt", null, keyCaps(key)), h("dd", null, text)]))))));
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

function keyCaps(text) {
  if (text.startsWith("*")) return text.slice(1);
  return h("span.caps", null, text.split(" ").map((part) => (part === "to" ? part : h("kbd", null, part))));
}
