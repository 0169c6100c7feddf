// @ts-check
// Light or dark: as the system is, or as the reader has chosen; the choice is kept in this browser. It is a script of
// its own, and no module, so that it runs before the first paint.
(() => {
  const NAME = "chatmill.theme";
  const root = document.documentElement;

  function stored() {
    try {
      return localStorage.getItem(NAME) ?? "";
    } catch {
      return ""; // a browser that keeps nothing
    }
  }

  /** @param {string} theme */
  function choose(theme) {
    root.dataset.theme = theme;
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      return; // it holds until the page is left
    }
  }

  function chooser() {
    return /** @type {HTMLSelectElement} */ (document.getElementById("theme"));
  }

  root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", () => {
    chooser().value = root.dataset.theme ?? "";
    chooser().addEventListener("change", () => choose(chooser().value));
  });
  addEventListener("storage", (event) => {
    if (event.key !== NAME) return; // another tab has chosen
    root.dataset.theme = event.newValue ?? "";
    chooser().value = root.dataset.theme;
  });
})();
