// The table of what differs between runs: a column a run, values that differ tinted. Used by compare and configs.

import { add, card, empty, fill, h } from "../../common/dom.js";
import { formatDuration, formatNumber, formatPercent, formatWhole } from "../../common/format.js";
import { SERIES } from "../draw/tokens.js";
import { runPath } from "../router.js";
import { status } from "../shapes.js";
import { goodputBar } from "./runs_row.js";

const LONG = 160; // Characters of a value that are shown before "more".

const FORMS = {
  state: (value) => status(value),
  percent: (value, buckets) => h("span.diff-goodput", null, goodputBar(buckets ?? [["productive", value]]),
    h("span", null, formatPercent(value, 0))),
  number: formatNumber,
  step: formatWhole,
  seconds: formatDuration,
  duration: formatDuration,
};

/** The swatch of a run in overlays: the colours follow the order of the URL. */
function seriesSwatch(index) {
  return h("span.swatch", { "aria-hidden": "true", css: { "--colour": `var(--series-${index % SERIES})` } });
}

/**
 * Show the table.
 *
 * @param {HTMLElement} place Takes the table.
 * @param {{runs: object[], top: object[], rows: object[]}} answer What /api/compare or /configs answered.
 * @param {{onlyDifferences: boolean, part: string}} options `part`: only keys or values that contain it.
 */
export function showDiff(place, answer, { onlyDifferences, part = "" }) {
  const isAll = !onlyDifferences || answer.runs.length === 1;
  const wanted = part.toLowerCase();
  const rows = (answer.rows ?? []).filter((row) => (isAll || row.differs) && contains(row, wanted));
  const hidden = (answer.rows ?? []).length - rows.length;
  const body = h("tbody");
  if (!wanted) for (const row of answer.top ?? []) body.append(topRow(row));
  const short = rows.filter((row) => !row.is_long);
  let section = null;
  for (const row of [...short, ...rows.filter((one) => one.is_long)]) {
    if (row.section !== section && isAll) {
      section = row.section;
      body.append(h("tr.diff-section", null, h("th", { colspan: answer.runs.length + 1, scope: "colgroup" },
        sectionTitle(section))));
    }
    body.append(...configRows(row, answer.runs));
  }
  const head = h("thead", null, h("tr", null, h("td"), answer.runs.map((run, index) =>
    h("th", { scope: "col" }, h("span.diff-run", null, seriesSwatch(index),
      h("a.name", { href: runPath(run.id) }, run.id))))));
  fill(place, h("div.scroll-x", { tabindex: 0, role: "group", "aria-label": "Table" },
    h("table.diff", null, head, body)));
  if (rows.length === 0) {
    add(place, empty(hidden === 0 ? "No config was recorded." : wanted ? `No key or value contains “${part}”.`
      : "All configs that several of these runs have are equal."));
  }
  return { shown: rows.length, hidden };
}

/** Show the configs of one run: a card a section. Returns how many keys are shown and how many are not. */
export function showSections(place, rows, part) {
  const found = rows.filter((row) => contains(row, part.toLowerCase()));
  const sections = [...new Set(found.map(({ section }) => section))];
  fill(place, h("div.config-sections", null, sections.map((section) => {
    const own = found.filter((row) => row.section === section);
    return card(sectionTitle(section), { second: String(own.length) }, h("dl.config-pairs", null,
      own.map(({ key, values }) =>
      h("div", null, h("dt", null, breakable(key)), h("dd", null, values[0] === null ? dash() : long(values[0]))))));
  })));
  if (found.length === 0) add(place, card(null, {}, empty(`No key or value contains “${part}”.`)));
  return { shown: found.length, hidden: rows.length - found.length };
}

function contains(row, part) {
  return !part || row.key.toLowerCase().includes(part)
    || row.values.some((value) => value !== null && String(value).toLowerCase().includes(part));
}

function sectionTitle(section) {
  return section ? section[0].toUpperCase() + section.slice(1) : "Other";
}

function topRow({ key, kind, values, buckets = [] }) {
  return h("tr.diff-top", null, h("th", { scope: "row" }, key), values.map((value, at) => h("td", null,
    value === null ? dash() : value === "NaN" ? h("b.is-failed", null, value)
      : (FORMS[kind] ?? String)(value, buckets[at]))));
}

function configRows(row, runs) {
  if (!row.is_long) {
    return [h("tr", null, h("th", { scope: "row" }, breakable(row.key)), row.values.map((value) => {
      const isOdd = row.differs && value !== null && value !== firstOf(row.values);
      return h("td", { classes: [isOdd && "is-odd"] }, value === null ? dash() : long(value));
    }))];
  }
  // Long values stand below each other, so that the words that differ can be compared.
  return [h("tr.diff-long", null, h("th", { scope: "row" }, breakable(row.key)), h("td", { colspan: runs.length },
    row.values.map((value, index) => h("div.diff-words", null, seriesSwatch(index), value === null ? dash()
      : h("span.diff-text", null, words(row.words?.[index], value))))))];
}

function words(parts, value) {
  if (!parts) return long(value);
  return parts.flatMap(({ text, differs }, at) => [at ? " " : "", differs ? h("mark", null, text) : text]);
}

function firstOf(values) {
  return values.find((value) => value !== null);
}

function long(value) {
  const text = String(value);
  if (text.length <= LONG) return text;
  return h("details.diff-more", null, h("summary", null, h("span.diff-start", null, `${text.slice(0, LONG)}…`)), text);
}

/** A key that may be broken after its parts, not within a word. */
function breakable(key) {
  return key.split(/(?<=[_./])/).flatMap((part) => [part, h("wbr")]);
}

function dash() {
  return h("span.faint", { title: "not recorded" }, "-");
}
