// Numbers, durations, sizes and times as people read them. The first part is the twin of ml_diagnostics_common.texts
// and of format_number of `mldiagnostics metrics`: the page and the command line write the same text. A test runs both.

const SHORT_UNITS = [["us", 1e6, 999.5e-6], ["ms", 1e3, 0.9995], ["s", 1, 59.95]];
const LONG_UNITS = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
const SIZES = [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]];
/** The months as dates name them. */
export const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/** Round to an integer, ties to the even one, as Python does. */
function roundEven(number) {
  const floor = Math.floor(number);
  const rest = number - floor;
  if (rest !== 0.5) return rest < 0.5 ? floor : floor + 1;
  return floor % 2 === 0 ? floor : floor + 1;
}

/** Format with a fixed number of digits (at most 3) after the point, ties to the even one, as Python does. */
export function fixed(number, digits) {
  const size = Math.abs(number);
  const scaled = size * 2 ** (digits + 1);
  // Only odd multiples of 2^-(digits+1) lie exactly between two decimals; their product with 10^digits is exact.
  const isTie = size < 1e9 && Number.isInteger(scaled) && scaled % 2 === 1;
  const text = isTie ? (roundEven(size * 10 ** digits) / 10 ** digits).toFixed(digits) : size.toFixed(digits);
  return number < 0 || Object.is(number, -0) ? `-${text}` : text;
}

/** Format a number below 1000 with three digits: 1.23, 12.3, 123. */
export function formatThreeDigits(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  return fixed(number, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2);
}

/**
 * Format a duration in seconds: 850 us, 37.0 ms, 41.2 s, 3 min 20 s, 5 h 12 min, 12 d 3 h; a dash if it is not
 * known.
 */
export function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "-";
  if (seconds < 0) return `-${formatDuration(-seconds)}`;
  if (seconds === 0) return "0 s";
  for (const [unit, inASecond, limit] of SHORT_UNITS) {
    if (seconds < limit) return `${formatThreeDigits(seconds * inASecond)} ${unit}`;
  }
  for (let at = 0; at + 1 < LONG_UNITS.length; at += 1) {
    const [unit, size] = LONG_UNITS[at];
    const [smallerUnit, smallerSize] = LONG_UNITS[at + 1];
    const parts = roundEven(seconds / smallerSize);
    const inUnit = size / smallerSize;
    if (parts * smallerSize >= size) {
      return `${whole(Math.floor(parts / inUnit))} ${unit} ${parts % inUnit} ${smallerUnit}`;
    }
  }
  return "-";
}

/** Format a size in bytes in decimal units: 850 B, 1.20 kB, 25.1 MB; a dash if it is not known. */
export function formatBytes(size) {
  if (size === null || size === undefined) return "-";
  for (const [unit, factor] of SIZES) {
    if (size >= 0.9995 * factor) return `${formatThreeDigits(size / factor)} ${unit}`;
  }
  return `${size} B`;
}

