"""The formats in which a tokenizer can be exported."""

from typing import Literal

ExportFormat = Literal["binary", "llama2c", "tiktoken_pickle", "tiktoken", "huggingface", "sentencepiece"]
