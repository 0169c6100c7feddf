// @ts-check
/** The tokens of a prompt and its answer, each marked by its probability. */

import { classOf, hex, percent, STEPS, visible, markToolOutput } from "./token_text.js";
import { fetchTokens } from "../shared/api.js";
import { element } from "../shared/dom.js";
import { pluralize } from "../shared/text_format.js";

/** @typedef {import("../shared/api.js").Candidate} Candidate */
/** @typedef {import("./token_text.js").WrittenToken} WrittenToken */

const MARGIN = 8; // pixels between the card and the edge of the window

const card = element("div", { id: "token-card", popover: "manual", role: "tooltip" });
/** @type {ReturnType<typeof setTimeout> | undefined} */
let hiding;

/** Show the tokens of an answer in a node, when they are loaded. Throws ApiError.
 * @param {import("./conversation.js").Answer} answer
 * @param {HTMLElement} node
 */
export async function showTokens(answer, node) {
  node.replaceChildren(element("p", { className: "hint" }, "loading the tokens …"));
  const tokens = markToolOutput(await fetchTokens(answer.model, [...answer.promptIds, ...answer.ids]));
  const prompt = tokens.slice(0, answer.promptIds.length);
  const generated = tokens.slice(answer.promptIds.length);
  node.replaceChildren(legend(tokens), tokenList("Prompt", prompt), tokenList("Answer", generated));
  document.body.append(card);
}

/** @param {WrittenToken[]} tokens */
function legend(tokens) {
  const steps = STEPS.map(([, name], step) => element("li", { className: `token p${step}` }, name));
  if (tokens.some(({ given }) => given)) steps.push(element("li", { className: "token given" }, "tool output"));
  const hint = element("p", { className: "hint" }, "Move with arrow keys.");
  return element("div", { className: "legend" }, "Probability:", element("ul", {}, ...steps), hint);
}

/** @param {string} name @param {WrittenToken[]} tokens */
function tokenList(name, tokens) {
  const list = element("ol", { className: "tokens", "aria-label": `Tokens of the ${name.toLowerCase()}` });
  tokens.forEach((token, index) => list.append(tokenItem(token, index === 0)));
  list.addEventListener("keydown", (event) => onArrowKey(event, list));
  const heading = element("h3", {}, `${name}: ${pluralize(tokens.length, "token")}`);
  return element("section", {}, heading, list);
}

/** @param {WrittenToken} token @param {boolean} isFirst */
function tokenItem(token, isFirst) {
  const name = `${visible(token)}, id ${token.id}${token.logprob === null ? "" : `, ${percent(token.logprob)}`}`;
  const node = element(
    "button",
    { type: "button", className: `token ${classOf(token)}`, tabIndex: isFirst ? 0 : -1, "aria-label": name },
    visible(token),
  );
  node.onpointerenter = node.onfocus = () => showCard(token, node);
  node.onpointerleave = () => (hiding = setTimeout(hideCard, 150)); // time to reach the card
  node.onblur = hideCard;
  const endsLine = token.bytes.at(-1) === 10 && !token.control;
  return element("li", endsLine ? { className: "ends-line" } : {}, node);
}

/** Move the focus with the arrow keys; only one token of a list can be reached with Tab.
 * @param {KeyboardEvent} event
 * @param {HTMLElement} list
 */
function onArrowKey(event, list) {
  const nodes = [...list.querySelectorAll("button")];
  const at = nodes.findIndex((node) => node === event.target);
  const last = nodes.length - 1;
  /** @type {Record<string, () => number>} */
  const steps = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, Home: () => 0, End: () => last };
  /** @type {Record<string, () => number>} */
  const lines = { ArrowDown: () => tokenInNextRow(nodes, at, 1), ArrowUp: () => tokenInNextRow(nodes, at, -1) };
  const to = { ...steps, ...lines }[event.key]?.();
  if (event.key === "Escape" && card.matches(":popover-open")) {
    event.stopPropagation();
    hideCard();
  }
  if (to === undefined) return;
  event.preventDefault();
  const next = nodes[Math.min(Math.max(to, 0), last)];
  nodes[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

/** The index of the token in the next or previous row that is nearest to a token.
 * @param {HTMLElement[]} nodes
 * @param {number} at
 * @param {1 | -1} direction
 */
function tokenInNextRow(nodes, at, direction) {
  const { left, top } = nodes[at].getBoundingClientRect();
  let best = at;
  /** @type {number | null} */
  let line = null;
  for (let index = at + direction; nodes[index]; index += direction) {
    const box = nodes[index].getBoundingClientRect();
    if (Math.abs(box.top - top) < box.height / 2) continue;
    line ??= box.top;
    if (box.top !== line) break;
    const nearest = nodes[best].getBoundingClientRect();
    if (best === at || Math.abs(box.left - left) < Math.abs(nearest.left - left)) best = index;
  }
  return best;
}

/** @param {WrittenToken} token @param {HTMLElement} node */
function showCard(token, node) {
  clearTimeout(hiding);
  card.replaceChildren(...details(token));
  node.setAttribute("aria-describedby", card.id);
  if (!card.matches(":popover-open")) card.showPopover();
  const box = node.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = card;
  const isAbove = box.bottom + height + MARGIN > innerHeight && box.top > height + MARGIN;
  card.style.left = `${Math.max(MARGIN, Math.min(box.left, innerWidth - width - MARGIN))}px`;
  card.style.top = `${isAbove ? box.top - height - 4 : box.bottom + 4}px`;
}

function hideCard() {
  if (card.matches(":popover-open")) card.hidePopover();
}

card.onpointerenter = () => clearTimeout(hiding);
card.onpointerleave = hideCard;
addEventListener("scroll", hideCard, true);

/** @param {WrittenToken} token */
function details(token) {
  const rows = [
    ["Token", visible(token)],
    ["Id", String(token.id)],
    ["Bytes", token.bytes.length ? hex(token.bytes) : "none"],
    ["Probability", token.logprob === null ? "none, as it is the first" : percent(token.logprob)],
    ...(token.given ? [["Written by", "the tool, not the model"]] : []),
  ];
  const facts = rows.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const top = token.top ?? [];
  const isAmong = top.some(({ id }) => id === token.id);
  const likeliest = top.map((one) => candidate(one, one.id === token.id));
  const heading = isAmong ? "Likeliest tokens here" : "Likeliest tokens here, not the chosen one";
  return [
    element("dl", {}, ...facts),
    ...(top.length ? [element("h4", {}, heading), element("ol", {}, ...likeliest)] : []),
  ];
}

/** @param {Candidate} token @param {boolean} isChosen */
function candidate(token, isChosen) {
  const bar = element("span", { className: "share" });
  bar.style.width = `${100 * Math.exp(token.logprob)}%`;
  const words = element("span", { className: "words" }, `${visible(token)}${isChosen ? " ✓" : ""}`);
  return element("li", isChosen ? { className: "chosen" } : {}, words, ` ${percent(token.logprob)}`, bar);
}
