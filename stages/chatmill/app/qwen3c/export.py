"""The files with which qwen3.c chats: the model, the tokenizer, and the prompts as templates of C's printf.

model.bin                                   see chatmill.app.qwen3c.model_file
model.bin.tokenizer                         tokenizer.bin, of which the engine reads the records
model.bin.template                          a prompt with %s for the user's text
model.bin.template.with-system              with %s for the system text before it
model.bin.template.with-thinking, model.bin.template.with-system-and-thinking     the same two: our models do not think
"""

from pathlib import Path

from chatmill.app.qwen3c.model_file import engine_config, unsupported, write_model_file
from chatmill.conversation.chatml import Message
from chatmill.gguf_export.gguf_files import Source, read_source
from chatmill.gguf_export.unsupported import UnsupportedModel
from chatmill.inference.chat_template import ChatTemplate
from chatmill.tokenizer.formats.binary import write_binary
from chatmill.tokenizer.formats.llama2c import greedy_unsupported_reason

MODEL = "model.bin"
MAX_TEMPLATE = 1023  # bytes that the engine reads, without the zero at the end
_USER, _SYSTEM = "chatmill-user-text", "chatmill-system-text"


def export_qwen3c(model: Path, out: Path) -> str | None:
    """Write the files into a new folder; return why the engine gives some texts other ids, None where it gives none.

    Raises ValueError where the files cannot express the model.
    """
    try:
        source = read_source(model)
    except UnsupportedModel as problem:
        raise unsupported("it has neither chunks of tokens, nor a head that spells") from problem
    tokenizer = source.tokenizer.vocabulary
    if source.template is None:
        raise ValueError(f"{model}: its chat template is not known, and qwen3.c needs prompts: use transformers")
    if len(tokenizer.tokens) > source.config.vocab_size:
        raise ValueError(f"{model}: {len(tokenizer.tokens):,} tokens, but rows for {source.config.vocab_size:,}")
    engine_config(source.config)  # raises before anything is written
    templates = {"": _prompt(source.template, []), ".with-system": _prompt(source.template, [_SYSTEM])}
    out.mkdir()
    write_model_file(out / MODEL, source.config, source.weights, len(tokenizer.tokens))
    write_binary(tokenizer, out / f"{MODEL}.tokenizer")
    for name, text in templates.items():
        thinking = f"{name}-and-thinking" if name else ".with-thinking"
        for suffix in (name, thinking):
            (out / f"{MODEL}.template{suffix}").write_bytes(text)
    return _other_ids(source)


def _other_ids(source: Source) -> str | None:
    """Why the engine, which merges all of a text by scores, gives other ids than the tokenizer."""
    vocabulary = source.tokenizer.vocabulary
    if reason := greedy_unsupported_reason(vocabulary):
        return reason
    splits = vocabulary.algorithm == "merge" and vocabulary.pattern is not None
    return "it merges without splitting the text first" if splits else None


def _prompt(template: ChatTemplate, system: list[str]) -> bytes:
    """A prompt for printf. Raises ValueError where it is longer than the engine reads."""
    messages = [*(Message.from_text("system", text) for text in system), Message.from_text("user", _USER)]
    text = "".join(segment.text for segment in template.prompt(messages)).replace("%", "%%")
    data = text.replace(_SYSTEM, "%s").replace(_USER, "%s").encode()
    if len(data) > MAX_TEMPLATE:
        raise ValueError(f"qwen3.c reads prompts of {MAX_TEMPLATE:,} bytes, and the template has {len(data):,}")
    return data
