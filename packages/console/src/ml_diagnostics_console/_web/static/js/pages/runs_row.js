// One row of the runs page.

import { bucketColour, bucketSlug, bucketTitle, BUCKET_ORDER } from "../buckets.js";
import { h, s, setText } from "../../common/dom.js";
import { decodeSpark } from "../draw/spark.js";
import { isLossLost } from "../filter.js";
import { formatAge, formatClock, formatCount, formatDay, formatDuration, formatPercent, formatShort, formatWhole }
  from "../../common/format.js";
import { runPath } from "../router.js";
import { durationOf } from "../run_time.js";
import { attemptEnds, status } from "../shapes.js";

const SPARK = { width: 96, height: 24, left: 2 };

/** The columns: key of the order ("" cannot be sorted), title, class. */
export const COLUMNS = [
  ["", "", "col-box"], ["name", "Run", "col-run"], ["status", "Status", "col-status"],
  ["goodput", "Goodput", "col-goodput"],
  ["attempts", "Attempts", "col-attempts"], ["step", "Last step", "col-step"], ["loss", "Loss", "col-loss"],
  ["duration", "Duration", "col-duration"], ["start", "Started", "col-start"], ["sign", "Last sign", "col-sign"],
];

/**
 * Build a row.
 *
 * @param {object} row The run, as /api/runs has it.
 * @param {{index: number, now: number, isSelected: boolean, isCurrent: boolean, onSelect: () => void}} options
 *   `index` counts from 0; `now` is in seconds since 1970.
 */
export function runRow(row, { index, now, isSelected, isCurrent, onSelect }) {
  const name = row.name || row.id;
  const box = h("input", { type: "checkbox", "aria-label": `Select ${name}`, tabindex: -1, on: { change: onSelect } });
  box.checked = isSelected;
  return h("div.run-row", {
    role: "row", "aria-rowindex": index + 2, "aria-selected": String(isSelected), data: { id: row.id },
    classes: [isSelected && "is-selected", isCurrent && "is-current"],
  },
  h("div.col-box", { role: "gridcell" }, h("label", null, box)),
  h("div.col-run", { role: "gridcell" }, h("a.run-name.cut", { href: runPath(row.id), title: name },
    h("bdi", null, name)),
    h("div.run-about.cut", null, about(row))),
  h("div.col-status", { role: "gridcell", title: row.verdict }, status(row.state)),
  h("div.col-goodput", { role: "gridcell" }, goodput(row)),
  h("div.col-attempts", { role: "gridcell" }, row.attempts ? attemptEnds(row.attempts, 5) : null),
  h("div.col-step", { role: "gridcell" }, stepText(row)),
  h("div.col-loss", { role: "gridcell" }, sparkline(row.spark),
    h("span.loss-value", { classes: [isLossLost(row) && "is-bad"] }, lossText(row))),
  h("div.col-duration", { role: "gridcell" }, durationText(row, now)),
  h("div.col-start", { role: "gridcell", title: formatClock(row.started) }, formatDay(row.started, now)),
  h("div.col-sign", { role: "gridcell", title: formatClock(row.beat) }, signText(row, now)));
}

/** Show the numbers of a run in its row, which is in the document. */
export function showNumbers(element, row, now) {
  setText(element.querySelector(".col-step"), stepText(row));
  const loss = element.querySelector(".loss-value");
  setText(loss, lossText(row));
  loss.classList.toggle("is-bad", isLossLost(row));
  setText(element.querySelector(".col-duration"), durationText(row, now));
  setText(element.querySelector(".col-sign"), signText(row, now));
}

function stepText({ step }) {
  return step === null || step === undefined ? "-" : formatWhole(step);
}

function lossText(row) {
  if (row.loss === null || row.loss === undefined) return isLossLost(row) ? "NaN" : "";
  return formatShort(row.loss);
}

function durationText(row, now) {
  const seconds = durationOf(row, now);
  return formatDuration(row.state === "running" && seconds !== null ? Math.floor(seconds) : seconds);
}

function signText(row, now) {
  return row.beat === null || row.beat === undefined ? "-" : formatAge(now - row.beat);
}

function about(row) {
  const config = row.config ?? {};
  const rate = config.learning_rate ?? config.lr;
  const parts = [row.group && h("bdi", null, row.group), row.hosts > 1 && formatCount(row.hosts, "host"),
    rate !== undefined && rate !== null && `lr ${rate}`].filter(Boolean);
  return parts.flatMap((part, at) => (at ? [" · ", part] : [part]));
}

function goodput(row) {
  if (row.goodput === null || row.goodput === undefined) return h("span.faint", null, "not measured");
  return [goodputBar(row.buckets), h("span.goodput-value", null, formatPercent(row.goodput, 0))];
}

/** Return the bar of a run's time: its buckets in their fixed order, in a trough. */
export function goodputBar(buckets) {
  const known = [...(buckets ?? [])].filter(([, percent]) => percent > 0);
  known.sort(([a], [b]) => BUCKET_ORDER.indexOf(bucketSlug(a)) - BUCKET_ORDER.indexOf(bucketSlug(b)));
  const text = known.map(([name, percent]) => `${bucketTitle(name)} ${formatPercent(percent)}`).join(", ");
  return h("span.goodbar", { role: "img", "aria-label": text || "no time measured", title: text },
    known.map(([name, percent]) => h("i", {
      classes: [bucketSlug(name), percent < 3 && "thin"],
      css: { "--share": percent, "--colour": bucketColour(name) },
    })));
}

/** Return the course of the loss from 28 letters of 6 bits; a space is a gap. */
function sparkline(letters) {
  if (!letters) return null;
  const values = decodeSpark(letters);
  const { width, height, left } = SPARK;
  const x = (at) => left + (at * (width - 2 * left)) / Math.max(1, values.length - 1);
  const y = (value) => 3 + (1 - value) * (height - 6);
  let path = "";
  let isDown = false;
  let last = null;
  values.forEach((value, at) => {
    if (value === null) {
      isDown = false;
      return;
    }
    path += `${isDown ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    isDown = true;
    last = [x(at), y(value)];
  });
  if (last === null) return null;
  return s("svg.spark", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, s("path.spark-line", { d: path }),
    s("circle.spark-dot", { cx: last[0], cy: last[1], r: 1.8 }));
}
