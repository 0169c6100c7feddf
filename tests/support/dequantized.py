"""The matrix by which ONNX Runtime's operators multiply, computed from a quantized one in NumPy."""

import numpy as np

from chatmill.onnx_export.decoder_graph import BLOCK


def dequantize(values, scales, columns):
    """Bytes (N, K, BLOCK*bits/8) and scales (N, K) -> the matrix (N, C) that MatMulNBits multiplies by."""
    bits = 8 * values.shape[-1] // BLOCK
    if bits == 4:
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:-1], BLOCK)
    matrix = (values.astype(np.float32) - 2 ** (bits - 1)) * scales[..., None]
    return matrix.reshape(len(values), -1)[:, :columns]
