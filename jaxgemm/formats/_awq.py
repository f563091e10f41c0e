"""AWQ, as AutoAWQ's GEMM version writes it (https://github.com/casper-hansen/AutoAWQ, awq/utils/packing_utils.py).

``qweight`` int32 (K, N / 8): bits 4 i of word (k, c) hold the code of column 8 c + (0, 2, 4, 6, 1, 3, 5, 7)[i].
``qzeros`` int32 (groups, N / 8) in the same order. ``scales`` (groups, N).
"""

from typing import Any

import numpy as np

from jaxgemm._quant import QuantizedMatrix, codes_of, from_codes, middle
from jaxgemm.formats import _bits

_BITS = 4
_COLUMNS = np.array([0, 2, 4, 6, 1, 3, 5, 7])


def _columns(stored: np.ndarray) -> np.ndarray:
    """Codes in the order of the columns, of codes in the order of the words."""
    eights = stored.reshape(stored.shape[0], -1, 8)
    return eights[..., np.argsort(_COLUMNS)].reshape(stored.shape)


def _stored(codes: np.ndarray) -> np.ndarray:
    return codes.reshape(codes.shape[0], -1, 8)[..., _COLUMNS].reshape(codes.shape)


def from_awq(qweight: Any, qzeros: Any, scales: Any) -> QuantizedMatrix:
    """The matrix (K, N) of an AWQ layer of 4 bits.

    Args:
      qweight: int32 (K, N / 8).
      qzeros: int32 (groups, N / 8).
      scales: floating-point (groups, N).

    Raises:
      TypeError, ValueError: tensors of other dtypes or shapes.
    """
    codes = _columns(_bits.split(_bits.words(qweight, "qweight"), _BITS, 1))
    k, n = codes.shape
    scales = np.asarray(scales)
    groups = scales.shape[0] if scales.ndim == 2 else 0
    _bits.check_shape("scales", scales, (groups, n), f"qweight of {n} columns asks for")
    stored = _bits.words(qzeros, "qzeros")
    _bits.check_shape("qzeros", stored, (groups, n // 8), f"scales of shape {scales.shape} ask for")
    if groups == 0 or k % groups:
        raise ValueError(f"scales have {groups} groups, which do not divide K={k}")
    zeros = _columns(_bits.split(stored, _BITS, 1))
    symmetric = bool((zeros == middle(_BITS)).all())
    return from_codes(codes, scales, None if symmetric else zeros, bits=_BITS, group_size=k // groups)


def to_awq(matrix: QuantizedMatrix) -> dict[str, np.ndarray]:
    """The tensors of an AWQ layer: ``qweight``, ``qzeros`` and ``scales``, as :func:`from_awq` takes them.

    Raises:
      ValueError: a matrix that the format cannot hold: with leading dimensions, of 8 bits, N that is no multiple of 8,
        K that is no multiple of the group, permuted rows, or zeros that are no integers below 16.
    """
    zeros = None if matrix.zeros is None else np.asarray(matrix.zeros)
    if matrix.ndim != 2 or matrix.bits != _BITS or matrix.n % 8 or matrix.k % matrix.group_size:
        raise ValueError(
            f"AWQ cannot hold {matrix!r}: it wants two dimensions, 4 bits, whole words along N, whole groups"
        )
    wide = zeros is not None and (zeros.dtype != np.uint8 or zeros.max(initial=0) >= 2**_BITS)
    if matrix.permutation is not None or wide:
        raise ValueError(f"AWQ has rows in order and zeros of 4 bits, {matrix!r} has not")
    scales = np.asarray(matrix.scales)
    if zeros is None:
        zeros = np.full(scales.shape, middle(_BITS), np.uint8)
    return {
        "qweight": _bits.join(_stored(np.asarray(codes_of(matrix))), _BITS, 1),
        "qzeros": _bits.join(_stored(zeros), _BITS, 1),
        "scales": scales,
    }
