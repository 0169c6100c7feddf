"""Values of enumerated parameters, which together are every allowed one, and a run of the whole pipeline with each."""

import shutil

from support.external_tokenizers import llama_like, ranks_like

PRETRAINED = "data/raw/external/pretrained"
TEACHER = "data/raw/external/teacher/earlier"
# two lists, for two files of tests that run beside each other
TOKENIZERS = [
    {"train_tokenizer.bpe.pattern": "llama3", "train_tokenizer.bpe.trainer": "tokenizers"},
    {"train_tokenizer.bpe.pattern": "cl100k", "export_onnx.quantize": ["int8", "int8_dynamic", "int4"]},
    {"train_tokenizer.type": "char", "export_tokenizer.formats": ["huggingface"], "train_model.start": "random"},
    {"train_tokenizer.type": "sentencepiece", "train_tokenizer.sentencepiece.algorithm": "bpe"},
    {"train_tokenizer.type": "pretrained"},
    {"train_tokenizer.type": "pretrained", "train_tokenizer.pretrained.path": f"{PRETRAINED}/t.model"},
    {"train_tokenizer.type": "pretrained", "train_tokenizer.pretrained.path": f"{PRETRAINED}/t.tiktoken"},
]
TRAINING = [
    {"train_tokenizer.type": "byte", "train_model.compile": True, "train_model.keep": "best"}
    | {"score_teacher.ngram_order": 4},
    {"train_tokenizer.type": "wordpiece", "train_model.compile": "auto"}
    | {"train_model.steps": None, "train_model.epochs": 0.1},
    {"train_tokenizer.type": "sentencepiece", "train_tokenizer.sentencepiece.algorithm": "unigram"}
    | {"score_teacher.teacher": TEACHER, "score_teacher.ngram_order": 3},
    {"train_tokenizer.bpe.pattern": "gpt2", "encode.template": "markers", "export_gguf.quantize": ["f16", "q4_0"]}
    | {"train_model.embedding": "bytes", "train_model.tie_embeddings": False}
    | {"train_soft_tokenizer.tune": 2, "train_soft_tokenizer.noise": True},
    {"train_tokenizer.bpe.pattern": "nanochat", "train_model.precision": "float32"}
    | {"train_model.chunking": "learned", "score_teacher.ngram_order": 2},
    {"train_tokenizer.bpe.pattern": "o200k", "train_model.precision": "bfloat16"}
    | {"train_model.chunking": "fixed", "train_model.head": "bytes"},
    {"train_tokenizer.type": "whitespace", "mix.near_duplicates": False}
    | {"train_model.chunking": "autoencoder", "train_model.embedding": "bytes"},
]


def run_with(values, copy, project):
    """The stages that run the second time, after `copy` has run with the parameters of `project` but these values."""
    shutil.copy(project.folder / "params.yaml", copy.folder / "params.yaml")
    if values.get("train_tokenizer.type") == "pretrained":
        raw = copy.folder / PRETRAINED
        shutil.copy(copy.folder / "data/tokenizer/tokenizer.json", raw / "tokenizer.json")
        llama_like(raw)  # with a space before every text, and control tokens before those of text
        ranks_like(raw)  # with gaps between control tokens
    copy.edit(values)
    copy.repro()
    return copy.repro()


def as_id(values):
    """The name of a test."""
    return "-".join(map(str, values.values()))
