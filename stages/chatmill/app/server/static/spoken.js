/** What a screen reader says beside the page, and what goes to the clipboard. */

import { element } from "./dom.js";

const node = document.getElementById("announcer");

/** Say something, after what is said already. */
export function announce(text) {
  node.append(element("p", {}, text));
}

/** Have nothing said any more. */
export function hush() {
  node.replaceChildren();
}

/** Copy a text, and say so. */
export async function copy(text) {
  const copied = navigator.clipboard ? await written(text) : selected(text);
  hush();
  announce(copied ? "Copied." : "The browser does not let this page copy.");
}

function written(text) {
  return navigator.clipboard.writeText(text).then(
    () => true,
    () => false,
  );
}

/** Copy as of old: a page that came without encryption has no clipboard. */
function selected(text) {
  const focused = document.activeElement;
  const field = element("textarea", { value: text, className: "unseen", "aria-label": "Text to copy" });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}
