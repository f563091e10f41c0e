"""Values that betray a kernel: NaN and infinity, overflow, rounding, cancellation, and the fused epilogue."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._native import _core
from tests.edge_shapes import LAYOUTS, Case, Shape, deep_shape, ragged_case
from tests.gpu.report import RecordError
from tests.gpu.support import Program, first_floating, float32_highest, floating, over_modes
from tests.values import (
    ACTIVATIONS,
    EPILOGUES,
    EXACT_ALPHA,
    DTypes,
    drift,
    epilogue_error_ratio,
    epilogue_operands,
    float32_extremes,
    integers,
    is_float,
    judged_at,
    plant,
    rounded,
    rounds_operands,
    stored,
    tf32_neighbours,
    wide_normals,
)

pytestmark = pytest.mark.gpu


@over_modes(floating)
def test_nan_and_infinity_stay_in_their_row_and_column(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator
) -> None:
    cases = [ragged_case(info, layout) for layout in LAYOUTS] + [Case(deep_shape(info), layout) for layout in LAYOUTS]
    program = Program(info, dtypes, precision, cases)
    clean = program.draw(integers, rng)
    for value in (np.nan, np.inf, -np.inf):
        for operand in ("lhs", "rhs"):
            operands = [(lhs.copy(), rhs.copy()) for lhs, rhs in clean]
            marks = [
                plant(case, {"lhs": lhs, "rhs": rhs}, operand, value)
                for case, (lhs, rhs) in zip(cases, operands, strict=True)
            ]
            results = program(operands)
            program.check_exact(operands, results)
            for marked, out in zip(marks, results, strict=True):
                special = ~np.isfinite(out.astype(np.float32))
                rows = special if operand == "lhs" else special.T
                assert rows[marked].all()
                assert rows.sum() == len(set(marked)) * rows.shape[1]


def _hard_integers() -> list[tuple[np.ndarray, np.ndarray]]:
    """Products of int8 that go to the ends of int32, and past them."""
    ones = np.ones
    cases = [
        (ones((3, 65536)) * -128, ones((65536, 5)) * -128),  # 2^30
        (ones((5, 131072)) * -128, np.outer(ones(131072), [-128, 127, -127, 0])),  # 2^31, which int32 has not
        (np.outer([127, -128, 1], ones(140000)), np.outer(ones(140000), [127, -128])),
        (np.arange(-128, 128)[:, None], np.arange(-128, 128)[None, :]),  # all products
        (np.eye(40) * -128, np.arange(1640).reshape(40, 41) % 256 - 128),
    ]
    return [(lhs.astype(np.int8), rhs.astype(np.int8)) for lhs, rhs in cases]


def _hard_fp8(dtypes: DTypes) -> list[tuple[np.ndarray, np.ndarray]]:
    """The same of 8-bit floating-point numbers, whose sums the tensor cores give 13 bits below the largest product."""
    lhs_dtype, rhs_dtype = (jnp.dtype(dtype) for dtype in dtypes[:2])
    ones = np.ones
    # Half-way between two numbers of the result's dtype: 257 and 259 for bfloat16, 2049 and 2051 for float16.
    big = {"bfloat16": 1, "float16": 8, "float32": 1}[dtypes[2]]
    cases = [
        (np.outer([1, -1, 2, 0.5], [4, 1, -4, 0] * 64), ones((256, 7))),  # cancellation
        (np.outer([1, -1], [16] * big + [1]), np.outer([16] * big + [1], [1, 0.5, -1])),
        (np.outer([1, -1], [16] * big + [3]), np.outer([16] * big + [1], [1, 0.5, -1])),
    ]
    for dtype, on_left in ((lhs_dtype, True), (rhs_dtype, False)):
        numbers = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float64).reshape(16, 16)
        numbers = np.where(np.isfinite(numbers), numbers, 1)
        cases.append((numbers, np.eye(16)) if on_left else (np.eye(16)[::-1], numbers))  # times one, all are themselves
    return [(lhs.astype(lhs_dtype), rhs.astype(rhs_dtype)) for lhs, rhs in cases]


def _hard_cases(dtypes: DTypes) -> list[tuple[np.ndarray, np.ndarray]]:
    """Products (lhs, rhs) whose exact values every right accumulation gives."""
    dtype = jnp.dtype(dtypes[0])
    if dtype.itemsize == 1:
        return _hard_fp8(dtypes)
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


def _bounded_cases(dtypes: DTypes, rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
    """Products that must be within their bound: of very different rows, columns and elements, and a long sum."""
    scale = {"float16": 6, "float8_e4m3fn": 2, "float8_e5m2": 4}.get(dtypes[0], 60)
    rows, columns = (2.0 ** rng.integers(-scale, scale + 1, n) for n in (37, 41))
    cases = [
        (rng.standard_normal((37, 99)) * rows[:, None] / 8, rng.standard_normal((99, 41)) * columns / 8),
        (rng.uniform(1, 2, (17, 32768)), rng.uniform(1, 2, (32768, 19)) / 16),  # truncation would add up
        (wide_normals(rng, (37, 199), dtypes[0]), wide_normals(rng, (199, 41), dtypes[0])),
    ]
    return [(lhs.astype(jnp.dtype(dtypes[0])), rhs.astype(jnp.dtype(dtypes[1]))) for lhs, rhs in cases]


@over_modes()
def test_hard_values(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    operands = _hard_cases(dtypes) if is_float(dtypes[0]) else _hard_integers()
    exact = len(operands)
    if is_float(dtypes[0]):
        operands += _bounded_cases(dtypes, rng)
    cases = [Case(Shape(x.shape[0], y.shape[1], x.shape[1]), "NN") for x, y in operands]
    program = Program(info, dtypes, precision, cases)
    results = program(operands)
    program.check_exact(operands, results, range(exact))
    record_error(info.name, program.worst_error(operands, results, range(exact, len(cases))))


@over_modes(rounds_operands)
def test_tf32_rounding(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Each operand becomes one of its two neighbours in TF32, and the roundings of many have no direction."""
    lhs, rhs = (wide_normals(rng, shape, "float32") for shape in ((65, 70), (70, 67)))
    ones = [rng.uniform(1, 2, shape).astype(np.float32) for shape in ((65, 1024), (1024, 67))]
    pairs = [(lhs, np.eye(70, dtype=np.float32)), (np.eye(70, dtype=np.float32), rhs), (ones[0], ones[1])]
    cases = [Case(Shape(x.shape[0], y.shape[1], x.shape[1]), "NN") for x, y in pairs]
    of_lhs, of_rhs, sums = Program(info, dtypes, precision, cases)(pairs)
    assert tf32_neighbours(of_lhs, lhs).all()
    assert tf32_neighbours(of_rhs, rhs).all()
    errors = sums / cases[2].product(*ones) - 1
    assert np.abs(errors).max() < 0.2 * 2.0**-10  # truncation: 1.4 of these units
    assert abs(errors.mean()) < 0.1 * 2.0**-10


