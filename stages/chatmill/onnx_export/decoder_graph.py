"""A decoder as an ONNX graph, built node by node, and quantized matrices in the layout of its operators.

Shapes of a matrix: N outputs (rows), C inputs (columns), K blocks of a row: C / BLOCK, rounded up. In a graph: B texts,
T positions, C channels, H heads of queries, G heads of keys and values, D channels of a head, V tokens.
"""

import json
from collections.abc import Mapping, Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

# Quantized matrices, in the layout of ONNX Runtime's operators.

BitWidth = Literal[8, 4]

LARGEST = 64  # of an int8 weight whose inputs are quantized dynamically: 2 * 255 * 64 < 2^15 (quantize_per_output)
BLOCK = 32  # weights that share a scale; 16 took 18 % more space, 64 lost twice as much on one of three models


def quantize(weight: NDArray[np.float32], bits: BitWidth) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """A matrix (N, C) for MatMulNBits and GatherBlockQuantized: bytes (N, K, BLOCK*bits/8) and scales (N, K).

    A weight is (q - 2^(bits-1)) * scale, and the largest of each block is exact. Four-bit values are packed two to a
    byte, the earlier one in the lower half. A search for the scales of least squared error improved one model of three
    and worsened another.
    """
    rows, columns = weight.shape
    blocks = np.pad(weight, ((0, 0), (0, -columns % BLOCK))).reshape(rows, -1, BLOCK)
    zero = 2 ** (bits - 1)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    scales = largest / -zero  # the signed extreme takes the one value that has no opposite
    steps = np.divide(blocks, scales, out=np.zeros_like(blocks), where=scales != 0)
    values = np.clip(np.rint(steps) + zero, 0, 2 * zero - 1).astype(np.uint8)
    if bits == 4:
        values = values[..., 0::2] | values[..., 1::2] << 4
    return values, scales[..., 0]


