"""The chat model as ONNX graphs.

`Portable` is the graph for other runtimes: standard operators, Hugging Face's names for inputs and outputs, a past that
is passed in and a present that is returned. `Shared` is the graph of `chatmill chat`: ONNX Runtime's fused operators,
and a key-value cache that is written in place when the same buffer is bound to past and present.

Shapes: B batch, T time (tokens given), P past, L cache length, C channels, H heads, K key-value heads, D head size,
V vocabulary.
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, helper, numpy_helper
from safetensors import SafetensorError
from safetensors.numpy import load_file

from chatmill.engines.engine import ONNX_FILES
from chatmill.onnx_export.decoder_graph import CONTRIB, INLINE, BitWidth, NumpyWeights, Portable, WeightsFile, tensor
from chatmill.pipeline import manifest

HEAD_MULTIPLE = 16  # GroupQueryAttention rotates the channels of a head in blocks of this size


def write(model: ModelProto, file: Path) -> None:
    """Write a graph, the same bytes each time."""
    file.write_bytes(model.SerializeToString(deterministic=True))


class Shared(Portable):
    """input_ids (B, T), seqlens_k (B,), total_sequence_length (), logits_to_keep (1,), past (B, K, L, D) -> logits.

    total_sequence_length is the length of the sequence with the given ids, seqlens_k one less. The head is applied to
    the last logits_to_keep positions. Several ids after a past need B = 1: ONNX Runtime's operator supports no more.
    """

    def declare_inputs(self) -> None:
        """Add the inputs and rotary positions. Raises ValueError for a head size that the operator cannot rotate."""
        if self.head_dim % HEAD_MULTIPLE:
            raise ValueError(
                f"head_dim = {self.head_dim}: ONNX Runtime needs a multiple of {HEAD_MULTIPLE}: set other heads"
            )
        self.inputs += [
            tensor("input_ids", TensorProto.INT64, ["batch_size", "time"]),
            tensor("seqlens_k", TensorProto.INT32, ["batch_size"]),
            tensor("total_sequence_length", TensorProto.INT32, []),
            tensor("logits_to_keep", TensorProto.INT64, [1]),
        ]
        self.cos_sin = self.rotations()

    def attend(self, q: str, k: str, v: str, past: list[str], present: list[str], layer: str) -> str:
        """q (B, T, H, D), k (B, T, K, D), v (B, T, K*D) -> (B, T, H*D). The operator rotates q and k itself."""
        flat = self.constant("flat", np.array([0, 0, -1]))
        q, k = (self.node("Reshape", [x, flat], f"{x}.flat") for x in (q, k))
        inputs = [q, k, v, *past, "seqlens_k", "total_sequence_length", *self.cos_sin]
        heads = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "do_rotary": 1}
        heads |= {"local_window_size": self.window} if self.window else {}
        return self.node("GroupQueryAttention", inputs, f"{layer}.attended", *present, domain=CONTRIB, **heads)

    def norm(self, x: str, name: str) -> str:
        weight = self.initializer(f"{name}.weight")
        return self.node("SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=self.epsilon)

    def linears(self, x: str, layer: str, names: list[str]) -> list[str]:
        """The products of several matrices with the same x, in one node: threads synchronise once, not for each."""
        if self.bits is None:  # in float32, memory bandwidth is the limit
            return super().linears(x, layer, names)
        parts, joined = [f"{layer}.{name}" for name in names], f"{layer}.{'_'.join(names)}"
        kinds = ["weight", *(["bias"] if f"{parts[0]}.bias" in self.weights else [])]
        merged = {
            f"{joined}.{kind}": np.concatenate([self.weights[f"{part}.{kind}"] for part in parts]) for kind in kinds
        }
        sizes = self.constant(f"{joined}.sizes", np.array([len(self.weights[f"{part}.weight"]) for part in parts]))
        self.weights = {**self.weights, **merged}
        self.node("Split", [self.linear(x, joined), sizes], *parts, axis=-1)
        return parts

    def add_norm(self, x: str, y: str, name: str) -> tuple[str, str]:
        inputs, total = [x, y, self.initializer(f"{name}.weight")], f"{name}.sum"
        outputs = [name, "", "", total]
        self.node("SkipSimplifiedLayerNormalization", inputs, *outputs, domain=CONTRIB, epsilon=self.epsilon)
        return name, total

    def head(self, x: str) -> str:
        """(B, T, C) -> logits of the last `logits_to_keep` positions."""
        start = self.node("Neg", ["logits_to_keep"], "first_kept")
        end, axis = self.constant("end", np.array([2**62])), self.constant("time_axis", np.array([1]))
        return super().head(self.node("Slice", [x, start, end, axis], "kept"))


# The files with which ONNX Runtime GenAI runs our `Shared` graph: a graph with the inputs it expects, and settings.

CONFIG_FILE = "genai_config.json"
GRAPH_FILE = "model_genai.onnx"
_REPLACED = ("seqlens_k", "total_sequence_length", "logits_to_keep")
_SHAPE = ("hidden_size", "num_attention_heads", "num_hidden_layers", "num_key_value_heads")
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")


def graph(file: Path) -> ModelProto:
    """input_ids (B, T), attention_mask (B, P+T), past -> logits (B, 1, V) of the last position.

    It is the `Shared` graph of the file with other inputs. Its weights are read from that file, or where that one reads
    them, so that it has to be in the same folder.
    """
    model = onnx.load(file, load_external_data=False)
    _replace_inputs(model.graph)
    _reference_weights(file, model.graph.initializer)
    return model


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The content of genai_config.json: greedy decoding until a text ends or fills the context."""
    context = config["max_position_embeddings"]
    parts = ("key", "value")
    decoder = {
        "session_options": {"provider_options": []},
        "filename": GRAPH_FILE,
        "head_size": config["head_dim"],
        **{name: config[name] for name in _SHAPE},
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            **{f"past_{part}_names": f"past_key_values.%d.{part}" for part in parts},
        },
        "outputs": {"logits": "logits", **{f"present_{part}_names": f"present.%d.{part}" for part in parts}},
    }
    model = {
        "type": "llama",  # any decoder with these inputs; the graph itself defines what it computes
        "vocab_size": config["vocab_size"],
        "context_length": context,
        **{name: config[name] for name in _TOKENS if name in config},
        "decoder": decoder,
    }
    return {"model": model, "search": {"do_sample": False, "max_length": context, "past_present_share_buffer": True}}


