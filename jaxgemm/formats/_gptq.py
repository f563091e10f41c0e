"""GPTQ, as AutoGPTQ and GPTQModel write it (https://github.com/ModelCloud/GPTQModel, qlinear modules).

``qweight`` int32 (K / 8, N): bits 4 i of word (r, n) hold the code of row 8 r + i. ``qzeros`` int32 (groups, N / 8):
bits 4 i of word c hold the zero of column 8 c + i, less one modulo 16 in version 1, which is what "gptq" without a
suffix means. ``scales`` (groups, N). ``g_idx`` int32 (K): the group of each row. With 8 bits there are four codes to a
word.
"""

from typing import Any, Literal

import numpy as np

from jaxgemm._packing import BITS
from jaxgemm._quant import QuantizedMatrix, codes_of, from_codes, middle
from jaxgemm.formats import _bits

Version = Literal["gptq", "gptq_v2"]
_LESS = {"gptq": 1, "gptq_v2": 0}
"""What is subtracted from zeros that are stored."""


def _check(bits: int, version: str) -> None:
    if bits not in BITS:
        raise ValueError(f"bits={bits!r} is none of {', '.join(map(str, BITS))}")
    if version not in _LESS:
        raise ValueError(f"version={version!r} is none of {', '.join(map(repr, _LESS))}: see checkpoint_format")


def from_gptq(
    qweight: Any, qzeros: Any, scales: Any, g_idx: Any = None, *, bits: int = 4, version: Version = "gptq"
) -> QuantizedMatrix:
    """The matrix (K, N) of a GPTQ layer.

    Args:
      qweight: int32 (K * bits / 32, N).
      qzeros: int32 (groups, ceil(N * bits / 32)).
      scales: floating-point (groups, N).
      g_idx: None, or int32 (K): the group of each row. Where its rows do not lie in order ("desc_act", "act-order"),
        they are sorted by group and the order is kept.
      bits: 4 or 8.
      version: the ``checkpoint_format`` of the configuration: "gptq" stores zeros less one, "gptq_v2" as they are.

    Raises:
      TypeError, ValueError: tensors of other dtypes or shapes; a ``g_idx`` whose groups have different sizes.
    """
    _check(bits, version)
    codes = _bits.split(_bits.words(qweight, "qweight"), bits, 0)
    k, n = codes.shape
    scales = np.asarray(scales)
    groups = scales.shape[0] if scales.ndim == 2 else 0
    _bits.check_shape("scales", scales, (groups, n), f"qweight of {n} columns asks for")
    stored = _bits.words(qzeros, "qzeros")
    _bits.check_shape(
        "qzeros", stored, (groups, -(-n * bits // _bits.WORD_BITS)), f"scales of shape {scales.shape} ask for"
    )
    zeros = (_bits.split(stored, bits, 1)[:, :n] + np.uint8(_LESS[version])) & np.uint8(2**bits - 1)
    if groups == 0 or k % groups:
        raise ValueError(f"scales have {groups} groups, which do not divide K={k}")
    group_size = k // groups
    permutation = None
    if g_idx is not None:
        g_idx = np.asarray(g_idx)
        _bits.check_shape("g_idx", g_idx, (k,), f"qweight of {k} rows asks for")
        order = np.argsort(g_idx, kind="stable")
        if not np.array_equal(g_idx[order], np.arange(k) // group_size):
            raise ValueError(f"g_idx does not name each of {groups} groups {group_size} times")
        if not np.array_equal(order, np.arange(k)):
            codes, permutation = codes[order], order.astype(np.int32)
    symmetric = bool((zeros == middle(bits)).all())
    return from_codes(
        codes, scales, None if symmetric else zeros, bits=bits, group_size=group_size, permutation=permutation
    )


def to_gptq(matrix: QuantizedMatrix, *, version: Version = "gptq") -> dict[str, np.ndarray]:
    """The tensors of a GPTQ layer: ``qweight``, ``qzeros``, ``scales`` and ``g_idx``, as :func:`from_gptq` takes them.

    Raises:
      ValueError: a matrix that the format cannot hold: with leading dimensions, K that is no multiple of the group or
        of the codes of a word, or zeros that are no integers of as many bits as the codes.
    """
    _check(matrix.bits, version)
    k, bits = matrix.k, matrix.bits
    if matrix.ndim != 2 or k % matrix.group_size or k * bits % _bits.WORD_BITS:
        raise ValueError(f"GPTQ cannot hold {matrix!r}: it wants two dimensions, whole groups and whole words along K")
    scales = np.asarray(matrix.scales)
    zeros = np.full(scales.shape, middle(bits), np.uint8) if matrix.zeros is None else np.asarray(matrix.zeros)
    if zeros.dtype != np.uint8 or zeros.max(initial=0) >= 2**bits:
        raise ValueError(f"GPTQ has integer zeros of {bits} bits, {matrix!r} has not")
    codes, g_idx = np.asarray(codes_of(matrix)), (np.arange(k) // matrix.group_size).astype(np.int32)
    if matrix.permutation is not None:
        back = np.argsort(np.asarray(matrix.permutation))
        codes, g_idx = codes[back], g_idx[back]
    stored = (zeros - np.uint8(_LESS[version])) & np.uint8(2**bits - 1)
    return {
        "qweight": _bits.join(codes, bits, 0),
        "qzeros": _bits.join(stored, bits, 1),
        "scales": scales,
        "g_idx": g_idx,
    }
