"""Whether a graph is made as chatmill.onnx_export makes them, which its file alone has to prove.

Such a graph is opened without a trial (chatmill.engines.onnx.graph_probe), since it has no loops, functions, or files
beside it, its weights are as large as they say, and running it takes no more than reading each of them three times:

- Each operator gets tensors of the kinds that it gets in our graphs. No tensor is larger than B*T*n or B*H*T*S, where n
  is a dimension of a weight or of a product of heads, as activations keep their B and T first.
- Numbers that decide a size, such as those of Reshape and Range, are constants of known values or lengths of inputs.

Shapes: B batch, T time (tokens given), P past, S = P + T, C channels, H heads, D head size.
"""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from struct import unpack

from chatmill.engines.onnx.message_reader import BYTES, FIXED32, VARINT, Message, MessageReader

MAX_NODES, MAX_WIDTH, MAX_HEADS = 10_000, 1 << 20, 1 << 10  # MAX_HEADS is also that of D
MAX_ELEMENTS = 1 << 31  # of all activations for one token: the nodes times the widest of them
MAX_READS = 3  # of each weight, on average: a tied head is transposed and multiplied

# the fields of each message in onnx.proto that our graphs have, and their wire types
_MODEL = {1: VARINT, 2: BYTES, 7: BYTES, 8: BYTES, 14: BYTES}
_GRAPH = {1: BYTES, 2: BYTES, 5: BYTES, 11: BYTES, 12: BYTES}
_NODE = {1: BYTES, 2: BYTES, 3: BYTES, 4: BYTES, 5: BYTES, 7: BYTES}
_ATTRIBUTE = {1: BYTES, 2: FIXED32, 3: VARINT, 8: VARINT, 20: VARINT}
_WEIGHT = {1: VARINT, 2: VARINT, 8: BYTES, 9: BYTES}
_VALUE_INFO, _TYPE, _TENSOR = {1: BYTES, 2: BYTES}, {1: BYTES}, {1: VARINT, 2: BYTES}
_SHAPE, _DIM = {1: BYTES}, {1: VARINT, 2: BYTES}
_FLOAT, _UINT8, _INT8, _INT32, _INT64 = 1, 2, 3, 6, 7
_ITEM_SIZES = {_FLOAT: 4, _UINT8: 1, _INT8: 1, _INT64: 8}
_INPUTS = {(_INT64, 2): "ids", (_FLOAT, 4): "past", (_INT32, 0): "length", (_INT32, 1): "length", (_INT64, 1): "length"}
_WEIGHTS = {(_FLOAT, 1): "vector", (_FLOAT, 2): "matrix", (_INT8, 2): "int8", (_UINT8, 3): "blocks"}

