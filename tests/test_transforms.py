"""jaxgemm/_primitives.py: vmap, derivatives and control flow, against the same of jnp with exact integers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

import jaxgemm
from tests.helpers import assert_same, count_ops, cuda_text, custom_calls, integers, normal, struct

Function = Callable[..., Any]


def fused(x: Any, y: Any, bias: Any) -> Any:
    return jaxgemm.matmul(x, y, bias=bias, activation="relu")


def composed(x: Any, y: Any, bias: Any) -> Any:
    return jax.nn.relu(jnp.matmul(x, y) + bias)


# --- vmap -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 1, 0])
@pytest.mark.parametrize(
    "axes", [a for a in itertools.product([None, 0, 1, 2], repeat=2) if a != (None, None)], ids=str
)
def test_vmap_over_every_pair_of_axes(axes: tuple[int | None, int | None], size: int, rng: np.random.Generator) -> None:
    shapes = [list(shape) if axis is None else [*shape[:axis], size, *shape[axis:]]
              for shape, axis in zip(((2, 3), (3, 5)), axes, strict=True)]  # fmt: skip
    x, y = (integers(rng, shape) for shape in shapes)
    for out_axes in (0, 1, 2, -1):
        want = jax.vmap(jnp.matmul, axes, out_axes)(x, y)
        assert_same(jax.vmap(jaxgemm.matmul, axes, out_axes)(x, y), want)


@pytest.mark.parametrize(
    "axes", [a for a in itertools.product([None, 0, 1, 2], repeat=2) if a != (None, None)], ids=str
)
def test_vmap_is_one_call_and_broadcasts_nothing(axes: tuple[int | None, int | None]) -> None:
    shapes = [shape if axis is None else (*shape[:axis], 4, *shape[axis:])
              for shape, axis in zip(((2, 3), (3, 5)), axes, strict=True)]  # fmt: skip
    text = cuda_text(jax.vmap(jaxgemm.matmul, axes), *map(struct, shapes))
    assert len(custom_calls(text)) == 1
    for op in ("while", "dot_general", "broadcast_in_dim", "concatenate"):
        assert count_ops(text, op) == 0


@pytest.mark.parametrize(
    "axes", [(0, None, None), (None, 0, None), (None, None, 0), (0, 1, 0), (1, None, 0), (2, 2, 1), (0, 0, None)]
)
def test_vmap_of_the_fused_form(axes: tuple[int | None, ...], rng: np.random.Generator) -> None:
    shapes = [shape if axis is None else (*shape[:axis], 4, *shape[axis:])
              for shape, axis in zip(((2, 3), (3, 5), (5,)), axes, strict=True)]  # fmt: skip
    operands = [integers(rng, shape) for shape in shapes]
    assert_same(jax.vmap(fused, axes)(*operands), jax.vmap(composed, axes)(*operands))
    text = cuda_text(jax.vmap(fused, axes), *operands)
    assert len(custom_calls(text)) == 1
    assert count_ops(text, "while") + count_ops(text, "dot_general") == 0
    stays_fused = None not in axes or (axes[2] is None and (axes[0] is not None or axes[1] is None))
    assert ('activation = "relu"' in text) == stays_fused


def test_a_bias_for_each_of_the_batch(rng: np.random.Generator) -> None:
    """By its shape, and by vmap of that: the epilogue stays in the call, also of what is differentiated."""
    x, y, bias = integers(rng, (2, 4, 6, 3)), integers(rng, (2, 4, 3, 5)), integers(rng, (2, 4, 1, 5))
    shared = integers(rng, (1, 4, 1, 5))
    for function, reference in ((fused, composed), (jax.vmap(fused), jax.vmap(composed))):
        assert_same(function(x, y, bias), reference(x, y, bias))
        text = cuda_text(function, x, y, bias)
        assert len(custom_calls(text)) == 1
        assert 'activation = "relu"' in text
        every = (0, 1, 2)
        got, want = (
            jax.grad(lambda *operands, f=f: (f(*operands) ** 2).sum(), every)(x, y, bias) for f in (function, reference)
        )
        tangents = tuple(integers(rng, a.shape) for a in (x, y, bias))
        got += jax.jvp(function, (x, y, bias), tangents)
        want += jax.jvp(reference, (x, y, bias), tangents)
        for ours, theirs in zip(got, want, strict=True):
            assert_same(ours, theirs)
    assert_same(fused(x, y, shared), composed(x, y, shared))
    for bias in (shared, shared[:, :1]):
        assert 'activation = "relu"' in cuda_text(fused, x, y, bias)
    two = jax.vmap(jax.vmap(fused), in_axes=(0, 0, None))
    assert_same(two(x, y, shared[0]), composed(x, y, shared))
    assert 'activation = "relu"' in cuda_text(two, x, y, shared[0])


def test_nested_vmap(rng: np.random.Generator) -> None:
    x, y = integers(rng, (6, 2, 4, 3)), integers(rng, (3, 4, 6, 5))
    for function, reference in ((jaxgemm.matmul, jnp.matmul), (fused, composed)):
        bias = () if function is jaxgemm.matmul else (integers(rng, (5,)),)
        extra = (None,) * len(bias)

        def twice(f: Function, extra: tuple[None, ...] = extra) -> Function:
            return jax.vmap(jax.vmap(f, (1, 1, *extra)), (0, 2, *extra), 1)

        assert_same(twice(function)(x, y, *bias), twice(reference)(x, y, *bias))
    inner = jax.vmap(jax.vmap(jaxgemm.matmul, (0, None)), (None, 0))
    want = jax.vmap(jax.vmap(jnp.matmul, (0, None)), (None, 0))
    assert_same(
        inner(x[:, :, 0], y[:, :, 0].transpose(1, 0, 2)[:, :3]), want(x[:, :, 0], y[:, :, 0].transpose(1, 0, 2)[:, :3])
    )


def test_vmap_of_batched_dot_general(rng: np.random.Generator) -> None:
    numbers = (((2,), (1,)), ((0,), (0,)))
    x, y = integers(rng, (2, 3, 4, 5)), integers(rng, (2, 5, 3, 6))
    for axes in [(1, 2), (0, 0)]:
        left, right = (x, y) if axes == (1, 2) else (x.transpose(1, 0, 2, 3), y.transpose(2, 0, 1, 3))
        got = jax.vmap(lambda a, b: jaxgemm.dot_general(a, b, numbers), axes)(left, right)
        assert_same(got, jax.vmap(lambda a, b: lax.dot_general(a, b, numbers), axes)(left, right))


# --- derivatives ------------------------------------------------------------------------------------------------------

SHAPES = [((2, 3), (3, 4)), ((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
          ((5, 2, 3), (5, 3, 4)), ((6, 1, 2, 3), (5, 3, 4)), ((2, 0), (0, 4))]  # fmt: skip


@pytest.mark.parametrize(("lhs", "rhs"), SHAPES, ids=str)
def test_vjp_and_jvp_of_every_shape(lhs: tuple[int, ...], rhs: tuple[int, ...], rng: np.random.Generator) -> None:
    x, y, dx, dy = (integers(rng, shape) for shape in (lhs, rhs, lhs, rhs))
    out, pull = jax.vjp(jaxgemm.matmul, x, y)
    _, want_pull = jax.vjp(jnp.matmul, x, y)
    g = integers(rng, out.shape)
    for got, want in zip(pull(g), want_pull(g), strict=True):
        assert_same(got, want)
    for got, want in zip(jax.jvp(jaxgemm.matmul, (x, y), (dx, dy)), jax.jvp(jnp.matmul, (x, y), (dx, dy)), strict=True):
        assert_same(got, want)


PATTERNS = [
    ((3, 5), (2, 5), (((1,), (1,)), ((), ()))),
    ((5, 3), (5, 2), (((0,), (0,)), ((), ()))),
    ((5, 3), (2, 5), (((0,), (1,)), ((), ()))),
    ((2, 3, 4), (2, 4, 5), (((2,), (1,)), ((0,), (0,)))),
    ((3, 2, 4), (5, 4, 2), (((2,), (1,)), ((1,), (2,)))),
    ((2, 3, 4, 5), (5, 4, 6, 3), (((2, 3), (1, 0)), ((1,), (3,)))),
    ((2, 3, 4), (4, 6, 3), (((1, 2), (2, 0)), ((), ()))),
    ((2, 3), (4, 5), (((), ()), ((), ()))),
    ((2, 3), (3, 2), (((), ()), ((0, 1), (1, 0)))),
]


@pytest.mark.parametrize(("lhs", "rhs", "numbers"), PATTERNS, ids=str)
def test_derivatives_of_dot_general(lhs: Any, rhs: Any, numbers: Any, rng: np.random.Generator) -> None:
    x, y = integers(rng, lhs), integers(rng, rhs)
    ours, theirs = (functools.partial(f, dimension_numbers=numbers) for f in (jaxgemm.dot_general, lax.dot_general))
    g = integers(rng, ours(x, y).shape)
    for got, want in zip(jax.vjp(ours, x, y)[1](g), jax.vjp(theirs, x, y)[1](g), strict=True):
        assert_same(got, want)
    (got,) = jax.linear_transpose(lambda a: ours(a, y), x)(g)
    (want,) = jax.linear_transpose(lambda a: theirs(a, y), x)(g)
    assert_same(got, want)
    tangent = integers(rng, rhs)
    assert_same(jax.linearize(lambda b: ours(x, b), y)[1](tangent), theirs(x, tangent))


@pytest.mark.parametrize("order", [1, 2])
def test_check_grads(order: int, rng: np.random.Generator) -> None:
    with jax.enable_x64(True):  # XLA's own dot: the rules are the same, the differences quotients sharper
        x, y, bias = (normal(rng, shape, np.float64) for shape in ((3, 4), (4, 2), (2,)))
        check_grads(jaxgemm.matmul, (x, y), order, atol=1e-4, rtol=1e-4)
        smooth = functools.partial(jaxgemm.matmul, activation="silu")
        check_grads(lambda a, b, c: smooth(a, b, bias=c), (x, y, bias), order, atol=1e-4, rtol=1e-4)
    single = [v.astype(np.float32) for v in (x, y, bias)]
    check_grads(lambda a, b, c: smooth(a, b, bias=c), single, order, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_erf", "silu"])
def test_gradients_of_the_fused_form(activation: str | None, rng: np.random.Generator) -> None:
    functions = {None: lambda v: v, "relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu,
                 "gelu_erf": functools.partial(jax.nn.gelu, approximate=False)}  # fmt: skip
    x, y, bias = normal(rng, (4, 5)), normal(rng, (5, 6)), normal(rng, (6,))

    def ours(a: Any, b: Any, c: Any) -> Any:
        return jaxgemm.matmul(a, b, bias=c, activation=activation).sum()

    def theirs(a: Any, b: Any, c: Any) -> Any:
        return functions[activation](a @ b + c).sum()

    for got, want in zip(jax.grad(ours, (0, 1, 2))(x, y, bias), jax.grad(theirs, (0, 1, 2))(x, y, bias), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        assert got.dtype == want.dtype


def test_hessians_are_exact(rng: np.random.Generator) -> None:
    x, y, bias = integers(rng, (2, 3), bound=4), integers(rng, (3, 2), bound=4), integers(rng, (2,), bound=4)
    for ours, theirs in [
        (lambda a, b: (jaxgemm.matmul(a, b) ** 2).sum(), lambda a, b: (jnp.matmul(a, b) ** 2).sum()),
        (lambda a, b: (fused(a, b, bias) ** 2).sum(), lambda a, b: (composed(a, b, bias) ** 2).sum()),
    ]:
        got, want = jax.hessian(ours, (0, 1))(x, y), jax.hessian(theirs, (0, 1))(x, y)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            assert_same(a, b)
        reverse = jax.jacrev(jax.grad(ours))(x, y)
        assert_same(reverse, got[0][0])


@pytest.mark.parametrize("dtypes", list(itertools.product(["float32", "bfloat16", "float16"], repeat=2)), ids=str)
def test_gradients_have_the_dtypes_of_the_operands(dtypes: tuple[str, str], rng: np.random.Generator) -> None:
    x, y = integers(rng, (2, 3), dtypes[0]), integers(rng, (3, 4), dtypes[1])
    for preferred in (None, "float32"):
        for function in (jaxgemm.matmul, functools.partial(jaxgemm.matmul, bias=jnp.ones(4), activation="relu")):
            grads = jax.grad(lambda a, b: function(a, b, preferred_element_type=preferred).sum(), (0, 1))(x, y)  # noqa: B023
            assert [g.dtype.name for g in grads] == list(dtypes)
    numbers = (((1,), (0,)), ((), ()))
    grads = jax.grad(lambda a, b: jaxgemm.dot_general(a, b, numbers, None, np.float32).sum(), (0, 1))(x, y)
    want = jax.grad(lambda a, b: lax.dot_general(a, b, numbers, None, np.float32).sum(), (0, 1))(x, y)
    for a, b in zip(grads, want, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize(
    "numbers", [(((a,), (b,)), ((), ())) for a in (0, 1) for b in (0, 1)], ids=["TN", "TT", "NN", "NT"]
)
def test_gradients_of_matrices_launch_no_transpose(numbers: Any) -> None:
    (((a,), (b,)), _) = numbers
    x, y = struct((3, 4) if a else (4, 3)), struct((5, 4) if b else (4, 5))
    text = cuda_text(jax.grad(lambda p, q: jaxgemm.dot_general(p, q, numbers).sum(), (0, 1)), x, y)
    assert len(custom_calls(text)) == 2
    assert count_ops(text, "transpose") == 0
    assert count_ops(text, "dot_general") == 0
    batched = cuda_text(jax.grad(lambda p, q: jaxgemm.matmul(p, q).sum(), (0, 1)), struct((7, 3, 4)), struct((7, 4, 5)))
    assert len(custom_calls(batched)) == 2
    assert count_ops(batched, "transpose") + count_ops(batched, "dot_general") == 0


def test_a_named_kernel_stays_with_the_forward_call() -> None:
    def loss(x: Any, y: Any) -> Any:
        return (jaxgemm.matmul(x, y, kernel="naive") ** 2).sum()

    text = cuda_text(jax.grad(loss, (0, 1)), struct((64, 64)), struct((64, 64)))
    names = [line.split('kernel = "')[1].split('"')[0] for line in custom_calls(text)]
    assert len(names) == 3
    assert names[0] == "naive:32x32x1"
    assert all(not name.startswith("naive") for name in names[1:])


def test_vmap_of_grad_and_grad_of_vmap(rng: np.random.Generator) -> None:
    x, y, bias = integers(rng, (6, 2, 3)), integers(rng, (3, 4)), integers(rng, (4,))

    def per_example(f: Function) -> Function:
        return jax.vmap(jax.grad(lambda a, b, c: (f(a, b, c) ** 2).sum(), (0, 1, 2)), (0, None, None))

    def total(f: Function) -> Function:
        return jax.grad(lambda a, b, c: (jax.vmap(f, (0, None, None))(a, b, c) ** 2).sum(), (0, 1, 2))

    for form in (per_example, total):
        for got, want in zip(form(fused)(x, y, bias), form(composed)(x, y, bias), strict=True):
            assert_same(got, want)


# --- control flow -----------------------------------------------------------------------------------------------------


def permutation(rng: np.random.Generator, size: int) -> jax.Array:
    return jnp.eye(size, dtype=jnp.bfloat16)[rng.permutation(size)]


def test_control_flow(rng: np.random.Generator) -> None:
    p, x = permutation(rng, 8), integers(rng, (8, 5), jnp.bfloat16)

    def scanned(f: Function) -> Any:
        return lax.scan(lambda c, _: (f(p, c), f(p, c)[0]), x, None, length=7)

    def looped(f: Function) -> Any:
        return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, f(p, s[1])), (0, x))[1]

    def branched(f: Function) -> Any:
        return lax.cond(x.sum() > 0, lambda v: f(p, v), lambda v: f(p.T, v), x)

    def repeated(f: Function) -> Any:
        return lax.fori_loop(0, 40, lambda _, v: f(p, v), x)

    for program in (scanned, looped, branched, repeated):
        run = jax.jit(program, static_argnums=0)
        for got, want in zip(jax.tree.leaves(run(jaxgemm.matmul)), jax.tree.leaves(run(jnp.matmul)), strict=True):
            assert_same(got, want)


def test_scan_over_layers_with_remat_and_gradients(rng: np.random.Generator) -> None:
    layers, x = integers(rng, (3, 4, 4), bound=3), integers(rng, (2, 4), bound=3)
    biases = integers(rng, (3, 4), bound=3)

    def loss(f: Function, remat: bool) -> Function:
        def layer(carry: Any, weights: Any) -> Any:
            return f(carry, *weights), None

        step = jax.checkpoint(layer) if remat else layer
        return lambda v, w, b: lax.scan(step, v, (w, b))[0].sum()

    want = jax.jit(jax.grad(loss(composed, False), (0, 1, 2)))(x, layers, biases)
    for remat in (False, True):
        got = jax.jit(jax.grad(loss(fused, remat), (0, 1, 2)))(x, layers, biases)
        for a, b in zip(got, want, strict=True):
            assert_same(a, b)


def test_custom_vjp_around_and_donation(rng: np.random.Generator) -> None:
    @jax.custom_vjp
    def doubled(x: Any, y: Any) -> Any:
        return jaxgemm.matmul(x, y)

    doubled.defvjp(
        lambda x, y: (doubled(x, y), (x, y)),
        lambda kept, g: (2 * jaxgemm.matmul(g, kept[1].T), 2 * jaxgemm.matmul(kept[0].T, g)),
    )
    x, y = integers(rng, (3, 4)), integers(rng, (4, 3))
    got = jax.grad(lambda a, b: doubled(a, b).sum(), (0, 1))(x, y)
    want = jax.grad(lambda a, b: 2 * (a @ b).sum(), (0, 1))(x, y)
    for a, b in zip(got, want, strict=True):
        assert_same(a, b)
    expected = np.asarray(x) @ np.asarray(y)[:, :3]
    square = integers(rng, (3, 3))
    product = np.asarray(square) @ expected
    donated = jax.jit(lambda a, b: jaxgemm.matmul(a, b), donate_argnums=0)(jnp.array(square), jnp.asarray(expected))
    np.testing.assert_array_equal(donated, product)
    np.testing.assert_array_equal(jax.jit(lambda a: jaxgemm.matmul(a, a.T))(x), np.asarray(x) @ np.asarray(x).T)


def test_many_calls_in_one_program(rng: np.random.Generator) -> None:
    p, x = permutation(rng, 6), integers(rng, (6, 6), jnp.bfloat16)

    @jax.jit
    def forty(v: Any) -> Any:
        for _ in range(20):
            v = jaxgemm.matmul(p.T, jaxgemm.matmul(p, v))
        return v

    for _ in range(3):
        assert_same(forty(x), x)
