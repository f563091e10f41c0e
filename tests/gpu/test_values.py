"""Values that betray a kernel: NaN and infinity, overflow, rounding, cancellation, and the fused epilogue."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._native import _core
from tests.edge_shapes import LAYOUTS, Case, Shape, ragged_case
from tests.gpu.report import RecordError
from tests.gpu.support import KERNEL_DTYPE_IDS, KERNEL_DTYPES, KERNEL_IDS, KERNELS, Program, precision_of
from tests.values import (
    ACTIVATIONS,
    EPILOGUES,
    DTypes,
    assert_equal,
    epilogue_error_ratio,
    epilogue_operands,
    integers,
    plant,
    rounded,
)

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_nan_and_infinity_stay_in_their_row_and_column(info: Any, dtypes: DTypes, rng: np.random.Generator) -> None:
    program = Program(info.name, dtypes, [ragged_case(info, layout) for layout in LAYOUTS])
    clean = program.draw(integers, rng)
    for value in (np.nan, np.inf, -np.inf):
        for operand in ("lhs", "rhs"):
            operands = [(lhs.copy(), rhs.copy()) for lhs, rhs in clean]
            for case, (lhs, rhs) in zip(program.cases, operands, strict=True):
                marked = plant(case, {"lhs": lhs, "rhs": rhs}, operand, value)
            results = program(operands)
            program.check_exact(operands, results)
            for out in results:
                special = ~np.isfinite(out.astype(np.float32))
                rows = special if operand == "lhs" else special.T
                assert rows[marked].all()
                assert rows.sum() == 3 * rows.shape[1]


def _hard_cases(dtypes: DTypes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Products (lhs, rhs) whose exact values every right accumulation gives."""
    dtype = jnp.dtype(dtypes[0])
    ties = 2.0 ** -{"float16": 11, "bfloat16": 8, "float32": 24}[dtypes[2]]
    ones = np.ones

    def rows(*signs_and_terms: float) -> np.ndarray:
        return np.outer([1, -1, 2, 0.5, 1], signs_and_terms)

    cases = [
        (rows(3, *[1] * 8191, *[-1] * 8192), ones((16384, 9))),  # an accumulator of the output's width loses the 2
        (rows(*[4096, 1, -4096, 0] * 256), ones((1024, 7))),  # cancellation
        (rows(300, 300, -300, -300, 7), np.outer([300, 300, 300, 300, 1], [1, 1, -1, 1, 1, 1])),  # float32 sums
    ]
    if dtypes[2] != "float32":  # results half-way between two numbers of a narrow dtype, which float32 holds
        cases.append((np.array([[1, ties], [-1, -ties], [1, -ties / 2]]), np.array([[1, 1, 1, 1], [1, 3, 5, 0]])))
    if dtypes[0] == "float16":
        # 65504, 65519 (rounds to it), 65520 (rounds to infinity), 65536, and their negatives.
        parts = np.array([[2047, 0], [2047, 15], [2047, 16], [2047, 32], [-2047, -16]])
        cases.append((parts, np.array([[32, -32, 0], [1, -1, 0]])))
        small = np.arange(1, 41).reshape(5, 8) * 2.0**-24  # subnormal operands and results
        cases.append((small, np.eye(8)))
        cases.append((np.arange(1, 41).reshape(5, 8) * 2.0**-14, np.eye(8) * 2.0**-10))
    bits = np.random.default_rng(7).integers(0, 2**16, (33, 40)).astype(np.uint32)
    shift = {"float32": 16, "float16": 0, "bfloat16": 0}[dtypes[0]]
    with np.errstate(invalid="ignore"):  # signalling NaNs are among them
        numbers = (bits << shift).astype(f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    usable = np.isfinite(numbers) & ((dtypes[0] == "float16") | (np.abs(numbers) >= 2.0**-126))
    cases.append((np.where(usable, numbers, 1), np.eye(40)))  # any number times one is itself
    cases.append((np.eye(33)[::-1], np.where(usable, numbers, 1)))
    return [(lhs.astype(dtype), rhs.astype(dtype)) for lhs, rhs in cases]


@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_hard_values(info: Any, dtypes: DTypes, rng: np.random.Generator, record_error: RecordError) -> None:
    operands = _hard_cases(dtypes)
    exact = len(operands)
    scale = 6 if dtypes[0] == "float16" else 60
    rows, columns = (2.0 ** rng.integers(-scale, scale + 1, n) for n in (37, 41))
    scaled = (
        rng.standard_normal((37, 99)) * rows[:, None] / 8,
        rng.standard_normal((99, 41)) * columns / 8,
    )
    positive = rng.uniform(1, 2, (17, 32768)), rng.uniform(1, 2, (32768, 19)) / 16  # truncation would add up
    dtype = jnp.dtype(dtypes[0])
    operands += [(lhs.astype(dtype), rhs.astype(dtype)) for lhs, rhs in (scaled, positive)]
    program = Program(info.name, dtypes, [Case(Shape(x.shape[0], y.shape[1], x.shape[1]), "NN") for x, y in operands])
    results = program(operands)
    for (lhs, rhs), out in zip(operands[:exact], results[:exact], strict=True):
        with np.errstate(all="ignore"):
            assert_equal(out, rounded(lhs.astype(np.float64) @ rhs.astype(np.float64), dtypes[2]), f"K={lhs.shape[1]}")
    program.cases = program.cases[exact:]
    record_error(info.name, program.worst_error(operands[exact:], results[exact:]))


# --- epilogue ---------------------------------------------------------------------------------------------------------


def test_epilogue_functions_are_all_here() -> None:
    assert set(ACTIVATIONS) == set(_core.activations())


@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_epilogue(info: Any, dtypes: DTypes, rng: np.random.Generator, record_error: RecordError) -> None:
    """Bias and activation in float32, rounded once: the error of the accumulator times the slope of the function."""
    assert info.fused_epilogue
    tile_m, tile_n, tile_k = info.cta_tile
    shapes = [(tile_m + 3, tile_n + 5, tile_k + 3), (tile_m, 2 * tile_n, 2 * tile_k), (5, 7, 0)]

    def run(operands: Any) -> list[list[jax.Array]]:
        return [
            [
                jaxgemm.matmul(
                    lhs, rhs, bias=bias if has_bias else None, activation=None if name == "none" else name,
                    precision=precision_of(dtypes[0]), preferred_element_type=dtypes[2], kernel=info.name,
                )
                for name, has_bias in EPILOGUES
            ]
            for lhs, rhs, bias in operands
        ]  # fmt: skip

    operands = [epilogue_operands(rng, shape, dtypes) for shape in shapes]
    results = jax.device_get(jax.jit(run)(operands))
    worst = 0.0
    for (lhs, rhs, bias), outs in zip(operands, results, strict=True):
        for (name, has_bias), out in zip(EPILOGUES, outs, strict=True):
            ratio = epilogue_error_ratio(np.asarray(out), lhs, rhs, bias if has_bias else None, name, dtypes)
            assert ratio <= 1, f"{lhs.shape} {rhs.shape} {name} bias={has_bias}: error {ratio:.3g} times its bound"
            worst = max(worst, ratio)
    record_error(info.name, worst)


@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_epilogue_keeps_nan(info: Any) -> None:
    dtype = jnp.dtype(info.dtypes[0][0])
    names = [name for name in ACTIVATIONS if name != "none"]
    lhs, rhs = np.ones((5, 8), dtype), np.ones((8, 6), dtype)
    lhs[3, 2] = np.nan
    outs = jax.jit(lambda x, y: [jaxgemm.matmul(x, y, activation=a, kernel=info.name) for a in names])(lhs, rhs)
    for name, out in zip(names, outs, strict=True):
        nan_rows = np.isnan(np.asarray(out).astype(np.float32)).all(1)
        assert nan_rows.tolist() == [False, False, False, True, False], name
