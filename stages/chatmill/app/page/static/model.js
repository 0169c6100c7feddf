// @ts-check
/** The model: token ids in, logits of the next token out, with a cache of keys and values.
 *
 * Matrices are int8 with a float32 scale for each row; all else is float32. Shapes: C channels, H heads, K key-value
 * heads, D channels of a head, V vocabulary, S tokens in the cache.
 */

/** @typedef {{ name: string, rows: number, columns: number }} Tensor `rows` is 0 for a vector */
/** @typedef {{ vocab_size: number, hidden_size: number, intermediate_size: number, num_hidden_layers: number,
 *   num_attention_heads: number, num_key_value_heads: number, head_dim: number, context: number,
 *   sliding_window: number | null, rms_norm_eps: number, frequencies: number[] }} Shape */
/** @typedef {{ inputNorm: Float32Array, postNorm: Float32Array, q: Matrix, k: Matrix, v: Matrix, o: Matrix, gate: Matrix,
 *   up: Matrix, down: Matrix, queryNorm: Float32Array | undefined, keyNorm: Float32Array | undefined }} Layer */
/** @typedef {{ w: number, scales: number, bias: Float32Array | null, rows: number, padded: number }} Matrix addresses */
/** @typedef {(w: number, scales: number, x: number, y: number, rows: number, columns: number) => void} Multiply
 *   y[r] = scales[r] * Σ w[r][c] * x[c]; the first four are addresses in bytes, and columns is a multiple of 16 */

const LANES = 16; // columns are padded to a multiple of it
const PAGE = 65536; // bytes of WebAssembly's memory
const FIRST_CACHE = 256; // tokens that a cache has room for at first; it grows by doubling

export class Model {
  length = 0; // tokens in the cache; lowering it rewinds

