/** Greedy answers of transformers.js: standard input is {folder, options, prompts, count}, standard output the ids.
 *
 * It is run in a folder where the library is installed.
 */

import { readFileSync } from "node:fs";
import { AutoModelForCausalLM, Tensor } from "@huggingface/transformers";

const { folder, options, prompts, count } = JSON.parse(readFileSync(0));
const model = await AutoModelForCausalLM.from_pretrained(folder, options);
const answers = [];
for (const ids of prompts) {
  const shape = [1, ids.length];
  const input_ids = new Tensor("int64", BigInt64Array.from(ids, BigInt), shape);
  const attention_mask = new Tensor("int64", new BigInt64Array(ids.length).fill(1n), shape);
  const length = { max_new_tokens: count, min_new_tokens: count, do_sample: false };
  const result = await model.generate({ input_ids, attention_mask, ...length });
  answers.push(result.tolist()[0].map(Number));
}
process.stdout.write(JSON.stringify(answers));
