// @ts-check
/** The panels beside the chat: the list of chats and the settings. Where the window is narrow, one covers the chat. */

import { byId } from "../shared/dom.js";
import { keep, recall } from "./storage.js";

const NARROW = matchMedia("(max-width: 52rem)");
const PANELS = ["chats", "settings"];

/** Make the buttons open and close their panels; wide windows open as they were left. */
export function startPanels() {
  for (const name of PANELS) opener(name).addEventListener("click", () => toggle(name));
  NARROW.addEventListener("change", showAll);
  showAll();
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog") && closeCovering()) {
      event.preventDefault();
    }
  });
}

/** Uncover the chat; whether a panel covered it. */
export function closeCovering() {
  const covering = NARROW.matches ? PANELS.find((name) => !panel(name).hidden) : undefined;
  if (!covering) return false;
  show(covering, false);
  opener(covering).focus();
  return true;
}

function showAll() {
  for (const name of PANELS) show(name, !NARROW.matches && recall(`panel.${name}`, name === "chats"));
}

/** @param {string} name */
function toggle(name) {
  const opens = Boolean(panel(name).hidden);
  if (opens && NARROW.matches) for (const other of PANELS) show(other, false);
  show(name, opens);
  if (opens && NARROW.matches) firstControl(name)?.focus();
  if (!NARROW.matches) keep(`panel.${name}`, opens);
}

/** @param {string} name @returns {HTMLElement | null} */
function firstControl(name) {
  return panel(name).querySelector("button, textarea");
}

/** @param {string} name @param {boolean} isOpen */
function show(name, isOpen) {
  panel(name).hidden = !isOpen;
  opener(name).ariaExpanded = String(isOpen);
  byId("main", HTMLElement).inert = NARROW.matches && PANELS.some((one) => !panel(one).hidden);
}

/** @param {string} name */
function panel(name) {
  return byId(name, HTMLElement);
}

/** @param {string} name */
function opener(name) {
  return byId(`toggle-${name}`, HTMLButtonElement);
}
