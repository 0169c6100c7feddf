// @ts-check
/** The panels beside the chat: the list of chats and the settings. In a narrow window an open panel covers the chat,
 * whose parts are then inert; `main` itself is not, as a page without a main landmark is hard to find one's way in. */

import { byId } from "../shared/dom.js";

const NARROW = matchMedia("(max-width: 52rem)");
const PANELS = ["chats", "settings"];
const COVERED = ["notice", "scroller", "composer"];

/** Make the buttons open and close their panels. */
export function startPanels() {
  for (const name of PANELS) byId(`toggle-${name}`, HTMLElement).addEventListener("click", () => toggle(name));
  for (const close of document.querySelectorAll(".close-panel")) close.addEventListener("click", closeOverlayPanel);
  const showFirst = () => PANELS.forEach((name) => show(name, name === "chats" && !NARROW.matches));
  NARROW.addEventListener("change", showFirst);
  showFirst();
}

/** Close the panel that covers the chat; false if none does. */
export function closeOverlayPanel() {
  const covering = NARROW.matches ? PANELS.find((name) => !byId(name, HTMLElement).hidden) : undefined;
  if (!covering) return false;
  show(covering, false);
  byId(`toggle-${covering}`, HTMLElement).focus();
  return true;
}

/** @param {string} name */
function toggle(name) {
  const panel = byId(name, HTMLElement);
  const opens = Boolean(panel.hidden);
  if (opens && NARROW.matches) for (const other of PANELS) show(other, false);
  show(name, opens);
  if (opens && NARROW.matches) panel.querySelector("button")?.focus();
}

/** @param {string} name @param {boolean} isOpen */
function show(name, isOpen) {
  byId(name, HTMLElement).hidden = !isOpen;
  byId(`toggle-${name}`, HTMLElement).ariaExpanded = String(isOpen);
  const isCovered = NARROW.matches && PANELS.some((one) => !byId(one, HTMLElement).hidden);
  for (const part of COVERED) byId(part, HTMLElement).inert = isCovered;
}
