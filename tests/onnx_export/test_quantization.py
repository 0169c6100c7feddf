import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chatmill.onnx_export.decoder_graph import BLOCK, quantize

MATRICES = arrays(np.float32, (3, 40), elements=st.floats(-4, 4, width=32))
BITS = st.sampled_from([8, 4])


def dequantize(values, scales, columns):
    """Bytes (N, K, BLOCK*bits/8) and scales (N, K) -> the matrix (N, C) that MatMulNBits multiplies by."""
    bits = 8 * values.shape[-1] // BLOCK
    if bits == 4:
        values = np.stack([values & 15, values >> 4], axis=-1).reshape(*values.shape[:-1], BLOCK)
    matrix = (values.astype(np.float32) - 2 ** (bits - 1)) * scales[..., None]
    return matrix.reshape(len(values), -1)[:, :columns]


def test_four_bits_stand_two_to_a_byte_the_earlier_in_the_lower_half():
    values, scales = quantize(np.arange(-8, 8, dtype=np.float32).repeat(2)[None] / 2, 4)
    assert values.tobytes().hex() == "00112233445566778899aabbccddeeff"
    values, _ = quantize(np.tile(np.arange(-8, 8, dtype=np.float32), 2)[None] / 2, 4)
    assert values.tobytes().hex() == "1032547698badcfe" * 2
    np.testing.assert_allclose(scales, [[0.5]])


def test_eight_bits_stand_above_128():
    weight = np.zeros((1, 32), np.float32)
    weight[0, :4] = -128, -1, 0, 127
    values, scales = quantize(weight, 8)
    assert values[0, 0, :5].tolist() == [0, 127, 128, 255, 128]
    np.testing.assert_allclose(scales, [[1]])


@given(MATRICES, BITS)
def test_weights_are_within_a_step_and_the_extremes_of_blocks_are_kept(weight, bits):
    values, scales = quantize(weight, bits)
    restored = dequantize(values, scales, 40)
    steps = np.abs(scales).repeat([32, 8], axis=1)
    assert (np.abs(restored - weight) <= steps * (1 + 1e-3) + 1e-12).all()
    largest = np.abs(weight[:, :32]).argmax(axis=1)
    np.testing.assert_allclose(restored[range(3), largest], weight[range(3), largest], rtol=1e-5, atol=1e-30)
