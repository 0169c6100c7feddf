// @ts-check
/** The calculator: the same results as chatmill.tools.calculator, in exact fractions. */

const MAX_LENGTH = 200; // characters
const MAX_DEPTH = 20; // nested parentheses
const SCALE = 1_000_000n; // six decimals
const BLANKS = "[\\p{White_Space}\u001c-\u001f]"; // Python's `\s`
const TOKEN = new RegExp(`${BLANKS}*(?:([0-9]+\\.?[0-9]*|\\.[0-9]+)|([-+*/()]))`, "uy");
const END = new RegExp(`${BLANKS}+$`, "u");

/** @typedef {{ top: bigint, bottom: bigint }} Fraction the bottom is positive */

class DivisionByZero extends Error {}
class NotArithmetic extends Error {}

/** The value of an expression, or an error message: `2*(3+4)` gives `14`, `1/0` gives `error: division by zero`.
 * @param {string} expression
 */
export function calculate(expression) {
  if ([...expression].length > MAX_LENGTH) return `error: longer than ${MAX_LENGTH} characters`;
  try {
    return formatted(new Parser(expression).parse());
  } catch (error) {
    if (error instanceof DivisionByZero) return "error: division by zero";
    if (error instanceof NotArithmetic) return "error: not arithmetic";
    throw error;
  }
}

class Parser {
  depth = 0;

  /** @param {string} expression */
  constructor(expression) {
    this.tokens = split(expression.replace(END, ""));
    this.at = 0;
  }

  parse() {
    const value = this.#sum();
    if (this.at < this.tokens.length) throw new NotArithmetic();
    return value;
  }

  /** @param {string} symbols */
  #accept(symbols) {
    const token = this.tokens[this.at];
    if (typeof token !== "string" || !symbols.includes(token)) return "";
    this.at += 1;
    return token;
  }

  #sum() {
    let value = this.#product();
    for (let symbol = this.#accept("+-"); symbol; symbol = this.#accept("+-")) {
      const { top, bottom } = this.#product();
      const signed = symbol === "+" ? top : -top;
      value = fraction(value.top * bottom + signed * value.bottom, value.bottom * bottom);
    }
    return value;
  }

  #product() {
    let value = this.#factor();
    for (let symbol = this.#accept("*/"); symbol; symbol = this.#accept("*/")) {
      const { top, bottom } = this.#factor();
      if (symbol === "*") value = fraction(value.top * top, value.bottom * bottom);
      else value = fraction(value.top * bottom, value.bottom * top);
    }
    return value;
  }

  /** @returns {Fraction} */
  #factor() {
    let sign = 1n;
    for (let symbol = this.#accept("+-"); symbol; symbol = this.#accept("+-")) if (symbol === "-") sign = -sign;
    if (this.#accept("(")) {
      const { top, bottom } = this.#parenthesis();
      return { top: sign * top, bottom };
    }
    const token = this.tokens[this.at];
    this.at += 1;
    if (token === undefined || typeof token === "string") throw new NotArithmetic();
    return { top: sign * token.top, bottom: token.bottom };
  }

  #parenthesis() {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) throw new NotArithmetic();
    const value = this.#sum();
    if (!this.#accept(")")) throw new NotArithmetic();
    this.depth -= 1;
    return value;
  }
}

/** @param {string} text */
function split(text) {
  /** @type {(string | Fraction)[]} */
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < text.length) {
    const match = TOKEN.exec(text);
    if (!match) throw new NotArithmetic();
    if (match[2]) tokens.push(match[2]);
    else {
      const [whole, decimals = ""] = match[1].split(".");
      tokens.push(fraction(BigInt(whole + decimals), 10n ** BigInt(decimals.length)));
    }
  }
  return tokens;
}

/** @param {bigint} top @param {bigint} bottom @returns {Fraction} */
function fraction(top, bottom) {
  if (bottom === 0n) throw new DivisionByZero();
  const divisor = greatestDivisor(top < 0n ? -top : top, bottom < 0n ? -bottom : bottom) * (bottom < 0n ? -1n : 1n);
  return { top: top / divisor, bottom: bottom / divisor };
}

/** @param {bigint} one @param {bigint} other */
function greatestDivisor(one, other) {
  while (other) [one, other] = [other, one % other];
  return one;
}

/** Rounded to six decimals, half to even.
 * @param {Fraction} value
 */
function formatted({ top, bottom }) {
  const size = (top < 0n ? -top : top) * SCALE;
  let scaled = size / bottom;
  const rest = 2n * (size % bottom);
  if (rest > bottom || (rest === bottom && scaled % 2n)) scaled += 1n;
  const decimals = String(scaled % SCALE).padStart(6, "0");
  return `${top < 0n && scaled ? "-" : ""}${scaled / SCALE}.${decimals}`.replace(/0+$/, "").replace(/\.$/, "");
}
