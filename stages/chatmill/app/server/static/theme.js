// Light or dark: as the system is, or as the reader has chosen; the choice is kept in this browser. It is a script of
// its own, and no module, so that it runs before the first paint.
(() => {
  const NAME = "chatmill.theme";
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem(NAME) ?? "";
    } catch {
      return ""; // a browser that keeps nothing
    }
  }

  function choose(theme) {
    root.dataset.theme = theme;
    try {
      localStorage.setItem(NAME, theme);
    } catch {
      return; // it holds until the page is left
    }
  }

  root.dataset.theme = kept();
  document.addEventListener("DOMContentLoaded", () => {
    const chooser = document.getElementById("theme");
    chooser.value = root.dataset.theme;
    chooser.addEventListener("change", () => choose(chooser.value));
  });
  addEventListener("storage", (event) => {
    if (event.key !== NAME) return; // another tab has chosen
    root.dataset.theme = event.newValue ?? "";
    document.getElementById("theme").value = root.dataset.theme;
  });
})();
