// @ts-check
/** The panels beside the chat: the list of chats and the settings. In a narrow window an open panel covers the chat,
 * whose parts are then inert; `main` itself is not, as a page without a main landmark is hard to find one's way in. */

import { byId } from "../shared/dom.js";
import { load, save } from "./local_storage.js";

const NARROW = matchMedia("(max-width: 52rem)");
const PANELS = ["chats", "settings"];
const COVERED = ["notice", "scroller", "composer"];

/** Make the buttons open and close their panels; in a wide window the panels open as they were left. */
export function startPanels() {
  for (const name of PANELS) opener(name).addEventListener("click", () => toggle(name));
  for (const close of document.querySelectorAll(".close-panel")) close.addEventListener("click", closeOverlayPanel);
  NARROW.addEventListener("change", showAll);
  showAll();
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && !document.querySelector("dialog") && closeOverlayPanel()) {
      event.preventDefault();
    }
  });
}

/** Close the panel that covers the chat; false if none does. */
export function closeOverlayPanel() {
  const covering = NARROW.matches ? PANELS.find((name) => !panel(name).hidden) : undefined;
  if (!covering) return false;
  show(covering, false);
  opener(covering).focus();
  return true;
}

function showAll() {
  moveChoosers();
  for (const name of PANELS) show(name, !NARROW.matches && load(`panel.${name}`, name === "chats"));
}

/** Move what the bar has no room for in a narrow window into the panels, and back. */
function moveChoosers() {
  const [places, beside] = ["places", "beside-chooser"].map((id) => byId(id, HTMLElement));
  if (NARROW.matches) {
    panel("chats").append(places);
    byId("about-model", HTMLElement).before(beside);
  } else {
    byId("new-chat-above", HTMLElement).before(places);
    byId("choosers", HTMLElement).append(beside);
  }
}

/** @param {string} name */
function toggle(name) {
  const opens = Boolean(panel(name).hidden);
  if (opens && NARROW.matches) for (const other of PANELS) show(other, false);
  show(name, opens);
  if (opens && NARROW.matches) firstControl(name)?.focus();
  if (!NARROW.matches) save(`panel.${name}`, opens);
}

/** @param {string} name @returns {HTMLElement | null} */
function firstControl(name) {
  return panel(name).querySelector("button, textarea");
}

/** @param {string} name @param {boolean} isOpen */
function show(name, isOpen) {
  panel(name).hidden = !isOpen;
  opener(name).ariaExpanded = String(isOpen);
  const isCovered = NARROW.matches && PANELS.some((one) => !panel(one).hidden);
  for (const part of COVERED) byId(part, HTMLElement).inert = isCovered;
}

/** @param {string} name */
function panel(name) {
  return byId(name, HTMLElement);
}

/** @param {string} name */
function opener(name) {
  return byId(`toggle-${name}`, HTMLButtonElement);
}
