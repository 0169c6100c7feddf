// @ts-check
// The theme, light or dark: the system's, or the user's choice, which this browser stores. Its select is made here, in
// the page's #theme-chooser. This script is not a module, so that it runs before the first paint.
(() => {
  const NAME = "chatmill.theme";
  const THEMES = { "": "Auto", light: "Light", dark: "Dark" };
  const select = document.createElement("select");
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(NAME) ?? "";
    } catch {
      return ""; // storage is disabled
    }
  }

  /** @param {string} theme */
  function choose(theme) {
    root.dataset.theme = theme;
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      return; // without storage, the choice lasts until the page is closed
    }
  }

  function show() {
    select.id = "theme";
    select.ariaLabel = "Theme";
    for (const [value, name] of Object.entries(THEMES)) select.append(new Option(name, value));
    select.value = root.dataset.theme ?? "";
    select.addEventListener("change", () => choose(select.value));
    document.getElementById("theme-chooser")?.append(select);
  }

  root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", show);
  addEventListener("storage", (event) => {
    if (event.key !== NAME) return; // another tab has chosen
    select.value = root.dataset.theme = event.newValue ?? "";
  });
})();
