"""Small external decoders, and ONNX graphs of them in the shapes of common exporters."""

import warnings
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial

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

from chatmill.checkpoints.configuration import to_hugging_face
from chatmill.onnx_export import graphs as onnx_graph
from support import tiny

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


class Recurrent(torch.nn.Module):
    """A decoder whose past is one state: `state = decay * state + embedding`."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(VOCAB_SIZE, 8), torch.nn.Linear(8, VOCAB_SIZE)

    def forward(self, ids, state):
        time = torch.arange(ids.shape[1])
        ages = time[:, None] - time
        states = torch.where(ages >= 0, 0.9**ages, 0.0) @ self.embed(ids) + 0.9 ** (time[:, None] + 1) * state
        return self.head(states), states[:, -1:]


random_model = cache(tiny.random_model)


def make(kind):
    torch.manual_seed(len(kind))
    if kind == "recurrent":
        return Recurrent().eval().requires_grad_(False)
    make_model = BertLMHeadModel if kind == "bert" else AutoModelForCausalLM.from_config
    return make_model(CONFIGS[kind]).eval().requires_grad_(False)


MODELS = {kind: make(kind) for kind in (*CONFIGS, "recurrent")}


@torch.inference_mode()
def logits_of(kind, ids):
    """The logits (T, V) of the original."""
    batch = torch.tensor([ids])
    if kind == "recurrent":
        return MODELS[kind](batch, torch.zeros(1, 1, 8))[0][0].numpy()
    if kind == "qwen3":
        return random_model()(batch)[0].numpy()
    return MODELS[kind](input_ids=batch).logits[0].numpy()


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


def plain(file, kind="gpt2", *, extra=(), time=None, batch=None, ids="input_ids", logits="logits", keep=None):
    """A graph without a past."""
    shape = (batch or 1, time or 3)
    tensors = {ids: torch.ones(shape, dtype=torch.long)}
    tensors |= {name: torch.ones(shape, dtype=torch.long) for name in extra}
    axes = {} if batch else {0: "batch"}
    axes |= {} if time else {1: "time"}

    def forward(**inputs):
        batch = inputs.pop(ids)
        inputs.setdefault("attention_mask", torch.ones_like(batch))
        found = MODELS[kind](input_ids=batch, use_cache=False, **inputs).logits
        return {logits: found if keep is None else found[:, -keep:]}

    export(file, forward, tensors, {name: dict(axes) for name in tensors})


def cached(
    file,
    kind="llama",
    *,
    names=CACHE_NAMES,
    present=None,
    layout="bhpd",
    dtype=torch.float32,
    mask="2d",
    time=3,
    sizes=(),
):
    """A graph with a past; its dimensions are (batch, heads, past, size) unless `layout` is another."""
    to_model, to_graph, axis = LAYOUTS[layout]
    heads = 2 if kind == "llama" else 4
    caches = {name: to_graph(torch.zeros(1, heads, 2, 8)).to(dtype) for name in names}
    masks = {"2d": torch.ones(1, 2 + time)} | dict.fromkeys(("bool", "add"), torch.ones(1, 1, time, 2 + time))
    types = {"2d": torch.int32, "bool": torch.bool, "add": torch.float32}
    inputs = {"input_ids": torch.ones(1, time, dtype=torch.int32), "attention_mask": masks[mask].to(types[mask])}
    if kind != "bloom":
        inputs["position_ids"] = torch.arange(2, 2 + time)[None]

    def forward(input_ids, **inputs):
        past = [to_model(inputs.pop(name).float()) for name in names]
        if mask == "bool":
            inputs["attention_mask"] = torch.where(inputs["attention_mask"], 0.0, -1e9)
        logits, found = read(kind, input_ids.long(), past, **inputs)
        outputs = [to_graph(tensor).to(dtype) for tensor in found]
        after = present or [name.replace("past", "present") for name in names]
        return {"logits": logits} | dict(zip(after, outputs, strict=True))

    open_time = {} if time == 1 else {1: "time"}
    dynamic = {"input_ids": open_time, "position_ids": open_time}
    dynamic |= {name: {axis: "past"} | dict.fromkeys(sizes, "size") for name in names}
    dynamic["attention_mask"] = {1: "total"} if mask == "2d" else {2: "time", 3: "total"}
    export(file, forward, inputs | caches, {name: dynamic[name] for name in inputs | caches})


LAYOUTS = {
    "bhpd": (lambda x: x, lambda x: x, 2),
    "bphd": (lambda x: x.transpose(1, 2), lambda x: x.transpose(1, 2), 1),
    "hdp": (lambda x: x.transpose(1, 2)[None], lambda x: x[0].transpose(1, 2), 2),
}


def stacked(file):
    """GPT-2 with the past of its own exports: past_0 (2, batch, heads, past, size)."""
    names = [f"past_{layer}" for layer in range(LAYERS)]
    inputs = {"input_ids": torch.ones(1, 3, dtype=torch.long)} | {n: torch.zeros(2, 1, 4, 2, 8) for n in names}

    def forward(input_ids, **pasts):
        logits, found = read("gpt2", input_ids, [tensor for past in pasts.values() for tensor in past.unbind()])
        return {"logits": logits} | {f"present_{i}": torch.stack(found[2 * i : 2 * i + 2]) for i in range(LAYERS)}

    export(file, forward, inputs, {"input_ids": {1: "time"}} | {name: {1: "batch", 3: "past"} for name in names})


def recurrent(file):
    """A graph with one state in place of keys and values."""

    def forward(input_ids, past_state):
        logits, state = MODELS["recurrent"](input_ids, past_state)
        return {"logits": logits, "present_state": state}

    inputs = {"input_ids": torch.ones(1, 3, dtype=torch.long), "past_state": torch.zeros(1, 1, 8)}
    export(file, forward, inputs, {"input_ids": {0: "batch", 1: "time"}, "past_state": {0: "batch"}})


def merged(file, *, dummies=False):
    """Two graphs in one: without a past where use_cache_branch is false. Its presents are empty with `dummies`."""
    cached(file, time=1)
    following = onnx.load(file)
    cached(file)
    first = onnx.load(file)
    inputs = [helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]), *first.graph.input]
    outputs = [deepcopy(output) for output in first.graph.output]  # before their names in the branch change
    branches = {"else_branch": _body(first, "first_", dummies), "then_branch": _body(following, "next_", False)}
    node = helper.make_node("If", ["use_cache_branch"], [output.name for output in outputs], **branches)
    model = helper.make_model(helper.make_graph([node], "merged", inputs, outputs), opset_imports=first.opset_import)
    model.ir_version = first.ir_version
    onnx.save(model, file)


def fused(file, *, length=None):
    """Fused attention over a past that is a buffer of `length` tokens, or grows; without chatmill's metadata."""
    weights = {name: weight.numpy() for name, weight in random_model().state_dict().items()}
    model = onnx_graph.Shared(weights, to_hugging_face(tiny.CONFIG)).build({})
    model.ClearField("metadata_props")
    for node in (*model.graph.input, *model.graph.output):
        if length and "." in node.name:
            node.type.tensor_type.shape.dim[2].dim_value = length
    onnx.save(model, file)


