"""JAX's transforms, the public shapes and the error paths, with real kernels and the real handler."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._reference import error_over_bound, reference
from tests.edge_shapes import Case, Shape
from tests.gpu.native import attributes_of, batched_plan, raw_call
from tests.gpu.support import KERNEL_IDS, KERNELS, precision_of
from tests.helpers import MATMUL_SHAPES
from tests.values import assert_equal, integers, normals, rounded

pytestmark = pytest.mark.gpu

_DTYPES = ("float32", "bfloat16", "float16")


@pytest.mark.parametrize("dtype", _DTYPES)
def test_matmul_shapes(dtype: str, rng: np.random.Generator) -> None:
    operands = [(integers(rng, lhs, dtype), integers(rng, rhs, dtype)) for lhs, rhs in MATMUL_SHAPES]
    outs = jax.jit(lambda pairs: [jaxgemm.matmul(x, y) for x, y in pairs])(operands)
    for (lhs, rhs), out in zip(operands, outs, strict=True):
        expected = np.asarray(np.matmul(lhs.astype(np.float64), rhs.astype(np.float64)))
        assert_equal(np.asarray(out), rounded(expected, dtype), f"{lhs.shape} @ {rhs.shape}")


@pytest.mark.parametrize("dtype", _DTYPES)
def test_like_jnp_matmul(dtype: str, rng: np.random.Generator) -> None:
    """Within the bound of the exact product, and no worse than XLA; eager and jitted calls give the same bits."""
    lhs, rhs = jnp.asarray(normals(rng, (3, 333, 1031), dtype)), jnp.asarray(normals(rng, (3, 1031, 259), dtype))
    numbers = (((2,), (1,)), ((0,), (0,)))
    exact, magnitude = reference(lhs, rhs, numbers)
    precision = precision_of(dtype)
    eager = jaxgemm.matmul(lhs, rhs, precision=precision)
    jitted = jax.jit(lambda x, y: jaxgemm.matmul(x, y, precision=precision))(lhs, rhs)
    assert np.asarray(eager).tobytes() == np.asarray(jitted).tobytes()
    assert error_over_bound(eager, exact, magnitude, 1031, dtype, dtype, "highest") <= 1

    def relative_error(out: jax.Array) -> float:
        return float((np.abs(np.asarray(out, np.float64) - np.asarray(exact)) / np.asarray(magnitude)).max())

    xla = relative_error(jnp.matmul(lhs, rhs, precision=precision))
    assert relative_error(eager) <= max(4 * xla, 16 * 2.0**-24)


@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_transforms(info: Any, rng: np.random.Generator) -> None:
    """Every transform in one program, exact on integers."""
    dtype = info.dtypes[0][0]
    x, y = integers(rng, (5, 37, 43), dtype), integers(rng, (5, 43, 29), dtype)
    g = integers(rng, (37, 29), dtype)
    permutation = np.eye(37, dtype=dtype)[rng.permutation(37)]

    def gemm(a: jax.Array, b: jax.Array) -> jax.Array:
        return jaxgemm.matmul(a, b, kernel=info.name)

    @jax.jit
    def run(x: jax.Array, y: jax.Array, g: jax.Array, p: jax.Array) -> dict[str, Any]:
        _, tangent = jax.jvp(gemm, (x[0], y[0]), (x[1], y[1]))
        _, vjp = jax.vjp(gemm, x[0], y[0])
        again = jax.checkpoint(lambda a, b: gemm(gemm(a, b), b.T).sum())
        return {
            "vmap both": jax.vmap(gemm)(x, y),
            "vmap lhs": jax.vmap(gemm, (0, None), 1)(x, y[0]),
            "vmap rhs": jax.vmap(gemm, (None, 0))(x[0], y),
            "vmap twice": jax.vmap(lambda a: jax.vmap(lambda b: gemm(a, b))(y))(x),
            "jvp": tangent,
            "vjp": vjp(g),
            "scan": jax.lax.scan(lambda carry, ab: (carry, gemm(*ab)), 0, (x, y))[1],
            "while": jax.lax.fori_loop(0, 6, lambda _, a: gemm(p, a), x[0]),
            "cond": jax.lax.cond(x[0, 0, 0] > -100, gemm, lambda a, b: jnp.zeros_like(gemm(a, b)), x[0], y[0]),
            "grad of checkpoint": jax.grad(again)(x[0] % 2, y[0] % 2),
        }

    out = jax.device_get(run(x, y, g, permutation))
    a, b, g64 = (z.astype(np.float64) for z in (x, y, g))
    p6 = np.linalg.matrix_power(permutation.astype(np.float64), 6)
    expected = {
        "vmap both": a @ b,
        "vmap lhs": np.swapaxes(a @ b[0], 0, 1),
        "vmap rhs": a[0] @ b,
        "vmap twice": a[:, None] @ b[None],
        "jvp": a[1] @ b[0] + a[0] @ b[1],
        "scan": a @ b,
        "while": p6 @ a[0],
        "cond": a[0] @ b[0],
    }
    for name, value in expected.items():
        if name == "jvp" and dtype != "float32":  # two rounded products, and their sum rounded
            value = sum(rounded(v, dtype).astype(np.float64) for v in (a[1] @ b[0], a[0] @ b[1]))
        assert_equal(out[name], rounded(np.asarray(value), dtype), name)
    for got, value in zip(out["vjp"], (g64 @ b[0].T, a[0].T @ g64), strict=True):
        assert_equal(got, rounded(value, dtype), "vjp")
    assert out["grad of checkpoint"].shape == x[0].shape
    if dtype == "float32":
        ones = np.ones((37, 43))
        bb = b[0] % 2
        assert_equal(out["grad of checkpoint"], (ones @ bb @ bb.T).astype(np.float32), "grad of checkpoint")


# --- errors -----------------------------------------------------------------------------------------------------------

_CASE = Case(Shape(33, 29, 21), "NN")


@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_corrupted_custom_calls_are_errors(info: Any, rng: np.random.Generator) -> None:
    """The handler judges what it is handed; after each refusal a good call works."""
    dtypes = info.dtypes[0]
    lhs, rhs = integers(rng, _CASE.lhs_shape, dtypes[0]), integers(rng, _CASE.rhs_shape, dtypes[1])
    expected = rounded(_CASE.product(lhs, rhs), dtypes[2])
    plan = batched_plan(_CASE)
    out = jax.ShapeDtypeStruct(_CASE.out_shape, dtypes[2])
    flipped = {**plan.lhs.attribute(), "rows": np.array([1]), "cols": np.array([0])}
    beyond = {**plan.lhs.attribute(), "rows": np.array([7])}
    unordered = {**plan.rhs.attribute(), "order": np.array([0, 0])}
    good = jax.jit(lambda x, y: jaxgemm.matmul(x, y, preferred_element_type=dtypes[2], kernel=info.name))
    bad: dict[str, tuple[dict[str, Any], Any]] = {
        "no kernel is called": ({"kernel": "no_such_kernel"}, out),
        "no precision is called": ({"precision": "perfect"}, out),
        "no activation is called": ({"activation": "tanh"}, out),
        "does not give out": ({"lhs": flipped}, out),
        "out of range": ({"lhs": beyond}, out),
        "order": ({"rhs": unordered}, out),
        "29x33": ({}, jax.ShapeDtypeStruct((29, 33), dtypes[2])),
        "does not multiply": ({}, jax.ShapeDtypeStruct(_CASE.out_shape, np.int32)),
    }
    for sentence, (changed, result) in bad.items():
        attributes = attributes_of(plan, info.name, **changed)
        call = jax.jit(lambda x, y, result=result, attributes=attributes: raw_call([result], [x, y], **attributes))
        with pytest.raises(jax.errors.JaxRuntimeError, match=sentence):
            jax.block_until_ready(call(lhs, rhs))
        assert_equal(np.asarray(good(lhs, rhs)), expected, sentence)


def test_missing_workspace_is_an_error() -> None:
    info = next((info for info in KERNELS if info.family == "wmma_naive"), None)
    assert info is not None
    plan, dtypes = batched_plan(_CASE), info.dtypes[0]
    out = jax.ShapeDtypeStruct(_CASE.out_shape, dtypes[2])
    operands = jnp.ones(_CASE.lhs_shape, dtypes[0]), jnp.ones(_CASE.rhs_shape, dtypes[1])
    for results in ([out], [out, jax.ShapeDtypeStruct((64,), np.uint8)]):
        call = jax.jit(lambda *xs, results=results: raw_call(results, xs, **attributes_of(plan, info.name)))
        with pytest.raises(jax.errors.JaxRuntimeError, match="bytes of workspace, got"):
            jax.block_until_ready(call(*operands))


def test_named_kernels_refuse_at_trace_time() -> None:
    f32 = jax.ShapeDtypeStruct((8, 8), np.float32)
    with pytest.raises(ValueError, match=r"kernel='nave' is none of this build's kernels: .*Did you mean 'naive'\?"):
        jax.make_jaxpr(lambda x: jaxgemm.matmul(x, x, kernel="nave"))(f32)
    for info in KERNELS:
        wrong = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16 if info.dtypes[0][0] == "float32" else np.float32)
        with pytest.raises(ValueError, match=rf"kernel='{info.name}' cannot run .*does not multiply.*kernels that can"):
            jax.make_jaxpr(lambda x, name=info.name: jaxgemm.matmul(x, x, kernel=name))(wrong)


def test_choice_is_what_explain_says(rng: np.random.Generator) -> None:
    """Without a name a kernel runs, on this GPU's architecture, and it is the one that is announced."""
    for dtype in _DTYPES:
        lhs, rhs = integers(rng, (65, 70), dtype), integers(rng, (70, 50), dtype)
        chosen = jaxgemm.explain(lhs, rhs, precision=precision_of(dtype)).kernel
        assert chosen in KERNEL_IDS
        jitted = jax.jit(functools.partial(jaxgemm.matmul, precision=precision_of(dtype)))
        assert f'"{chosen}"' in jitted.lower(lhs, rhs).as_text()
        expected = rounded(lhs.astype(np.float64) @ rhs.astype(np.float64), dtype)
        assert_equal(np.asarray(jitted(lhs, rhs)), expected, chosen)
