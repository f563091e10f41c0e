"""Data that betrays a wrong kernel, and how a result is judged; for kernels on a GPU and in the emulator alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import ml_dtypes  # noqa: F401  (NumPy then knows bfloat16 by name)
import numpy as np

from tests.edge_shapes import Case

DTypes: TypeAlias = tuple[str, str, str]


def integers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Integers whose products add up exactly in float32 for K < 2^24 / 64, none of them zero too often."""
    low, high = (-4, 6) if dtype == "float16" else (-7, 9)
    return rng.integers(low, high, tuple(shape)).astype(np.dtype(dtype))


def normals(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Normal values of mean 1/4, rounded to ``dtype``."""
    return (rng.standard_normal(tuple(shape), np.float32) + 0.25).astype(np.dtype(dtype))


def rounded(exact: np.ndarray, dtype: str) -> np.ndarray:
    """Values that float32 holds exactly (or that overflow it), rounded to ``dtype`` to nearest even."""
    with np.errstate(all="ignore"):
        return exact.astype(np.float32).astype(np.dtype(dtype))


def nan_bytes(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of 0xFF bytes, which is NaN in every floating-point dtype."""
    dtype = np.dtype(dtype)
    return np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8).view(dtype).reshape(tuple(shape))


# --- special values ---------------------------------------------------------------------------------------------------


def plant(case: Case, operands: dict[str, np.ndarray], operand: str, value: float) -> list[int]:
    """Writes ``value`` into the first, a middle and the last row (lhs) or column (rhs) of an operand, and a row of
    zeros into the other, so that infinities also meet zeros.

    Args:
      case: what is multiplied.
      operands: "lhs" and "rhs" as they are stored; both are changed.
      operand: which of them gets ``value``.

    Returns:
      The rows or columns of the result that must not be finite, and no others.
    """
    other = "rhs" if operand == "lhs" else "lhs"
    extent, depth = (case.shape.m if operand == "lhs" else case.shape.n), case.shape.k

    def at(name: str, outer: int, k: int) -> tuple[Any, ...]:
        k_last = case.layout[0] == "N" if name == "lhs" else case.layout[1] == "T"
        return (..., outer, k) if k_last else (..., k, outer)

    marks = [(0, 0), (extent // 2, depth // 2), (extent - 1, depth - 1)]
    for outer, k in marks:
        operands[operand][at(operand, outer, k)] = value
        operands[other][at(other, 1, k)] = 0
    return [outer for outer, _ in marks]


# --- epilogue ---------------------------------------------------------------------------------------------------------

_ERFC = np.vectorize(math.erfc, otypes=[np.float64])
ACTIVATIONS: dict[str, Any] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * _ERFC(-x / math.sqrt(2)),
    "silu": lambda x: x / (1 + np.exp(-x)),
}
"""In float64, by the name that the kernels know them by."""
_STEEPEST = 1.13  # no activation's derivative is larger
EPILOGUES = [(name, bias) for name in ACTIVATIONS for bias in (False, True) if bias or name != "none"]
"""Activations, each with or without a bias."""


def epilogue_operands(
    rng: np.random.Generator, shape: tuple[int, int, int], dtypes: DTypes
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """lhs, rhs and bias whose product is of the size for which activations are interesting."""
    m, n, k = shape
    lhs = (normals(rng, (m, k), "float32") / math.sqrt(max(k, 1) / 4)).astype(np.dtype(dtypes[0]))
    return lhs, normals(rng, (k, n), dtypes[1]), rng.standard_normal(n).astype(np.float32)


def epilogue_error_ratio(
    out: np.ndarray, lhs: np.ndarray, rhs: np.ndarray, bias: np.ndarray | None, activation: str, dtypes: DTypes
) -> float:
    """The error of activation(lhs @ rhs + bias) over its bound: that of the accumulator times the function's slope."""
    a, b = lhs.astype(np.float64), rhs.astype(np.float64)
    add = np.zeros(rhs.shape[1]) if bias is None else bias.astype(np.float64)
    exact = ACTIVATIONS[activation](a @ b + add)
    magnitude = _STEEPEST * (np.abs(a) @ np.abs(b) + np.abs(add))
    # The bound of an empty sum is zero: one term is granted to the bias and the function.
    return error_ratio(np.asarray(out), exact, magnitude, max(lhs.shape[1], 1), dtypes)


# --- judgement --------------------------------------------------------------------------------------------------------


def error_ratio(out: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, k: int, dtypes: DTypes) -> float:
    """``error_over_bound`` at HIGHEST, of arrays padded with zeros to few different sizes: few programs to compile."""
    import jax
    import jax.numpy as jnp

    from jaxgemm._reference import error_over_bound

    size = 1024
    while size < out.size:
        size *= 8

    def padded(x: np.ndarray) -> np.ndarray:
        flat = np.asarray(x).astype(np.float64).ravel()
        return np.concatenate([flat, np.zeros(size - flat.size)])

    assert out.dtype == np.dtype(dtypes[2])
    assert out.shape == exact.shape
    with jax.enable_x64(True):
        arrays = [jnp.asarray(padded(x)) for x in (out, exact, magnitude)]
    return error_over_bound(*arrays, k, dtypes[0], dtypes[2], "highest")


def assert_equal(actual: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Same shape, dtype and values; NaN equals NaN, and a failure says where the first differences are."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), what
    if actual.tobytes() == expected.tobytes():
        return
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    wrong = ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if wrong.any():
        at = [tuple(map(int, i)) for i in np.argwhere(wrong)[:4]]
        raise AssertionError(
            f"{what}: {int(wrong.sum())} of {wrong.size} elements differ; at {at} got {[a[i] for i in at]}, "
            f"expected {[b[i] for i in at]}"
        )
