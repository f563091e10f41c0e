"""jaxgemm.matmul with quantised weights against the same with the dequantised matrix, through every transform."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._native import MIXED_TARGET
from tests.helpers import cuda_text

K, N = 96, 40
KINDS = {"symmetric": {}, "integer zeros": {"symmetric": False}, "8 bits": {"bits": 8}}


def weights(rng: np.random.Generator, *batch: int, float_zeros: bool = False, **options: Any) -> Any:
    matrix = jaxgemm.quantize(jnp.asarray(rng.standard_normal((*batch, K, N)), jnp.float32), group_size=32, **options)
    if not float_zeros:
        return matrix
    zeros = jnp.asarray(rng.uniform(6, 9, matrix.scales.shape), jnp.float32)
    return jax.tree.unflatten(
        jax.tree.structure(weights(rng, *batch, symmetric=False)), [matrix.packed, matrix.scales, zeros]
    )


def x_of(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.standard_normal((*shape, K)), jnp.float32)


def close(got: Any, wanted: Any) -> None:
    """Of float32: sums in another order, of K numbers of size 1."""
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-4), got, wanted)


SHAPES = [((), ()), ((7,), ()), ((2, 3, 7), ()), *((lhs, (3,)) for lhs in [(7,), (3, 7), (1, 7), (5, 3, 7), ()])]
SHAPES += [((5, 7), (1,)), ((4, 3, 5, 7), (4, 1, 5)), ((2, 4, 3, 1, 7), (1, 3, 5)), ((3, 7), (2, 1))]
"""Of lhs but for K, and of the weights but for K and N."""


@pytest.mark.parametrize("permuted", [False, True], ids=["", "permuted"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("lhs", "batch"), SHAPES)
def test_shapes(
    kind: str, permuted: bool, lhs: tuple[int, ...], batch: tuple[int, ...], rng: np.random.Generator
) -> None:
    matrix, x = weights(rng, *batch, **KINDS[kind]), x_of(rng, *lhs)
    if permuted:
        orders = rng.permuted(np.broadcast_to(np.arange(K), (*batch, K)), axis=-1)
        matrix = dataclasses.replace(matrix, permutation=jnp.asarray(orders, jnp.int32))
    wanted = jnp.matmul(x, matrix.dequantize(), precision="highest")
    got = jax.jit(jaxgemm.matmul)(x, matrix)
    assert got.shape == wanted.shape
    close(got, wanted)
    bias = jnp.asarray(rng.standard_normal(wanted.shape), jnp.float32)
    close(jaxgemm.matmul(x, matrix, bias=bias), wanted + bias)


DOTS = [
    ((5,), (), (((1,), (0,)), ((), ()))),
    ((), (), (((0,), (0,)), ((), ()))),
    ((2, 5), (), (((2,), (0,)), ((), ()))),
    ((3, 5), (3,), (((2,), (1,)), ((0,), (0,)))),
    ((3, 2, 5, 4), (3, 4), (((4,), (2,)), ((0, 3), (0, 1)))),
    ((3, 5, 4), (4, 3), (((3,), (2,)), ((0, 2), (1, 0)))),
    ((3, 0, 4), (3,), (((3,), (1,)), ((0,), (0,)))),
]
"""Of lhs but for K, which is last; of the weights but for K and N; dimension numbers."""


@pytest.mark.parametrize("k_first", [False, True], ids=["", "K first"])
@pytest.mark.parametrize(("lhs", "batch", "numbers"), DOTS)
def test_dot_general(
    k_first: bool, lhs: tuple[int, ...], batch: tuple[int, ...], numbers: Any, rng: np.random.Generator
) -> None:
    matrix, x = weights(rng, *batch), x_of(rng, *lhs)
    if k_first:
        (_, rhs_contract), (lhs_batch, rhs_batch) = numbers
        x, numbers = jnp.moveaxis(x, -1, 0), (((0,), rhs_contract), ([d + 1 for d in lhs_batch], rhs_batch))
    wanted = jax.lax.dot_general(x, matrix.dequantize(), numbers, precision="highest")
    got = jax.jit(lambda x, w: jaxgemm.dot_general(x, w, numbers))(x, matrix)
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    close(got, wanted)
    narrow, rounded = x.astype(jnp.bfloat16), matrix.dequantize(jnp.bfloat16)
    wide = jaxgemm.dot_general(narrow, matrix, numbers, preferred_element_type=jnp.float32)
    assert wide.dtype == jnp.float32
    close(wide, jax.lax.dot_general(narrow, rounded, numbers, preferred_element_type=jnp.float32))
    close(
        jax.grad(lambda x: jnp.sin(jaxgemm.dot_general(x, matrix, numbers)).sum())(x),
        jax.grad(lambda x: jnp.sin(jax.lax.dot_general(x, matrix.dequantize(), numbers, precision="highest")).sum())(x),
    )


@pytest.mark.parametrize(
    ("lhs", "batch", "numbers", "words"),
    [
        ((5,), (), (((0,), (1,)), ((), ())), "dimension 0 of lhs .5, 96. has 5, dimension 1 of rhs .96, 40. has 40"),
        ((40,), (), (((0,), (1,)), ((), ())), "contracts K of quantised weights, dimension 0 of .*dequantize"),
        ((5,), (3,), (((1,), (1,)), ((), ())), "all dimensions before it are batch dimensions.*dequantize"),
        ((1, 5), (3,), (((2,), (1,)), ((0,), (0,))), "batch dimensions of equal sizes"),
    ],
)
def test_dot_general_of_what_it_does_not_take(
    lhs: tuple[int, ...], batch: tuple[int, ...], numbers: Any, words: str, rng: np.random.Generator
) -> None:
    with pytest.raises(TypeError, match=words):
        jaxgemm.dot_general(x_of(rng, *lhs), weights(rng, *batch), numbers)


def test_dot_general_of_weights_in_the_wrong_place(rng: np.random.Generator) -> None:
    matrix, x = weights(rng), x_of(rng, 5)
    with pytest.raises(TypeError, match="as rhs: swap the operands"):
        jaxgemm.dot_general(matrix, x, (((0,), (1,)), ((), ())))
    with pytest.raises(ValueError, match="is none of this build's kernels for quantised weights"):
        jaxgemm.dot_general(x, matrix, (((1,), (0,)), ((), ())), kernel="no such kernel")


def loss(x: Any, scales: Any, zeros: Any, bias: Any, alpha: Any, matrix: Any, product: Any) -> jax.Array:
    matrix = jax.tree.unflatten(jax.tree.structure(matrix), [matrix.packed, scales, zeros])
    return jnp.sin(product(x, matrix, alpha, bias)).sum()


def ours(x: Any, matrix: Any, alpha: Any, bias: Any) -> jax.Array:
    return jaxgemm.matmul(x, matrix, alpha=alpha, bias=bias, activation="silu")


def dense(x: Any, matrix: Any, alpha: Any, bias: Any) -> jax.Array:
    return jax.nn.silu(alpha * jnp.matmul(x, matrix.dequantize(), precision="highest") + bias)


def test_gradients_of_everything(rng: np.random.Generator) -> None:
    matrix = weights(rng, float_zeros=True)
    arguments = (x_of(rng, 5), matrix.scales, matrix.zeros, jnp.ones(N), jnp.float32(0.3))
    every = tuple(range(5))
    got = jax.grad(loss, every)(*arguments, matrix, ours)
    close(got, jax.grad(loss, every)(*arguments, matrix, dense))
    tangents = jax.tree.map(jnp.ones_like, arguments)
    for f in (ours, dense):
        _, tangent = jax.jvp(lambda *a, f=f: loss(*a, matrix, f), arguments, tangents)
        np.testing.assert_allclose(tangent, sum(jax.tree.leaves(jax.tree.map(jnp.sum, got))), rtol=1e-3)


def test_second_derivative_by_x(rng: np.random.Generator) -> None:
    matrix, x = weights(rng), x_of(rng, 3)

    def curvature(product: Any) -> Any:
        return jax.grad(lambda y: (jax.grad(lambda z: (product(z) ** 3).sum())(y) ** 2).sum())(x)

    w = matrix.dequantize()
    got, wanted = (
        curvature(lambda z: jaxgemm.matmul(z, matrix)),
        curvature(lambda z: jnp.matmul(z, w, precision="highest")),
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4 * float(abs(wanted).max()))


@pytest.mark.parametrize(
    "axes", [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0), (None, None, 0), (1, 0, 0)]
)
def test_vmap(axes: tuple[Any, ...], rng: np.random.Generator) -> None:
    x = x_of(rng, *((4, 3) if axes[0] == 0 else (5, 3) if axes[0] == 1 else (5,)))
    if axes == (1, 0, 0):
        x = jnp.moveaxis(x_of(rng, 4, 5), 0, 1)
    matrix = weights(rng, *(() if axes[1] is None else (4,)))
    bias = jnp.asarray(rng.standard_normal((4, N) if axes[2] == 0 else (N,)), jnp.float32)

    def product(x: Any, matrix: Any, bias: Any, f: Any) -> jax.Array:
        return f(x, matrix, jnp.float32(2), bias)

    got, wanted = (
        jax.vmap(lambda x, w, b, f=f: product(x, w, b, f), in_axes=axes)(x, matrix, bias) for f in (ours, dense)
    )
    close(got, wanted)
    half = [a.astype(jnp.bfloat16) for a in (x, bias)]  # of which there are kernels
    text = cuda_text(jax.vmap(lambda x, w, b: product(x, w, b, ours), in_axes=axes), half[0], matrix, half[1])
    assert text.count(f"custom_call @{MIXED_TARGET}(") == 1
    assert ('activation = "silu"' in text) == (axes[2] is None or None not in axes)


def test_a_bias_for_each_of_the_experts(rng: np.random.Generator) -> None:
    """By its shape, by vmap, and by vmap of that, with derivatives: alpha, bias and activation stay in the call."""
    x, matrix, alpha = x_of(rng, 2, 3, 5), weights(rng, 2, 3), jnp.float32(0.5)
    bias = jnp.asarray(rng.standard_normal((2, 3, N)), jnp.float32)

    def by_shape(product: Any) -> Any:
        return lambda x, w, b: product(x, w, alpha, b[:, :, None])

    def inner_by_shape(product: Any) -> Any:
        return jax.vmap(lambda x, w, b: product(x, w, alpha, b[:, None]))

    def by_vmap(product: Any) -> Any:
        return jax.vmap(jax.vmap(lambda x, w, b: product(x, w, alpha, b)))

    for form in (by_shape, inner_by_shape, by_vmap):
        close(form(ours)(x, matrix, bias), form(dense)(x, matrix, bias))
        text = cuda_text(form(ours), x.astype(jnp.bfloat16), matrix, bias.astype(jnp.bfloat16))
        assert text.count(f"custom_call @{MIXED_TARGET}(") == 1
        assert 'activation = "silu"' in text
        got, wanted = (
            jax.grad(lambda x, b, g=g: jnp.sin(g(x, matrix, b)).sum(), (0, 1))(x, bias)
            for g in (form(ours), form(dense))
        )
        close(got, wanted)
    shared = jax.vmap(jax.vmap(lambda x, w, b: ours(x, w, alpha, b)), in_axes=(0, 0, None))
    close(shared(x, matrix, bias[0]), by_shape(dense)(x, matrix, jnp.broadcast_to(bias[0], bias.shape)))
    text = cuda_text(shared, x.astype(jnp.bfloat16), matrix, bias[0].astype(jnp.bfloat16))
    assert 'activation = "silu"' in text


def test_one_call_in_the_program(rng: np.random.Generator) -> None:
    text = str(
        jax.make_jaxpr(jax.vmap(ours, in_axes=(0, None, None, None)))(
            x_of(rng, 4, 3), weights(rng), jnp.float32(1), jnp.ones(N)
        )
    )
    assert text.count("jaxgemm_mixed_gemm") == 1
    assert "dot_general" not in text


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"kernel": "nothing"}, ValueError, "nothing"),
        ({"activation": "tanh"}, ValueError, "tanh"),
        ({"bias": np.ones(N + 1, np.float32)}, ValueError, "does not broadcast"),
        ({"preferred_element_type": np.int32}, TypeError, "floating-point, not int32"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], match: str, rng: np.random.Generator) -> None:
    with pytest.raises(error, match=match):
        jaxgemm.matmul(x_of(rng, 3), weights(rng), **change)
