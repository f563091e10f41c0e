"""jaxgemm/_reference.py: the judge itself must find what it is there for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxgemm._reference import error_over_bound, reference

MATMUL = (((1,), (0,)), ((), ()))
K = 512


def product(rng: np.random.Generator, dtype: str, out_dtype: str) -> tuple[np.ndarray, jax.Array, jax.Array]:
    lhs, rhs = (jnp.asarray(rng.standard_normal(shape), dtype) for shape in ((24, K), (K, 40)))
    exact, magnitude = reference(lhs, rhs, MATMUL)
    return np.asarray(exact).astype(jnp.dtype(out_dtype)), exact, magnitude


def test_reference_is_the_float64_product(rng: np.random.Generator) -> None:
    lhs, rhs = rng.integers(-9, 10, (5, 7)), rng.integers(-9, 10, (7, 3))
    exact, magnitude = reference(jnp.asarray(lhs, jnp.bfloat16), jnp.asarray(rhs, jnp.bfloat16), MATMUL)
    assert exact.dtype == magnitude.dtype == np.float64
    assert np.array_equal(exact, lhs @ rhs)
    assert np.array_equal(magnitude, abs(lhs) @ abs(rhs))


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float16")],
)
def test_accepts_one_rounding_and_nothing_worse(rng: np.random.Generator, dtype: str, out_dtype: str) -> None:
    out, exact, magnitude = product(rng, dtype, out_dtype)
    assert error_over_bound(out, exact, magnitude, K, dtype, out_dtype) <= 1
    largest = np.unravel_index(np.argmax(np.abs(np.asarray(exact))), exact.shape)
    smallest = np.unravel_index(np.argmin(np.abs(np.asarray(exact))), exact.shape)
    for wrong in (np.nan, np.inf, -np.inf, 0.0, -float(exact[largest]), 1.03 * float(exact[largest])):
        bad = out.copy()
        bad[largest] = wrong
        assert error_over_bound(bad, exact, magnitude, K, dtype, out_dtype) > 1, wrong
    bad = out.copy()
    bad[smallest] = 1.0 + float(exact[smallest])
    assert error_over_bound(bad, exact, magnitude, K, dtype, out_dtype) > 1


def test_tf32_is_only_allowed_by_default(rng: np.random.Generator) -> None:
    lhs, rhs = (rng.standard_normal(shape).astype(np.float32) for shape in ((24, K), (K, 40)))
    exact, magnitude = reference(lhs, rhs, MATMUL)
    tf32 = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (lhs, rhs)]
    out = (tf32[0] @ tf32[1]).astype(np.float32)
    assert error_over_bound(out, exact, magnitude, K, "float32", "float32", "default") <= 1
    assert error_over_bound(out, exact, magnitude, K, "float32", "float32", "highest") > 1


def test_sums_of_fp8_may_lose_bits_with_each_instruction_by_default() -> None:
    k = 4096
    exact, magnitude = np.full((2, 3), 64.0), np.full((2, 3), 64.0)
    for precision, instructions in (("default", k / 32), ("highest", 16)):
        allowed = 64 * instructions * 33 * 2.0**-13
        for factor, right in ((0.99, True), (1.01, False)):
            out = (exact - factor * allowed).astype(np.float32)
            judged = error_over_bound(out, exact, magnitude, k, "float8_e4m3fn", "float32", precision)
            assert (judged <= 1) == right, (precision, factor)


def test_overflow_is_right_only_where_the_exact_result_overflows() -> None:
    exact = jnp.array([65519.0, 65521.0, -70000.0, 1e5, jnp.inf])
    right = np.array([65504, np.inf, -np.inf, np.inf, np.inf], np.float16)
    assert error_over_bound(right, exact, abs(exact), 1, "float16", "float16") <= 1
    # Not at 65519: it lies closer to where float16 overflows than its own bound, so that infinity is accepted too.
    for i, wrong in [(1, -np.inf), (2, np.inf), (3, 65504), (4, 65504)]:
        bad = right.copy()
        bad[i] = wrong
        assert error_over_bound(bad, exact, abs(exact), 1, "float16", "float16") > 1, (i, wrong)


def test_exact_zero_has_no_slack_without_terms() -> None:
    zeros = np.zeros((3, 4))
    assert error_over_bound(zeros.astype(np.float32), zeros, zeros, 0, "float32", "float32") == 0
    assert error_over_bound(zeros.astype(np.float32) + 1e-30, zeros, zeros, 0, "float32", "float32") > 1
    assert (
        error_over_bound(np.zeros((0, 4), np.float32), np.zeros((0, 4)), np.zeros((0, 4)), 0, "float32", "float32") == 0
    )
