/** Where the time went: the whole as one bar, then a row for each bucket; what was lost has its own scale. */

import { bucketColour, bucketSlug } from "../buckets.js";
import { formatDuration, formatPercent } from "../../common/format.js";
import { h } from "../../common/dom.js";

const PRODUCTIVE = "productive";
const EXCLUDED = "excluded";
const LEAST_SHARE = 0.6; // percent of the whole bar, so that nothing vanishes

/**
 * Return the shares of the whole bar in percent: each at least 0.6, and 100 together.
 * @param {{seconds: number}[]} ledger
 */
export function barShares(ledger) {
  const total = ledger.reduce((sum, row) => sum + row.seconds, 0);
  if (!(total > 0)) return ledger.map(() => 0);
  const shares = ledger.map((row) => (row.seconds > 0 ? Math.max((100 * row.seconds) / total, LEAST_SHARE) : 0));
  const sum = shares.reduce((one, other) => one + other, 0);
  return shares.map((share) => (100 * share) / sum);
}

/** Build the colour of a bucket: a square that carries it. */
export function swatch(bucket) {
  return h("span.swatch", {
    "aria-hidden": "true",
    classes: [isBucket(bucket, EXCLUDED) && "hatched"],
    css: { "--colour": bucketColour(bucket) },
  });
}

/**
 * Build the bar and its rows.
 * @param {{bucket: string, title: string, seconds: number, percent: number}[]} ledger In their fixed order.
 * @param {(content: any, row: Object) => any} proved Makes a time lead to its events.
 * @returns {HTMLElement}
 */
export function ledgerBars(ledger, proved = (content) => content) {
  const present = ledger.filter((row) => row.seconds > 0);
  const lost = present.filter((row) => !isBucket(row.bucket, PRODUCTIVE) && !isBucket(row.bucket, EXCLUDED));
  const lostSeconds = lost.reduce((sum, row) => sum + row.seconds, 0);
  const most = Math.max(...lost.map((row) => row.seconds), 0);
  const shares = barShares(present);
  const whole = h("div.whole-bar", {
    role: "img",
    "aria-label": present.map((row) => `${row.title} ${formatPercent(row.percent)}`).join(", "),
  }, present.map((row, index) => h("span.whole-part", {
    title: `${row.title} ${formatPercent(row.percent)}`,
    classes: [isBucket(row.bucket, EXCLUDED) && "hatched"],
    css: { "--colour": bucketColour(row.bucket), "flex-grow": shares[index].toFixed(3) },
  })));
  const noteOf = (row) => (isBucket(row.bucket, EXCLUDED) ? "does not count" : row.seconds / most);
  const productive = present.filter((row) => isBucket(row.bucket, PRODUCTIVE));
  const rest = present.filter((row) => !isBucket(row.bucket, PRODUCTIVE));
  rest.sort((one, other) => other.seconds - one.seconds);
  const lostText = lostSeconds > 0 ? `lost: ${formatDuration(lostSeconds)}` : "nothing lost";
  return h("div.ledger-bars", null, whole, h("table.ledger-rows", null,
    h("caption.visually-hidden", null, "Wall time by what it was spent on"),
    h("thead.visually-hidden", null, h("tr", null, ["Bucket", "Share of what was lost", "Percent", "Time"].map((text) =>
      h("th", { scope: "col" }, text)))),
    h("tbody", null,
      productive.map((row) => ledgerRow(row, lostText, proved)),
      rest.map((row) => ledgerRow(row, noteOf(row), proved)))));
}

function ledgerRow(row, note, proved) {
  const isBar = typeof note === "number";
  return h("tr", { classes: [!isBar && "ledger-plain", isBucket(row.bucket, PRODUCTIVE) && "ledger-productive"] },
    h("th", { scope: "row" }, swatch(row.bucket), row.title),
    h("td.ledger-lost", null, isBar
      ? h("span.lost-bar", {
        css: { width: `${Math.max(100 * note, 2).toFixed(2)}%`, "--colour": bucketColour(row.bucket) },
      })
      : note),
    h("td.number", null, isBucket(row.bucket, EXCLUDED) ? "" : formatPercent(row.percent)),
    h("td.number", null, proved(formatDuration(row.seconds), row)));
}

function isBucket(name, wanted) {
  return bucketSlug(name) === wanted;
}
