"""Quantised weights for tests: made, packed and dequantised by NumPy alone, and how products with them are judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.checks import STEEPEST
from jaxgemm import QuantizedMatrix
from jaxgemm._native import _core
from tests.values import ACTIVATIONS, Epilogue, error_ratio, rounded

TILE_K, TILE_N = _core.PACKED_TILE_K, _core.PACKED_TILE_N
MIDDLE, CODES = 8, 16
WHOLE = 0
"""Stands for a group of all rows."""
NO_EPILOGUE = Epilogue()


def pack(codes: np.ndarray) -> np.ndarray:
    """4-bit codes (..., K, N) in the order of docs/int4.md: of each lane a word for each step of 16 rows, whose code i
    is the element of register i % 4, half i / 4 of its fragment.
    """
    *batch, k, n = codes.shape
    tiles_k, tiles_n = -(-k // TILE_K), -(-n // TILE_N)
    pads = [(0, 0)] * len(batch) + [(0, tiles_k * TILE_K - k), (0, tiles_n * TILE_N - n)]
    padded = np.pad(codes, pads, constant_values=MIDDLE).reshape(*batch, tiles_k, TILE_K, tiles_n, TILE_N)
    lane, step, i = np.ogrid[:32, : TILE_K // 16, :8]
    rows, cols = 16 * step + lane % 4 * 2 + i // 4 + i % 4 // 2 * 8, lane // 4 + i % 2 * 8
    nibbles = np.moveaxis(padded, -2, -4)[..., rows, cols].astype(np.uint32) << (4 * i).astype(np.uint32)
    words = nibbles.sum(-1, dtype=np.uint32)
    return np.ascontiguousarray(words).view(np.uint8).reshape(*batch, tiles_n, tiles_k, TILE_K * TILE_N // 2)


@dataclass(frozen=True)
class Weights:
    """Codes of matrices (..., K, N), with a scale and maybe a zero point for each group of rows of each column."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    group_size: int
    bits: int = 4

    @classmethod
    def random(
        cls, rng: np.random.Generator, shape: Sequence[int], group_size: int, kind: str, dtype: str, *,
        exact: bool = False,
    ) -> Weights:  # fmt: skip
        """Uniform codes, and scales between 0.01 and 0.02, or powers of two if sums shall be exact.

        Args:
          shape: (..., K, N).
          group_size: :data:`WHOLE` for that of all rows.
          kind: of zero points: "middle", "integer" or "float".
          dtype: of scales.
          exact: whether sums of products with small integers shall be exact.
        """
        *batch, k, n = shape
        group_size = group_size or max(k, 1)
        groups = (*batch, -(-k // group_size), n)
        scales = np.exp2(rng.integers(-2, 3, groups)) if exact else rng.uniform(0.01, 0.02, groups)
        zeros = None
        if kind == "integer":
            zeros = rng.integers(0, CODES + 1, groups).astype(np.uint8)
        elif kind == "float":
            zeros = rounded(rng.integers(20, 45, groups) / 4, dtype)  # no number is subnormal in float16
        return cls(rng.integers(0, CODES, shape).astype(np.uint8), rounded(scales, dtype), zeros, group_size)

    @property
    def k(self) -> int:
        return self.codes.shape[-2]

    @property
    def n(self) -> int:
        return self.codes.shape[-1]

    @property
    def kind(self) -> str:
        """Of zero points, as kernels call it."""
        return "middle" if self.zeros is None else "integer" if self.zeros.dtype == np.uint8 else "float"

    def offsets(self) -> np.ndarray:
        """codes - zeros, in float64."""
        if self.zeros is None:
            return self.codes.astype(np.float64) - MIDDLE
        zeros = self.zeros.astype(np.float64)
        return self.codes - self.rows(np.minimum(zeros, _core.MOST_ZERO) if self.kind == "integer" else zeros)

    def rows(self, of_groups: np.ndarray) -> np.ndarray:
        """One row, in float64, for each row of the matrix."""
        return np.repeat(of_groups.astype(np.float64), min(self.group_size, self.k), axis=-2)[..., : self.k, :]

    def dense(self) -> np.ndarray:
        """The matrices, in float64, which holds them exactly."""
        return self.offsets() * self.rows(self.scales)

    def matrix(self) -> QuantizedMatrix:
        """The same as jaxgemm takes it, of NumPy's arrays."""
        assert self.bits == 4
        return QuantizedMatrix(
            pack(self.codes), self.scales, self.zeros, None, self.k, self.n, self.bits, self.group_size
        )

    def layer(self, index: int) -> Weights:
        """One of several matrices."""
        zeros = None if self.zeros is None else self.zeros[index]
        return replace(self, codes=self.codes[index], scales=self.scales[index], zeros=zeros)

    def alone(self) -> Weights:
        """As the only one of several matrices."""
        zeros = None if self.zeros is None else self.zeros[None]
        return replace(self, codes=self.codes[None], scales=self.scales[None], zeros=zeros)

    def problem(self, m: int, dtype: str, out_dtype: str, *, sm: int = 90, **changed: Any) -> _core.Problem:
        """The product of m tokens and each matrix, as kernels see it."""
        asked: dict[str, Any] = {
            "batch": int(np.prod(self.codes.shape[:-2])), "m": m, "n": self.n, "k": self.k, "lhs_dtype": dtype,
            "out_dtype": out_dtype, "activation": "none", "has_alpha": False, "has_bias": False, "bits": self.bits,
            "group_size": self.group_size, "scale_dtype": self.scales.dtype.name, "zeros": self.kind, "sm": sm,
        }  # fmt: skip
        return _core.mixed_problem(**(asked | changed))


def streams(split: tuple[int, int]) -> bool:
    """Whether all CTAs share K, not those of clusters: streams_k() of cuda/gemm.h."""
    return split[1] > _core.MOST_MIXED_CLUSTER_SPLITS


def unit_roundoff(dtype: str) -> float:
    """Of float16 and bfloat16: 2^-11 and 2^-8."""
    import ml_dtypes

    return float(ml_dtypes.finfo(np.dtype(dtype)).eps) / 2


def rounding_of(info: Any | None, dtype: str, weights: Weights) -> float:
    """The relative error of the weights that a kernel multiplies by x of ``dtype``; XLA's, where there is no kernel.

    Kernels multiply code - zero, which is exact, and scale the sums of a group in float32. Those with many tokens to a
    tile, or many groups to a k-tile, make numbers of 16 bits: of the scales, and of (code - zero) * scale.
    """
    unit, single = unit_roundoff(dtype), 2.0**-24
    if info is None:  # code - zero, times the scale, in float32, rounded to dtype
        return (1 + single) ** 2 * (1 + unit) - 1
    (tokens, warp_n, _), tile_k, group = info.warp_tile, info.cta_tile[2], weights.group_size
    groups = 1 if group >= weights.k or group % tile_k == 0 else tile_k // math.gcd(group, tile_k)
    if info.family != "int4_wgmma" or _core.scales_sums(tokens, warp_n, groups):
        return 0.0
    scales_kept = (rounded(weights.scales, dtype).astype(np.float64) == weights.scales.astype(np.float64)).all()
    return (1 + unit) ** (1 if scales_kept else 2) - 1


def mixed_error_ratio(
    out: np.ndarray, x: np.ndarray, weights: Weights, rounding: float, epilogue: Epilogue = NO_EPILOGUE,
    bias: np.ndarray | None = None,
) -> float:  # fmt: skip
    """The error of x (..., M, K) times the weights over its bound, which is that of a product with dense operands plus
    the rounding of the weights; with an epilogue times the slope of its function.
    """
    a, w = x.astype(np.float64), weights.dense()
    exact, magnitude = a @ w, np.abs(a) @ np.abs(w)
    k = weights.k
    if epilogue != NO_EPILOGUE:
        alpha = 1.0 if epilogue.alpha is None else epilogue.alpha
        add = np.zeros(weights.n) if bias is None or not epilogue.has_bias else bias.astype(np.float64)
        exact = ACTIVATIONS[epilogue.activation](alpha * exact + add)
        magnitude = STEEPEST * (abs(alpha) * magnitude + np.abs(add))
        k = max(k, 1)  # one term is granted to the bias and the function
    dtypes = (x.dtype.name, x.dtype.name, out.dtype.name)
    return error_ratio(out, exact, magnitude, k, dtypes, alpha=epilogue.alpha, weight_rounding=rounding)
