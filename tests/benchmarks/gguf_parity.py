"""What llama.cpp makes of a model's GGUF files, compared with chatmill: ids, prompts, answers, ends, bits per byte.

    python tests/benchmarks/gguf_parity.py [MODEL] [CONVERSATIONS] [--texts FOLDER] [--times N] [--chats N] [--limit N]

MODEL is a folder that train_model wrote (default: data/model), or a GGUF file, which both read; CONVERSATIONS is a file
that mix wrote (default: data/chat/test.jsonl). FOLDER has real texts, as those of tests/support/hard_texts.py; without
it, the texts are made. llama.cpp keeps its cache in float32. Where an answer differs, the row shows the gap between the
two largest logits of chatmill at the first other token: the smaller, the less it means.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import llama_cpp
import numpy as np
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

import export_gguf
from chatmill.conversation import Conversation
from chatmill.engines.engine import Engine
from chatmill.evaluation.bits_per_byte import make_scorer
from chatmill.evaluation.corpus import Corpus
from chatmill.evaluation.held_out_set import read_test_set
from chatmill.inference.model_loading import LoadedModel, load_model
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from support.hard_texts import is_refused, make_texts
from support.texts import NAUGHTY

QUANTIZED = ["f16", "q8_0", "q4_0"]
MAX_TOKENS = 96  # of an answer
MOST_TOKENS = 1024  # of a conversation with a file whose context is longer


class LlamaEngine:
    """A GGUF file in llama.cpp, as an engine."""

    device = "cpu"

    def __init__(self, file: Path, context: int, threads: int) -> None:
        self.name, self.context = f"llama.cpp {file.stem.removeprefix('model-')}", context
        kind = llama_cpp.GGML_TYPE_F32
        settings = {"n_threads": threads, "n_threads_batch": threads, "n_batch": context, "verbose": False}
        self.opened = llama_cpp.Llama(str(file), n_ctx=context, type_k=kind, type_v=kind, logits_all=True, **settings)
        self.vocab_size = self.opened.n_vocab()

    @property
    def length(self) -> int:
        return self.opened.n_tokens

    def rewind(self, length: int) -> None:
        self.opened.n_tokens = length

    def append(self, ids: Sequence[int]) -> np.ndarray:
        self.opened.eval(ids)
        return self.opened.scores[self.length - 1].copy()

    def sequence_logits(self, ids: Sequence[int]) -> np.ndarray:
        self.rewind(0)
        self.append(ids)
        return self.opened.scores[: len(ids)].copy()


def compare_ids(tokenizer: ChatTokenizer, llama: LlamaEngine, texts_by_name: dict[str, list[str]]) -> None:
    """Print on how many texts of each category the ids are equal, and the shortest others."""
    total = right = 0
    for name, texts in texts_by_name.items():
        given = [text for text in texts if not is_refused(tokenizer, text)]
        other = [
            text
            for text, ids in zip(given, tokenizer.encode(given), strict=True)
            if llama.opened.tokenize(text.encode(), add_bos=False, special=False) != ids
        ]
        shown = ", ".join(ascii(text)[:40] for text in sorted(other, key=len)[:3])
        total, right = total + len(given), right + len(given) - len(other)
        print(f"| ids, {name} | {len(given) - len(other):,} of {len(given):,} | {shown} |", flush=True)
    print(f"| ids, all | {right:,} of {total:,} | |", flush=True)


def compare_prompts(loaded: LoadedModel, llama: LlamaEngine, conversations: list[Conversation]) -> None:
    """Print how many prompts have the text and the ids of chatmill, by the template in the file."""
    names = [llama.opened._model.token_get_text(i) for i in (llama.opened.token_eos(), llama.opened.token_bos())]
    formatter = Jinja2ChatFormatter(llama.opened.metadata["tokenizer.chat_template"], *names)
    texts = ids = 0
    for conversation in conversations:
        segments = loaded.template.prompt(conversation)
        found = formatter(messages=[{"role": one.role, "content": one.text} for one in conversation]).prompt
        texts += found == "".join(segment.text for segment in segments)
        given = llama.opened.tokenize(found.encode(), add_bos=True, special=True)
        ids += given == loaded.tokenizer.encode_segments(segments)[0]
    print(f"| prompts, text and ids | {texts} and {ids} of {len(conversations)} | |", flush=True)


def answer(engine: Engine, prompt: list[int], stop_ids: frozenset[int]) -> list[int]:
    """The ids of greedy decoding, the one that ends it included."""
    engine.rewind(0)
    ids, unread = [], prompt
    while len(ids) < MAX_TOKENS and not stop_ids & set(ids[-1:]) and engine.length + 1 < engine.context:
        unread = [int(engine.append(unread).argmax())]
        ids += unread
    return ids


def compare_answers(loaded: LoadedModel, llama: LlamaEngine, conversations: list[Conversation]) -> None:
    """Print how many greedy answers are equal and how many end, and the gap of logits where another one begins."""
    gaps, ended = [], [0, 0]
    for conversation in conversations:
        prompt = loaded.tokenizer.encode_segments(loaded.template.prompt(conversation))[0]
        ours, theirs = (answer(engine, prompt, loaded.stop_ids) for engine in (loaded.engine, llama))
        ended = [count + (ids[-1] in loaded.stop_ids) for count, ids in zip(ended, (ours, theirs), strict=True)]
        if ours != theirs:
            first = next(i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other)
            loaded.engine.rewind(0)
            largest = np.sort(loaded.engine.append(prompt + ours[:first]))[-2:]
            gaps.append(float(largest[1] - largest[0]))
    count = len(conversations)
    shown = ", ".join(f"{gap:.1e}" for gap in sorted(gaps, reverse=True)[:5])
    print(f"| answers, {loaded.engine.name} and {llama.name} | {count - len(gaps)} of {count} | gaps: {shown or '-'} |")
    print(f"| answers that end | {ended[0]} and {ended[1]} of {count} | |", flush=True)


def compare_ends(loaded: LoadedModel, llama: LlamaEngine) -> None:
    """Print which tokens end an answer in llama.cpp."""
    vocab = llama_cpp.llama_model_get_vocab(llama.opened.model)
    found = {i for i in range(llama.vocab_size) if llama_cpp.llama_vocab_is_eog(vocab, i)}
    names = ", ".join(loaded.tokenizer.vocabulary.tokens[i].decode() for i in sorted(found))
    print(f"| tokens that end an answer | {'equal' if found == loaded.stop_ids else 'other'} | {names} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=Path("data/model"))
    parser.add_argument("conversations", type=Path, nargs="?", default=Path("data/chat/test.jsonl"))
    parser.add_argument("--texts", type=Path, metavar="FOLDER")
    parser.add_argument("--times", type=int, default=1, metavar="N", help="times 28,000 texts")
    parser.add_argument("--chats", type=int, default=100, metavar="N", help="prompts that are answered")
    parser.add_argument("--limit", type=int, default=200, metavar="N", help="conversations for bits per byte")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    loaded, test = load_model(options.model, "cpu", options.threads), read_test_set(options.conversations)
    step = max(1, len(test.records) // options.limit)
    prompts = [talk[:1] if talk[0].role == "user" else talk[:2] for talk in test.conversations]
    prompts = prompts[:: max(1, len(prompts) // options.chats)][: options.chats]
    texts = make_texts(options.texts, options.times) | {"own": NAUGHTY}
    print("| | llama.cpp as chatmill | |\n|---|---|---|")
    if options.model.suffix == ".gguf":
        llama = LlamaEngine(options.model, min(loaded.engine.context, MOST_TOKENS), options.threads)
        compare_ends(loaded, llama)
        compare_ids(loaded.tokenizer, llama, texts)
        ids = [loaded.tokenizer.encode_segments(loaded.template.prompt(one))[0] for one in prompts]
        prompts = [one for one, of_one in zip(prompts, ids, strict=True) if len(of_one) < MOST_TOKENS - MAX_TOKENS]
        compare_prompts(loaded, llama, prompts)
        compare_answers(loaded, llama, prompts)
        return
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "gguf"
        export_gguf.main(options.model, files, quantize=QUANTIZED)
        context = loaded.engine.context
        engines = {
            kind: LlamaEngine(files / f"model-{kind}.gguf", context, options.threads) for kind in ["f32", *QUANTIZED]
        }
        compare_ends(loaded, engines["f32"])
        compare_ids(loaded.tokenizer, engines["f32"], texts)
        compare_prompts(loaded, engines["f32"], prompts)
        same_weights = load_model(files / "model-q8_0.gguf", "cpu", options.threads)
        same_weights.engine.name = "chatmill on q8_0"
        for ours, kind in ((loaded, "f32"), (loaded, "q8_0"), (same_weights, "q8_0")):
            compare_answers(ours, engines[kind], prompts)
        corpus = Corpus.from_records(test.records[::step], loaded.tokenizer, loaded.engine.template)
        expected = None
        for engine in (loaded.engine, same_weights.engine, *engines.values()):
            nats = corpus.nats(context, make_scorer(engine))
            bits = corpus.bits_per_byte(nats, trained_only=False)
            expected = expected or bits
            print(f"| bits per byte, {engine.name} | {bits:.6f} | {bits / expected - 1:+.4%} |", flush=True)


if __name__ == "__main__":
    main()