@over_modes(float32_highest)
def test_float32_extremes(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    """At HIGHEST the range of float32 is that of float32, however the products are made."""
    pairs = {(name, k): pair for k in (99, 1100) for name, pair in float32_extremes(rng, k).items()}
    layouts = [LAYOUTS[i % len(LAYOUTS)] for i in range(len(pairs))]
    cases = [
        Case(Shape(lhs.shape[0], rhs.shape[1], lhs.shape[1]), layout)
        for (lhs, rhs), layout in zip(pairs.values(), layouts, strict=True)
    ]
    operands = [stored(layout, *pair) for pair, layout in zip(pairs.values(), layouts, strict=True)]
    program = Program(info, dtypes, precision, cases)
    results = program(operands)
    record_error(info.name, program.worst_error(operands, results))
    exact = [i for i, (name, _) in enumerate(pairs) if name.startswith("integers")]
    program.check_exact(operands, results, exact)


@over_modes(float32_highest)
def test_float32_sums_do_not_drift(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    lhs, rhs = (rng.random(shape, np.float32) for shape in ((65, 8192), (8192, 67)))
    (out,) = Program(info, dtypes, precision, [Case(Shape(65, 67, 8192), "NN")])([(lhs, rhs)])
    assert drift(lhs, rhs, out) <= 1


# --- epilogue ---------------------------------------------------------------------------------------------------------


def test_epilogue_functions_are_all_here() -> None:
    assert set(ACTIVATIONS) == set(_core.activations())


@over_modes(floating)
def test_epilogue(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    """All in float32, rounded once: the error is that of the scaled accumulator times the slope of the function."""
    assert info.fused_epilogue
    tile_m, tile_n, tile_k = info.cta_tile
    shapes = [(tile_m + 3, tile_n + 5, tile_k + 3), (tile_m, 2 * tile_n, 2 * tile_k), (5, 7, 0)]
    shapes.append(dataclasses.astuple(deep_shape(info))[:3])

    def run(operands: Any) -> list[list[jax.Array]]:
        return [
            [
                jaxgemm.matmul(
                    lhs, rhs, alpha=epilogue.alpha, bias=bias if epilogue.has_bias else None,
                    activation=None if epilogue.activation == "none" else epilogue.activation,
                    precision=precision, preferred_element_type=dtypes[2], kernel=info.name,
                )
                for epilogue in EPILOGUES
            ]
            for lhs, rhs, bias in operands
        ]  # fmt: skip

    operands = epilogue_operands(rng, shapes, dtypes)
    results = jax.device_get(jax.jit(run)(operands))
    bound, worst = judged_at(info, dtypes, precision), 0.0
    for shape, (*pair, bias), outs in zip(shapes, operands, results, strict=True):
        case = Case(Shape(*shape), "NN")
        for epilogue, out in zip(EPILOGUES, outs, strict=True):
            ratio = epilogue_error_ratio(case, np.asarray(out), pair, bias, epilogue, dtypes, bound)
            assert ratio <= 1, f"{case} {epilogue}: error {ratio:.3g} times its bound"
            worst = max(worst, ratio)
    record_error(info.name, worst)


@over_modes(floating)
def test_a_bias_for_each_of_the_batch(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """By vmap, and of a shape that broadcasts over the rows: bit for bit, of numbers whose sums are exact."""
    tile_m, tile_n, tile_k = info.cta_tile
    cases = [Case(Shape(m, n, k, "both"), "NN") for m, n, k in ((tile_m + 3, tile_n + 5, tile_k + 3), (5, 16, 0))]
    operands = [
        (
            integers(rng, case.lhs_shape, dtypes[0]),
            integers(rng, case.rhs_shape, dtypes[1]),
            rng.integers(-4, 5, (case.out_shape[0], case.shape.n)).astype(np.float32),
        )
        for case in cases
    ]
    layer = functools.partial(
        jaxgemm.matmul, alpha=EXACT_ALPHA, precision=precision, preferred_element_type=dtypes[2], kernel=info.name
    )

    def run(operands: Any) -> list[Any]:
        return [
            (
                jax.vmap(lambda x, w, b: layer(x, w, bias=b, activation="relu"))(lhs, rhs, bias),
                layer(lhs, rhs, bias=bias[:, None], activation="relu"),
            )
            for lhs, rhs, bias in operands
        ]

    text = jax.jit(run).lower(operands).as_text()
    assert text.count("custom_call @jaxgemm") == text.count('activation = "relu"') == 2 * len(cases)
    for case, (lhs, rhs, bias), outs in zip(cases, operands, jax.device_get(jax.jit(run)(operands)), strict=True):
        exact = rounded(np.maximum(EXACT_ALPHA * case.product(lhs, rhs) + bias[:, None], 0), dtypes[2])
        for out in outs:
            np.testing.assert_array_equal(out, exact, str(case))


@over_modes(first_floating)
def test_epilogue_keeps_nan(info: Any, dtypes: DTypes, precision: str) -> None:
    dtype = jnp.dtype(dtypes[0])
    names = [name for name in ACTIVATIONS if name != "none"]
    lhs, rhs = np.ones((5, 8), dtype), np.ones((8, 6), dtype)
    lhs[3, 2] = np.nan

    def run(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        return [jaxgemm.matmul(x, y, activation=name, precision=precision, kernel=info.name) for name in names]

    for name, out in zip(names, jax.jit(run)(lhs, rhs), strict=True):
        nan_rows = np.isnan(np.asarray(out).astype(np.float32)).all(1)
        assert nan_rows.tolist() == [False, False, False, True, False], name


@over_modes(first_floating)
def test_special_alphas(info: Any, dtypes: DTypes, precision: str) -> None:
    """One program for all values: alpha is an operand. NaN and infinity are factors like any other, of empty sums too:
    0 * inf is NaN. Zero hides no NaN.
    """
    lhs, rhs = np.ones((5, 8), jnp.dtype(dtypes[0])), np.ones((8, 6), jnp.dtype(dtypes[1]))
    lhs[1], lhs[2, 3], lhs[3] = 0, np.nan, -1
    traces = []

    @jax.jit
    def run(alpha: jax.Array) -> list[jax.Array]:
        traces.append(alpha)
        return [
            jaxgemm.matmul(
                lhs[:, :k], rhs[:k], alpha=alpha, precision=precision, preferred_element_type=dtypes[2],
                kernel=info.name,
            )
            for k in (8, 0)
        ]  # fmt: skip

    for alpha in (np.nan, np.inf, -np.inf, 0.0, -3.0):
        for k, out in zip((8, 0), jax.device_get(run(alpha)), strict=True):
            with np.errstate(invalid="ignore"):
                expected = np.float32(alpha) * np.array([k, 0, np.nan if k else 0, -k, k], np.float32)
            np.testing.assert_array_equal(out.astype(np.float32), np.tile(expected[:, None], 6), f"{k} {alpha}")
    assert len(traces) == 1
