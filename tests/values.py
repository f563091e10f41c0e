"""Data that betrays a wrong kernel, and how a result is judged; for kernels on a GPU and in the emulator alike."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes  # noqa: F401  (NumPy then knows bfloat16 by name)
import numpy as np

from benchmarks.checks import STEEPEST
from jaxgemm._epilogue import BIAS_DTYPES
from tests.edge_shapes import Case

DTypes: TypeAlias = tuple[str, str, str]
"""Of lhs, rhs and the result."""


def is_float(dtype: str) -> bool:
    return np.dtype(dtype).kind not in "iu"


# --- what kernels multiply --------------------------------------------------------------------------------------------


def precisions(info: Any, dtypes: DTypes) -> tuple[str, ...]:
    """Where a kernel does something different: at each precision if it rounds float32 to TF32, else at one; of 8-bit
    floating-point numbers at the one whose bound is tighter.
    """
    if dtypes[0].startswith("float8"):
        return ("highest" if info.highest else "default",)
    if dtypes[0] != "float32":
        return ("default",)
    return ("default",) * info.tf32 + ("highest",) * info.highest


def modes(info: Any) -> list[tuple[DTypes, str]]:
    """All (dtypes, precision) that tests run a kernel with."""
    return [(dtypes, precision) for dtypes in info.dtypes for precision in precisions(info, dtypes)]


def rounds_operands(info: Any, dtypes: DTypes, precision: str) -> bool:
    """Whether the kernel multiplies operands that it has rounded to TF32."""
    return info.tf32 and dtypes[0] == "float32" and precision == "default"


def judged_at(info: Any, dtypes: DTypes, precision: str) -> str:
    """The precision whose bound the kernel's results must meet: "default" only where it rounds operands, or leaves sums
    of 8-bit floating-point products to the tensor cores.
    """
    rounds_sums = dtypes[0].startswith("float8") and not info.highest
    return "default" if rounds_sums or rounds_operands(info, dtypes, precision) else "highest"


_TF32_UNIT = np.uint32(1 << 13)  # of the last of TF32's ten bits of fraction, in a float32


def tf32_neighbours(rounded: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Which elements are what TF32 may make of ``x``: itself if TF32 holds it, else one of its two neighbours."""
    bits, below = rounded.view(np.uint32), x.view(np.uint32) & ~(_TF32_UNIT - np.uint32(1))
    return (bits == below) | ((bits == below + _TF32_UNIT) & (x.view(np.uint32) != below))


# --- data -------------------------------------------------------------------------------------------------------------


