"""Small external decoders, and ONNX graphs of them in the shapes of common exporters."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import partial

import onnx
import torch
from onnx import TensorProto, helper
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertLMHeadModel,
    BloomConfig,
    DynamicCache,
    GPT2Config,
    LlamaConfig,
)

VOCAB_SIZE, CONTEXT, LAYERS = 96, 48, 2
SHAPE = {"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "attn_implementation": "eager"}
SHAPE |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
SHAPE |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.3}
CONFIGS = {
    "gpt2": GPT2Config(**SHAPE),
    "llama": LlamaConfig(**SHAPE, num_key_value_heads=2),
    "bert": BertConfig(**SHAPE, is_decoder=True),
    "bloom": BloomConfig(**SHAPE),
}
CACHE_NAMES = [f"past_key_values.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]


def make(kind):
    torch.manual_seed(len(kind))
    make_model = BertLMHeadModel if kind == "bert" else AutoModelForCausalLM.from_config
    return make_model(CONFIGS[kind]).eval().requires_grad_(False)


MODELS = {kind: make(kind) for kind in CONFIGS}


@torch.inference_mode()
def logits_of(kind, ids):
    """The logits (T, V) of the original."""
    return MODELS[kind](input_ids=torch.tensor([ids])).logits[0].numpy()


def read(kind, ids, past=None, **inputs):
    """The logits, and the present as a list of keys and values."""
    cache = DynamicCache()
    for layer in range(LAYERS if past else 0):
        cache.update(past[2 * layer], past[2 * layer + 1], layer)
    result = MODELS[kind](input_ids=ids, past_key_values=cache, use_cache=True, **inputs)
    return result.logits, [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def export(file, forward: Callable[..., dict], inputs, dynamic):
    """Trace `forward(**inputs)`, which names its outputs; `dynamic` names open dimensions by input and axis."""
    outputs = list(forward(**inputs))

    class Graph(torch.nn.Module):
        def forward(self, *tensors):
            return tuple(forward(**dict(zip(inputs, tensors, strict=True))).values())

    names = {"input_names": list(inputs), "output_names": outputs, "dynamic_axes": dynamic}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what tracing cannot follow; the logits are compared
        torch.onnx.export(Graph(), tuple(inputs.values()), file, dynamo=False, opset_version=17, **names)


def plain(file, kind="gpt2", *, extra=(), last=False):
    """A graph without a past, which returns all logits or the last alone."""
    tensors = {name: torch.ones(1, 3, dtype=torch.long) for name in ("input_ids", *extra)}

    def forward(input_ids, **inputs):
        inputs.setdefault("attention_mask", torch.ones_like(input_ids))
        logits = MODELS[kind](input_ids=input_ids, use_cache=False, **inputs).logits
        return {"logits": logits[:, -1:] if last else logits}

    export(file, forward, tensors, {name: {0: "batch", 1: "time"} for name in tensors})


def cached(file, kind="llama", *, dtype=torch.float32, mask=torch.int32, time=3, keep=False):
    """A graph with a past of (batch, heads, past, size), and with `keep` an input num_logits_to_keep."""
    heads = 2 if kind == "llama" else 4
    inputs = {"input_ids": torch.ones(1, time, dtype=torch.int32), "attention_mask": torch.ones(1, 2 + time).to(mask)}
    if kind != "bloom":
        inputs["position_ids"] = torch.arange(2, 2 + time)[None]
    if keep:
        inputs["num_logits_to_keep"] = torch.tensor(2)
    caches = {name: torch.zeros(1, heads, 2, 8).to(dtype) for name in CACHE_NAMES}

    def forward(input_ids, num_logits_to_keep=None, **inputs):
        past = [inputs.pop(name).float() for name in CACHE_NAMES]
        inputs["attention_mask"] = inputs["attention_mask"].long()
        logits, found = read(kind, input_ids.long(), past, **inputs)
        if keep:
            logits = logits.index_select(1, logits.shape[1] - num_logits_to_keep + torch.arange(num_logits_to_keep))
        presents = [name.replace("past_key_values", "present") for name in CACHE_NAMES]
        return {"logits": logits} | {name: tensor.to(dtype) for name, tensor in zip(presents, found, strict=True)}

    open_time = {} if time == 1 else {1: "time"}
    dynamic = {"input_ids": open_time, "position_ids": open_time, "attention_mask": {1: "total"}}
    dynamic |= {name: {2: "past"} for name in CACHE_NAMES}
    export(file, forward, inputs | caches, {name: dynamic[name] for name in inputs | caches if name in dynamic})


def stacked(file):
    """GPT-2 with the past of its own exports: past_0 (2, batch, heads, past, size)."""
    names = [f"past_{layer}" for layer in range(LAYERS)]
    inputs = {"input_ids": torch.ones(1, 3, dtype=torch.long)} | {n: torch.zeros(2, 1, 4, 2, 8) for n in names}

    def forward(input_ids, **pasts):
        logits, found = read("gpt2", input_ids, [tensor for past in pasts.values() for tensor in past.unbind()])
        return {"logits": logits} | {f"present_{i}": torch.stack(found[2 * i : 2 * i + 2]) for i in range(LAYERS)}

    export(file, forward, inputs, {"input_ids": {1: "time"}} | {name: {1: "batch", 3: "past"} for name in names})


def merged(file):
    """Two graphs in one: that for tokens after a past, where use_cache_branch is true, reads a single one."""
    cached(file, time=1)
    following = onnx.load(file)
    cached(file)
    first = onnx.load(file)
    inputs = [helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]), *first.graph.input]
    outputs = [deepcopy(output) for output in first.graph.output]  # before their names in the branch change
    branches = {"else_branch": _body(first, "first_"), "then_branch": _body(following, "next_")}
    node = helper.make_node("If", ["use_cache_branch"], [output.name for output in outputs], **branches)
    model = helper.make_model(helper.make_graph([node], "merged", inputs, outputs), opset_imports=first.opset_import)
    model.ir_version = first.ir_version
    onnx.save(model, file)


def _body(model, prefix):
    """A graph as the body of a branch: outer inputs keep their names, all other names get a prefix."""
    graph, outside = model.graph, {node.name for node in model.graph.input}
    rename = lambda name: name if not name or name in outside else prefix + name  # noqa: E731
    for node in graph.node:
        node.input[:] = map(rename, node.input)
        node.output[:] = map(rename, node.output)
    for tensor in (*graph.initializer, *graph.output):
        tensor.name = rename(tensor.name)
    graph.ClearField("input")
    graph.ClearField("value_info")
    return graph


GRAPHS = {  # by their special feature: the original, and how it is exported
    "ids alone": ("gpt2", plain),
    "a mask": ("llama", partial(plain, kind="llama", extra=["attention_mask"])),
    "types of tokens": ("bert", partial(plain, kind="bert", extra=["attention_mask", "token_type_ids"])),
    "the last logits alone": ("gpt2", partial(plain, last=True)),
    "keys and values": ("llama", cached),
    "keys and values of bert": ("bert", partial(cached, kind="bert")),
    "keys and values of bloom": ("bloom", partial(cached, kind="bloom")),
    "half precision": ("llama", partial(cached, dtype=torch.float16)),
    "a mask of floats": ("llama", partial(cached, mask=torch.float32)),
    "logits to keep": ("gpt2", partial(cached, kind="gpt2", keep=True)),
    "a stacked past": ("gpt2", stacked),
    "branches": ("llama", merged),
}
