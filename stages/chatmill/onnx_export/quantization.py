"""Quantized matrices, in the layout of ONNX Runtime's operators.

Shapes: N outputs (rows), C inputs (columns), K blocks of a row: C / BLOCK, rounded up.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

BitWidth = Literal[8, 4]

LARGEST = 64  # of a dynamically quantized weight: 2 * 255 * 64 < 2^15; see quantize_outputs
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


def quantize_outputs(weight: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """A matrix (N, C) for DynamicQuantizeMatMul: int8 (C, N), and a scale for each output (N,).

    A weight is q * scale, and the largest of each output is -64 or 64. Processors with AVX2 but without VNNI add two
    products of a weight with an input of eight bits in 16 bits, which larger weights overflow: with 127 a model needed
    34 % more bits there. Unsigned weights would not overflow, but a graph of them takes 1.3 times as long.
    """
    scales = np.abs(weight).max(axis=1) / LARGEST
    steps = np.divide(weight.T, scales, out=np.zeros_like(weight.T), where=scales != 0)
    return np.rint(steps).astype(np.int8), scales
