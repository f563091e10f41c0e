"""compressed-tensors' "pack-quantized" (https://github.com/vllm-project/compressed-tensors).

``weight_packed`` int32 (N, ceil(K * bits / 32)): bits b i of word (n, c) hold the code of row (32 / b) c + i, which is
the signed number plus 2^(b - 1). ``weight_scale`` (N, groups). ``weight_zero_point`` int32 (ceil(N * bits / 32),
groups), packed along N with the same offset. ``weight_shape`` (2): N and K. ``weight_g_idx`` int32 (K): the group of
each row.
"""

from typing import Any

import numpy as np

from jaxgemm._packing import BITS
from jaxgemm._quant import QuantizedMatrix, codes_of, from_codes
from jaxgemm.formats import _bits


def from_compressed_tensors(
    weight_packed: Any,
    weight_scale: Any,
    weight_zero_point: Any = None,
    weight_shape: Any = None,
    weight_g_idx: Any = None,
    *,
    bits: int = 4,
) -> QuantizedMatrix:
    """The matrix (K, N), that is the transpose of the layer's weight (N, K), of a pack-quantized layer.

    Args:
      weight_packed: int32 (N, ceil(K * bits / 32)).
      weight_scale: floating-point (N, groups); one group for whole rows of the weight.
      weight_zero_point: None where zeros are in the middle, else int32 (ceil(N * bits / 32), groups).
      weight_shape: None, or (N, K); needed where K is no multiple of the codes of a word.
      weight_g_idx: None, or int32 (K): the group of each row.
      bits: 4 or 8.

    Raises:
      TypeError, ValueError: tensors of other dtypes or shapes.
    """
    if bits not in BITS:
        raise ValueError(f"bits={bits!r} is none of {', '.join(map(str, BITS))}")
    codes = _bits.split(_bits.words(weight_packed, "weight_packed"), bits, 1)
    n, k = codes.shape
    if weight_shape is not None:
        shape = tuple(int(size) for size in np.asarray(weight_shape).ravel())
        if len(shape) != 2 or shape[0] != n or -(-shape[1] * bits // _bits.WORD_BITS) * _bits.WORD_BITS != k * bits:
            raise ValueError(f"weight_shape {shape} does not fit weight_packed of shape {np.shape(weight_packed)}")
        k = shape[1]
    scale = np.asarray(weight_scale)
    groups = scale.shape[1] if scale.ndim == 2 else 0
    _bits.check_shape("weight_scale", scale, (n, groups), f"weight_packed of {n} rows asks for")
    if groups == 0 or k % groups:
        raise ValueError(f"weight_scale has {groups} groups, which do not divide K={k}")
    zeros = None
    if weight_zero_point is not None:
        stored = _bits.words(weight_zero_point, "weight_zero_point")
        wanted = (-(-n * bits // _bits.WORD_BITS), groups)
        _bits.check_shape("weight_zero_point", stored, wanted, f"weight_scale of shape {scale.shape} asks for")
        zeros = np.ascontiguousarray(_bits.split(stored, bits, 0)[:n].T)
    rows, permutation, group_size = codes[:, :k].T, None, k // groups
    if weight_g_idx is not None and not (np.asarray(weight_g_idx) == -1).all():  # -1: not initialised
        g_idx = np.asarray(weight_g_idx)
        _bits.check_shape("weight_g_idx", g_idx, (k,), f"K={k} asks for")
        order = np.argsort(g_idx, kind="stable")
        if not np.array_equal(g_idx[order], np.arange(k) // group_size):
            raise ValueError(f"weight_g_idx does not name each of {groups} groups {group_size} times")
        if not np.array_equal(order, np.arange(k)):
            rows, permutation = rows[order], order.astype(np.int32)
    return from_codes(
        np.ascontiguousarray(rows), np.ascontiguousarray(scale.T), zeros, bits=bits, group_size=group_size,
        permutation=permutation,
    )  # fmt: skip


def to_compressed_tensors(matrix: QuantizedMatrix) -> dict[str, np.ndarray]:
    """The tensors of a pack-quantized layer, as :func:`from_compressed_tensors` takes them.

    Raises:
      ValueError: a matrix that the format cannot hold: with leading dimensions, K that is no multiple of the group, or
        zeros that are no integers of as many bits as the codes.
    """
    k, bits = matrix.k, matrix.bits
    zeros = None if matrix.zeros is None else np.asarray(matrix.zeros)
    if matrix.ndim != 2 or k % matrix.group_size:
        raise ValueError(f"pack-quantized cannot hold {matrix!r}: it wants two dimensions and whole groups along K")
    if zeros is not None and (zeros.dtype != np.uint8 or zeros.max(initial=0) >= 2**bits):
        raise ValueError(f"pack-quantized has integer zeros of {bits} bits, {matrix!r} has not")
    rows, g_idx = np.asarray(codes_of(matrix)), (np.arange(k) // matrix.group_size).astype(np.int32)
    tensors = {"weight_scale": np.ascontiguousarray(np.asarray(matrix.scales).T)}
    if matrix.permutation is not None:
        back = np.argsort(np.asarray(matrix.permutation))
        rows, tensors["weight_g_idx"] = rows[back], g_idx[back]
    if zeros is not None:
        tensors["weight_zero_point"] = _bits.join(np.ascontiguousarray(zeros.T), bits, 0)
    return tensors | {
        "weight_packed": _bits.join(np.ascontiguousarray(rows.T), bits, 1),
        "weight_shape": np.array([matrix.n, k], np.int64),
    }
