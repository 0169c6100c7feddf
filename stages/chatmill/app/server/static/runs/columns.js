// @ts-check
/** The columns of the table of runs: their format, their order, and their best value. */

/** @typedef {import("./requests.js").Run} Run */
/** @typedef {{ key: string, title: string, about?: string, show: (value: any) => string, first?: string, best?: string,
 *   note?: string }} Column */

const DASH = "–";
const LOW = "low";
const HIGH = "high";
const NUMERIC = { numeric: true }; // "run 10" comes after "run 9"

/** `best` is the better end of a column's values, if there is one; `first` is the end with which a sort starts.
 * @type {Column[]}
 */
export const COLUMNS = [
  { key: "label", title: "Run", show: String, first: LOW },
  { key: "when", title: "When", show: (time) => time.slice(0, 16).replace("T", " "), first: HIGH },
  { key: "tokenizer", title: "Tokenizer", show: String, first: LOW },
  { key: "vocabulary", title: "Vocabulary", show: integer, first: LOW },
  { key: "depth", title: "Depth", show: integer, first: LOW },
  { key: "parameters", title: "Parameters", show: integer, first: LOW },
  { key: "steps", title: "Steps", show: integer, first: LOW },
  { key: "bits_per_byte", title: "Bits per byte", show: fixed(3), best: LOW },
  { key: "bits_per_byte_of_answers", title: "… of answers", about: "Bits of answers", show: fixed(3), best: LOW },
  { key: "skills", title: "Skills", show: percent, best: HIGH },
  { key: "skills_held_back", title: "… held back", about: "Skills, held back", show: percent, best: HIGH },
  { key: "verbatim", title: "Copied", about: "Copied from the training data", show: percent, best: LOW },
  { key: "bytes_per_token", title: "Bytes per token", show: fixed(2), best: HIGH },
  { key: "milliseconds_per_token", title: "ms per token", show: significant, best: LOW, note: "engine" },
  { key: "graph_megabytes", title: "Graph, MB", show: fixed(2), best: LOW },
];

/** The text of a run in a column; a dash if the value is missing.
 * @param {Column} column
 * @param {Run} run
 */
export function shown(column, run) {
  const value = run[column.key];
  return value === null ? DASH : column.show(value);
}

/** The runs in the order of a column; those without a value come last in both directions.
 * @param {Run[]} runs
 * @param {Column} column
 * @param {boolean} descending
 */
export function sorted(runs, column, descending) {
  const withValue = runs.filter((run) => run[column.key] !== null);
  const withoutValue = runs.filter((run) => run[column.key] === null);
  withValue.sort((one, other) => compare(one[column.key], other[column.key]));
  return [...(descending ? withValue.reverse() : withValue), ...withoutValue];
}

/** The best value of a column; null if fewer than two runs have one, or all have the same.
 * @param {Column} column
 * @param {Run[]} runs
 */
export function bestOf(column, runs) {
  const values = runs.map((run) => run[column.key]).filter((value) => value !== null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (!column.best || values.length < 2 || low === high) return null;
  return column.best === LOW ? low : high;
}

/** Whether the first sort by a column is a descending one.
 * @param {Column} column
 */
export function beginsDescending(column) {
  return (column.first ?? column.best) === HIGH;
}

/** @param {number | string} one @param {number | string} other */
function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return String(one).localeCompare(String(other), "en", NUMERIC);
}

/** @param {number} value */
function integer(value) {
  return value.toLocaleString("en");
}

/** @param {number} decimals */
function fixed(decimals) {
  return (/** @type {number} */ value) => value.toFixed(decimals);
}

/** @param {number} share */
function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

/** @param {number} value */
function significant(value) {
  return value.toLocaleString("en", { maximumSignificantDigits: 3 });
}
