// @ts-check
/** Which token comes next, from the logits. */

/** @typedef {{ temperature: number, top_k: number, top_p: number, min_p: number, repetition_penalty: number,
 *   presence_penalty: number, frequency_penalty: number, seed: number }} Sampling */

export const DEFAULTS = {
  temperature: 0,
  top_k: 0,
  top_p: 1,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
};
const MIN_TEMPERATURE = 1e-30;

/** Chooses among the allowed ids; of equal logits the lower id is first. A seed gives the same choices each time. */
export class Sampler {
  /** @param {Uint8Array} allowed (V,): 1 for the ids that may be chosen @param {Sampling} sampling */
  constructor(allowed, sampling) {
    this.allowed = allowed;
    this.sampling = sampling;
    this.random = randomNumbers(sampling.seed);
  }

  /** The next id; `logits` (V,) are changed.
   * @param {Float32Array} logits @param {number[]} generated the ids of the reply so far
   */
  sample(logits, generated) {
    this.#penalise(logits, generated);
    let likeliest = -1;
    for (let id = 0; id < logits.length; id += 1) {
      if (!this.allowed[id]) logits[id] = -Infinity;
      else if (likeliest < 0 || logits[id] > logits[likeliest]) likeliest = id;
    }
    if (!Number.isFinite(logits[likeliest])) throw new Error(`the model's largest logit is ${logits[likeliest]}`);
    return this.sampling.temperature ? this.#draw(logits, logits[likeliest]) : likeliest;
  }

  /** @param {Float32Array} logits @param {number} highest */
  #draw(logits, highest) {
    const { temperature, top_k: most, top_p: share, min_p: least } = this.sampling;
    const scale = Math.max(temperature, MIN_TEMPERATURE);
    const weights = logits.map((logit) => Math.exp((logit - highest) / scale));
    let ids = [...weights.keys()].filter((id) => weights[id] > 0 && weights[id] >= least);
    let total = weights.reduce((sum, weight) => sum + weight, 0);
    if (most || share < 1) {
      ids.sort((one, other) => weights[other] - weights[one] || one - other);
      if (most) {
        ids = ids.slice(0, most);
        total = sumOf(ids, weights);
      }
      let before = 0;
      ids = ids.filter((id) => {
        const isIn = before < share * total;
        before += weights[id];
        return isIn;
      });
    }
    let point = this.random() * sumOf(ids, weights);
    return ids.find((id) => (point -= weights[id]) < 0) ?? ids[0];
  }

  /** @param {Float32Array} logits @param {number[]} generated */
  #penalise(logits, generated) {
    const { repetition_penalty: repetition, presence_penalty: presence, frequency_penalty: frequency } = this.sampling;
    if (repetition === 1 && !presence && !frequency) return;
    /** @type {Map<number, number>} */
    const counts = new Map();
    for (const id of generated) counts.set(id, (counts.get(id) ?? 0) + 1);
    for (const [id, count] of counts) {
      logits[id] = logits[id] > 0 ? logits[id] / repetition : logits[id] * repetition;
      logits[id] -= presence + frequency * count;
    }
  }
}

/** @param {number[]} ids @param {Float32Array} weights */
function sumOf(ids, weights) {
  return ids.reduce((sum, id) => sum + weights[id], 0);
}

/** Numbers from 0 to 1: Weyl's sequence, mixed as in SplitMix32.
 * @param {number} seed
 */
function randomNumbers(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x9e3779b9) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
    mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
    return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
  };
}
