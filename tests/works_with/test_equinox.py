"""Equinox: every Linear of a model replaced, by one that multiplies by jaxgemm or by one of quantised weights.

Works with: Equinox (equinox >= 0.13.8)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from tests.helpers import integers, struct
from tests.works_with.support import MIXED, assert_exact, assert_ours, assert_quantised_product, every_dtype, sparse

BATCH, WIDTH = 7, 16


class Linear(eqx.Module):
    """``eqx.nn.Linear`` of a vector, its weights (out, in) as Equinox keeps them: the product launches no transpose."""

    weight: jax.Array
    bias: jax.Array | None

    def __init__(self, linear: eqx.nn.Linear) -> None:
        self.weight, self.bias = linear.weight, linear.bias

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        return jaxgemm.matmul(x, self.weight.T, bias=self.bias)


class QuantizedLinear(eqx.Module):
    weight: jaxgemm.QuantizedMatrix
    bias: jax.Array | None

    def __init__(self, linear: eqx.nn.Linear) -> None:
        self.weight, self.bias = jaxgemm.quantize(linear.weight.T, group_size=32), linear.bias

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        return jaxgemm.matmul(x, self.weight, bias=self.bias)


def converted(model: Any, convert: Callable[[eqx.nn.Linear], Any]) -> Any:
    """The model with every ``eqx.nn.Linear`` replaced."""

    def is_linear(x: Any) -> bool:
        return isinstance(x, eqx.nn.Linear)

    return jax.tree.map(lambda x: convert(x) if is_linear(x) else x, model, is_leaf=is_linear)


class Model(eqx.Module):
    layers: eqx.nn.MLP
    head: eqx.nn.Linear

    def __init__(self, key: jax.Array, width: int = WIDTH) -> None:
        self.layers = eqx.nn.MLP(width, width, 2 * width, 2, key=key)
        self.head = eqx.nn.Linear(width, 5, use_bias=False, key=key)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(jax.nn.relu(self.layers(x)))


def of_integers(rng: np.random.Generator, model: Model, dtype: Any) -> Model:
    arrays, rest = eqx.partition(model, eqx.is_inexact_array)
    cast = jax.tree.map(lambda x: x.astype(dtype), sparse(rng, arrays))
    return eqx.combine(cast, rest)


def loss(model: Any, x: jax.Array, weights: jax.Array) -> jax.Array:
    return (jax.vmap(model)(x) * weights.astype(x.dtype)).sum()


@eqx.filter_jit
def batch(model: Any, x: jax.Array) -> jax.Array:
    return jax.vmap(model)(x)


@every_dtype
def test_results_and_gradients(dtype: Any, rng: np.random.Generator) -> None:
    own = of_integers(rng, Model(jax.random.key(0)), dtype)
    wide = jax.tree.map(lambda x: x.astype(jnp.float32) if eqx.is_inexact_array(x) else x, own)
    ours = converted(own, Linear)
    assert sum(isinstance(x, Linear) for x in jax.tree.leaves(ours, is_leaf=lambda x: isinstance(x, Linear))) == 4
    x, weights = integers(rng, (BATCH, WIDTH), bound=3), sparse(rng, struct((BATCH, 5)))

    def out_and_gradients(model: Any, x: jax.Array) -> list[jax.Array]:
        out = batch(model, x)
        return [out, *jax.tree.leaves(eqx.filter_jit(eqx.filter_grad(loss))(model, x, weights))]

    with jax.default_matmul_precision("highest"):
        wanted = out_and_gradients(wide, x)
    got = out_and_gradients(ours, x.astype(dtype))
    assert {leaf.dtype.name for leaf in got} == {dtype.__name__}
    assert_exact(got, wanted, dtype)

    arrays, rest = eqx.partition(ours, eqx.is_array)
    assert_ours(lambda arrays, x: eqx.filter_grad(loss)(eqx.combine(arrays, rest), x, weights), arrays, x.astype(dtype))


def test_training_step(rng: np.random.Generator) -> None:
    """``eqx.apply_updates`` of a whole gradient; numbers stay integers, the results of a second pass too."""
    own = of_integers(rng, Model(jax.random.key(0)), jnp.float32)
    x, weights = sparse(rng, struct((BATCH, WIDTH))), sparse(rng, struct((BATCH, 5)))

    @eqx.filter_jit
    def step(model: Any) -> Any:
        gradients = eqx.filter_grad(loss)(model, x, weights)
        return eqx.apply_updates(model, jax.tree.map(jnp.negative, gradients))

    def after(model: Any) -> list[jax.Array]:
        model = step(model)
        arrays = jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))
        return [batch(model, x), *arrays]

    with jax.default_matmul_precision("highest"):
        wanted = after(own)
    assert_exact(after(converted(own, Linear)), wanted)


def test_quantised_for_inference(rng: np.random.Generator) -> None:
    """Each layer within the bound of a product with its dequantised weights; then the model, which is those layers."""
    width, dtype = 96, jnp.bfloat16
    own = Model(jax.random.key(2), width)
    model = converted(jax.tree.map(lambda x: x.astype(dtype) if eqx.is_inexact_array(x) else x, own), QuantizedLinear)
    layers = [*model.layers.layers, model.head]
    assert [type(layer) for layer in layers] == [QuantizedLinear] * 4
    x = out = integers(rng, (BATCH, width), dtype)
    for i, layer in enumerate(layers):
        inputs = out if i == 0 else jax.nn.relu(out)
        out = batch(layer, inputs)
        assert_quantised_product(out, inputs, layer.weight, layer.bias, relu=False)
    np.testing.assert_array_equal(batch(model, x), out)

    arrays, rest = eqx.partition(model, eqx.is_array)
    assert_ours(lambda arrays, x: jax.vmap(eqx.combine(arrays, rest))(x), arrays, x, target=MIXED)
