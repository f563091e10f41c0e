"""alpha= of ``matmul``: values, dtypes, errors, derivatives, vmap, sharding and the lowered program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax.test_util import check_grads

import jaxgemm
from benchmarks.checks import STEEPEST
from jaxgemm._reference import error_over_bound
from tests.helpers import (
    MATMUL_SHAPES,
    assert_same,
    count_ops,
    cuda_text,
    custom_calls,
    integers,
    normal,
    struct,
)

ACTIVATIONS: dict[str | None, Callable[..., Any]] = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}
MATRICES = [s for s in MATMUL_SHAPES if 0 not in (*s[0], *s[1])]

# --- values -----------------------------------------------------------------------------------------------------------


ALPHAS: list[Any] = [2, -3, 0.5, np.float32(-0.25), np.float64(4), np.int8(3), np.array(-2), jnp.float32(1.5)]


@pytest.mark.parametrize("alpha", ALPHAS, ids=lambda x: f"{type(x).__name__} {x}")
@pytest.mark.parametrize("epilogue", [{}, {"activation": "relu"}, {"bias": True}, {"bias": True, "activation": "relu"}])
def test_alpha_of_every_kind(alpha: Any, epilogue: dict[str, Any], rng: np.random.Generator) -> None:
    x, y = integers(rng, (4, 5)), integers(rng, (5, 6))
    bias, relu = integers(rng, (6,)), jax.nn.relu if "activation" in epilogue else lambda v: v
    out = jaxgemm.matmul(x, y, alpha=alpha, **(epilogue | ({"bias": bias} if "bias" in epilogue else {})))
    assert_same(out, relu(np.float32(alpha) * (x @ y) + (bias if "bias" in epilogue else 0)))
    assert not out.weak_type


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("alpha", [-1.37, 0.0173])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_alpha_is_applied_in_float32(
    dtype: str, alpha: float, activation: str | None, rng: np.random.Generator
) -> None:
    x, y, bias = normal(rng, (7, 33), dtype), normal(rng, (33, 9), dtype), normal(rng, (9,), dtype)
    wide = [np.asarray(a, np.float64) for a in (x, y, bias)]
    factor = float(np.float32(alpha))
    for add in (None, bias):
        out = jaxgemm.matmul(x, y, alpha=alpha, bias=add, activation=activation)
        assert out.dtype == x.dtype
        with jax.enable_x64(True):
            exact = factor * (wide[0] @ wide[1]) + (0 if add is None else wide[2])
            want = ACTIVATIONS[activation](jnp.asarray(exact))
        # As above; the 16 roundings beyond K that the bound grants hold those of the activation.
        magnitude = abs(factor) * (np.abs(wide[0]) @ np.abs(wide[1])) + (0 if add is None else np.abs(wide[2]))
        magnitude = STEEPEST * magnitude + np.abs(exact)
        assert error_over_bound(out, want, magnitude, 33, dtype, dtype, "highest", factor) <= 1


@pytest.mark.parametrize(("lhs", "rhs"), MATRICES, ids=str)
def test_alpha_for_every_shape(lhs: Any, rhs: Any, rng: np.random.Generator) -> None:
    x, y = integers(rng, lhs), integers(rng, rhs)
    plain = jnp.matmul(x, y)
    assert_same(jaxgemm.matmul(x, y, alpha=-2.0), -2 * plain)
    column = integers(rng, (plain.shape[-2], 1) if plain.ndim > 1 else ())
    for bias in (integers(rng, plain.shape[-1:]), column):  # of the kernels' form, and composed
        out = jaxgemm.matmul(x, y, alpha=-2.0, bias=bias, activation="relu")
        assert_same(out, jax.nn.relu(-2 * plain + bias))


def test_special_alphas() -> None:
    x, y = jnp.array([[1.0, 1.0], [0.0, 0.0], [-1.0, -1.0], [1.0, np.nan]]), jnp.ones((2, 3))
    for alpha in (np.nan, np.inf, -np.inf, 0.0):
        with np.errstate(invalid="ignore"):
            want = np.tile(np.float32(alpha) * np.array([[2], [0], [-2], [np.nan]], np.float32), (1, 3))
            empty = np.full((3, 4), np.float32(alpha) * np.float32(0))
        np.testing.assert_array_equal(jaxgemm.matmul(x, y, alpha=alpha), want)
        np.testing.assert_array_equal(jaxgemm.matmul(jnp.ones((3, 0)), jnp.ones((0, 4)), alpha=alpha), empty)


def test_alpha_scales_what_is_asked_for(rng: np.random.Generator) -> None:
    """The dtype of the result decides: sums of int8 or float8 operands are scaled before they are rounded to it."""
    for dtype in ("int8", "float8_e4m3fn", "float8_e5m2"):
        x, y = integers(rng, (4, 5), dtype), integers(rng, (5, 6), dtype)
        exact = np.asarray(x, np.float32) @ np.asarray(y, np.float32)
        for preferred in ("float32", "bfloat16", "float16"):
            out = jaxgemm.matmul(x, y, alpha=0.375, preferred_element_type=preferred)
            assert_same(out, jnp.asarray(0.375 * exact, preferred))
    with jax.enable_x64(True):
        x, third = jnp.full((2, 2), 1.0, np.float64), 1 / 3
        assert_same(jaxgemm.matmul(x, x, alpha=third), jnp.full((2, 2), 2 * third))


def test_a_changed_alpha_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    traces = []

    @jax.jit
    def scaled(alpha: Any) -> Any:
        traces.append(alpha)
        return jaxgemm.matmul(jnp.ones((2, 3)), jnp.ones((3, 4)), alpha=alpha, activation="relu")

    for alpha in (jnp.float32(1), jnp.float32(2.5), jnp.float32(7)):
        assert_same(scaled(alpha), jnp.full((2, 4), 3 * alpha))
    assert len(traces) == 1
    # Nor does one that Python holds, outside of jit.
    x, y = jnp.ones((2, 3)), jnp.ones((3, 4))
    jaxgemm.matmul(x, y, alpha=2.0).block_until_ready()
    with jax.log_compiles():
        for alpha in (3.0, 4.5, 5):
            jaxgemm.matmul(x, y, alpha=alpha).block_until_ready()
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
    with jax.log_compiles():
        jaxgemm.matmul(x, y, alpha=2.0, activation="silu")
    assert [record for record in caplog.records if "Compiling" in record.getMessage()]


# --- errors -----------------------------------------------------------------------------------------------------------

BAD_ALPHAS: list[tuple[Any, str, str, type[Exception], str]] = [
    (
        np.ones(1, np.float32),
        "float32",
        "float32",
        ValueError,
        r"alpha of shape \(1,\) is no scalar: use alpha.reshape\(",
    ),
    (jnp.ones((1, 1)), "float32", "float32", ValueError, r"alpha of shape \(1, 1\) is no scalar: use alpha.reshape\("),
    ([1.0, 2.0], "float32", "float32", ValueError, r"alpha of shape \(2,\) is no scalar: multiply lhs, rhs or the res"),
    (np.ones((4, 1)), "float32", "float32", ValueError, r"alpha of shape \(4, 1\) is no scalar: multiply lhs, rhs or"),
    (1j, "float32", "float32", TypeError, "alpha=1j is no real number: give a number, or an array of shape"),
    (np.complex64(2), "float32", "float32", TypeError, "is no real number: give a number, or an array"),
    (True, "float32", "float32", TypeError, "alpha=True is no real number"),
    ("float32", "float32", "float32", TypeError, "alpha='float32' is no real number"),
    (np.float32, "float32", "float32", TypeError, "alpha=<type> is no real number"),
    (10**400, "float32", "float32", TypeError, "alpha=10+ is no real number"),
    (2.0, "int8", "int8", TypeError, "alpha=2.0 needs a floating-point result, this one is int8: give preferred_ele"),
    (2, "int8", "int32", TypeError, "alpha=2 needs a floating-point result, this one is int32: give preferred_eleme"),
    (np.float32(2), "complex64", "complex64", TypeError, "needs a floating-point result, this one is complex64"),
    (jnp.ones(()), "bool", "bool", TypeError, r"alpha=float32\[\] needs a floating-point result, this one is bool"),
]


@pytest.mark.parametrize(("alpha", "operand", "preferred", "kind", "text"), BAD_ALPHAS, ids=lambda x: str(x)[:20])
def test_alphas_that_are_refused(alpha: Any, operand: str, preferred: str, kind: type[Exception], text: str) -> None:
    x = jnp.ones((4, 4), operand)
    call = functools.partial(jaxgemm.matmul, alpha=alpha, preferred_element_type=preferred)
    for function in (call, jax.jit(call)):
        with pytest.raises(kind, match=text):
            function(x, x)


# --- transforms -------------------------------------------------------------------------------------------------------


def fused(x: Any, y: Any, alpha: Any, bias: Any) -> Any:
    return jaxgemm.matmul(x, y, alpha=alpha, bias=bias, activation="relu")


def composed(x: Any, y: Any, alpha: Any, bias: Any) -> Any:
    return jax.nn.relu(alpha * jnp.matmul(x, y) + bias)


@pytest.mark.parametrize("order", [1, 2])
def test_check_grads(order: int, rng: np.random.Generator) -> None:
    smooth = functools.partial(jaxgemm.matmul, activation="silu")
    with jax.enable_x64(True):
        operands = [normal(rng, shape, np.float64) for shape in ((3, 4), (4, 2), (), (2,))]
        for function in (smooth, jaxgemm.matmul):
            check_grads(lambda a, b, s, c: function(a, b, alpha=s, bias=c), operands, order, atol=1e-4, rtol=1e-4)  # noqa: B023
            check_grads(lambda a, b, s: function(a, b, alpha=s), operands[:3], order, atol=1e-4, rtol=1e-4)  # noqa: B023
    single = [v.astype(np.float32) for v in operands]
    check_grads(lambda a, b, s, c: smooth(a, b, alpha=s, bias=c), single, order, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients(activation: str | None, rng: np.random.Generator) -> None:
    operands = [normal(rng, (4, 5)), normal(rng, (5, 6)), jnp.float32(-1.37), normal(rng, (6,))]

    def ours(a: Any, b: Any, s: Any, c: Any) -> Any:
        return (jaxgemm.matmul(a, b, alpha=s, bias=c, activation=activation) ** 2).sum()

    def theirs(a: Any, b: Any, s: Any, c: Any) -> Any:
        return (ACTIVATIONS[activation](s * (a @ b) + c) ** 2).sum()

    every = (0, 1, 2, 3)
    for got, want in zip(jax.grad(ours, every)(*operands), jax.grad(theirs, every)(*operands), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-4)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_have_the_dtypes_of_what_was_given(dtype: str) -> None:
    x, y = jnp.ones((2, 3), dtype), jnp.ones((3, 4), dtype)
    for alpha in (jnp.float32(2), jnp.bfloat16(2)):
        grads = jax.grad(lambda a, b, s: jaxgemm.matmul(a, b, alpha=s).astype(np.float32).sum(), (0, 1, 2))(x, y, alpha)
        assert [g.dtype for g in grads] == [x.dtype, y.dtype, alpha.dtype]
        np.testing.assert_array_equal(grads[2], 24)
        np.testing.assert_array_equal(grads[0], np.full((2, 3), 8))


def test_hessians_are_exact(rng: np.random.Generator) -> None:
    operands = [integers(rng, shape, bound=4) for shape in ((2, 3), (3, 2), (), (2,))]
    every = (0, 1, 2, 3)
    got, want = (jax.hessian(lambda *xs: (f(*xs) ** 2).sum(), every)(*operands) for f in (fused, composed))  # noqa: B023
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert_same(a, b)


def test_tangents_of_what_does_not_vary() -> None:
    """An infinite accumulator, or an infinite alpha, spoils no tangent that it is no factor of."""
    x, y, inf = jnp.array([[np.inf], [1.0]]), jnp.ones((1, 2)), jnp.float32(np.inf)
    one = jnp.ones_like(x)
    _, got = jax.jvp(lambda v: jaxgemm.matmul(v, y, alpha=2.0), (x,), (one,))
    np.testing.assert_array_equal(got, 2)
    _, got = jax.jvp(lambda s: jaxgemm.matmul(one, y, alpha=s), (inf,), (jnp.float32(3),))
    np.testing.assert_array_equal(got, 3)


def test_linear_transposes(rng: np.random.Generator) -> None:
    x, y, g = integers(rng, (2, 3)), integers(rng, (3, 4)), integers(rng, (2, 4))
    alpha = jnp.float32(-3)
    forms: list[tuple[Any, Any]] = [
        (lambda v: jaxgemm.matmul(v, y, alpha=alpha), x),
        (lambda v: jaxgemm.matmul(x, v, alpha=alpha), y),
        (lambda v: jaxgemm.matmul(x, y, alpha=v), alpha),
    ]
    for form, primal in forms:
        assert_same(jax.linear_transpose(form, primal)(g)[0], jax.vjp(form, primal)[1](g)[0])
    pair = lambda v, c: jaxgemm.matmul(v, y, alpha=alpha, bias=c)  # noqa: E731
    for got, want in zip(jax.linear_transpose(pair, x, y[0])(g), jax.vjp(pair, x, y[0])[1](g), strict=True):
        assert_same(got, want)
    with pytest.raises(NotImplementedError, match="activation='silu' is not linear"):
        jax.linear_transpose(lambda v: jaxgemm.matmul(v, y, alpha=alpha, activation="silu"), x)(g)


@pytest.mark.parametrize(
    "axes", [(0, None, None, None), (None, 1, None, None), (0, 1, None, None), (None, None, 0, None), (0, None, 0, 0)]
)
def test_vmap(axes: tuple[int | None, ...], rng: np.random.Generator) -> None:
    shapes = [shape if axis is None else (*shape[:axis], 4, *shape[axis:])
              for shape, axis in zip(((2, 3), (3, 5), (), (5,)), axes, strict=True)]  # fmt: skip
    operands = [integers(rng, shape) for shape in shapes]
    assert_same(jax.vmap(fused, axes)(*operands), jax.vmap(composed, axes)(*operands))
    text = cuda_text(jax.vmap(fused, axes), *operands)
    assert len(custom_calls(text)) == 1
    assert count_ops(text, "while") + count_ops(text, "dot_general") == 0
    stays_fused = axes[2] is None and axes[3] is None and axes[0] is not None
    assert ("has_alpha = true" in text) == stays_fused
    total = [jax.grad(lambda *xs: (jax.vmap(f, axes)(*xs) ** 2).sum(), (0, 1, 2, 3)) for f in (fused, composed)]  # noqa: B023
    for got, want in zip(*(gradient(*operands) for gradient in total), strict=True):
        assert_same(got, want)


def test_scan_over_scales(rng: np.random.Generator) -> None:
    x, layers = integers(rng, (2, 4), bound=3), integers(rng, (3, 4, 4), bound=3)
    scales, biases = jnp.array([2.0, -1.0, 0.5]), integers(rng, (3, 4), bound=3)

    def loss(f: Any, v: Any, w: Any, s: Any, b: Any) -> Any:
        return lax.scan(jax.checkpoint(lambda carry, rest: (f(carry, *rest), None)), v, (w, s, b))[0].sum()

    got, want = (
        jax.jit(jax.grad(functools.partial(loss, f), (0, 1, 2, 3)))(x, layers, scales, biases)
        for f in (fused, composed)
    )
    for a, b in zip(got, want, strict=True):
        assert_same(a, b)


# --- sharding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_devices_share_the_work(kind: AxisType, rng: np.random.Generator) -> None:
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind,) * 2)
    x, y, alpha, bias = integers(rng, (16, 24)), integers(rng, (24, 8)), jnp.float32(-3), integers(rng, (8,))
    specs = [
        (P("x", None), P(None, "y"), P(), P("y")),
        (P("x", None), P(None, None), P(), P(None)),
        (P(None, "x"), P("x", None), P(), P(None)),  # the sum over the devices comes before the epilogue
    ]
    with jax.set_mesh(mesh):
        for spec in specs[: 3 if kind == AxisType.Auto else 2]:
            put = [
                jax.device_put(value, jax.NamedSharding(mesh, s))
                for value, s in zip((x, y, alpha, bias), spec, strict=True)
            ]
            assert_same(np.asarray(jax.jit(fused)(*put)), np.asarray(composed(x, y, alpha, bias)))
            held = jax.jit(lambda a, b: jaxgemm.matmul(a, b, alpha=-3.0))(*put[:2])
            assert_same(np.asarray(held), np.asarray(-3 * (x @ y)))
            gradient = jax.jit(jax.grad(lambda *xs: fused(*xs).sum(), (0, 1, 2, 3)))(*put)
            want = jax.grad(lambda *xs: composed(*xs).sum(), (0, 1, 2, 3))(x, y, alpha, bias)
            for a, b in zip(gradient, want, strict=True):
                assert_same(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma: bool, rng: np.random.Generator) -> None:
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    x, y, alpha, bias = integers(rng, (16, 24)), integers(rng, (24, 8)), jnp.float32(-3), integers(rng, (8,))
    mapped = jax.shard_map(
        fused, mesh=mesh, in_specs=(P("x", None), P(), P(), P()), out_specs=P("x", None), check_vma=check_vma
    )
    assert_same(jax.jit(mapped)(x, y, alpha, bias), composed(x, y, alpha, bias))
    # alpha does not vary over x: its gradient is summed over it.
    got = jax.jit(jax.grad(lambda *xs: mapped(*xs).sum(), (0, 1, 2, 3)))(x, y, alpha, bias)
    want = jax.grad(lambda *xs: composed(*xs).sum(), (0, 1, 2, 3))(x, y, alpha, bias)
    for a, b in zip(got, want, strict=True):
        assert_same(a, b)


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, "gelu"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_alpha_is_an_operand_of_the_call(activation: str | None, has_bias: bool) -> None:
    def function(x: Any, y: Any, alpha: Any, *rest: Any) -> Any:
        return jaxgemm.matmul(x, y, alpha=alpha, bias=rest[0] if rest else None, activation=activation)

    operands = [struct((48, 64), "bfloat16"), struct((64, 80), "bfloat16"), struct(())] + [struct((80,))] * has_bias
    text = cuda_text(function, *operands)
    (line,) = custom_calls(text)
    assert "has_alpha = true" in line
    given = "tensor<48x64xbf16>, tensor<64x80xbf16>, tensor<f32>" + ", tensor<80xf32>" * has_bias
    assert f"({given}) -> tensor<48x80xbf16>" in line
    assert "dense<> : tensor<0xindex>" in line, "the layout of alpha"
    for op in ("multiply", "convert", "broadcast_in_dim", "reshape"):
        assert count_ops(text, op) == 0
    assert "has_alpha = false" in cuda_text(jaxgemm.matmul, *operands[:2])


def test_what_no_kernel_fuses_is_composed() -> None:
    x, y, column = struct((48, 64), "bfloat16"), struct((64, 80), "bfloat16"), struct((48, 1), "bfloat16")
    text = cuda_text(lambda a, b, s, c: jaxgemm.matmul(a, b, alpha=s, bias=c), x, y, struct(()), column)
    (line,) = custom_calls(text)
    assert "has_alpha = false" in line
    assert "-> tensor<48x80xf32>" in line, "the accumulator, rounded after the epilogue"
    assert count_ops(text, "add") == count_ops(text, "multiply") == 1


def test_fp8_scales_are_fused() -> None:
    x, y = struct((64, 128), jnp.float8_e4m3fn), struct((128, 32), jnp.float8_e4m3fn)

    def scaled(x: Any, y: Any, lhs_scale: Any, rhs_scale: Any) -> Any:
        return jaxgemm.matmul(x, y, alpha=lhs_scale * rhs_scale, preferred_element_type=jnp.bfloat16)

    explained = jaxgemm.explain(x, y, alpha=struct(()), preferred_element_type=jnp.bfloat16)
    assert list(explained.candidates) == [info.name for info in jaxgemm.kernels()]
    with jax.numpy_dtype_promotion("strict"):
        assert jax.eval_shape(scaled, x, y, struct(()), struct(())).dtype == jnp.bfloat16


@pytest.mark.parametrize("alpha", [2.0, np.float32(3), struct(()), struct((), np.int32)], ids=str)
def test_explain(alpha: Any) -> None:
    x = jnp.ones((3, 4), jnp.bfloat16)
    said = jaxgemm.explain(x, x.T, alpha=alpha, bias=struct((3,)), activation="relu")
    assert said.kernel is not None
    assert "M=3 N=3 K=4" in said.problem
    with pytest.raises(ValueError, match="is no scalar"):
        jaxgemm.explain(x, x.T, alpha=struct((1,)))
    with pytest.raises(TypeError, match="needs a floating-point result"):
        jaxgemm.explain(struct((3, 4), np.int8), struct((4, 3), np.int8), alpha=alpha, preferred_element_type=np.int32)


def test_export_with_symbolic_dimensions() -> None:
    (m,) = jax.export.symbolic_shape("m")
    checks = jaxgemm.export_checks()
    exported = jax.export.export(
        jax.jit(lambda x, w, s: jaxgemm.matmul(x, w, alpha=s)), platforms=["cuda", "cpu"], disabled_checks=checks
    )(struct((m, 4)), struct((4, 5)), struct(()))
    x, w = jnp.arange(12.0).reshape(3, 4), jnp.ones((4, 5))
    assert_same(exported.call(x, w, jnp.float32(-2)), -2 * (x @ w))