  /** @param {Shape} shape @param {Tensor[]} tensors in the order of `data`
   * @param {Uint8Array<ArrayBuffer>} data the vectors and scales, then the bytes of the matrices
   * @param {Uint8Array<ArrayBuffer>} wasm the bytes of kernel.wasm
   */
  constructor(shape, tensors, data, wasm) {
    this.shape = shape;
    const widest = Math.max(shape.vocab_size, ...tensors.map(({ rows, columns }) => Math.max(rows, columns)));
    const matrices = tensors.filter(({ rows }) => rows > 0);
    const sizes = matrices.map(({ rows, columns }) => rows * (padded(columns) + 4));
    const room = 4 * padded(widest); // of an input or an output
    const { buffer, multiply } = openKernel(2 * room + sizes.reduce((sum, size) => sum + size, 0), wasm);
    this.multiply = multiply;
    this.input = new Float32Array(buffer, 0, padded(widest));
    this.output = new Float32Array(buffer, room, padded(widest));
    this.bytes = new Int8Array(buffer);
    this.floats = new Float32Array(buffer);
    /** @type {Map<string, Float32Array>} */
    this.vectors = new Map();
    /** @type {Map<string, Matrix>} */
    this.matrices = new Map();
    this.#place(tensors, data, 2 * room);
    const { num_hidden_layers: layers, head_dim: size } = shape;
    this.keys = Array.from({ length: layers }, () => new Float32Array(0));
    this.values = Array.from({ length: layers }, () => new Float32Array(0));
    this.cos = new Float32Array(size / 2);
    this.sin = new Float32Array(size / 2);
    this.scores = new Float32Array(0);
    this.layers = Array.from({ length: layers }, (_, index) => this.#layer(`model.layers.${index}.`));
    this.embedding = this.#matrix("model.embed_tokens");
    this.head = this.matrices.get("lm_head.weight") ?? this.embedding;
    this.norm = this.#vector("model.norm.weight");
  }

  /** Read a token; the logits (V,) of the next one if they are wanted. They are overwritten by the next call.
   * @param {number} id
   * @param {boolean} wanted
   */
  read(id, wanted) {
    const { rms_norm_eps: epsilon } = this.shape;
    const x = this.#embed(id);
    this.#grow();
    this.#rotateTo(this.length);
    for (const [index, layer] of this.layers.entries()) {
      normalise(x, layer.inputNorm, this.input, epsilon);
      this.input.set(this.#attend(layer, index));
      add(x, this.#multiply(layer.o));
      normalise(x, layer.postNorm, this.input, epsilon);
      const gate = this.#multiply(layer.gate).slice();
      const up = this.#multiply(layer.up);
      for (let i = 0; i < gate.length; i += 1) this.input[i] = (gate[i] / (1 + Math.exp(-gate[i]))) * up[i];
      add(x, this.#multiply(layer.down));
    }
    this.length += 1;
    if (!wanted) return this.output;
    normalise(x, this.norm, this.input, epsilon);
    return this.#multiply(this.head);
  }

  /** @param {Tensor[]} tensors @param {Uint8Array<ArrayBuffer>} data @param {number} place where matrices may begin */
  #place(tensors, data, place) {
    const view = new Float32Array(data.buffer, data.byteOffset);
    let float = 0;
    for (const { name, rows, columns } of tensors) {
      const count = rows || columns;
      const values = view.subarray(float, float + count);
      float += count;
      if (!rows) {
        this.vectors.set(name, values.slice());
        continue;
      }
      this.floats.set(values, place >> 2);
      this.matrices.set(name, { w: place + 4 * rows, scales: place, bias: null, rows, padded: padded(columns) });
      place += rows * (padded(columns) + 4);
    }
    let at = 4 * float;
    for (const { name, rows, columns } of tensors) {
      const matrix = this.matrices.get(name);
      if (!matrix) continue;
      const source = new Int8Array(data.buffer, data.byteOffset + at, rows * columns);
      at += rows * columns;
      if (matrix.padded === columns) this.bytes.set(source, matrix.w);
      else {
        for (let row = 0; row < rows; row += 1) {
          this.bytes.set(source.subarray(row * columns, (row + 1) * columns), matrix.w + row * matrix.padded);
        }
      }
    }
    for (const [name, matrix] of this.matrices) matrix.bias = this.vectors.get(name.replace(/weight$/, "bias")) ?? null;
  }

  /** @param {string} name */
  #matrix(name) {
    const found = this.matrices.get(`${name}.weight`);
    if (!found) throw new Error(`the page has no weights ${name}`);
    return found;
  }

  /** @param {string} name */
  #vector(name) {
    const found = this.vectors.get(name);
    if (!found) throw new Error(`the page has no weights ${name}`);
    return found;
  }

  /** @param {string} prefix @returns {Layer} */
  #layer(prefix) {
    const matrix = (/** @type {string} */ name) => this.#matrix(prefix + name);
    return {
      inputNorm: this.#vector(`${prefix}input_layernorm.weight`),
      postNorm: this.#vector(`${prefix}post_attention_layernorm.weight`),
      q: matrix("self_attn.q_proj"),
      k: matrix("self_attn.k_proj"),
      v: matrix("self_attn.v_proj"),
      o: matrix("self_attn.o_proj"),
      queryNorm: this.vectors.get(`${prefix}self_attn.q_norm.weight`),
      keyNorm: this.vectors.get(`${prefix}self_attn.k_norm.weight`),
      gate: matrix("mlp.gate_proj"),
      up: matrix("mlp.up_proj"),
      down: matrix("mlp.down_proj"),
    };
  }