def _body(model, prefix, dummies):
    """A graph as the body of a branch: outer inputs keep their names, all other names get a prefix."""
    graph, outside = model.graph, {node.name for node in model.graph.input}
    rename = lambda name: name if not name or name in outside else prefix + name  # noqa: E731
    for node in graph.node:
        node.input[:] = map(rename, node.input)
        node.output[:] = map(rename, node.output)
    for tensor in (*graph.initializer, *graph.output):
        tensor.name = rename(tensor.name)
    graph.ClearField("input")
    if dummies:
        for output in graph.output[1:]:
            graph.node.append(helper.make_node("ConstantOfShape", [prefix + "shape"], [output.name + "_dummy"]))
            output.name += "_dummy"
        graph.initializer.append(helper.make_tensor(prefix + "shape", TensorProto.INT64, [4], [1, 2, 0, 8]))
    graph.ClearField("value_info")
    return graph


GRAPHS = {  # by their special feature: the original, and how it is exported
    "ids alone": ("gpt2", plain),
    "a mask": ("llama", partial(plain, kind="llama", extra=["attention_mask"])),
    "types of tokens": ("bert", partial(plain, kind="bert", extra=["attention_mask", "token_type_ids"])),
    "a fixed length": ("bert", partial(plain, kind="bert", extra=["attention_mask"], time=CONTEXT)),
    "a fixed length without a mask": ("gpt2", partial(plain, time=CONTEXT)),
    "a fixed batch": ("gpt2", partial(plain, batch=3)),
    "the last logits alone": ("gpt2", partial(plain, keep=1)),
    "keys and values": ("llama", cached),
    "keys and values of gpt2": ("gpt2", partial(cached, kind="gpt2")),
    "keys and values of bert": ("bert", partial(cached, kind="bert")),
    "keys and values of bloom": ("bloom", partial(cached, kind="bloom")),
    "half precision": ("llama", partial(cached, dtype=torch.float16)),
    "bfloat16": ("llama", partial(cached, dtype=torch.bfloat16)),
    "a mask of booleans": ("llama", partial(cached, mask="bool")),
    "a mask that is added": ("llama", partial(cached, mask="add")),
    "time before heads": ("llama", partial(cached, layout="bphd")),
    "time last": ("llama", partial(cached, layout="hdp")),
    "heads of a size unknown": ("llama", partial(cached, sizes=[3])),
    "one token at once": ("llama", partial(cached, time=1)),
    "tokens at once": ("llama", partial(cached, time=4)),
    "other names of the past": (
        "llama",
        partial(cached, names=["k0", "v0", "k1", "v1"], present=["k0_out", "v0_out", "k1_out", "v1_out"]),
    ),
    "a stacked past": ("gpt2", stacked),
    "a state": ("recurrent", recurrent),
    "a past of another operator": ("qwen3", fused),
    "a buffer": ("qwen3", partial(fused, length=CONTEXT)),
    "branches": ("llama", merged),
    "branches with dummies": ("llama", partial(merged, dummies=True)),
}
