// The filter language of the runs page. Pure: no document.
//
//   words           all of them occur in the name, group, state, verdict or a config value
//   key:part        the value contains the part           state:failed  name:"my run"
//   key=v  key!=v   the value is v                        hosts=64  learning_rate=1e-3
//   key<v <= > >=   the number is below, above            loss<0.5  goodput>=90  duration>2h
//   !term           the term does not hold
//
// Terms are separated by spaces or commas. Keys are fields, keys of the configs, and metrics (their last values).

import { durationOf } from "./run_time.js";

const TERM = /(!?)(?:([\w./-]+)\s*(<=|>=|!=|<|>|=|:)\s*)?("[^"]*"?|[^\s,]+)[\s,]*/y;
const NUMBER = /^([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(us|ms|min|kB|MB|GB|TB|[shdkMG%])?$/;
const LOSS = /(^|[_/])loss$/i;
const UNITS = {
  us: 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400, "%": 1,
  k: 1e3, M: 1e6, G: 1e9, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
};
const ALIASES = {
  id: "name", run: "name", status: "state", lr: "learning_rate", host: "hosts", began: "started", age: "sign",
};

/** Fields of a row by key; each gets the row and the time in seconds since 1970. */
const FIELDS = {
  name: (row) => row.name || row.id,
  group: (row) => row.group,
  state: (row) => row.state,
  reason: (row) => row.reason,
  verdict: (row) => row.verdict,
  goodput: (row) => row.goodput,
  attempts: (row) => row.attempts?.length ?? null,
  step: (row) => row.step,
  steps: (row) => row.steps,
  loss: (row) => row.loss,
  hosts: (row) => row.hosts,
  duration: (row, now) => durationOf(row, now),
  started: (row) => row.started,
  sign: (row, now) => (row.beat === null || row.beat === undefined ? null : Math.max(0, now - row.beat)),
};

/**
 * Parse a filter.
 *
 * @param {string} text What the user wrote.
 * @returns {Array<{key: string|null, operator: string, value: string, number: number, isNot: boolean}>}
 */
function parseFilter(text) {
  const terms = [];
  TERM.lastIndex = text.length - text.replace(/^[\s,]+/, "").length;
  for (let match = TERM.exec(text); match; match = TERM.exec(text)) {
    const [, not, key = null, operator = ":", quoted] = match;
    const value = quoted.startsWith("\"") ? quoted.replace(/^"|"$/g, "") : quoted;
    terms.push({ key: key && (ALIASES[key] ?? key), operator, value: value.toLowerCase(), number: parseNumber(value),
      isNot: not === "!" });
    if (TERM.lastIndex >= text.length) break;
  }
  return terms;
}

/** Return a number with or without a unit: "1e-3", "2h", "90%", "1,000" is not one; NaN if it is not a number. */
function parseNumber(text) {
  const match = NUMBER.exec(String(text).trim());
  return match ? Number(match[1].replaceAll("_", "")) * (UNITS[match[2]] ?? 1) : NaN;
}

/** Return true if a row passes all terms. */
export function matches(terms, row, now) {
  for (const term of terms) {
    if (holds(term, row, now) === term.isNot) return false;
  }
  return true;
}

/**
 * Return the rows that pass, in their order, and a sentence for each key that no run has.
 *
 * @param {object[]} rows
 * @param {string} text
 * @param {number} now Seconds since 1970.
 */
export function filterRows(rows, text, now) {
  const terms = parseFilter(text);
  const problems = [];
  for (const { key, operator, number, value } of terms) {
    if (key === null) continue;
    if (/[<>]/.test(operator) && Number.isNaN(number)) problems.push(`${value} is not a number`);
    else if (rows.length && rows.every((row) => valueOf(key, row, now) === undefined)) {
      problems.push(`no run has ${key}`);
    }
  }
  return { rows: terms.length ? rows.filter((row) => matches(terms, row, now)) : rows, problems };
}

function holds({ key, operator, value, number }, row, now) {
  if (key === null) return searchText(row).includes(value);
  const found = valueOf(key, row, now);
  if (found === undefined || found === null) return false;
  if (operator === ":") return String(found).toLowerCase().includes(value);
  const size = typeof found === "number" ? found : parseNumber(found);
  const isNumeric = !Number.isNaN(size) && !Number.isNaN(number);
  switch (operator) {
    case "=": return isNumeric ? isClose(size, number) : String(found).toLowerCase() === value;
    case "!=": return isNumeric ? !isClose(size, number) : String(found).toLowerCase() !== value;
    case "<": return isNumeric && size < number;
    case "<=": return isNumeric && size <= number;
    case ">": return isNumeric && size > number;
    default: return isNumeric && size >= number;
  }
}

function isClose(a, b) {
  return a === b || Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b));
}

