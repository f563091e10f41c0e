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
from tests.edge_shapes import LAYOUTS, Case, Shape
from tests.gpu.native import attributes_of, batched_plan, raw_call
from tests.gpu.support import (
    KERNEL_IDS,
    KERNELS,
    PRODUCT_IDS,
    PRODUCTS,
    first_dtypes,
    first_floating,
    over_modes,
)
from tests.helpers import MATMUL_SHAPES
from tests.values import DTypes, assert_equal, integers, is_float, normals, rounded

pytestmark = pytest.mark.gpu

_over_products = pytest.mark.parametrize(("dtypes", "precision"), PRODUCTS, ids=PRODUCT_IDS)


@_over_products
def test_matmul_shapes(dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    operands = [(integers(rng, lhs, dtypes[0]), integers(rng, rhs, dtypes[1])) for lhs, rhs in MATMUL_SHAPES]
    matmul = functools.partial(jaxgemm.matmul, precision=precision, preferred_element_type=dtypes[2])
    outs = jax.jit(lambda pairs: [matmul(x, y) for x, y in pairs])(operands)
    for (lhs, rhs), out in zip(operands, outs, strict=True):
        expected = np.asarray(np.matmul(lhs.astype(np.float64), rhs.astype(np.float64)))
        assert_equal(np.asarray(out), rounded(expected, dtypes[2]), f"{lhs.shape} @ {rhs.shape}")


@_over_products
def test_like_jnp_matmul(dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Within the bound of the exact product, and no worse than XLA; eager and jitted calls give the same bits."""
    lhs, rhs = (jnp.asarray(normals(rng, shape, dtypes[0])) for shape in ((3, 333, 1031), (3, 1031, 259)))
    exact, magnitude = reference(lhs, rhs, (((2,), (1,)), ((0,), (0,))))
    options = {"precision": precision, "preferred_element_type": dtypes[2]}
    eager = jaxgemm.matmul(lhs, rhs, **options)
    jitted = jax.jit(lambda x, y: jaxgemm.matmul(x, y, **options))(lhs, rhs)
    assert np.asarray(eager).tobytes() == np.asarray(jitted).tobytes()
    assert error_over_bound(eager, exact, magnitude, 1031, dtypes[0], dtypes[2], precision) <= 1

    def relative_error(out: jax.Array) -> float:
        return float((np.abs(np.asarray(out, np.float64) - np.asarray(exact)) / np.asarray(magnitude)).max())

    # XLA's choice may be exact where ours need not be: float32 itself for TF32; 8-bit operands converted to 16 bits,
    # where the tensor cores' sums of 32 products hold 13 bits below the largest (jaxgemm/_reference.py).
    unit = 2.0**-24
    if (dtypes[0], precision) == ("float32", "default"):
        unit = 2.0**-12
    elif dtypes[0].startswith("float8"):
        unit = 2.0**-13
    xla = relative_error(jnp.matmul(lhs, rhs, **options))
    assert relative_error(eager) <= max(4 * xla, 16 * 2.0**-24, 4 * unit)


@over_modes(first_dtypes)
def test_vmap_and_control_flow(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """All in one program, exact on integers."""
    x, y = integers(rng, (5, 37, 43), dtypes[0]), integers(rng, (5, 43, 29), dtypes[1])
    permutation = np.eye(37, dtype=dtypes[0])[rng.permutation(37)]

    def gemm(a: jax.Array, b: jax.Array) -> jax.Array:
        return jaxgemm.matmul(a, b, precision=precision, preferred_element_type=dtypes[2], kernel=info.name)

    @jax.jit
    def run(x: jax.Array, y: jax.Array, p: jax.Array) -> dict[str, Any]:
        return {
            "vmap both": jax.vmap(gemm)(x, y),
            "vmap lhs": jax.vmap(gemm, (0, None), 1)(x, y[0]),
            "vmap rhs": jax.vmap(gemm, (None, 0))(x[0], y),
            "vmap twice": jax.vmap(lambda a: jax.vmap(lambda b: gemm(a, b))(y))(x),
            "scan": jax.lax.scan(lambda carry, ab: (carry, gemm(*ab)), 0, (x, y))[1],
            "while": jax.lax.fori_loop(0, 6, lambda _, a: gemm(p, a).astype(a.dtype), x[0]),
            "cond": jax.lax.cond(
                x[0, 0, 0].astype(jnp.float32) > -200, gemm, lambda a, b: jnp.zeros_like(gemm(a, b)), x[0], y[0]
            ),
        }

    out = jax.device_get(run(x, y, permutation))
    a, b = (z.astype(np.float64) for z in (x, y))
    p6 = np.linalg.matrix_power(permutation.astype(np.float64), 6)
    expected = {
        "vmap both": a @ b,
        "vmap lhs": np.swapaxes(a @ b[0], 0, 1),
        "vmap rhs": a[0] @ b,
        "vmap twice": a[:, None] @ b[None],
        "scan": a @ b,
        "while": p6 @ a[0],
        "cond": a[0] @ b[0],
    }
    for name, value in expected.items():
        assert_equal(out[name], rounded(np.asarray(value), dtypes[0] if name == "while" else dtypes[2]), name)


@over_modes(first_floating)
def test_derivatives(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Of products whose result has the operands' dtype, exact on integers."""
    dtype = dtypes[0]
    assert dtypes[2] == dtype
    x, y = integers(rng, (2, 37, 43), dtype), integers(rng, (2, 43, 29), dtype)
    g = integers(rng, (37, 29), dtype)

    def gemm(a: jax.Array, b: jax.Array) -> jax.Array:
        return jaxgemm.matmul(a, b, precision=precision, kernel=info.name)

    @jax.jit
    def run(x: jax.Array, y: jax.Array, g: jax.Array) -> dict[str, Any]:
        _, tangent = jax.jvp(gemm, (x[0], y[0]), (x[1], y[1]))
        _, vjp = jax.vjp(gemm, x[0], y[0])
        again = jax.checkpoint(lambda a, b: gemm(gemm(a, b), b.T).sum())
        return {"jvp": tangent, "vjp": vjp(g), "grad of checkpoint": jax.grad(again)(x[0] % 2, y[0] % 2)}

    out = jax.device_get(run(x, y, g))
    a, b, g64 = (z.astype(np.float64) for z in (x, y, g))
    # Two rounded products, and their sum rounded.
    tangent = sum(rounded(v, dtype).astype(np.float64) for v in (a[1] @ b[0], a[0] @ b[1]))
    assert_equal(out["jvp"], rounded(np.asarray(tangent), dtype), "jvp")
    for got, value in zip(out["vjp"], (g64 @ b[0].T, a[0].T @ g64), strict=True):
        assert_equal(got, rounded(value, dtype), "vjp")
    assert out["grad of checkpoint"].shape == x[0].shape
    if dtype == "float32":
        ones = np.ones((37, 43))
        bb = b[0] % 2
        assert_equal(out["grad of checkpoint"], (ones @ bb @ bb.T).astype(np.float32), "grad of checkpoint")


# --- errors -----------------------------------------------------------------------------------------------------------

_CASE = Case(Shape(33, 29, 21), "NN")


@over_modes(first_dtypes)
def test_corrupted_custom_calls_are_errors(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """The handler judges what it is handed; after each refusal a good call works."""
    lhs, rhs = integers(rng, _CASE.lhs_shape, dtypes[0]), integers(rng, _CASE.rhs_shape, dtypes[1])
    expected = rounded(_CASE.product(lhs, rhs), dtypes[2])
    plan = batched_plan(_CASE)
    out = jax.ShapeDtypeStruct(_CASE.out_shape, dtypes[2])
    flipped = {**plan.lhs.attribute(), "rows": np.array([1]), "cols": np.array([0])}
    beyond = {**plan.lhs.attribute(), "rows": np.array([7])}
    unordered = {**plan.rhs.attribute(), "order": np.array([0, 0])}
    options = {"precision": precision, "preferred_element_type": dtypes[2], "kernel": info.name}
    good = jax.jit(lambda x, y: jaxgemm.matmul(x, y, **options))
    bad: dict[str, tuple[dict[str, Any], Any]] = {
        "no kernel is called": ({"kernel": "no_such_kernel"}, out),
        "no precision is called": ({"precision": "perfect"}, out),
        "no activation is called": ({"activation": "tanh"}, out),
        "does not give out": ({"lhs": flipped}, out),
        "out of range": ({"lhs": beyond}, out),
        "order": ({"rhs": unordered}, out),
        "29x33": ({}, jax.ShapeDtypeStruct((29, 33), dtypes[2])),
        "does not multiply": (
            {},
            jax.ShapeDtypeStruct(_CASE.out_shape, np.int32 if is_float(dtypes[2]) else np.float32),
        ),
    }
    for sentence, (changed, result) in bad.items():
        attributes = attributes_of(plan, info.name, precision, **changed)
        call = jax.jit(lambda x, y, result=result, attributes=attributes: raw_call([result], [x, y], **attributes))
        with pytest.raises(jax.errors.JaxRuntimeError, match=sentence):
            jax.block_until_ready(call(lhs, rhs))
        assert_equal(np.asarray(good(lhs, rhs)), expected, sentence)


@pytest.mark.parametrize("family", [None, "wmma_tiled", "mma", "mma_ldmatrix", "mma_multistage"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sizes_that_are_known_at_run_time_only(family: str | None, layout: str, rng: np.random.Generator) -> None:
    """From less than a tile of what was chosen to operands that would be copied, were there a workspace."""
    m, n, k = jax.export.symbolic_shape("m,n,k")

    def stored(m: Any, n: Any, k: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        return (m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k)

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        return jaxgemm.matmul(x if layout[0] == "N" else x.T, y if layout[1] == "N" else y.T, kernel=family)

    operands = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in stored(m, n, k)]
    checks = jaxgemm.export_checks()
    exported = jax.export.export(jax.jit(product), platforms=["cuda"], disabled_checks=checks)(*operands)
    for sizes in ((3, 5, 7), (129, 130, 67), (300, 301, 77), (703, 701, 699)):
        lhs, rhs = (integers(rng, shape, "bfloat16") for shape in stored(*sizes))
        out = np.asarray(exported.call(lhs, rhs))
        expected = Case(Shape(*sizes), layout).product(lhs, rhs)
        assert_equal(out, rounded(expected, "bfloat16"), f"{family} {layout} {sizes}")


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


@_over_products
def test_choice_is_what_explain_says(dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Without a name a kernel runs, on this GPU's architecture, and it is the one that is announced."""
    lhs, rhs = integers(rng, (65, 70), dtypes[0]), integers(rng, (70, 50), dtypes[1])
    options = {"precision": precision, "preferred_element_type": dtypes[2]}
    chosen = jaxgemm.explain(lhs, rhs, **options).kernel
    assert chosen in KERNEL_IDS
    jitted = jax.jit(functools.partial(jaxgemm.matmul, **options))
    assert f'"{chosen}"' in jitted.lower(lhs, rhs).as_text()
    expected = rounded(lhs.astype(np.float64) @ rhs.astype(np.float64), dtypes[2])
    assert_equal(np.asarray(jitted(lhs, rhs)), expected, chosen)
