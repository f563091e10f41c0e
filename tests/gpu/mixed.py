"""Cases of products with quantised weights, and running them on poisoned memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

import jaxgemm
from jaxgemm._native import MIXED_TARGET, _core
from jaxgemm._target import target_sm
from tests.edge_shapes import pairwise
from tests.gpu.support import run_poisoned
from tests.quantised import TILE_N, WHOLE, Weights, mixed_error_ratio, rounding_of
from tests.values import assert_equal, normals, rounded

MIXED = _core.mixed_kernels()
MIXED_IDS = [info.name for info in MIXED]
MIXED_INFO = {info.name: info for info in MIXED}
FAMILIES = list(dict.fromkeys(info.family for info in MIXED))
FIRST = [next(info for info in MIXED if info.family == family) for family in FAMILIES]
LAST = [
    sorted((info for info in MIXED if info.family == family), key=lambda info: info.split_k)[-1] for family in FAMILIES
]
"""Of each family; one that splits K, if there is any."""
EXPERTS = 3


def dtypes_of(info: Any) -> list[str]:
    """Of x."""
    return list(dict.fromkeys(lhs for lhs, _, _ in info.dtypes))


@dataclass(frozen=True)
class MixedCase:
    """x (M, K) times a matrix (K, N), or as many as there are experts each; group :data:`WHOLE`: all rows."""

    m: int
    n: int
    k: int
    group: int = 128
    zeros: str = "middle"
    scales: str = "bfloat16"
    out: str = "float32"
    experts: bool = False

    @property
    def batch(self) -> tuple[int, ...]:
        return (EXPERTS,) if self.experts else ()

    @property
    def out_shape(self) -> tuple[int, ...]:
        return (*self.batch, self.m, self.n)

    def draw(self, rng: np.random.Generator, dtype: str, *, exact: bool = False) -> tuple[np.ndarray, Weights]:
        """X of normal values and weights like them, or both such that all sums are exact."""
        shape = (*self.batch, self.m, self.k)
        weights = Weights.random(rng, (*self.batch, self.k, self.n), self.group, self.zeros, self.scales, exact=exact)
        return (rounded(rng.integers(-4, 5, shape), dtype) if exact else normals(rng, shape, dtype)), weights

    def problem(self, dtype: str, **changed: Any) -> _core.Problem:
        """As kernels see it, on the GPU here."""
        batch = {"batch": EXPERTS if self.experts else 1, "sm": target_sm()}
        group = self.group or max(self.k, 1)
        scales = np.empty((0, 0), self.scales)
        kinds = {"middle": None, "integer": np.empty((0, 0), np.uint8), "float": scales}
        codes = np.empty((self.k, self.n), np.uint8)
        return Weights(codes, scales, kinds[self.zeros], group).problem(self.m, dtype, self.out, **(batch | changed))


class MixedProgram:
    """One compiled function of many cases, each into an output that was filled with NaN before: see
    :func:`run_poisoned`. ``kernels`` names one for each case, or None for the chooser's.
    """

    def __init__(self, cases: Sequence[MixedCase], dtype: str, kernels: Sequence[str | None]) -> None:
        self.cases, self.dtype, self.kernels = list(cases), dtype, list(kernels)

        def run(operands: Any, poison: Any) -> list[jax.Array]:
            return [
                jaxgemm.matmul(x, matrix, preferred_element_type=case.out, kernel=kernel)
                for case, kernel, (x, matrix) in zip(self.cases, self.kernels, operands, strict=True)
            ]

        self.run = jax.jit(run, donate_argnums=1, keep_unused=True)

    def draw(self, rng: np.random.Generator, *, exact: bool = False) -> list[tuple[np.ndarray, Weights]]:
        return [case.draw(rng, self.dtype, exact=exact) for case in self.cases]

    def __call__(self, operands: Sequence[tuple[np.ndarray, Weights]]) -> list[np.ndarray]:
        outs = [(case.out_shape, case.out) for case in self.cases]
        arrays = [(x, weights.matrix()) for x, weights in operands]
        return run_poisoned(self.run, arrays, outs, list(map(str, self.cases)))

    def check_exact(self, operands: Sequence[tuple[np.ndarray, Weights]], results: Sequence[np.ndarray]) -> None:
        """Every result is the float64 product, rounded once."""
        for case, kernel, (x, weights), out in zip(self.cases, self.kernels, operands, results, strict=True):
            assert_equal(out, rounded(x.astype(np.float64) @ weights.dense(), case.out), f"{kernel} {case}")

    def ratios(self, operands: Sequence[tuple[np.ndarray, Weights]], results: Sequence[np.ndarray]) -> dict[str, float]:
        """The largest error over its bound, which must be at most 1, by kernel; "" is XLA."""
        worst: dict[str, float] = {}
        for case, named, (x, weights), out in zip(self.cases, self.kernels, operands, results, strict=True):
            kernel = _core.select(case.problem(self.dtype)) if named is None else named
            ratio = mixed_error_ratio(out, x, weights, rounding_of(MIXED_INFO.get(kernel), self.dtype, weights))
            assert ratio <= 1, f"{kernel or 'XLA'} {self.dtype} {case}: error {ratio:.3g} times its bound"
            worst[kernel] = max(worst.get(kernel, 0.0), ratio)
        return worst


def column_unit(info: Any, zeros: str) -> int:
    """N is a multiple of it: TMA copies rows of scales and of zero points, of a byte each, by multiples of 16 bytes."""
    if not info.tma:
        return 1
    return 8 if zeros == "middle" else 16


def edge_cases(info: Any, dtype: str) -> list[MixedCase]:
    """Every two of (rows, columns, depth, group, zero points, dtypes of scales and of the result, experts) at the edges
    of a kernel's tile. Depths: odd, no multiple of 64, 128 or a group, one k-tile and its end, more than stages.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    levels: list[Sequence[Any]] = [
        sorted({1, max(tile_m - 1, 1), tile_m, tile_m + 1}),
        ("one", "below", "tile", "above"),
        (37, 200, tile_k, tile_k + 1, tile_k + 64, (info.stages + 1) * tile_k + 40),
        (32, 64, 128, 192, WHOLE),
        ("middle", "integer"),
        ("bfloat16", "float16", "float32"),
        (dtype, "float32"),
        (False, True),
    ]

    def case_of(row: tuple[Any, ...]) -> MixedCase:
        m, column, k, group, zeros, scales, out, experts = row
        if info.tma and scales == "float32":
            scales = dtype
        unit = column_unit(info, zeros)
        n = {"one": unit, "below": tile_n - unit, "tile": tile_n, "above": tile_n + unit}[column]
        case = MixedCase(m, n, k, group, zeros, scales, out, experts)
        return replace(case, group=64) if _core.why_not(info.name, case.problem(dtype, sm=info.min_sm)) else case

    def cost(row: tuple[Any, ...]) -> int:
        case = case_of(row)
        return (EXPERTS if case.experts else 1) * case.m * case.n * case.k

    return list(dict.fromkeys(case_of(row) for row in pairwise(levels, cost, seed=dtypes_of(info).index(dtype))))


