// A number that leads to the recorded events that it was made of.

import { h } from "../../common/dom.js";
import { showEntries } from "../frame/entries.js";

/**
 * Return a function that makes a number lead to its events.
 * @param {Object} api
 * @param {string} base The path of the run's answers.
 * @returns {(content: any, of: string|null, title: string) => any} `of` is what `/explain` is asked for; null leaves
 *   the content as it is. A case file does not hold the events.
 */
export function provers(api, base) {
  return (content, of, title) => {
    if (api.isFile || of === null || of === undefined) return content;
    const click = () => showEntries(api, base, of, title);
    return h("button.provable", { type: "button", title: "The recorded events behind this", on: { click } }, content);
  };
}
