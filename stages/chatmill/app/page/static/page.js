// @ts-check
/** What the chat page has only with a server is removed, before its own program starts. */

const SERVED = [".page-link", "label[for=beside]", "#beside"];

for (const selector of SERVED) document.querySelector(selector)?.setAttribute("hidden", "");
document.querySelector(".brand")?.removeAttribute("href");
const reset = document.getElementById("reset");
if (reset) reset.textContent = "Reset to the defaults";