# Kinds: hidden (B, T, n), kept (B, the last of T, n), heads (B, T, H, D), turned (B, H, T, D), size () of an input,
# range (T,) or (S,), column (T, 1), distance and causal (T, S), given (B, S), visible (B, 1, 1, S), mask (B, 1, T, S).
# Of constants, split is [0, 0, H, D], flat [0, 0, n], rows [V, -1].
_SIGNATURES = """
Add hidden hidden|vector -> hidden
And causal causal -> causal
And causal visible -> mask
Attention turned turned turned mask past past -> turned present present
Cast ids -> given
DynamicQuantizeMatMul hidden int8 vector -> hidden
DynamicQuantizeMatMul hidden int8 vector - vector -> hidden
Gather matrix ids -> hidden
GatherBlockQuantized bytes ids matrix -> hidden
GroupQueryAttention hidden hidden hidden past past length length matrix matrix -> hidden present present
Less distance zero|one|number -> causal
LessOrEqual range column -> causal
MatMul hidden matrix -> hidden
MatMul kept matrix -> kept
MatMulNBits hidden blocks matrix -> hidden
MatMulNBits kept blocks matrix -> kept
Mul hidden hidden -> hidden
Neg length -> numbers
RMSNormalization hidden vector -> hidden
RMSNormalization heads vector -> heads
Range zero|size size one -> range
Reshape hidden split -> heads
Reshape heads flat -> hidden
Reshape blocks rows -> bytes
RotaryEmbedding turned matrix matrix ids -> turned
Shape ids -> shape
Sigmoid hidden -> hidden
SimplifiedLayerNormalization hidden vector -> hidden
SimplifiedLayerNormalization heads vector -> heads
SkipSimplifiedLayerNormalization hidden hidden vector -> hidden - - hidden
Slice hidden numbers number one -> kept
Split hidden numbers|axes -> hidden hidden
Split hidden numbers -> hidden hidden hidden
Squeeze shape -> size
Sub size size -> size
Sub column range -> distance
Transpose matrix -> matrix
Transpose heads -> turned
Transpose turned -> heads
Unsqueeze range one -> column
Unsqueeze given axes -> visible
"""
_RULES = [tuple(side.split() for side in line.split(" -> ")) for line in _SIGNATURES.strip().splitlines()]
_CONTRIB = {"DynamicQuantizeMatMul", "GatherBlockQuantized", "GroupQueryAttention", "MatMulNBits"}
_CONTRIB |= {"SkipSimplifiedLayerNormalization"}
_ATTRIBUTES = {
    "Cast": {"to"},
    "GatherBlockQuantized": {"bits", "block_size", "gather_axis", "quantize_axis"},
    "GroupQueryAttention": {"num_heads", "kv_num_heads", "do_rotary", "local_window_size"},
    "MatMulNBits": {"N", "K", "bits", "block_size", "accuracy_level"},
    "RMSNormalization": {"axis", "epsilon"},
    "Shape": {"start", "end"},
    "SimplifiedLayerNormalization": {"axis", "epsilon"},
    "SkipSimplifiedLayerNormalization": {"epsilon"},
    "Split": {"axis"},
    "Transpose": {"perm"},
}


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of a graph."""

    kind: str
    dims: tuple[int, ...] = ()  # of a weight


class _Proof:
    """The tensors of a graph that were found so far. Methods raise ValueError where it is not as ours."""

    def __init__(self, reader: MessageReader, num_bytes: int) -> None:
        self._reader, self._values = reader, {"": _Value("-")}
        self._graph = reader.message((0, num_bytes), _MODEL).message(7, _GRAPH)
        self._widest = self._elements = self._read = 0  # elements of weights

    def check(self) -> None:
        """Read the complete graph."""
        for weight in self._graph.messages(5, _WEIGHT):
            self._define(weight.name(8), self._weight(weight))
        for tensor in self._graph.messages(11, _VALUE_INFO):
            self._define(tensor.name(1), _input(tensor))
        nodes = self._graph.messages(1, _NODE)
        for node in nodes:
            self._add(node)
        _expect(len(nodes) <= MAX_NODES and len(nodes) * self._widest <= MAX_ELEMENTS, "fewer nodes")
        _expect(self._read <= MAX_READS * self._elements, "fewer uses of the weights")

    def _define(self, name: str, value: _Value) -> None:
        _expect(bool(name) and name not in self._values, f"another name than {name!r}")
        self._values[name] = value

    def _weight(self, weight: Message) -> _Value:
        """The kind of a weight, which has to be as large as it says."""
        dims, dtype, (start, end) = tuple(weight.integers(1)), weight.integer(2), weight.span(9)
        fits = all(0 < dim <= MAX_WIDTH for dim in dims) and end - start == prod(dims) * _ITEM_SIZES.get(dtype, 0)
        _expect(fits, f"{dims} elements in {end - start} bytes")
        if dtype == _INT64:
            return self._constant(dims, self._reader.read((start, end), 64))
        value = _Value(_WEIGHTS[dtype, len(dims)], dims)
        self._elements += prod(dims)
        self._widest = max(self._widest, *dims)
        return value

    def _constant(self, dims: tuple[int, ...], data: bytes) -> _Value:
        """The kind of a constant of whole numbers, by its values."""
        numbers = unpack(f"<{len(data) // 8}q", data)
        match numbers:
            case (number,):
                return _Value({0: "zero", 1: "one"}.get(number, "number"))
            case (0, 0, heads, size) if 0 < heads <= MAX_HEADS and 0 < size <= MAX_HEADS:
                self._widest = max(self._widest, heads * size)
                return _Value("split")
            case (0, 0, _):
                return _Value("flat")
            case (rows, -1):
                return _Value("rows", (rows,))
        return _Value("axes" if numbers == (1, 2) else "numbers")

    def _add(self, node: Message) -> None:
        """Check an operator's inputs and attributes, and define its outputs."""
        operator, domain = node.name(4), node.name(7)
        _expect(domain == ("com.microsoft" if operator in _CONTRIB else ""), f"an operator of ours, not {operator!r}")
        inputs, outputs = [self._values[name] for name in node.names(1)], node.names(2)
        attributes = dict(map(_attribute, node.messages(5, _ATTRIBUTE)))
        _expect(attributes.keys() <= _ATTRIBUTES.get(operator, set()), f"other attributes of {operator}")
        kinds = _output_kinds(operator, [value.kind for value in inputs], len(outputs))
        dims = self._dims(operator, inputs, attributes)
        for name, kind in zip(outputs, kinds, strict=True):
            _expect(bool(name) == (kind != "-"), f"an output of {operator}")
            if name:
                self._define(name, _Value(kind, dims))

    def _dims(self, operator: str, inputs: list[_Value], attributes: dict[str, list[int]]) -> tuple[int, ...]:
        """The dimensions of a weight in another form; () for other outputs. Counts how often weights are read."""
        weights = [value.dims for value in inputs if value.kind in _WEIGHTS.values()]
        if operator.endswith(("MatMul", "MatMulNBits")) or operator in ("Transpose", "Reshape"):
            self._read += sum(map(prod, weights))
        if operator == "Transpose":
            _expect(attributes.get("perm") == ([1, 0] if weights else [0, 2, 1, 3]), "another order of dimensions")
            return weights[0][::-1] if weights else ()
        if operator == "MatMulNBits":
            _expect(attributes.get("N") == [weights[0][0]], "as many outputs as rows")
        if operator == "Reshape" and weights:
            _expect(inputs[1].dims == weights[0][:1] and prod(weights[0][1:]) <= MAX_WIDTH, "the rows of the matrix")
            self._widest = max(self._widest, 2 * prod(weights[0][1:]))  # of four bits
        return ()


