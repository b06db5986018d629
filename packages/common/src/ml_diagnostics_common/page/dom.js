// Elements are built here and nowhere else: text enters as text nodes only, so that no name or log line can be markup.

const SVG = "http://www.w3.org/2000/svg";

/** Characters that would hide, reorder or break text: controls, line separators, bidi controls, invisible ones. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]/g;
const LONE_SURROGATE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

/** Return a text with control and bidi characters as `mldiagnostics logs` shows them: \n, \x1b, \u202e. */
export function visible(text, keepsTabs = false) {
  const shown = String(text);
  return shown.replace(UNSEEN, (character) => (keepsTabs && character === "\t" ? character : symbol(character)))
    .replace(LONE_SURROGATE, "\ufffd");
}

function symbol(character) {
  const known = { "\n": "\\n", "\r": "\\r", "\t": "\\t" }[character];
  const code = character.codePointAt(0).toString(16);
  return known ?? (code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`);
}

/**
 * Build an HTML element.
 *
 * @param {string} tag Name, with classes after points: "div.card.wide".
 * @param {object|null} properties Attributes; besides them `on: {click: f}`, `css: {"--share": 0.5}` (through CSSOM),
 *   `data: {key: text}`, `classes: [..]`; true sets an empty attribute, false, null and undefined set none.
 * @param {...any} children Elements, texts, numbers, arrays of them; null and false are left out.
 */
export function h(tag, properties, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name || "div");
  if (classes.length) element.className = classes.join(" ");
  apply(element, properties);
  add(element, children);
  return element;
}

/** Build an SVG element, as h does. */
export function s(tag, properties, ...children) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElementNS(SVG, name);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  apply(element, properties);
  add(element, children);
  return element;
}

/** Add children to an element: elements, texts, numbers and arrays of them. */
export function add(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

/** Replace all children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

/** Set the text of an element, and touch the document only if it changed. */
export function setText(element, text) {
  const shown = visible(text);
  if (element.textContent !== shown) element.textContent = shown;
}

/** Set or remove an attribute, and touch the document only if it changed. */
export function setAttribute(element, name, value) {
  if (value === null || value === undefined || value === false) {
    if (element.hasAttribute(name)) element.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

/** A button with a text: button("Copy link", () => ...). */
export function button(text, onClick, properties = {}) {
  return h("button.button", { type: "button", on: { click: onClick }, ...properties }, text);
}

/** A card with a heading, a secondary text beside it and a right side, as all pages have. */
export function card(title, { second = null, right = null, id = null, classes = [] } = {}, ...children) {
  const heading = title && h("div.card-head", null,
    h("h2", { id }, title, second && h("span.second", null, second)), right && h("div.card-right", null, right));
  return h("section.card", { classes, "aria-labelledby": id }, heading, children);
}

/**
 * What a part without data says: a sentence, and what would fill it.
 *
 * @param {string|null} sentence
 * @param {string|null} help A command or a line of code; or a sentence with such things between backticks, which are
 *   copied where they stand.
 */
export function empty(sentence, help = null) {
  const isSentence = help !== null && (help.includes("`") || /[.?!]$/.test(help));
  return h("div.empty", null, sentence && h("p", null, withCode(sentence)),
    isSentence ? h("p", null, withCode(help)) : help && copyable(help));
}

/** Return the parts of a sentence, in which what stands between backticks can be copied. */
export function withCode(sentence) {
  return sentence.split("`").map((part, at) => (at % 2 ? copyable(part) : part));
}

/** A command or a line of code with a button that copies it. */
export function copyable(text) {
  const done = h("span.copied", { role: "status" });
  const copy = h("button.copy", {
    type: "button",
    title: "Copy",
    "aria-label": `Copy ${visible(text)}`,
    on: { click: () => copyText(text, done) },
  }, s("svg.icon", { viewBox: "0 0 16 16", "aria-hidden": "true", focusable: "false" }, s("path", { d: COPY })));
  return h("span.copyable", null, h("code", null, text), copy, done);
}

/** Copy a text, and say so in an element for two seconds. */
export async function copyText(text, place) {
  let isCopied = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    isCopied = copyBySelection(text);
  }
  setText(place, isCopied ? "Copied" : "Not copied: the browser does not allow it");
  setTimeout(() => setText(place, ""), 2000);
}

function copyBySelection(text) {
  // The clipboard's interface exists only on secure origins; 127.0.0.1 is one, a host name with a token is not.
  const area = h("textarea.visually-hidden", { "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}

const COPY = "M5.5 5.5v-2a1 1 0 0 1 1-1h6a1 1 0 0 1 1 1v6a1 1 0 0 1-1 1h-2M3.5 5.5h6a1 1 0 0 1 1 1v6a1 1 0 0 1-1 1h-6"
  + "a1 1 0 0 1-1-1v-6a1 1 0 0 1 1-1z";

function apply(element, properties) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "css") {
      for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    } else if (name === "data") {
      for (const [key, text] of Object.entries(value)) element.dataset[key] = text;
    } else if (name === "classes") {
      element.classList.add(...value.filter(Boolean));
    } else {
      element.setAttribute(name, value === true ? "" : visible(value));
    }
  }
}
