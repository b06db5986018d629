// What stands around each page of a run: name and status, the verdict, facts, tabs.

import { add, button, copyText, fill, h, setAttribute, setText } from "../../common/dom.js";
import { formatAge, formatClock, formatCount, formatDay } from "../../common/format.js";
import { bindKeys } from "../keys.js";
import { LAST_COMPLETED, runPath, urlOf } from "../router.js";
import { attemptEnds, badge } from "../shapes.js";
import { createDiagnosis, showParts } from "./diagnosis.js";
import { showNotes } from "./notes.js";

const TABS = [
  ["overview", "Overview"], ["metrics", "Metrics"], ["stacks", "Stacks"], ["profiles", "Profiles"], ["logs", "Logs"],
  ["configs", "Configs"],
];
const RELOAD_MS = 30_000; // What a row does not have: the ledger, disruptions, profiles. Its row comes each second.
const CLOCK_MS = 1000;
const VERDICT_MS = 10_000;
const URGENT_MS = 200; // A new state, attempt or metric.
const FRESH_SECONDS = 5; // A younger sign has one text: one that changes each second costs more than it says.

/**
 * @param {HTMLElement} main The page's main element, empty.
 * @param {object} api
 * @param {object} state The URL, parsed.
 * @param {(run: object) => void} onRun Called with each newer answer: the page below need not ask for the same.
 * @returns {{run: string, show: (state: object) => HTMLElement, update: (change: object) => void, close: () => void,
 *   copyLink: () => void}} `show` returns the element that takes the page.
 */