def raw_mixed_call(
    results: Sequence[jax.ShapeDtypeStruct], x: Any, matrix: jaxgemm.QuantizedMatrix, kernel: str,
    split: tuple[int, int], **changed: Any,
) -> list[jax.Array]:  # fmt: skip
    """Calls the FFI target with exactly these results and attributes; x (batch, M, K), and so the weights."""
    operands = [x, matrix.packed, matrix.scales] + ([] if matrix.zeros is None else [matrix.zeros])
    attributes: dict[str, Any] = {
        "kernel": kernel, "activation": "none", "has_alpha": False, "split": np.array(split, np.int64),
        "bits": np.int64(matrix.bits), "group_size": np.int64(matrix.group_size),
        "zeros": "middle" if matrix.zeros is None else "integer",
    }  # fmt: skip
    return jax.ffi.ffi_call(MIXED_TARGET, list(results))(*operands, **(attributes | changed))


def split_results(
    kernel: str, case: MixedCase, dtype: str, split: tuple[int, int], redzone_bytes: int = 0
) -> list[jax.ShapeDtypeStruct]:
    """Of :func:`raw_mixed_call` for one matrix: the product, and the workspace, if there is one, with a redzone."""
    size = _core.workspace_bytes(kernel, case.problem(dtype, split=split))
    workspace = [jax.ShapeDtypeStruct((size + redzone_bytes,), np.uint8)] if size else []
    return [jax.ShapeDtypeStruct((1, case.m, case.n), case.out), *workspace]


RANDOM_PROGRAMS, _RANDOM_CASES, _DECODE_CASES = 4, 12, 3
_LARGEST = (400, 800, 4000)


def random_cases(number: int) -> tuple[str, list[MixedCase]]:
    """The dtype of x, and cases for one program."""
    rng = np.random.default_rng([7, number])
    cases = [_random_case(rng) for _ in range(_RANDOM_CASES)] + [_decode_case(rng) for _ in range(_DECODE_CASES)]
    return ("bfloat16", "float16")[number % 2], cases


def _decode_case(rng: np.random.Generator) -> MixedCase:
    """Few tokens, and a matrix as large as a small layer's."""
    m, tiles_n, k = (int(rng.integers(*limits)) for limits in ((1, 17), (32, 129), (2000, 5000)))
    return MixedCase(
        m, tiles_n * TILE_N, k, int(rng.choice([32, 64, 128, WHOLE])), str(rng.choice(["middle", "integer"])),
        str(rng.choice(["bfloat16", "float16"])),
    )  # fmt: skip


def _random_case(rng: np.random.Generator) -> MixedCase:
    """Sizes are as likely to lie between 1 and 10 as between 50 and 500; every other N is whole tiles of codes."""
    m, n, k = (int(math.exp(rng.uniform(0, math.log(largest + 1)))) for largest in _LARGEST)
    return MixedCase(
        m, n if rng.random() < 0.5 else -(-n // TILE_N) * TILE_N, k,
        int(rng.choice([32, 64, 96, 128, 256, 48, WHOLE])), str(rng.choice(["middle", "integer", "middle", "float"])),
        str(rng.choice(["bfloat16", "float16", "float32"])), str(rng.choice(["bfloat16", "float16", "float32"])),
        bool(rng.random() < 0.25),
    )  # fmt: skip
