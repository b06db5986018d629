// The doctor's answer under a run's name: its sentence, what it rests on, what to do next. The server works it out
// after the page is there; until then the run's own sentence stands.

import { add, button, copyable, fill, h } from "../../common/dom.js";
import { runPath, urlOf } from "../router.js";
import { showEntries } from "./entries.js";

const RETRY_MS = [400, 800, 1500, 3000, 5000];
const AGAIN_MS = 25_000; // A run that goes on changes each second, and the server judges it each 30 s.

/** Put parts of a sentence into an element: text, bold, code. */
export function showParts(element, parts, isWanted = true) {
  if (!isWanted) return;
  const key = JSON.stringify(parts);
  if (element.dataset.parts === key) return;
  element.dataset.parts = key;
  const tags = { bold: "b", code: "span.code" };
  fill(element, parts.map(({ text, kind }) => (tags[kind] ? h(tags[kind], null, text) : text)));
}

/**
 * @param {object} api
 * @param {string} base The path of the run's answers.
 * @param {HTMLElement} sentence Takes the doctor's sentence.
 */
export function createDiagnosis(api, base, sentence) {
  const element = h("div.diagnosis", { hidden: true });
  let version = null;
  let state = null;
  let askedMs = 0;
  let found = null;
  let shownKey = "";
  let timer = 0;
  let isClosed = false;
  let isOpen = false;

  async function ask(tries) {
    let answer;
    try {
      answer = await api.json(`${base}/verdict`);
    } catch {
      element.hidden = !found; // The run's own sentence stands.
      return;
    }
    if (isClosed) return;
    if (answer.state === "working") {
      if (tries === 0 && !found) {
        element.hidden = false;
        fill(element, h("p.second.working", null, "The doctor looks for the cause…"));
      }
      timer = setTimeout(() => ask(tries + 1), RETRY_MS[Math.min(tries, RETRY_MS.length - 1)]);
      return;
    }
    found = answer;
    render();
  }

  function render() {
    const parts = found.parts?.length ? found.parts : found.sentence ? [{ text: found.sentence, kind: "text" }] : [];
    if (parts.length) showParts(sentence, parts);
    const key = JSON.stringify({ ...found, parts: null, sentence: null });
    if (key === shownKey) return; // A run that goes on is judged again and again: what has the focus stays.
    shownKey = key;
    const [first, ...others] = found.next ?? [];
    const proofs = found.proofs ?? [];
    const rest = details(proofs, others);
    const failure = found.error && h("p.second", null, found.error);
    element.hidden = !first && !rest && !failure;
    fill(element, failure, first && command(first, h("span.next-word", null, "Next")), rest);
  }

  function details(proofs, others) {
    const { also = [], not_checked: notChecked = [], cost, blame, confidence, explain } = found;
    const facts = [cost && ["Cost", cost], blame && ["Cause in", blame], confidence && ["Confidence", confidence],
      found.rule && ["Rule", found.rule]].filter(Boolean);
    if (!proofs.length && !others.length && !also.length && !notChecked.length) return null;
    const words = [];
    if (proofs.length) words.push(proofs.length === 1 ? "1 proof" : `${proofs.length} proofs`);
    if (others.length) words.push(others.length === 1 ? "1 more command" : `${others.length} more commands`);
    if (also.length) words.push(also.length === 1 ? "1 other finding" : `${also.length} other findings`);
    const block = h("details.why", { open: isOpen }, h("summary", null,
      `Why: ${words.join(", ") || "what was checked"}`),
      h("div.why-grid", null,
        h("div.why-main", null,
          proofs.length > 0 && h("section", null, h("h3", null, "Proofs"), h("ol.proofs", null, proofs.map(proof))),
          others.length > 0 && h("section", null, h("h3", null, "Then"), others.map((next) => command(next))),
          also.length > 0 && list("Also", also)),
        h("div.why-side", null,
          facts.length > 0 && h("dl.pairs", null, facts.map(([name, text]) => [h("dt", null, name),
            h("dd", null, text)])),
          notChecked.length > 0 && list("Not checked", notChecked),
          explain && h("section", null, h("h3", null, "On the command line"), copyable(explain)))));
    block.addEventListener("toggle", () => {
      isOpen = block.open;
    });
    return block;
  }

  function proof({ text, explain }) {
    return h("li", null, h("span", null, text), explain && button("Events", () => showEntries(api, base, explain, text),
      { class: "button small", title: "The recorded events that this was made of" }));
  }

  function command({ command: text, why }, before = null) {
    const here = pageOf(text);
    return h("div.next", null, before, text && copyable(text), why && h(text ? "span.second" : "span", null, why),
      here && h("a", { href: here }, "Show here"));
  }

  function list(title, sentences) {
    return add(h("section", null, h("h3", null, title)), h("ul.sentences", null,
      sentences.map((text) => h("li", null, text))));
  }

  return {
    element,
    /** Ask again at the next load, however early that is: the server has another verdict. */
    expectOther() {
      askedMs = Number.NEGATIVE_INFINITY;
    },
    hasSentence: () => Boolean(found?.sentence || found?.parts?.length),
    /** Ask again where the run has changed. */
    load(row) {
      if (row.version !== undefined && row.version === version) return;
      if (row.state === state && !found?.error && performance.now() - askedMs < AGAIN_MS) return;
      askedMs = performance.now();
      ({ version, state } = row);
      clearTimeout(timer);
      ask(0);
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
  };
}

/** Return the page of this run that shows what a command prints; null if there is none. */
export function pageOf(command) {
  const [program, verb, ...words] = command.split(" ");
  const option = (name) => (words.includes(name) ? words[words.indexOf(name) + 1] : "");
  if (program === "mldiagnostics" && verb === "logs" && /^[\w-]+$/.test(words[0] ?? "")) {
    const [, step] = /--around '?step[ :](\d+)'?/.exec(command) ?? [];
    return urlOf(runPath(words[0], "logs"), { host: option("--host"), around: step && `step:${step}` });
  }
  if (program === "mldiagnostics" && verb === "metrics" && words.length > 1) {
    return urlOf(runPath(words[0], "metrics"), { show: /^[\w./]/.test(words[1]) ? words[1] : "" });
  }
  if (program === "tpu-stacks" && verb === "show" && option("--job")) return runPath(option("--job"), "stacks");
  return null;
}
