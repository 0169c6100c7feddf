"""The chat model as ONNX graphs, built node by node from its weights.

`portable` is the graph that other runtimes know: standard operators, Hugging Face's names for inputs and outputs, the
past handed in and the present handed out. `shared` is the one `chatmill chat` runs: ONNX Runtime's fused operators, and
a key-value cache that is written in place when the same buffer is bound to past and present.

Shapes: B batch, T time (tokens given), P past, L cache length, C channels, H heads, K key-value heads, D head size,
V vocabulary.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from onnx import ModelProto, TensorProto, ValueInfoProto, helper, numpy_helper

Weights = Mapping[str, np.ndarray]
Bits = Literal[8, 4]

FORMAT = 1
MAX_BYTES = 2**31 - 2**20  # one protobuf message; what remains is for the graph around the weights
HEAD_MULTIPLE = 16  # GroupQueryAttention rotates as many channels of a head at a time
BLOCK = 32  # weights that share a scale when quantized
_INT8_COMPUTE = 4  # MatMulNBits' accuracy_level: multiply in int8; without it decoding takes 2 to 3 times longer
_CONTRIB = "com.microsoft"


def portable(weights: Weights, config: Mapping[str, Any], metadata: Mapping[str, str]) -> ModelProto:
    """input_ids (B, T), attention_mask (B, P+T), position_ids (B, T), past (B, K, P, D) -> logits (B, T, V), present.

    P may be 0, and rows may be padded on the left where attention_mask is 0.
    """
    return _Portable(weights, config).model(metadata)


def shared(
    weights: Weights, config: Mapping[str, Any], metadata: Mapping[str, str], bits: Bits | None = None
) -> ModelProto:
    """input_ids (B, T), seqlens_k (B,), total_sequence_length (), logits_to_keep (1,), past (B, K, L, D) -> logits.

    total_sequence_length is how long the sequence is with the ids given, seqlens_k one less. The head is applied to the
    last logits_to_keep positions. Several ids after a past need B = 1: ONNX Runtime's operator takes no more. With
    `bits` the matrices are quantized.
    """
    return _Shared(weights, config, bits).model(metadata)


def write(model: ModelProto, file: Path) -> None:
    """Write a graph, the same bytes each time."""
    file.write_bytes(model.SerializeToString(deterministic=True))


class _Decoder:
    """A decoder under construction. Methods add operators and return the name of what comes out.

    Norms of queries and keys, biases and a head of its own are there where the weights have them.
    """

    def __init__(self, weights: Weights, config: Mapping[str, Any], bits: Bits | None = None) -> None:
        size = sum(weight.nbytes for weight in weights.values())
        if bits is None and size > MAX_BYTES:
            raise ValueError(
                f"the weights take {size} bytes, but an ONNX file holds {MAX_BYTES}: lower the model's size"
            )
        self.weights, self.config, self.bits = weights, config, bits
        self.epsilon = config["rms_norm_eps"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim = config["head_dim"]
        windowed = config["model_type"] == "mistral" or config.get("use_sliding_window")
        self.window = config["sliding_window"] if windowed else None
        self.nodes, self.initializers = [], []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []

    def model(self, metadata: Mapping[str, str]) -> ModelProto:
        """The finished model."""
        self.declare()
        logits = self.head(self.layers())
        self.outputs.insert(0, _tensor(logits, TensorProto.FLOAT, ["batch", "kept", self.config["vocab_size"]]))
        graph = helper.make_graph(self.nodes, "chatmill", self.inputs, self.outputs, self.initializers)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid(_CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11, producer_name="chatmill")
        context = {"context": str(self.config["max_position_embeddings"]), "format": str(FORMAT)}
        helper.set_model_props(model, {f"chatmill.{key}": value for key, value in (context | metadata).items()})
        return model

    def layers(self) -> str:
        """The normalised output of the last layer, (B, T, C)."""
        count = self.config["num_hidden_layers"]
        residual = self.node("Gather", [self.initializer("model.embed_tokens.weight"), "input_ids"], "embedded")
        x = self.norm(residual, "model.layers.0.input_layernorm")
        for i in range(count):
            layer = f"model.layers.{i}"
            attended = self.linear(self.attention(x, i), f"{layer}.self_attn.o_proj")
            x, residual = self.add_norm(residual, attended, f"{layer}.post_attention_layernorm")
            following = f"model.layers.{i + 1}.input_layernorm" if i + 1 < count else "model.norm"
            x, residual = self.add_norm(residual, self.feed_forward(x, f"{layer}.mlp"), following)
        return x

    def attention(self, x: str, i: int) -> str:
        """(B, T, C) -> (B, T, H*D): each position sees itself and its past."""
        layer = f"model.layers.{i}.self_attn"
        q, k, v = (self.linear(x, f"{layer}.{name}_proj") for name in "qkv")
        q = self.head_norm(q, f"{layer}.q_norm", self.heads)
        k = self.head_norm(k, f"{layer}.k_norm", self.kv_heads)
        past = [f"past_key_values.{i}.{name}" for name in ("key", "value")]
        present = [f"present.{i}.{name}" for name in ("key", "value")]
        for names, values, length in (past, self.inputs, "past"), (present, self.outputs, "total"):
            shape = ["batch", self.kv_heads, length, self.head_dim]
            values += [_tensor(name, TensorProto.FLOAT, shape) for name in names]
        return self.attend(q, k, v, past, present, layer)

    def feed_forward(self, x: str, layer: str) -> str:
        """(B, T, C) -> (B, T, C): SwiGLU."""
        gate, up = self.linear(x, f"{layer}.gate_proj"), self.linear(x, f"{layer}.up_proj")
        swish = self.node("Mul", [gate, self.node("Sigmoid", [gate], f"{layer}.sigmoid")], f"{layer}.swish")
        return self.linear(self.node("Mul", [swish, up], f"{layer}.gated"), f"{layer}.down_proj")

    def head_norm(self, x: str, name: str, heads: int) -> str:
        """(B, T, heads*D) -> (B, T, heads, D), each head normalised where the model does that."""
        shape = self.constant(f"heads.{heads}", np.array([0, 0, heads, self.head_dim]))
        split = self.node("Reshape", [x, shape], f"{name}.split")
        return self.norm(split, name) if f"{name}.weight" in self.weights else split

    def head(self, x: str) -> str:
        """(B, T, C) -> logits (B, T, V)."""
        if self.bits is None and "lm_head.weight" not in self.weights:  # the embedding, kept once in the file
            head = self.node("Transpose", ["model.embed_tokens.weight"], "lm_head.weight", perm=[1, 0])
            return self.node("MatMul", [x, head], "logits")
        weight = self.weights.get("lm_head.weight", self.weights["model.embed_tokens.weight"])
        return self.multiply(x, weight, "lm_head", "logits")

    def linear(self, x: str, name: str) -> str:
        """(B, T, inputs) -> (B, T, outputs)."""
        if f"{name}.bias" not in self.weights:
            return self.multiply(x, self.weights[f"{name}.weight"], name, name)
        product = self.multiply(x, self.weights[f"{name}.weight"], name, f"{name}.product")
        return self.node("Add", [product, self.initializer(f"{name}.bias")], name)

    def multiply(self, x: str, weight: np.ndarray, name: str, output: str) -> str:
        """x by a matrix (outputs, inputs), quantized where that is asked for."""
        if self.bits is None:
            return self.node("MatMul", [x, self.constant(f"{name}.weight", weight.T)], output)
        packed, scales = quantize(weight, self.bits)
        matrix = [self.constant(f"{name}.weight", packed), self.constant(f"{name}.scale", scales)]
        rows, columns = weight.shape
        shape = {"N": rows, "K": columns, "bits": self.bits, "block_size": BLOCK, "accuracy_level": _INT8_COMPUTE}
        return self.node("MatMulNBits", [x, *matrix], output, domain=_CONTRIB, **shape)

    def rotations(self) -> list[str]:
        """The names of the cosines and sines, each (context, D/2)."""
        exponents = np.arange(0, self.head_dim, 2, dtype=np.float32) / np.float32(self.head_dim)
        frequencies = np.float32(1) / np.float32(self.config["rope_theta"]) ** exponents
        if scaling := self.config.get("rope_scaling"):
            frequencies = slowed(frequencies, scaling)
        positions = np.arange(self.config["max_position_embeddings"], dtype=np.float32)
        angles = np.outer(positions, frequencies)
        return [self.constant("cosines", np.cos(angles)), self.constant("sines", np.sin(angles))]

    def node(self, operator: str, inputs: list[str], output: str, *more: str, domain: str = "", **kwargs: Any) -> str:
        """Add an operator, named after its first output."""
        self.nodes.append(helper.make_node(operator, inputs, [output, *more], output, domain=domain, **kwargs))
        return output

    def initializer(self, name: str) -> str:
        """Add one of the model's weights as it is."""
        return self.constant(name, self.weights[name])

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add an array, once."""
        if all(tensor.name != name for tensor in self.initializers):
            self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name


class _Portable(_Decoder):
    """Standard operators of opset 23."""

    def declare(self) -> None:
        """Add the inputs, the mask and the rotations."""
        names = {
            "input_ids": ["batch", "time"],
            "attention_mask": ["batch", "total"],
            "position_ids": ["batch", "time"],
        }
        self.inputs += [_tensor(name, TensorProto.INT64, shape) for name, shape in names.items()]
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
        """The second dimension of an input, as a scalar."""
        shape = self.node("Shape", [name], f"{output}.shape", start=1, end=2)
        return self.node("Squeeze", [shape], output)

    def attend(self, q: str, k: str, v: str, past: list[str], present: list[str], layer: str) -> str:
        """q (B, T, H, D), k (B, T, K, D), v (B, T, K*D) -> (B, T, H*D)."""
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


class _Shared(_Decoder):
    """ONNX Runtime's fused operators, and a cache that is written in place."""

    def declare(self) -> None:
        """Add the inputs and the rotations. Raises ValueError for heads that the operator cannot rotate."""
        if self.head_dim % HEAD_MULTIPLE:
            raise ValueError(
                f"head_dim = {self.head_dim}: ONNX Runtime takes multiples of {HEAD_MULTIPLE}: take fewer or more heads"
            )
        self.inputs += [
            _tensor("input_ids", TensorProto.INT64, ["batch", "time"]),
            _tensor("seqlens_k", TensorProto.INT32, ["batch"]),
            _tensor("total_sequence_length", TensorProto.INT32, []),
            _tensor("logits_to_keep", TensorProto.INT64, [1]),
        ]
        self.cos_sin = self.rotations()

    def attend(self, q: str, k: str, v: str, past: list[str], present: list[str], layer: str) -> str:
        """q (B, T, H, D), k (B, T, K, D), v (B, T, K*D) -> (B, T, H*D). The operator rotates q and k itself."""
        flat = self.constant("flat", np.array([0, 0, -1]))
        q, k = (self.node("Reshape", [x, flat], f"{x}.flat") for x in (q, k))
        inputs = [q, k, v, *past, "seqlens_k", "total_sequence_length", *self.cos_sin]
        heads = {"num_heads": self.heads, "kv_num_heads": self.kv_heads, "do_rotary": 1}
        heads |= {"local_window_size": self.window} if self.window else {}
        return self.node("GroupQueryAttention", inputs, f"{layer}.attended", *present, domain=_CONTRIB, **heads)

    def norm(self, x: str, name: str) -> str:
        """RMSNorm over the last dimension."""
        weight = self.initializer(f"{name}.weight")
        return self.node("SimplifiedLayerNormalization", [x, weight], name, axis=-1, epsilon=self.epsilon)

    def add_norm(self, x: str, y: str, name: str) -> tuple[str, str]:
        """The normalised sum, and the sum."""
        inputs, total = [x, y, self.initializer(f"{name}.weight")], f"{name}.sum"
        outputs = [name, "", "", total]
        self.node("SkipSimplifiedLayerNormalization", inputs, *outputs, domain=_CONTRIB, epsilon=self.epsilon)
        return name, total

    def head(self, x: str) -> str:
        """(B, T, C) -> logits of the last `logits_to_keep` positions."""
        start = self.node("Neg", ["logits_to_keep"], "first_kept")
        end, axis = self.constant("end", np.array([2**62])), self.constant("time_axis", np.array([1]))
        return super().head(self.node("Slice", [x, start, end, axis], "kept"))


def quantize(weight: np.ndarray, bits: Bits) -> tuple[np.ndarray, np.ndarray]:
    """A matrix (N, C) as MatMulNBits reads it: bytes (N, blocks, BLOCK*bits/8) and scales (N*blocks,).

    A weight is (q - 2^(bits-1)) * scale, and the largest of each block is kept within half a step. Four-bit values
    stand two to a byte, the earlier in the lower half.
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
    return values, scales.astype(np.float32).ravel()


def slowed(frequencies: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    """(D/2,) -> (D/2,) in radians a position, as chatmill.model.RopeScaling slows them."""
    kept = np.float32(0)
    if scaling["rope_type"] == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = scaling["original_max_position_embeddings"] * frequencies / np.float32(2 * np.pi)
        kept = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    return (1 - kept) * frequencies / np.float32(scaling["factor"]) + kept * frequencies


def _tensor(name: str, kind: int, shape: list[int | str]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)