/** Return the value of a key: a field, a config, a metric; undefined if the row does not have it. */
function valueOf(key, row, now) {
  if (Object.hasOwn(FIELDS, key)) return FIELDS[key](row, now) ?? undefined;
  for (const values of [row.config, row.metrics]) {
    if (!values) continue;
    if (Object.hasOwn(values, key)) return values[key] ?? undefined;
    for (const name of Object.keys(values)) {
      // The last part of a key is enough: lr of "optimizer.lr", accuracy of "eval/accuracy".
      const isPart = name.length > key.length && name.endsWith(key) && /[./]/.test(name[name.length - key.length - 1]);
      if (isPart) return values[name] ?? undefined;
    }
  }
  return key === "learning_rate" ? valueOf("lr", { config: row.config }, now) : undefined;
}

const texts = new WeakMap();

function searchText(row) {
  const known = texts.get(row);
  if (known && known.version === row.version && known.state === row.state && known.verdict === row.verdict) {
    return known.text;
  }
  const parts = [row.id, row.name, row.group, row.state, row.verdict, row.reason, ...Object.values(row.config ?? {})];
  const text = parts.filter(Boolean).join("\n").toLowerCase();
  texts.set(row, { version: row.version, state: row.state, verdict: row.verdict, text });
  return text;
}

const ORDERS = {
  name: (row) => (row.name || row.id).toLowerCase(),
  status: (row) => ["stuck", "failed", "silent", "running", "unknown", "completed"].indexOf(row.state),
  goodput: (row) => row.goodput,
  attempts: (row) => row.attempts?.length,
  step: (row) => row.step,
  loss: (row) => row.loss,
  duration: (row, now) => durationOf(row, now),
  start: (row) => row.started,
  sign: (row, now) => (row.beat ? now - row.beat : null),
};

/**
 * Return rows in an order such as "start.desc"; unknown values are last, equal ones newest first.
 *
 * @param {object[]} rows
 * @param {string} order A key of name, status, goodput, attempts, step, loss, duration, start, sign, with ".desc" or
 * ".asc".
 * @param {number} now Seconds since 1970.
 */
export function sortRows(rows, order, now) {
  const [key, direction] = order.split(".");
  const valueOfRow = Object.hasOwn(ORDERS, key) ? ORDERS[key] : ORDERS.start;
  const sign = direction === "asc" ? 1 : -1;
  const keyed = rows.map((row) => ({ row, value: valueOfRow(row, now) ?? null }));
  keyed.sort((a, b) => {
    if (a.value === b.value) return (b.row.started ?? 0) - (a.row.started ?? 0);
    if (a.value === null) return 1;
    if (b.value === null) return -1;
    return a.value < b.value ? -sign : sign;
  });
  return keyed.map(({ row }) => row);
}

/** Return true if the last loss of a run is not finite: JSON has no NaN, so the metric is there without a number. */
export function isLossLost({ loss, metrics }) {
  return (loss === null || loss === undefined) && Object.entries(metrics ?? {}).some(([name, value]) =>
    value === null && LOSS.test(name));
}

/** Return true if a run needs attention: stuck, silent, or failed or with a loss that is not finite in the last day. */
export function needsAttention(row, now) {
  if (row.state === "stuck" || row.state === "silent") return true;
  return (row.state === "failed" || isLossLost(row)) && now - (row.ended ?? row.beat ?? row.started ?? 0) < 86_400;
}