  /** The product of a matrix and `input`, plus its bias; it is overwritten by the next product.
   * @param {Matrix} matrix
   */
  #multiply({ w, scales, bias, rows, padded: columns }) {
    this.multiply(w, scales, 0, this.output.byteOffset, rows, columns);
    const result = this.output.subarray(0, rows);
    if (bias) add(result, bias);
    return result;
  }

  /** @param {number} id */
  #embed(id) {
    const { w, scales, padded: columns } = this.embedding;
    const x = new Float32Array(this.shape.hidden_size);
    const scale = this.floats[(scales >> 2) + id];
    for (let i = 0; i < x.length; i += 1) x[i] = scale * this.bytes[w + id * columns + i];
    return x;
  }

  /** The attention (H*D,) of the last token, whose normalised state is the input, to itself and those before it.
   * @param {Layer} layer @param {number} index
   */
  #attend(layer, index) {
    const { num_attention_heads: heads, num_key_value_heads: groups, head_dim: size } = this.shape;
    const window = this.shape.sliding_window;
    const end = this.length;
    const start = Math.max(0, window ? end - window + 1 : 0);
    const width = groups * size;
    const keys = this.keys[index];
    const values = this.values[index];
    const queries = this.#multiply(layer.q).slice();
    const key = keys.subarray(end * width, (end + 1) * width);
    key.set(this.#multiply(layer.k));
    values.set(this.#multiply(layer.v), end * width);
    this.#prepareHeads(queries, layer.queryNorm);
    this.#prepareHeads(key, layer.keyNorm);
    const result = new Float32Array(heads * size);
    for (let head = 0; head < heads; head += 1) {
      const query = queries.subarray(head * size, (head + 1) * size);
      const offset = Math.floor((head * groups) / heads) * size;
      this.#score(query, keys, offset, start);
      const mixed = result.subarray(head * size, (head + 1) * size);
      for (let token = start; token <= end; token += 1) {
        const at = token * width + offset;
        const share = this.scores[token];
        for (let i = 0; i < size; i += 1) mixed[i] += share * values[at + i];
      }
    }
    return result;
  }

  /** Write the shares of attention that a query pays to the tokens from `start` on, the last one included.
   * @param {Float32Array} query @param {Float32Array} keys @param {number} offset @param {number} start
   */
  #score(query, keys, offset, start) {
    const { scores, length: end } = this;
    const { num_key_value_heads: groups, head_dim: size } = this.shape;
    const root = 1 / Math.sqrt(size);
    let highest = -Infinity;
    for (let token = start; token <= end; token += 1) {
      const at = token * groups * size + offset;
      let sum = 0;
      for (let i = 0; i < size; i += 1) sum += query[i] * keys[at + i];
      scores[token] = sum * root;
      if (scores[token] > highest) highest = scores[token];
    }
    let total = 0;
    for (let token = start; token <= end; token += 1) total += scores[token] = Math.exp(scores[token] - highest);
    for (let token = start; token <= end; token += 1) scores[token] /= total;
  }

  /** Normalise each head, if the model does that, and rotate it to its position.
   * @param {Float32Array} vector @param {Float32Array | undefined} norm
   */
  #prepareHeads(vector, norm) {
    const { head_dim: size, rms_norm_eps: epsilon } = this.shape;
    const half = size / 2;
    for (let start = 0; start < vector.length; start += size) {
      const head = vector.subarray(start, start + size);
      if (norm) normalise(head, norm, head, epsilon);
      for (let i = 0; i < half; i += 1) {
        const [one, other] = [head[i], head[i + half]];
        head[i] = one * this.cos[i] - other * this.sin[i];
        head[i + half] = other * this.cos[i] + one * this.sin[i];
      }
    }
  }

  /** @param {number} position */
  #rotateTo(position) {
    this.shape.frequencies.forEach((frequency, i) => {
      const angle = Math.fround(position * frequency);
      this.cos[i] = Math.cos(angle);
      this.sin[i] = Math.sin(angle);
    });
  }

  /** Make room for another token in the cache. */
  #grow() {
    const { num_key_value_heads: groups, head_dim: size, context } = this.shape;
    const room = this.scores.length;
    if (this.length >= context) throw new Error(`the model's context of ${context} tokens is full`);
    if (this.length < room) return;
    const wanted = Math.min(context, Math.max(FIRST_CACHE, 2 * room));
    for (const cache of [this.keys, this.values]) {
      cache.forEach((old, layer) => {
        cache[layer] = new Float32Array(wanted * groups * size);
        cache[layer].set(old);
      });
    }
    this.scores = new Float32Array(wanted);
  }
}

/** Memory of `size` bytes, and the product in it. Browsers have WebAssembly's SIMD since 2023.
 * @param {number} size
 * @param {Uint8Array<ArrayBuffer>} wasm
 * @returns {{ buffer: ArrayBuffer, multiply: Multiply }}
 */
export function openKernel(size, wasm) {
  const memory = new WebAssembly.Memory({ initial: Math.ceil(size / PAGE) });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(wasm), { page: { memory } });
  return { buffer: memory.buffer, multiply: /** @type {Multiply} */ (exports.multiply) };
}

/** @param {number} columns */
function padded(columns) {
  return Math.ceil(columns / LANES) * LANES;
}

/** RMSNorm of x, written to `out`.
 * @param {Float32Array} x @param {Float32Array} weight @param {Float32Array} out @param {number} epsilon
 */
function normalise(x, weight, out, epsilon) {
  let squares = 0;
  for (let i = 0; i < x.length; i += 1) squares += x[i] * x[i];
  const scale = 1 / Math.sqrt(squares / x.length + epsilon);
  for (let i = 0; i < x.length; i += 1) out[i] = Math.fround(x[i] * scale) * weight[i];
}

/** @param {Float32Array} x @param {Float32Array} y */
function add(x, y) {
  for (let i = 0; i < x.length; i += 1) x[i] += y[i];
}
