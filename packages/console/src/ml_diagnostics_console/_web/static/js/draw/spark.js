/** The small curve of a run in the list of runs, from its letters. */

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const TOP = 63;

/** Return the points of a small curve: 0 to 1 from bottom to top, null where nothing was recorded. */
export function decodeSpark(text) {
  return Array.from(text ?? "", (letter) => {
    const level = LETTERS.indexOf(letter);
    return level < 0 ? null : level / TOP;
  });
}