/** Format a whole number with commas: 1,060,789. */
export function formatWhole(number) {
  if (number === null || number === undefined) return "-";
  return whole(number).replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** Format a number with its noun: 1 step, 2,000 steps; `nouns` is a plural that does not end in s. */
export function formatCount(number, noun, nouns = "") {
  return `${formatWhole(number)} ${number === 1 ? noun : nouns || `${noun}s`}`;
}

/** Format a percentage: 14.8 %; a dash if it is not known. */
export function formatPercent(percent, digits = 1) {
  return percent === null || percent === undefined ? "-" : `${fixed(percent, digits)} %`;
}

/** Format a time in seconds since 1970 in UTC: 2026-11-21 05:36:43Z; a dash if it is not known. */
export function formatClock(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  const text = new Date(Math.floor(seconds) * 1000).toISOString();
  return `${text.slice(0, 10)} ${text.slice(11, 19)}Z`;
}

/** Format how long ago a time was, to the second; a dash if it is not known. */
export function formatAgo(seconds, now) {
  if (seconds === null || seconds === undefined) return "-";
  return `${formatDuration(Math.floor(Math.max(0, now - seconds)))} ago`;
}

/** Format a number with six digits, and whole numbers in full; a dash if it is not known. */
export function formatNumber(number) {
  return general(number, 6);
}

// What follows is of the page alone.

/** Format a number in little space, with three digits: 0.00488, 2.14, 1,060,789; a dash if it is not known. */
export function formatShort(number) {
  return general(number, 3);
}

/** Format a value in its metric's unit: 442 ms, 92.5 %, 1.34 GB, 8.67 M tokens/s. */
export function formatInUnit(value, unit) {
  if (value === null || value === undefined) return "-";
  if (!Number.isFinite(value)) return general(value, 3);
  if (unit === "s" || unit === "seconds") return formatDuration(value);
  if (unit === "%" || unit === "percent") return `${formatShort(value)} %`;
  if (unit === "bytes" || unit === "bytes/s") return `${formatBytes(roundEven(value))}${unit.slice(5)}`;
  return unit && unit !== "1" ? `${formatLarge(value)} ${unit}` : formatLarge(value);
}

/** Format a number with three digits and a letter for millions and more: 0.024, 1,351, 8.67 M. */
export function formatLarge(value) {
  for (const [letter, factor] of [["T", 1e12], ["G", 1e9], ["M", 1e6]]) {
    if (Math.abs(value) >= 0.9995 * factor) return `${formatThreeDigits(value / factor)} ${letter}`;
  }
  return formatShort(value);
}

/** Format a time of day on this machine's clock: 22 Nov 11:08; with the year if it is another one. */
export function formatDay(seconds, now = Date.now() / 1000) {
  if (seconds === null || seconds === undefined) return "-";
  const date = new Date(seconds * 1000);
  const year = date.getFullYear() === new Date(now * 1000).getFullYear() ? "" : ` ${date.getFullYear()}`;
  return `${date.getDate()} ${MONTHS[date.getMonth()]}${year} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** Format the time of a log line on this machine's clock, to the millisecond: 10:17:56.161. */
export function formatTimeOfDay(seconds) {
  const date = new Date(Math.floor(seconds * 1000 + 1e-3));
  const thousandths = String(date.getMilliseconds()).padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${thousandths}`;
}

/** Format an age in the largest unit that fits, for a column: 0 s, 11 min, 4 h, 3 d. */
export function formatAge(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "-";
  const age = Math.max(0, Math.floor(seconds));
  const [unit, size] = LONG_UNITS.find(([, length]) => age >= length) ?? ["s", 1];
  return `${formatWhole(Math.floor(age / size))} ${unit}`;
}

function general(number, digits) {
  if (number === null || number === undefined) return "-";
  if (Number.isNaN(number)) return "nan";
  if (!Number.isFinite(number)) return number < 0 ? "-inf" : "inf";
  if (Number.isInteger(number) && Math.abs(number) < 1e9) return formatWhole(Object.is(number, -0) ? 0 : number);
  let [mantissa, exponent] = exponential(number, digits);
  const power = Number(exponent);
  if (power < -4 || power >= Math.max(digits, 1)) {
    if (digits === 3 && power >= 0 && power < 9) return formatWhole(roundEven(number));
    mantissa = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    const size = String(Math.abs(power)).padStart(2, "0");
    return `${mantissa}e${power < 0 ? "-" : "+"}${size}`;
  }
  const text = Number(`${mantissa}e${power}`).toFixed(Math.max(0, digits - 1 - power));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

/** Return mantissa and exponent with so many digits, ties to the even one: toExponential rounds them away from zero. */
function exponential(number, digits) {
  const [exact, exactPower] = number.toExponential(60).split("e");
  const rest = exact.replace("-", "").replace(".", "").slice(digits);
  const last = Number(exact.replace("-", "").replace(".", "")[digits - 1]);
  if (/^50*$/.test(rest) && last % 2 === 0) {
    return [exact.slice(0, (exact[0] === "-" ? 1 : 0) + digits + (digits > 1 ? 1 : 0)), exactPower];
  }
  return number.toExponential(digits - 1).split("e");
}

function whole(number) {
  return Math.abs(number) < 1e21 ? number.toFixed(0) : BigInt(number).toString();
}

/** Write a number with two digits at least: 07. */
export function two(number) {
  return String(number).padStart(2, "0");
}