def integers(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Integers whose products add up exactly, in float32 for K < 2^24 / 64, none of them zero too often."""
    low, high = {"float16": (-4, 6), "int8": (-128, 128)}.get(dtype, (-7, 9))
    return rng.integers(low, high, tuple(shape)).astype(np.dtype(dtype))


def normals(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Normal values of mean 1/4, rounded to ``dtype``; int8 takes all its values alike."""
    if not is_float(dtype):
        return integers(rng, shape, dtype)
    return (rng.standard_normal(tuple(shape), np.float32) + 0.25).astype(np.dtype(dtype))


def wide_normals(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Normal values, each times its own power of two between 2^-20 and 1."""
    return (normals(rng, shape, "float32") * 2.0 ** rng.uniform(-20, 0, tuple(shape))).astype(np.dtype(dtype))


def stored(layout: str, lhs: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrices as they lie in memory."""
    matrices = (lhs if layout[0] == "N" else lhs.T), (rhs if layout[1] == "N" else rhs.T)
    return np.ascontiguousarray(matrices[0]), np.ascontiguousarray(matrices[1])


def rounded(exact: np.ndarray, dtype: str) -> np.ndarray:
    """Values that float32 holds exactly (or that overflow it), rounded to ``dtype`` to nearest even; integers wrap."""
    with np.errstate(all="ignore"):
        if not is_float(dtype):
            return exact.astype(np.int64).astype(np.dtype(dtype))
        return exact.astype(np.float32).astype(np.dtype(dtype))


def nan_bytes(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array of 0xFF bytes, which is NaN in every floating-point dtype, and -1 in every signed integer one."""
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
    depth, extents = case.shape.k, (case.shape.m, case.shape.n)
    extent, others = extents if operand == "lhs" else extents[::-1]

    def at(name: str, outer: int, k: int) -> tuple[Any, ...]:
        k_last = case.layout[0] == "N" if name == "lhs" else case.layout[1] == "T"
        return (..., outer, k) if k_last else (..., k, outer)

    marks = [(0, 0), (extent // 2, depth // 2), (extent - 1, depth - 1)]
    for outer, k in marks:
        operands[operand][at(operand, outer, k)] = value
        operands[other][at(other, min(1, others - 1), k)] = 0
    return [outer for outer, _ in marks]


def float32_extremes(
    rng: np.random.Generator, k: int = 99, m: int = 37, n: int = 41
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Products for which a sum of TF32 products needs care to be what float32 multiply-adds give; m is at most n."""
    largest = float(np.finfo(np.float32).max)  # which TF32 rounds to infinity
    lhs, rhs = rng.standard_normal((m, k)), rng.uniform(-0.25, 0.25, (k, n))

    def with_marks(*marks: float, of: np.ndarray = lhs) -> np.ndarray:
        marked = of.copy()
        for i, mark in enumerate(marks):
            marked[np.arange(0, m, 2), (7 * np.arange(0, m, 2) + 13 * i) % k] = mark
        return marked

    def powers(low: float, high: float, shape: tuple[int, int]) -> np.ndarray:
        return rng.standard_normal(shape) * 2.0 ** rng.uniform(low, high, shape)

    zero_column = rhs.copy()
    zero_column[:, 3] = 0
    big = np.where(rng.random((k, n)) < 0.5, -4.0, 4.0)
    odd = 2 * rng.integers(-(2**14), 2**14, (m, k)) + 1  # sixteen bits: more than TF32 has
    signs = rng.integers(-1, 2, (k, n))
    low_bits = 1 + 2.0**-10 - 2.0**-23  # all that TF32 does not have
    cases = {
        "range of 2^20": (powers(-20, 0, (m, k)), powers(-20, 0, (k, n))),
        "small times large": (powers(-100, -80, (m, k)), powers(60, 100, (k, n))),
        "small times small": (powers(-60, -50, (m, k)), powers(-50, -40, (k, n))),
        "integers of 16 bits": (odd, signs),
        "low bits, few": (np.full((m, 2), low_bits), np.full((2, n), low_bits)),
        "low bits, some": (np.full((m, 17), low_bits), np.full((17, n), low_bits)),
        "low bits": (np.full((m, k), low_bits), np.full((k, n), low_bits)),
        "largest": (with_marks(largest, -largest), rhs),
        "largest in rhs": (rhs.T[:m], with_marks(largest, -largest, of=lhs[:n].copy()).T),
        "near the largest": (with_marks(largest * (1 - 2.0**-11), largest * (1 - 2.0**-13)), rhs),
        "overflow": (with_marks(largest, of=np.zeros((m, k))), big),
        "infinity": (with_marks(np.inf), rhs),
        "infinity times zero": (with_marks(-np.inf), zero_column),
        "infinity and the largest": (with_marks(np.inf, -largest / 2), np.abs(rhs) + 0.1),
        "infinities of both signs": (with_marks(np.inf, -np.inf), np.abs(rhs) + 0.1),
        "NaN": (with_marks(np.nan, largest), rhs),
    }
    return {name: (a.astype(np.float32), b.astype(np.float32)) for name, (a, b) in cases.items()}


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


@dataclass(frozen=True)
class Epilogue:
    """What a test asks of an epilogue; ``alpha`` is a float32 number."""

    activation: str = "none"
    has_bias: bool = False
    alpha: float | None = None


ALPHA = float(np.float32(2.19))
EXACT_ALPHA = -3.0
"""With sums of small integers exact, like a bias of them."""
EPILOGUES = [
    *(Epilogue(name, bias) for name in ACTIVATIONS for bias in (False, True) if bias or name != "none"),
    Epilogue(alpha=float(np.float32(-1.37))),
    Epilogue(has_bias=True, alpha=float(np.float32(0.0173))),
    Epilogue("relu", alpha=float(np.float32(-0.61))),
    Epilogue("silu", True, ALPHA),
]
"""Activations, each with or without a bias; and alpha, no power of two, before all that may follow it."""


def epilogue_operands(
    rng: np.random.Generator, shapes: Sequence[tuple[int, int, int]], dtypes: DTypes
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """lhs, rhs and bias whose product is of the size for which activations are interesting; all dtypes of a bias in
    turn.
    """
    found = []
    for (m, n, k), bias_dtype in zip(shapes, itertools.cycle(sorted(BIAS_DTYPES)), strict=False):
        lhs = (normals(rng, (m, k), "float32") / math.sqrt(max(k, 1) / 4)).astype(np.dtype(dtypes[0]))
        found.append((lhs, normals(rng, (k, n), dtypes[1]), normals(rng, (n,), bias_dtype)))
    return found


def epilogue_error_ratio(
    case: Case, out: np.ndarray, operands: Sequence[np.ndarray], bias: np.ndarray, epilogue: Epilogue,
    dtypes: DTypes, precision: str = "highest",
) -> float:  # fmt: skip
    """The error of activation(alpha * (lhs @ rhs) + bias) over its bound: that of the scaled accumulator times the
    function's slope; ``bias`` counts if the epilogue has one.
    """
    alpha = 1.0 if epilogue.alpha is None else epilogue.alpha
    exact, magnitude = _product(case, operands)
    add = bias.astype(np.float64) if epilogue.has_bias else np.zeros(case.shape.n)
    # The bound of an empty sum is zero: one term is granted to the bias and the function.
    exact = ACTIVATIONS[epilogue.activation](alpha * exact + add)
    magnitude = STEEPEST * (abs(alpha) * magnitude + np.abs(add))
    return error_ratio(out, exact, magnitude, max(case.shape.k, 1), dtypes, precision, epilogue.alpha)


# --- judgement --------------------------------------------------------------------------------------------------------


def _product(case: Case, operands: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(lhs · rhs, |lhs| · |rhs|) in float64."""
    a, b = (x.astype(np.float64) for x in operands)
    return case.product(a, b), case.product(np.abs(a), np.abs(b))


def drift(lhs: np.ndarray, rhs: np.ndarray, out: np.ndarray) -> float:
    """The largest error of lhs @ rhs, whose elements are not negative: a multiple of what the roundings of K sums may
    add up to if they have no direction: 2 sqrt(K) 2^-24 (Higham and Mary, "A new approach to probabilistic rounding
    error analysis", 2019). Sums that are truncated reach K 2^-24 of themselves, less the number of products that are
    added at once.
    """
    exact = lhs.astype(np.float64) @ rhs.astype(np.float64)
    return float((np.abs(out - exact) / exact).max()) / (2 * math.sqrt(lhs.shape[1]) * 2.0**-24)


def product_error_ratio(
    case: Case, out: np.ndarray, operands: Sequence[np.ndarray], dtypes: DTypes, precision: str = "highest"
) -> float:
    """The error of lhs @ rhs over its bound; ``precision``: see :func:`judged_at`."""
    return error_ratio(np.asarray(out), *_product(case, operands), case.shape.k, dtypes, precision)


def error_ratio(
    out: np.ndarray, exact: np.ndarray, magnitude: np.ndarray, k: int, dtypes: DTypes, precision: str = "highest",
    alpha: float | None = None, weight_rounding: float = 0.0,
) -> float:  # fmt: skip
    """``error_over_bound`` of arrays padded with zeros to few different sizes: few programs to compile."""
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
    return error_over_bound(*arrays, k, dtypes[0], dtypes[2], precision, alpha, weight_rounding)


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
