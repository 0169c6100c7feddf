// @ts-check
// The theme, light or dark: the system's, or the user's choice, which this browser stores. This script is not a module,
// so that it runs before the first paint.
(() => {
  const NAME = "chatmill.theme";
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

  function chooser() {
    return /** @type {HTMLSelectElement | null} */ (document.getElementById("theme"));
  }

  root.dataset.theme = stored();
  document.addEventListener("DOMContentLoaded", () => {
    const node = chooser();
    if (!node) return; // the page is left before it was read to the end
    node.value = root.dataset.theme ?? "";
    node.addEventListener("change", () => choose(node.value));
  });
  addEventListener("storage", (event) => {
    if (event.key !== NAME) return; // another tab has chosen
    root.dataset.theme = event.newValue ?? "";
    const node = chooser();
    if (node) node.value = root.dataset.theme;
  });
})();
