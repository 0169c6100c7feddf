// @ts-check
/** Registers the service worker with which the pages open without their server. */

if ("serviceWorker" in navigator) {
  navigator.serviceWorker.register("/assets/offline/worker.js", { scope: "/" }).catch(() => {}); // storage is disabled
}