def _replace_inputs(graph: onnx.GraphProto) -> None:
    remaining = [node for node in graph.input if node.name not in _REPLACED]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch_size", "total"])
    one, axis = "attention_mask.one", "attention_mask.axis"
    constants = {"logits_to_keep": np.array([1]), one: np.array(1), axis: np.array([1])}
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("ReduceSum", ["attention_mask", axis], "attention_mask.sum", {"keepdims": 0}),
        ("Sub", ["attention_mask.sum", one], "attention_mask.last", {}),
        ("Cast", ["attention_mask.last"], "seqlens_k", {"to": TensorProto.INT32}),
        ("Shape", ["attention_mask"], "attention_mask.shape", {"start": 1, "end": 2}),
        ("Squeeze", ["attention_mask.shape"], "attention_mask.length", {}),
        ("Cast", ["attention_mask.length"], "total_sequence_length", {"to": TensorProto.INT32}),
    ]
    after = list(graph.node)
    for field in ("input", "node"):
        graph.ClearField(field)
    graph.input.extend([*remaining, mask])
    graph.node.extend(
        helper.make_node(operator, inputs, [output], output, **attributes)
        for operator, inputs, output, attributes in nodes
    )
    graph.node.extend(after)
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    graph.output[0].type.tensor_type.shape.dim[1].dim_value = 1  # by this, GenAI knows that there is only one position


