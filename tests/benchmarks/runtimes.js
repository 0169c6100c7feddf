/** A runtime of JavaScript: each line of standard input is {messages, tools}, each of standard output
 * [rendered prompt, its ids, ids of the answer].
 *
 * Arguments: the runtime, the folder of an ONNX export or a GGUF file, and how many tokens an answer may have. It is
 * run in a folder where the packages are installed.
 */

import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const [name, folder, limit] = process.argv.slice(-3);
const read = (file) => JSON.parse(readFileSync(`${folder}/${file}`, "utf8"));

/** transformers.js: its tokenizer, template and `generate`. */
async function transformersJs() {
  const { AutoModelForCausalLM, AutoTokenizer, Tensor, env } = await import("@huggingface/transformers");
  Object.assign(env, { allowRemoteModels: false, localModelPath: "" });
  const tokenizer = await AutoTokenizer.from_pretrained(folder);
  const model = await AutoModelForCausalLM.from_pretrained(folder, { subfolder: "", dtype: "fp32" });
  return async ({ messages, tools }) => {
    const prompt = tokenizer.apply_chat_template(messages, { tools, add_generation_prompt: true, tokenize: false });
    const ids = tokenizer.encode(prompt, { add_special_tokens: false });
    const shape = [1, ids.length];
    const input_ids = new Tensor("int64", BigInt64Array.from(ids, BigInt), shape);
    const attention_mask = new Tensor("int64", new BigInt64Array(ids.length).fill(1n), shape);
    const options = { max_new_tokens: Number(limit), do_sample: false };
    const result = await model.generate({ input_ids, attention_mask, ...options });
    return [prompt, ids, result.tolist()[0].map(Number).slice(ids.length)];
  };
}

const positions = (start, count) => Array.from({ length: count }, (_, place) => start + place);

/** model.onnx in onnxruntime-node: an empty cache, and a function that reads ids after those in a cache. */
async function openGraph() {
  const { InferenceSession, Tensor } = (await import("onnxruntime-node")).default;
  const config = read("config.json");
  const session = await InferenceSession.create(`${folder}/model.onnx`, { intraOpNumThreads: 1 });
  const int64 = (values) => new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  const kinds = positions(0, config.num_hidden_layers).flatMap((layer) => [`${layer}.key`, `${layer}.value`]);
  const nothing = new Tensor("float32", new Float32Array(0), [1, config.num_key_value_heads, 0, config.head_dim]);
  const empty = Object.fromEntries(kinds.map((kind) => [`past_key_values.${kind}`, nothing]));
  const append = async (ids, cache, start) => {
    const mask = int64(positions(0, start + ids.length).map(() => 1));
    const feeds = { input_ids: int64(ids), attention_mask: mask, position_ids: int64(positions(start, ids.length)) };
    const found = await session.run({ ...cache, ...feeds });
    const last = found.logits.data.subarray(-config.vocab_size);
    const best = last.reduce((best, value, place) => (value > last[best] ? place : best), 0);
    return [best, Object.fromEntries(kinds.map((kind) => [`past_key_values.${kind}`, found[`present.${kind}`]]))];
  };
  return { empty, append };
}

/** onnxruntime-node, with the template and the tokenizer of packages of their own. */
async function onnxRuntimeNode() {
  const { Template } = await import("@huggingface/jinja");
  const { Tokenizer } = await import("@huggingface/tokenizers");
  const stops = [read("generation_config.json").eos_token_id].flat();
  const template = new Template(readFileSync(`${folder}/chat_template.jinja`, "utf8"));
  const tokenizer = new Tokenizer(read("tokenizer.json"), read("tokenizer_config.json"));
  const { bos_token } = read("tokenizer_config.json");
  const { empty, append } = await openGraph();
  return async ({ messages, tools }) => {
    const prompt = template.render({ messages, tools, bos_token, add_generation_prompt: true });
    const { ids } = tokenizer.encode(prompt, { add_special_tokens: false });
    const answer = [];
    let [cache, start] = [empty, 0];
    while (answer.length < Number(limit) && !stops.includes(answer.at(-1))) {
      const unread = answer.length ? answer.slice(-1) : ids;
      const [best, next] = await append(unread, cache, start);
      [cache, start] = [next, start + unread.length];
      answer.push(best);
    }
    return [prompt, ids, answer];
  };
}

/** node-llama-cpp, the template of the file by @huggingface/jinja, which it is rendered by there, too. */
async function nodeLlamaCpp() {
  process.execArgv = []; // it starts a process of its own, which is not to run this program
  const { getLlama } = await import("node-llama-cpp");
  const { Template } = await import("@huggingface/jinja");
  const llama = await getLlama({ gpu: false, build: "never", logLevel: "disabled" });
  const model = await llama.loadModel({ modelPath: folder });
  const cache = { experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" };
  const context = await model.createContext({ contextSize: 1024, ...cache });
  const sequence = context.getSequence();
  const template = new Template(model.fileInfo.metadata.tokenizer.chat_template);
  return async ({ messages, tools }) => {
    const prompt = template.render({ messages, tools, bos_token: model.tokens.bosString, add_generation_prompt: true });
    const ids = model.tokenize(prompt, true);
    const answer = [];
    await sequence.clearHistory();
    for await (const id of sequence.evaluate([...ids], { temperature: 0, yieldEogToken: true })) {
      answer.push(id);
      if (model.isEogToken(id) || answer.length === Number(limit)) break;
    }
    return [prompt, ids, answer];
  };
}

const runtimes = {
  "transformers.js": transformersJs,
  "onnxruntime-node": onnxRuntimeNode,
  "node-llama-cpp": nodeLlamaCpp,
};
const respond = await runtimes[name]();
for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await respond(JSON.parse(line)))}\n`);
}
