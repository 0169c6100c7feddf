/** Copying to the clipboard, also where a page that came without encryption has no clipboard of its own. */

import { element } from "./dom.js";

/** Copy a text; whether the browser has let it. */
export async function copyText(text) {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const focused = document.activeElement;
  const field = element("textarea", { value: text, className: "unseen", "aria-label": "Text to copy" });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}