def _reference_weights(file: Path, tensors: Iterable[TensorProto]) -> None:
    """Replace the large tensors of a graph by references to a file, which holds them in this order."""
    weights = WeightsFile(file)
    for large in tensors:
        if len(large.raw_data) >= INLINE:
            large.CopyFrom(weights.reference(numpy_helper.to_array(large), large.name))


# The folder of the export: which graphs each precision has, and the files beside the graphs.

WEIGHTS = "model.safetensors"
LARGE = 100_000_000  # bytes of float32 weights; from there on, the graphs of a precision share a file of weights


class Precision(NamedTuple):
    """The files of its graphs, and their parameters."""

    shared: str
    portable: str  # whose precision transformers.js knows by this name
    bits: BitWidth | None = None
    is_dynamic: bool = False


GRAPHS = {
    "float32": Precision(ONNX_FILES["onnx"], ONNX_FILES["onnx_hf"]),
    "int8": Precision(ONNX_FILES["onnx_int8"], "model_quantized.onnx", 8),
    "int8_dynamic": Precision(ONNX_FILES["onnx_int8_dynamic"], "model_int8.onnx", 8, is_dynamic=True),
    "int4": Precision(ONNX_FILES["onnx_int4"], "model_q4.onnx", 4),
}
TRANSFORMERS_JS = {"dtype": "fp32"}  # in browsers its default is q8


def write_graphs(
    precision: str, weights: NumpyWeights, config: Mapping[str, Any], metadata: Mapping[str, str], folder: Path
) -> None:
    """Write the graphs of a precision; of large models, with their weights in one file beside them."""
    shared, portable, bits, is_dynamic = GRAPHS[precision]
    data = folder / f"{portable}_data" if is_large(weights) else None
    for name, graph_type in ((shared, Shared), (portable, Portable)):
        file = WeightsFile(data) if data else None
        write(graph_type(weights, config, bits, file, is_dynamic=is_dynamic).build(metadata), folder / name)


def is_large(weights: NumpyWeights) -> bool:
    return sum(weight.nbytes for weight in weights.values()) >= LARGE


def read_model_folder(folder: Path) -> tuple[NumpyWeights, dict[str, Any]]:
    """The weights of a model folder and its config.json. Raises ValueError where train_model did not write it."""
    manifest.check_manifest(folder)
    config_file, weights_file = folder / "config.json", folder / WEIGHTS
    config = json.loads(config_file.read_text(encoding="utf-8"))
    if "chatmill" not in config:
        raise ValueError(f"{config_file}: expected a model that train_model wrote")
    try:
        return load_file(weights_file), config
    except SafetensorError as error:
        raise ValueError(f"{weights_file}: not a safetensors file: {error}") from error


def write_config_and_tokenizer(model: Path, config: dict[str, Any], folder: Path, *, has_weights_file: bool) -> None:
    """Copy a model's folder without its weights, and add the settings of transformers.js to config.json."""
    ignore = shutil.ignore_patterns("*.safetensors", manifest.MANIFEST_NAME)
    shutil.copytree(model, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)
    settings = TRANSFORMERS_JS | ({"use_external_data_format": True} if has_weights_file else {})
    content = config | {"transformers.js_config": settings}
    (folder / "config.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def write_genai(folder: Path, config: dict[str, Any]) -> None:
    """Write the files of ONNX Runtime GenAI: settings, and a small graph with the weights of the `Shared` one."""
    write(graph(folder / ONNX_FILES["onnx"]), folder / GRAPH_FILE)
    generation = folder / "generation_config.json"  # it has the ends of answers and of calls
    ends = json.loads(generation.read_text(encoding="utf-8")) if generation.exists() else {}
    genai = settings(config | ends)
    (folder / CONFIG_FILE).write_text(json.dumps(genai, indent=1) + "\n", encoding="utf-8")