export function createRunFrame(main, api, state, onRun) {
  const { run } = state;
  const base = `/api/runs/${encodeURIComponent(run)}`;
  const title = h("h1.name", { dir: "auto" }, run);
  const mark = h("span.run-mark");
  const said = h("span.copied", { role: "status" });
  const sentence = h("p.verdict", { id: "verdict" });
  const facts = h("ul.facts");
  const notes = h("div.notes", { hidden: true });
  const tabs = h("nav.tabs", { "aria-label": "Pages of this run" });
  const place = h("div.run-page");
  const copyLink = () => copyText(location.href, said);
  const actions = h("div.run-actions", null, said, button("Copy link", copyLink, { title: "Copy link (y)" }),
    !api.isFile && h("a.button", { href: urlOf(runPath(run, "configs"), { against: LAST_COMPLETED }),
      title: "Compare with the last run of its group that completed" }, "What differs"),
    !api.isFile && h("a.button", { href: `${base}/case.html`, download: `${run}.html` }, "Export case file"));
  const diagnosis = createDiagnosis(api, base, sentence);
  const head = h("div.run-head", null, h("div.run-title", null, title, mark, actions), sentence, facts,
    diagnosis.element);
  add(main, head, notes, tabs, place);

  let row = null;
  let offset = 0; // Of the server's clock to this one, in seconds.
  let shown = state;
  let sign = null;
  let isClosed = false;
  let lastLoad = 0;
  let timer = 0;
  let dueMs = 0;
  const keys = {}; // What the facts and the tabs were made of.

  const unbind = bindKeys(Object.fromEntries(TABS.map(([tab], at) => [String(at + 1),
    () => shown.go(runPath(run, tab))])));
  // The clock of a case file stands still.
  const clock = api.isFile ? 0 : setInterval(() => !document.hidden && tick(), CLOCK_MS);
  load();

  async function load() {
    clearTimeout(timer);
    timer = 0;
    const isFirst = lastLoad === 0;
    lastLoad = performance.now();
    try {
      const found = await api.json(base);
      if (isClosed) return;
      offset = found.now - Date.now() / 1000;
      row = { ...found };
      render();
      diagnose();
      if (!isFirst) onRun(found);
    } catch (error) {
      // The page below asks for the same and says what is wrong.
      actions.hidden = tabs.hidden = row === null && error.status === 404;
    }
  }

  /** Ask the doctor where its answer is shown. */
  function diagnose() {
    if (row && shown.page === "overview") diagnosis.load(row);
  }

  /** Return true if something was not made of these values; it is made of them next. */
  function isOld(name, ...values) {
    const key = JSON.stringify(values);
    if (keys[name] === key) return false;
    keys[name] = key;
    return true;
  }

  function render() {
    setText(title, row.name || row.id);
    if (mark.dataset.state !== row.state) {
      mark.dataset.state = row.state;
      fill(mark, badge(row.state));
    }
    showParts(sentence, row.verdict_parts ?? [{ text: row.verdict ?? "", kind: "text" }], !diagnosis.hasSentence());
    showNotes(notes, row.notes);
    showFacts();
    showTabs();
  }

  function showFacts() {
    const { group, started, hosts: count, chips, attempts, ended, state: word } = row;
    if (!isOld("facts", group, started, count, chips, attempts, ended, word, api.isFile && row.now)) {
      tick();
      return;
    }
    sign = row.state === "running" || row.state === "stuck" || row.state === "silent" ? h("b") : null;
    const hosts = row.hosts ? [h("b", null, formatCount(row.hosts, "host")), row.chips ? `, ${row.chips}` : ""]
      : row.chips;
    fill(facts,
      row.group && h("li", null, "Group ", h("b.name", null, row.group)),
      row.started && h("li", { title: formatClock(row.started) }, "Began ", h("b", null, formatDay(row.started))),
      hosts && h("li", null, hosts),
      row.attempts && h("li", null, row.attempts.length === 1 ? "1 attempt " : `${row.attempts.length} attempts `,
        attemptEnds(row.attempts)),
      api.isFile && h("li", { title: formatClock(row.now) }, "As of ", h("b", null, formatDay(row.now))),
      sign ? h("li", null, "Last sign ", sign, " ago")
        : row.ended && h("li", { title: formatClock(row.ended) }, "Ended ", h("b", null, formatDay(row.ended))));
    tick();
  }

  function tick() {
    if (!sign || !row.beat) return;
    const age = Date.now() / 1000 + offset - row.beat;
    const isFresh = age < FRESH_SECONDS;
    setText(sign, isFresh ? `less than ${FRESH_SECONDS} s` : formatAge(age));
    setAttribute(sign, "title", isFresh ? null : formatClock(row.beat));
  }

  function showTabs() {
    const counts = { metrics: row?.metrics_list?.length, profiles: row?.sessions?.length };
    if (!isOld("tabs", shown.page, counts, row?.state === "stuck")) return;
    const isFocused = tabs.contains(document.activeElement);
    fill(tabs, TABS.map(([tab, name], at) => h("a.tab", {
      href: runPath(run, tab),
      "aria-current": tab === shown.page ? "page" : null,
      classes: [tab === "stacks" && row?.state === "stuck" && "is-stuck"],
      title: `${name} (${at + 1})`,
    }, name, counts[tab] > 0 && h("span.count", null, counts[tab]))));
    const current = tabs.querySelector("[aria-current]");
    if (isFocused) current?.focus({ preventScroll: true });
    if (current && tabs.scrollWidth > tabs.clientWidth) tabs.scrollLeft = current.offsetLeft - 24;
  }

  return {
    run,
    copyLink() {
      copyLink();
      return true;
    },
    show(next) {
      shown = next;
      head.classList.toggle("is-short", next.page !== "overview");
      place.replaceChildren();
      showTabs();
      diagnose();
      return place;
    },
    update({ kind, data }) {
      if (!row) return;
      if (kind === "changed") {
        const fields = (data.rows ?? []).find(({ id }) => id === row.id);
        if (!fields) return;
        const isUrgent = ["state", "attempts", "hosts"].some((name) => name in fields && fields[name] !== row[name])
          || Object.keys(fields.metrics ?? {}).some((name) => !(row.metrics && name in row.metrics));
        // The sentence of a run that is well has its step, which changes often.
        const hasVerdict = row.state !== "running" && (fields.verdict ?? row.verdict) !== row.verdict;
        Object.assign(row, fields);
        render();
        if (hasVerdict) diagnosis.expectOther();
        const now = performance.now();
        const due = isUrgent ? now + URGENT_MS : Math.max(now, lastLoad + (hasVerdict ? VERDICT_MS : RELOAD_MS));
        if (timer && due >= dueMs) return;
        clearTimeout(timer);
        dueMs = due;
        timer = setTimeout(load, due - now);
      } else if (kind === "gone" && (data.ids ?? []).includes(row.id)) {
        showNotes(notes, ["This run was deleted while it was shown; what is shown is from before.",
          ...(row.notes ?? [])]);
      } else if (kind === "reset") {
        load();
      }
    },
    close() {
      isClosed = true;
      clearTimeout(timer);
      clearInterval(clock);
      diagnosis.close();
      unbind();
    },
  };
}
