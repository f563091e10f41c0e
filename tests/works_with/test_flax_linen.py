"""Flax Linen's hooks for products: the same numbers and gradients as with its own, none of which are left.

Works with: Flax Linen (flax >= 0.12.8)
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import jaxgemm
from tests.helpers import integers
from tests.works_with.support import (
    MIXED,
    assert_exact,
    assert_ours,
    assert_quantised_product,
    every_dtype,
    linear_attention,
    sparse,
)

BATCH, SEQ, WIDTH, HEADS, LAYERS = 3, 6, 16, 2, 3


class Layers(nn.Module):
    """Every layer with a hook for its product, by either of the two kinds of hook."""

    dtype: Any = jnp.float32
    dot_general: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        by_class = None if self.dot_general is None else lambda: self.dot_general
        x = nn.relu(nn.Dense(WIDTH + 8, dtype=self.dtype, dot_general=self.dot_general)(x))
        x = nn.DenseGeneral((HEADS, 10), dtype=self.dtype, dot_general=self.dot_general)(x)
        x = nn.relu(nn.DenseGeneral(WIDTH, axis=(-2, -1), dtype=self.dtype, dot_general_cls=by_class)(x))
        x = nn.DenseGeneral(WIDTH, batch_dims=(0,), dtype=self.dtype, dot_general_cls=by_class)(x)  # a matrix for each
        return nn.Dense(5, use_bias=False, dtype=self.dtype, dot_general_cls=by_class)(x)


class Attention(nn.Module):
    dtype: Any = jnp.float32
    dot_general: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        hooks = {"qkv_dot_general": self.dot_general, "out_dot_general": self.dot_general}
        multiply = functools.partial(linear_attention, dot_general=self.dot_general or jax.lax.dot_general)
        return nn.MultiHeadDotProductAttention(HEADS, dtype=self.dtype, attention_fn=multiply, **hooks)(x)


class Block(nn.Module):
    dtype: Any = jnp.float32
    dot_general: Any = None

    @nn.compact
    def __call__(self, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
        y = nn.relu(nn.Dense(WIDTH + 8, dtype=self.dtype, dot_general=self.dot_general)(x))
        return nn.Dense(WIDTH, dtype=self.dtype, dot_general=self.dot_general)(y), None


class Stack(nn.Module):
    """Layers that are scanned over, each of which forgets what the gradients need."""

    dtype: Any = jnp.float32
    dot_general: Any = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        remat = nn.remat(Block, prevent_cse=False)
        scanned = nn.scan(remat, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)
        return scanned(self.dtype, self.dot_general)(x, None)[0]


@every_dtype
@pytest.mark.parametrize("module", [Layers, Attention, Stack])
def test_results_and_gradients(module: Any, dtype: Any, rng: np.random.Generator) -> None:
    x = integers(rng, (BATCH, SEQ, WIDTH), bound=2)
    params = sparse(rng, jax.eval_shape(module().init, jax.random.key(0), x))
    cotangent = sparse(rng, jax.eval_shape(module().apply, params, x))

    def out_and_gradients(model: nn.Module) -> Any:
        apply: Any = model.apply

        def run(params: Any, x: jax.Array, cotangent: jax.Array) -> Any:
            out, transposed = jax.vjp(apply, params, x)
            return out, transposed(cotangent.astype(out.dtype))

        return run

    ours, own = out_and_gradients(module(dtype, jaxgemm.dot_general)), out_and_gradients(module())
    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(own)(params, x, cotangent)
    got = jax.jit(ours)(params, x.astype(dtype), cotangent)
    assert got[0].dtype == dtype
    assert_exact(got, wanted, dtype)
    assert_ours(ours, params, x.astype(dtype), cotangent)


def test_softmax_attention(rng: np.random.Generator) -> None:
    """``einsum_dot_general=`` of Flax's own attention. Scores are exact, so both take the same average of values."""
    query, key, value = (integers(rng, (BATCH, SEQ, HEADS, WIDTH), bound=3) for _ in range(3))
    attention = functools.partial(nn.dot_product_attention, query, precision="highest")
    ours = functools.partial(attention, einsum_dot_general=jaxgemm.dot_general)
    got, wanted = jax.jit(ours)(key, value), jax.jit(attention)(key, value)
    # Two sums of SEQ products with shares that add up to 1, and shares themselves rounded some times, in float32.
    bound = (2 * SEQ + 8) * 2.0**-23 * float(abs(value).max())
    assert (np.abs(np.asarray(got) - np.asarray(wanted)) <= bound).all()
    assert np.abs(np.asarray(wanted)).max() > 1e3 * bound
    assert_ours(ours, key, value)


class QuantizedDense(nn.Module):
    """A layer of a model that was quantised after training."""

    features: int

    @nn.compact
    def __call__(self, x: jax.Array, _: Any = None) -> tuple[jax.Array, None]:
        def quantised(key: jax.Array) -> jaxgemm.QuantizedMatrix:
            return jaxgemm.quantize(jax.random.normal(key, (x.shape[-1], self.features), x.dtype), group_size=32)

        kernel, bias = self.param("kernel", quantised), self.param("bias", nn.initializers.normal(), (self.features,))
        return jaxgemm.matmul(x, kernel, bias=bias, activation="relu"), None


def test_scan_over_quantised_weights(rng: np.random.Generator) -> None:
    width = 96
    layers = nn.scan(QuantizedDense, variable_axes={"params": 0}, split_rngs={"params": True}, length=LAYERS)(width)
    x = integers(rng, (BATCH, width), jnp.bfloat16, bound=3)
    params = jax.jit(layers.init)(jax.random.key(1), x, None)
    assert isinstance(params["params"]["kernel"], jaxgemm.QuantizedMatrix)
    assert params["params"]["kernel"].shape == (LAYERS, width, width)
    got, _ = jax.jit(layers.apply)(params, x, None)
    kernels, biases = params["params"]["kernel"], params["params"]["bias"]
    wanted = x
    for i in range(LAYERS):
        matrix, inputs = jax.tree.map(lambda leaf, i=i: leaf[i], kernels), wanted
        wanted = jaxgemm.matmul(inputs, matrix, bias=biases[i], activation="relu")
        assert_quantised_product(wanted, inputs, matrix, biases[i], relu=True)
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    assert_ours(layers.apply, params, x, None, target=MIXED)
