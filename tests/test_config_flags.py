"""Options of JAX that make programs fail, or run in another way: with them as without them, products give the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from tests.helpers import assert_same, normal

FLAGS: dict[str, Callable[[], Any]] = {
    "no promotion of dtypes": functools.partial(jax.numpy_dtype_promotion, "strict"),
    "no promotion of ranks": functools.partial(jax.numpy_rank_promotion, "raise"),
    "NaN is an error": functools.partial(jax.debug_nans, True),
    "infinity is an error": functools.partial(jax.debug_infs, True),
    "nothing is compiled": jax.disable_jit,
    "tracers must not leak": jax.checking_leaks,
    "jaxprs are checked": functools.partial(jax.enable_checks, True),
}


def layer(x: Any, w: Any, bias: Any) -> Any:
    return jaxgemm.matmul(x, w, bias=bias, alpha=0.5, activation="gelu")


def gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    def loss(x: Any, w: Any, bias: Any) -> Any:
        return function(x, w, bias).astype(jnp.float32).sum()

    return lambda x, w, bias: jax.grad(loss, (0, 2))(x, w, bias)


def operands(name: str, dtype: Any, rng: np.random.Generator) -> tuple[Any, ...]:
    x, w, bias = (normal(rng, shape).astype(dtype) for shape in ((3, 8, 64), (64, 32), (32,)))
    batches = normal(rng, (3, 64, 32)).astype(dtype)
    return {
        "weights": (x, w, bias),
        "batches": (x, batches, bias),
        "batches of rhs": (x[0], batches, bias),
        "a bias in float32": (x, w, bias.astype(jnp.float32)),
        "a bias for every row": (x, w, x[0, :, :1]),
        "4 bits": (x, jaxgemm.quantize(w, group_size=32), bias),
        "8 bits with zeros": (x, jaxgemm.quantize(w, bits=8, group_size=32, symmetric=False), bias),
    }[name]


OPERANDS = ["weights", "batches", "batches of rhs", "a bias in float32", "a bias for every row"]
OPERANDS += ["4 bits", "8 bits with zeros"]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", OPERANDS)
@pytest.mark.parametrize("flag", FLAGS)
def test_products_and_gradients(flag: str, name: str, dtype: Any, rng: np.random.Generator) -> None:
    """Of bits, but for the order of XLA's own sums where nothing is compiled."""
    rtol, atol = (1e-5, 1e-5) if dtype == np.float32 else (0.02, 0.05)
    arguments = operands(name, dtype, rng)
    for function in (layer, gradients(layer)):
        wanted = jax.jit(function)(*arguments)
        with FLAGS[flag]():
            got = jax.jit(function)(*arguments)
        if flag != "nothing is compiled":
            jax.tree.map(assert_same, got, wanted)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(np.asarray(a, np.float32), np.asarray(b, np.float32), rtol=rtol, atol=atol)


@pytest.mark.parametrize("method", ["rtn", "mse"])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("flag", FLAGS)
def test_quantize(flag: str, symmetric: bool, method: Any, rng: np.random.Generator) -> None:
    w = normal(rng, (64, 32)).astype(jnp.bfloat16)
    quantize = functools.partial(jaxgemm.quantize, group_size=32, symmetric=symmetric, method=method)
    wanted = quantize(w)
    with FLAGS[flag]():
        got = quantize(w)
        matrix = got.astype(jnp.float32).dequantize()
    jax.tree.map(assert_same, got, wanted)
    assert_same(matrix, wanted.astype(jnp.float32).dequantize())


@pytest.mark.parametrize("flag", FLAGS)
def test_einsum_and_vmap(flag: str, rng: np.random.Generator) -> None:
    x, w, bias = normal(rng, (3, 8, 64)), normal(rng, (3, 64, 32)), normal(rng, (3, 32))
    functions: list[Callable[[], Any]] = [
        lambda: jaxgemm.einsum("bij,bjk->bki", x, w),
        lambda: jax.vmap(layer)(x, w, bias),
        lambda: jax.vmap(layer, in_axes=(0, None, None))(x, w[0], bias[0]),
    ]
    for function in functions:
        wanted = function()
        with FLAGS[flag]():
            assert_same(function(), wanted)
