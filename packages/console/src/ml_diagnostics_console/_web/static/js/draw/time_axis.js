/** Ticks of a time axis and of an axis of numbers. Pure functions. */

import { MONTHS, two } from "../../common/format.js";

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const STEPS = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30,
  MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR,
  DAY, 2 * DAY, 5 * DAY, 10 * DAY, 30 * DAY, 90 * DAY, 365 * DAY,
];
const MOST_TICKS = 200;

/**
 * Return the step between ticks, in seconds: the smallest that leaves at most `most` ticks.
 * @param {number} seconds The length of the axis.
 * @param {number} most
 */
export function timeStep(seconds, most) {
  return STEPS.find((step) => seconds / step <= most) ?? 365 * DAY * Math.ceil(seconds / most / (365 * DAY));
}

/**
 * Return ticks of a clock in the browser's time zone.
 * @param {number} from Seconds since 1970.
 * @param {number} to Seconds since 1970.
 * @param {number} most The greatest number of ticks.
 * @returns {{at: number, label: string, isDay: boolean}[]} In order; `isDay` marks midnight.
 */
export function clockTicks(from, to, most) {
  if (!(to > from) || !Number.isFinite(to - from)) return [];
  const step = timeStep(to - from, Math.max(1, most));
  const ticks = step < DAY ? ticksWithinDays(from, to, step) : ticksOfDays(from, to, Math.round(step / DAY));
  if (step < DAY && ticks.length && !ticks.some((tick) => tick.isDay)) {
    ticks[0].label = `${dayLabel(new Date(ticks[0].at * 1000))} ${ticks[0].label}`;
  }
  return ticks;
}

function ticksWithinDays(from, to, step) {
  // Ticks lie on round times of the local clock, also in zones that are half an hour off.
  const zone = new Date(from * 1000).getTimezoneOffset() * MINUTE;
  const ticks = [];
  const first = Math.ceil((from - zone) / step);
  for (let index = 0; index < MOST_TICKS; index += 1) {
    const at = Math.round((first + index) * step * 1000) / 1000 + zone;
    if (at > to) break;
    const date = new Date(Math.round(at * 1000));
    const isDay = date.getHours() + date.getMinutes() + date.getSeconds() + date.getMilliseconds() === 0;
    ticks.push({ at, label: isDay ? dayLabel(date) : clockLabel(date, step), isDay });
  }
  return ticks;
}

function ticksOfDays(from, to, days) {
  const ticks = [];
  const date = new Date(from * 1000);
  date.setHours(0, 0, 0, 0);
  const ordinal = Math.floor((date.getTime() / 1000 - date.getTimezoneOffset() * MINUTE) / DAY);
  date.setDate(date.getDate() + ((days - (ordinal % days)) % days));
  for (let index = 0; index < MOST_TICKS && date.getTime() / 1000 <= to; index += 1) {
    const at = date.getTime() / 1000;
    if (at >= from) ticks.push({ at, label: dayLabel(date, days >= 365), isDay: true });
    date.setDate(date.getDate() + days); // a day of a change of the clock has 23 or 25 hours
  }
  return ticks;
}

function dayLabel(date, withYear = false) {
  return `${date.getDate()} ${MONTHS[date.getMonth()]}${withYear ? ` ${date.getFullYear()}` : ""}`;
}

function clockLabel(date, step) {
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}`;
  if (step >= MINUTE) return clock;
  const seconds = `${clock}:${two(date.getSeconds())}`;
  if (step >= 1) return seconds;
  const digits = step >= 0.1 ? 1 : step >= 0.01 ? 2 : 3;
  return `${seconds}.${String(date.getMilliseconds()).padStart(3, "0").slice(0, digits)}`;
}

/** Return a time to the minute (`17 Nov 14:42`), or to the second if `isExact`. `at` is in seconds since 1970. */
export function clockText(at, isExact = false) {
  const date = new Date(at * 1000);
  return `${dayLabel(date)} ${clockLabel(date, isExact ? 1 : MINUTE)}`;
}

/**
 * Return ticks of time since a start.
 * @param {number} from Seconds.
 * @param {number} to Seconds.
 * @param {number} most The greatest number of ticks.
 */
export function elapsedTicks(from, to, most) {
  if (!(to > from) || !Number.isFinite(to - from)) return [];
  const step = timeStep(to - from, Math.max(1, most));
  const ticks = [];
  for (let index = Math.ceil(from / step); index * step <= to && ticks.length < MOST_TICKS; index += 1) {
    ticks.push({ at: index * step, label: elapsedLabel(index * step, step), isDay: false });
  }
  return ticks;
}

function elapsedLabel(seconds, step) {
  if (seconds === 0) return "0";
  const parts = [];
  let rest = Math.abs(seconds);
  for (const [unit, size] of [["d", DAY], ["h", HOUR], ["min", MINUTE]]) {
    const count = Math.floor(rest / size + 1e-9);
    if (count) parts.push(`${count} ${unit}`);
    rest -= count * size;
  }
  if (step < MINUTE && rest > 1e-9) parts.push(`${Number(rest.toFixed(3))} s`);
  return `${seconds < 0 ? "-" : ""}${parts.slice(0, 2).join(" ") || "0"}`;
}

/**
 * Return round numbers between two values, and the step between them.
 * @returns {{step: number, values: number[]}}
 */
export function roundNumbers(from, to, most) {
  if (!(to > from) || !Number.isFinite(to - from)) return { step: 0, values: [] };
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * (1 - 1e-9));
  const values = [];
  for (let index = Math.ceil(from / step - 1e-9); index * step <= to + step * 1e-9; index += 1) {
    values.push(Number((index * step).toPrecision(12)));
  }
  return { step, values };
}

/**
 * Return round numbers of a logarithmic axis: powers of ten with 2 and 5 between them; over less than a decade, round
 * numbers as of a linear axis.
 */
export function logNumbers(from, to, most) {
  if (!(from > 0) || !(to > from) || !Number.isFinite(to)) return [];
  if (to / from < 10) return roundNumbers(from, to, most).values;
  const decades = Math.log10(to / from);
  const factors = decades * 3 <= most ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / most));
  const found = [];
  for (let power = Math.floor(Math.log10(from)); power <= Math.ceil(Math.log10(to)); power += every) {
    for (const factor of factors) {
      const value = Number(`${factor}e${power}`);
      if (value >= from && value <= to) found.push(value);
    }
  }
  return found;
}
