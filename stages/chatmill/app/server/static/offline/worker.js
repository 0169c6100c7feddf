// @ts-check
// A service worker: the pages open without their server, too. The server writes the line above this file, with the
// version and the addresses of all files of the pages. While it answers, everything comes from it, so no page ever has
// old code; its files are stored together, so those of two versions are never mixed.

/** @typedef {Event & { waitUntil: (done: Promise<unknown>) => void }} Extendable */
/** @typedef {Extendable & { request: Request, respondWith: (response: Promise<Response>) => void }} Fetching */
/** @typedef {{ version: string, addresses: string[] }} Release */

const PREFIX = "chatmill ";
const release = /** @type {Release} */ (Reflect.get(globalThis, "RELEASE"));
const cacheName = PREFIX + release.version;

addEventListener("install", (event) => {
  /** @type {Extendable} */ (event).waitUntil(store());
});

addEventListener("activate", (event) => {
  /** @type {Extendable} */ (event).waitUntil(forgetOthers());
});

addEventListener("fetch", (event) => {
  const { request, respondWith } = /** @type {Fetching} */ (event);
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== location.origin || !release.addresses.includes(pathname)) return;
  respondWith.call(event, fetch(request).catch(() => stored(pathname)));
});

async function store() {
  const cache = await caches.open(cacheName);
  await cache.addAll(release.addresses.map((address) => new Request(address, { cache: "reload" })));
}

async function forgetOthers() {
  const names = await caches.keys();
  const others = names.filter((one) => one.startsWith(PREFIX) && one !== cacheName);
  await Promise.all(others.map((one) => caches.delete(one)));
}

/** The stored response of an address. Throws TypeError if there is none, as fetch does.
 * @param {string} address
 */
async function stored(address) {
  const response = await (await caches.open(cacheName)).match(address);
  if (!response) throw new TypeError(`${address} is not stored`);
  return response;
}
