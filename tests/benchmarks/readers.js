/** The ids that a JavaScript library gives to texts: standard input is {reader, folder, texts}, standard output a list.
 *
 * It is run in a folder where the libraries are installed.
 */

import { readFileSync } from "node:fs";

const READERS = {
  "transformers.js": async (folder) => {
    const { AutoTokenizer } = await import("@huggingface/transformers");
    const tokenizer = await AutoTokenizer.from_pretrained(folder);
    return (text) => tokenizer.encode(text, { add_special_tokens: false });
  },
  "js-tiktoken": async (folder) => {
    const { Tiktoken } = await import("js-tiktoken/lite");
    const { pattern, special_tokens, ranks } = readRanks(folder);
    const bpe_ranks = ["! 0", ...ranks.map(([token]) => token)].join(" ");
    const encoding = new Tiktoken({ pat_str: pattern, special_tokens, bpe_ranks });
    return (text) => encoding.encode(text, [], []);
  },
  tiktoken: async (folder) => {
    const { Tiktoken } = await import("tiktoken/lite");
    const { pattern, special_tokens, ranks } = readRanks(folder);
    const encoding = new Tiktoken(ranks.map((rank) => rank.join(" ")).join("\n"), special_tokens, pattern);
    return (text) => [...encoding.encode_ordinary(text)];
  },
};

/** The content of a tokenizer.tiktoken and the description beside it. */
function readRanks(folder) {
  const { pattern, special_tokens } = JSON.parse(readFileSync(`${folder}/tokenizer.tiktoken.json`));
  const lines = readFileSync(`${folder}/tokenizer.tiktoken`, "utf8").trimEnd().split("\n");
  return { pattern, special_tokens, ranks: lines.map((line) => line.split(" ")) };
}

const { reader, folder, texts } = JSON.parse(readFileSync(0));
const encode = await READERS[reader](folder);
process.stdout.write(JSON.stringify(texts.map(encode)));