def is_own(file: Path) -> bool:
    """Whether a graph is made as ours are."""
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Proof(MessageReader(data), len(data)).check()
    except (ValueError, LookupError):
        return False
    return True


def _expect(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(f"expected {what}")


def _input(tensor: Message) -> _Value:
    """The kind of an input by its type; only heads and their size have numbers for dimensions."""
    described = tensor.message(2, _TYPE).message(1, _TENSOR)
    dims = [dim.integers(1) for dim in described.message(2, _SHAPE).messages(1, _DIM)]
    kind = _INPUTS[described.integer(1), len(dims)]
    fixed = [number for dim in dims for number in dim]
    fits = (kind != "ids" or not fixed) and all(0 < number <= MAX_HEADS for number in fixed)
    _expect(fits and all(len(dim) < 2 for dim in dims), f"other dimensions of an input than {fixed}")
    return _Value(kind)


def _attribute(attribute: Message) -> tuple[str, list[int]]:
    """The name of an attribute and its whole numbers."""
    return attribute.name(1), attribute.integers(3) + attribute.integers(8)


def _output_kinds(operator: str, kinds: Sequence[str], count: int) -> list[str]:
    """The kinds of an operator's outputs for those of its inputs."""
    for (name, *patterns), outputs in _RULES:
        if (name, len(patterns), len(outputs)) == (operator, len(kinds), count) and all(
            kind in pattern.split("|") for kind, pattern in zip(kinds, patterns, strict=True)
        ):
            return outputs
    raise ValueError(f"{operator} of {', '.join(kinds)}")