def quantize_per_output(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A matrix (N, C) for DynamicQuantizeMatMul: int8 (C, N), and a scale for each output (N,).

    A weight is q * scale, and the largest of each output is -64 or 64. Processors with AVX2 but without VNNI add two
    products of a weight and an eight-bit input in a 16-bit integer, and larger weights would overflow it: with 127 a
    model needed 34 % more bits there. Unsigned weights would not overflow, but a graph of them takes 1.3 times as long.
    """
    scales = np.abs(weight).max(axis=1) / LARGEST
    steps = np.divide(weight.T, scales, out=np.zeros_like(weight.T), where=scales != 0)
    return np.rint(steps).astype(np.int8), scales


# A decoder as an ONNX graph for other runtimes, built node by node from the weights of a model.

NumpyWeights = Mapping[str, NDArray[np.float32]]

INLINE = 1024  # bytes from which a tensor is a reference, where the weights are in another file
_NEAR = 2**23  # bytes between the end of a tensor and the next one of another graph, at most
_ALIGNMENT = 64


class WeightsFile:
    """A file with the large tensors of graphs, none of them twice: a graph may refer to a part of another's tensor."""

    def __init__(self, file: Path) -> None:
        self.file, self._at = file, 0
        file.touch()
        self._size = file.stat().st_size
        with file.open("rb") as stream:
            self._earlier = mmap(stream.fileno(), 0, access=ACCESS_READ) if self._size else b""

    def reference(self, array: NDArray[Any], name: str) -> TensorProto:
        """A tensor that refers to this file, to which it is added unless an earlier graph did."""
        near = max(0, self._at - _NEAR), self._at + _NEAR + array.nbytes
        places = (self._at, self._at + array.nbytes), near  # where the next tensor of an earlier graph is, mostly
        start = next((found for place in places if (found := self._earlier.find(array.data, *place)) >= 0), None)
        if start is None:
            start = -(-self._size // _ALIGNMENT) * _ALIGNMENT
            with self.file.open("ab") as stream:
                stream.write(bytes(start - self._size))
                stream.write(array.data)
            self._size = start + array.nbytes
        self._at = start + array.nbytes
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        tensor = TensorProto(name=name, dims=array.shape, data_type=kind, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.file.name), ("offset", start), ("length", array.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor


FORMAT = 1
CONTRIB = "com.microsoft"  # the domain of operators that only ONNX Runtime has
_ACCURACY = 4  # MatMulNBits multiplies in int8; in float32 (1) decoding takes 2 to 3 times longer
_EMBEDDING = "model.embed_tokens"


class Portable:
    """input_ids (B, T), attention_mask (B, P+T), position_ids (B, T), past (B, G, P, D) -> logits (B, T, V), present.

    P may be 0, and rows may be padded on the left where attention_mask is 0. Operators are standard ones of opset 23,
    but for quantized matrices. transformers.js recognises B by the name `batch_size`, and takes other open sizes for P.

    Methods add operators and return the name of their output. Norms of queries and keys, biases and an untied head are
    added where the weights have them.
    """

    def __init__(
        self,
        weights: NumpyWeights,
        config: Mapping[str, Any],
        bits: BitWidth | None = None,
        file: WeightsFile | None = None,
        *,
        is_dynamic: bool = False,
    ) -> None:
        """With `is_dynamic`, layers multiply in int8, and embedding and head by `bits`: it reads long texts fastest.

        All tokens of a call then share a scale in each layer, so that logits depend a little on what is read together.
        """
        self.weights, self.config, self.bits, self.file, self.is_dynamic = weights, config, bits, file, is_dynamic
        self.epsilon = config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim: int = config["head_dim"]
        windowed = config["model_type"] == "mistral" or config.get("use_sliding_window")
        self.window = config["sliding_window"] if windowed else None
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def build(self, metadata: Mapping[str, str]) -> ModelProto:
        self.declare_inputs()
        logits = self.head(self.layers())
        self.outputs.insert(0, tensor(logits, TensorProto.FLOAT, ["batch_size", "kept", self.config["vocab_size"]]))
        graph = helper.make_graph(self.nodes, "chatmill", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11, producer_name="chatmill")
        properties = {"config": json.dumps(self.config), "context": str(self.config["max_position_embeddings"])}
        properties |= {"format": str(FORMAT), **metadata}
        helper.set_model_props(model, {f"chatmill.{key}": value for key, value in properties.items()})
        return model

    def declare_inputs(self) -> None:
        names = {
            "input_ids": ["batch_size", "time"],
            "attention_mask": ["batch_size", "total"],
            "position_ids": ["batch_size", "time"],
        }
        self.inputs += [tensor(name, TensorProto.INT64, shape) for name, shape in names.items()]
        self.cos_sin = self.rotations()
        self.mask = self.causal_mask()

    def causal_mask(self) -> str:
        """(B, 1, T, P+T), True where a position may look."""
        zero, one = self.constant("zero", np.array(0)), self.constant("one", np.array(1))
        total = self.size("attention_mask", "total")
        first = self.node("Sub", [total, self.size("input_ids", "time")], "past")
        rows = self.node("Unsqueeze", [self.node("Range", [first, total, one], "rows"), one], "queries")
        columns = self.node("Range", [zero, total, one], "keys")
        causal = self.node("LessOrEqual", [columns, rows], "causal")
        if self.window:
            width = self.constant("window", np.array(self.window))
            near = self.node("Less", [self.node("Sub", [rows, columns], "distance"), width], "near")
            causal = self.node("And", [causal, near], "causal.near")
        given = self.node("Cast", ["attention_mask"], "given", to=TensorProto.BOOL)
        axes = self.constant("axes", np.array([1, 2]))
        return self.node("And", [causal, self.node("Unsqueeze", [given, axes], "visible")], "mask")

    def size(self, name: str, output: str) -> str:
        shape = self.node("Shape", [name], f"{output}.shape", start=1, end=2)
        return self.node("Squeeze", [shape], output)

    def layers(self) -> str:
        """The normalised output of the last layer, (B, T, C)."""
        count = self.config["num_hidden_layers"]
        residual = self.embedding()
        x = self.norm(residual, "model.layers.0.input_layernorm")
        for i in range(count):
            layer = f"model.layers.{i}"
            attended = self.linear(self.attention(x, i), f"{layer}.self_attn.o_proj")
            x, residual = self.add_norm(residual, attended, f"{layer}.post_attention_layernorm")
            following = f"model.layers.{i + 1}.input_layernorm" if i + 1 < count else "model.norm"
            x, residual = self.add_norm(residual, self.feed_forward(x, f"{layer}.mlp"), following)
        return x

    def embedding(self) -> str:
        """The rows of the embedding, (B, T, C); quantized, it is the matrix that a tied head multiplies by."""
        if self.bits is None or self.config["hidden_size"] % BLOCK:  # the operator gives whole blocks
            return self.node("Gather", [self.initializer(f"{_EMBEDDING}.weight"), "input_ids"], "embedded")
        matrix, scales = self.quantized(_EMBEDDING, self.bits)
        shape = self.constant("embedding.shape", np.array([self.config["vocab_size"], -1]))
        inputs = [self.node("Reshape", [matrix, shape], "embedding.rows"), "input_ids", scales]
        blocks = {"bits": self.bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
        return self.node("GatherBlockQuantized", inputs, "embedded", domain=CONTRIB, **blocks)

    def attention(self, x: str, i: int) -> str:
        """(B, T, C) -> (B, T, H*D): each position sees itself and its past."""
        layer = f"model.layers.{i}.self_attn"
        q, k, v = self.linears(x, layer, ["q_proj", "k_proj", "v_proj"])
        q = self.head_norm(q, f"{layer}.q_norm", self.heads)
        k = self.head_norm(k, f"{layer}.k_norm", self.kv_heads)
        past = [f"past_key_values.{i}.{name}" for name in ("key", "value")]
        present = [f"present.{i}.{name}" for name in ("key", "value")]
        for names, values, length in (past, self.inputs, "past"), (present, self.outputs, "total"):
            shape = ["batch_size", self.kv_heads, length, self.head_dim]
            values.extend(tensor(name, TensorProto.FLOAT, shape) for name in names)
        return self.attend(q, k, v, past, present, layer)

    def attend(self, q: str, k: str, v: str, past: list[str], present: list[str], layer: str) -> str:
        """q (B, T, H, D), k (B, T, G, D), v (B, T, G*D) -> (B, T, H*D)."""
        split = self.node("Reshape", [v, f"heads.{self.kv_heads}"], f"{layer}.v_split")
        heads = []
        for name, x in zip("qkv", (q, k, split), strict=True):
            x = self.node("Transpose", [x], f"{layer}.{name}_heads", perm=[0, 2, 1, 3])
            if name != "v":
                x = self.node("RotaryEmbedding", [x, *self.cos_sin, "position_ids"], f"{layer}.{name}_rotated")
            heads.append(x)
        attended = self.node("Attention", [*heads, self.mask, *past], f"{layer}.heads", *present)
        rows = self.node("Transpose", [attended], f"{layer}.rows", perm=[0, 2, 1, 3])
        flat = self.constant("flat", np.array([0, 0, self.heads * self.head_dim]))
        return self.node("Reshape", [rows, flat], f"{layer}.attended")

    def norm(self, x: str, name: str) -> str:
        """RMSNorm over the last dimension."""
        weight = self.initializer(f"{name}.weight")
        return self.node("RMSNormalization", [x, weight], name, axis=-1, epsilon=self.epsilon)

    def add_norm(self, x: str, y: str, name: str) -> tuple[str, str]:
        """The normalised sum, and the sum."""
        total = self.node("Add", [x, y], f"{name}.sum")
        return self.norm(total, name), total

    def feed_forward(self, x: str, layer: str) -> str:
        """(B, T, C) -> (B, T, C): SwiGLU."""
        gate, up = self.linears(x, layer, ["gate_proj", "up_proj"])
        swish = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{layer}.sigmoid")], f"{layer}.swish")
        return self.linear(self.node("Mul", [swish, up], f"{layer}.gated"), f"{layer}.down_proj")

    def head_norm(self, x: str, name: str, heads: int) -> str:
        """(B, T, heads*D) -> (B, T, heads, D), each head normalised where the model does that."""
        shape = self.constant(f"heads.{heads}", np.array([0, 0, heads, self.head_dim]))
        split = self.node("Reshape", [x, shape], f"{name}.split")
        return self.norm(split, name) if f"{name}.weight" in self.weights else split

    def head(self, x: str) -> str:
        """(B, T, C) -> logits (B, T, V)."""
        if "lm_head.weight" in self.weights:
            return self.multiply(x, "lm_head", "logits")
        if self.bits:
            return self.multiply(x, _EMBEDDING, "logits")
        head = self.node("Transpose", [f"{_EMBEDDING}.weight"], "lm_head.weight", perm=[1, 0])
        return self.node("MatMul", [x, head], "logits")

    def linears(self, x: str, layer: str, names: list[str]) -> list[str]:
        return [self.linear(x, f"{layer}.{name}") for name in names]

    def linear(self, x: str, name: str) -> str:
        """(B, T, inputs) -> (B, T, outputs): x times the matrix `name`, plus its bias if the weights have one."""
        has_bias = f"{name}.bias" in self.weights
        if self.is_dynamic:
            values, scales = quantize_per_output(self.weights[f"{name}.weight"])
            inputs = [x, self.constant(f"{name}.int8", values), self.constant(f"{name}.scales", scales)]
            inputs += ["", self.initializer(f"{name}.bias")] if has_bias else []
            return self.node("DynamicQuantizeMatMul", inputs, name, domain=CONTRIB)
        if not has_bias:
            return self.multiply(x, name, name)
        product = self.multiply(x, name, f"{name}.product")
        return self.node("Add", [product, self.initializer(f"{name}.bias")], name)

    def multiply(self, x: str, name: str, output: str) -> str:
        """x times a matrix (outputs, inputs), quantized if `bits` is set."""
        weight = self.weights[f"{name}.weight"]
        if self.bits is None:
            return self.node("MatMul", [x, self.constant(f"{name}.weight", weight.T)], output)
        rows, columns = weight.shape
        shape = {"N": rows, "K": columns, "bits": self.bits, "block_size": BLOCK, "accuracy_level": _ACCURACY}
        return self.node("MatMulNBits", [x, *self.quantized(name, self.bits)], output, domain=CONTRIB, **shape)

    def quantized(self, name: str, bits: BitWidth) -> list[str]:
        """The names of a quantized matrix and of its scales, which are added once."""
        names = [f"{name}.{bits}_bits", f"{name}.scales"]
        if not self.has(names[0]):
            values, scales = quantize(self.weights[f"{name}.weight"], bits)
            self.constant(names[0], values)
            self.constant(names[1], scales)
        return names

    def rotations(self) -> list[str]:
        """The names of the cosines and sines, each (context, D/2)."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = np.float32(1) / np.float32(self.config["rope_theta"]) ** exponents
        if scaling := self.config.get("rope_scaling"):
            frequencies = scale_rope_frequencies(frequencies, scaling)
        positions = np.arange(self.config["max_position_embeddings"], dtype=np.float32)
        angles = np.outer(positions, frequencies)
        return [self.constant("cosines", np.cos(angles)), self.constant("sines", np.sin(angles))]

    def node(self, operator: str, inputs: list[str], output: str, *more: str, domain: str = "", **kwargs: Any) -> str:
        """Add an operator, named after its first output."""
        self.nodes.append(helper.make_node(operator, inputs, [output, *more], output, domain=domain, **kwargs))
        return output

    def initializer(self, name: str) -> str:
        return self.constant(name, self.weights[name])

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """Add an array, once."""
        if not self.has(name):
            array = np.ascontiguousarray(array)
            add = self.file.reference if self.file and array.nbytes >= INLINE else numpy_helper.from_array
            self.initializers.append(add(array, name))
        return name

    def has(self, name: str) -> bool:
        return any(array.name == name for array in self.initializers)


def scale_rope_frequencies(frequencies: NDArray[np.floating], scaling: Mapping[str, Any]) -> NDArray[np.floating]:
    """(D/2,) -> (D/2,) in radians per position, scaled as chatmill.checkpoints.configuration.RopeScaling."""
    unscaled = np.float32(0)
    if scaling["rope_type"] == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequencies / np.float32(2 * np.pi)
        unscaled = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    return (1 - unscaled) * frequencies / np.float32(scaling["factor"]) + unscaled * frequencies


def tensor(name: str, kind: int, shape: Sequence[int | str]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
