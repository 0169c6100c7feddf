// @ts-check
/** Products of int8 matrices and float32 vectors: by WebAssembly's SIMD, or in JavaScript with the same roundings. */

/** @typedef {(w: number, scales: number, x: number, y: number, rows: number, columns: number) => void} Multiply
 *   y[r] = scales[r] * Σ w[r][c] * x[c]; the first four are addresses in bytes, and columns is a multiple of 16 */
/** @typedef {{ buffer: ArrayBuffer, multiply: Multiply, simd: boolean }} Products */

const PAGE = 65536; // bytes
const round = Math.fround;

/** Memory of `size` bytes, and the product in it. Without `wasm`, or where the browser lacks SIMD, in JavaScript.
 * @param {number} size
 * @param {Uint8Array<ArrayBuffer> | null} wasm the bytes of kernel.wasm
 * @returns {Products}
 */
export function createProducts(size, wasm) {
  const module = wasm && compiled(wasm);
  if (!module) {
    const buffer = new ArrayBuffer(size);
    return { buffer, multiply: scalarMultiply(buffer), simd: false };
  }
  const memory = new WebAssembly.Memory({ initial: Math.max(1, Math.ceil(size / PAGE)) });
  const { exports } = new WebAssembly.Instance(module, { page: { memory } });
  return { buffer: memory.buffer, multiply: /** @type {Multiply} */ (exports.multiply), simd: true };
}

/** @param {Uint8Array<ArrayBuffer>} wasm */
function compiled(wasm) {
  try {
    return WebAssembly.validate(wasm) ? new WebAssembly.Module(wasm) : null;
  } catch {
    return null; // a browser in which WebAssembly is switched off
  }
}

/** @param {ArrayBuffer} buffer @returns {Multiply} */
function scalarMultiply(buffer) {
  const bytes = new Int8Array(buffer);
  const floats = new Float32Array(buffer);
  const sums = new Float32Array(16); // as the lanes of four vectors
  return (w, scales, x, y, rows, columns) => {
    for (let row = 0; row < rows; row += 1) {
      sums.fill(0);
      for (let end = w + columns, at = x >> 2; w < end; w += 16, at += 16) {
        for (let lane = 0; lane < 16; lane += 1) sums[lane] += round(bytes[w + lane] * floats[at + lane]);
      }
      for (let lane = 0; lane < 4; lane += 1) {
        sums[lane] = round(sums[lane] + sums[lane + 4]) + round(sums[lane + 8] + sums[lane + 12]);
      }
      const sum = round(round(sums[0] + sums[1]) + round(sums[2] + sums[3]));
      floats[(y >> 2) + row] = floats[(scales >> 2) + row] * sum;
    }
  };
}
