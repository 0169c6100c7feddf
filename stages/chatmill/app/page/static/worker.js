// @ts-check
/** The worker: it has the backend, and no page. */

import { Backend } from "./backend.js";

const backend = new Backend((reply) => postMessage(reply));
addEventListener("message", ({ data }) => backend.receive(data));
