/** Rows of hosts in colour: how far each value is from the median of all, and the odd host framed. */

import { channels } from "./canvas.js";

export const NOTHING = 255;
const LEVELS = 255;
const LEAST_SPREAD = 24; // levels: a flat fleet does not fill the scale with its noise
const NOISE = 3; // median distances
const CALM_SHARE = 0.12; // of the colour at the edge of the noise
const MOST_HEIGHT = 320; // pixels, of all rows
const ROW_HEIGHTS = [[4, 16], [16, 10], [32, 5], [64, 3], [160, 2]]; // at most so many hosts: pixels of a row

/** Return the height in pixels of all rows of so many hosts. */
export function heatHeight(hosts) {
  const [, row] = ROW_HEIGHTS.find(([most]) => hosts <= most) ?? [0, 1];
  return Math.max(12, Math.min(hosts * row, MOST_HEIGHT));
}

/**
 * Return the median level of the cells that have a value, and the median distance to it.
 * @returns {{median: number, noise: number}} NaN if no cell has a value.
 */
export function levelsOf(cells) {
  const counts = new Uint32Array(LEVELS);
  for (let index = 0; index < cells.length; index += 1) if (cells[index] !== NOTHING) counts[cells[index]] += 1;
  const median = middleOf(counts);
  const distances = new Uint32Array(LEVELS);
  for (let level = 0; level < LEVELS; level += 1) distances[Math.abs(level - median) || 0] += counts[level];
  return { median, noise: middleOf(distances) };
}

function middleOf(counts) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  let seen = 0;
  for (let level = 0; level < LEVELS && total; level += 1) {
    seen += counts[level];
    if (seen * 2 >= total) return level;
  }
  return Number.NaN;
}

/**
 * Return the colour of each level as red, green, blue: `below` at the lowest, `middle` at the median, `above` on top.
 * What is within the noise of most cells stays calm, so that what differs is seen.
 * @param {{median: number, noise: number}} levels
 * @param {{heatBelow: string, heatMiddle: string, heatAbove: string}} colours
 * @returns {Uint8ClampedArray} 3 x 255 numbers.
 */
export function ramp({ median, noise }, { heatBelow, heatMiddle, heatAbove }) {
  const below = channels(heatBelow);
  const middle = channels(heatMiddle);
  const above = channels(heatAbove);
  const calm = Math.min(NOISE * noise, LEVELS / 3);
  const spread = Math.max(median, LEVELS - 1 - median, LEAST_SPREAD, 2 * calm) - calm;
  const found = new Uint8ClampedArray(3 * LEVELS);
  for (let level = 0; level < LEVELS; level += 1) {
    const distance = Math.abs(level - median);
    const beyond = Math.min(1, Math.max(0, distance - calm) / spread);
    const share = CALM_SHARE * Math.min(1, distance / (calm || 1)) + (1 - CALM_SHARE) * beyond ** 0.7;
    const end = level < median ? below : above;
    for (let part = 0; part < 3; part += 1) found[3 * level + part] = middle[part] + (end[part] - middle[part]) * share;
  }
  return found;
}

/**
 * Paint the cells on a canvas of one pixel a cell; the tracks scale it.
 * @param {{header: Object, columns: Object}} heat The answer of `/heat`.
 * @returns {HTMLCanvasElement | null} Null if there are no cells.
 */
export function paintHeat(heat, colours) {
  const { width, hosts } = heat.header;
  const cells = cellsOf(heat);
  if (!width || !hosts.length || !cells.length) return null;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = hosts.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, hosts.length);
  const shades = ramp(levelsOf(cells), colours);
  for (let index = 0, at = 0; index < cells.length; index += 1, at += 4) {
    const level = cells[index];
    if (level === NOTHING) continue;
    image.data[at] = shades[3 * level];
    image.data[at + 1] = shades[3 * level + 1];
    image.data[at + 2] = shades[3 * level + 2];
    image.data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Return the bytes of the cells, row by row. */
export function cellsOf(heat) {
  return Object.values(heat.columns)[0] ?? new Uint8Array(0);
}

/**
 * Draw the rows.
 * @param {HTMLCanvasElement} picture What `paintHeat` returned.
 * @param {{from: number, to: number, width: number, height: number}} view
 */
export function drawHeat(context, heat, picture, view, colours) {
  const { from, to, hosts, odd } = heat.header;
  const scale = view.width / (view.to - view.from);
  const left = (from - view.from) * scale;
  const right = (to - view.from) * scale;
  context.save();
  context.beginPath();
  context.rect(0, 0, view.width, view.height);
  context.clip();
  if (picture) {
    context.imageSmoothingEnabled = hosts.length > view.height;
    context.drawImage(picture, left, 0, right - left, view.height);
  }
  context.restore();
  if (odd === null || odd === undefined) return;
  const row = view.height / hosts.length;
  const top = odd.index * row;
  context.strokeStyle = colours.bad;
  context.lineWidth = 1;
  context.strokeRect(0.5, Math.max(0.5, top - 1), view.width - 1, Math.min(row + 2, view.height - 1));
}

/**
 * Return the host and the value at a place of the picture.
 * @returns {{host: string, value: number | null} | null}
 */
export function cellAt(heat, time, share) {
  const { from, to, width, hosts, lo, hi } = heat.header;
  if (!hosts.length || time < from || time > to) return null;
  const row = Math.min(hosts.length - 1, Math.max(0, Math.floor(share * hosts.length)));
  const column = Math.min(width - 1, Math.floor(((time - from) / (to - from)) * width));
  const level = cellsOf(heat)[row * width + column];
  return { host: hosts[row], value: level === NOTHING ? null : lo + ((hi - lo) * level) / (LEVELS - 1) };
}

/** Return the mean of each host over the shown span, for the table. */
export function hostMeans(heat) {
  const { width, hosts, lo, hi } = heat.header;
  const cells = cellsOf(heat);
  return hosts.map((host, row) => {
    let sum = 0;
    let count = 0;
    for (let index = row * width; index < (row + 1) * width; index += 1) {
      if (cells[index] === NOTHING) continue;
      sum += cells[index];
      count += 1;
    }
    return { host, mean: count ? lo + ((hi - lo) * sum) / count / (LEVELS - 1) : null };
  });
}
