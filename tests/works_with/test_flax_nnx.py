"""Flax NNX: layers that multiply by jaxgemm, steps of training, and a layer of quantised weights.

Works with: Flax NNX (flax >= 0.12.8)
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P

import jaxgemm
from tests.helpers import integers, struct
from tests.works_with.support import (
    MIXED,
    assert_exact,
    assert_ours,
    assert_quantised_product,
    every_dtype,
    linear_attention,
    sparse,
)

BATCH, SEQ, WIDTH, HEADS = 3, 6, 16, 2


class Layers(nnx.Module):
    """Every layer with a hook for its product, by either of the two kinds of hook."""

    def __init__(self, dtype: Any, dot_general: Any, einsum_op: Any) -> None:
        options = {"dtype": dtype, "rngs": nnx.Rngs(0)}
        attention_fn = functools.partial(linear_attention, dot_general=dot_general)
        self.layers = nnx.List([
            nnx.Linear(WIDTH, WIDTH + 8, dot_general=dot_general, **options),
            nnx.Linear(WIDTH + 8, WIDTH, dot_general=dot_general, **options),
            nnx.MultiHeadAttention(
                HEADS, WIDTH, decode=False, attention_fn=attention_fn,
                qkv_dot_general=dot_general, out_dot_general=dot_general, **options,
            ),
            nnx.LinearGeneral(WIDTH, (HEADS, 10), dot_general=dot_general, **options),
            nnx.LinearGeneral((HEADS, 10), WIDTH, axis=(-2, -1), dot_general_cls=lambda: dot_general, **options),
            nnx.Einsum("bsd,dhe->bhse", (WIDTH, HEADS, 9), (HEADS, 1, 9), einsum_op=einsum_op, **options),
        ])  # fmt: skip

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return x


class Mlp(nnx.Module):
    def __init__(self, dtype: Any, dot_general: Any) -> None:
        options = {"dtype": dtype, "dot_general": dot_general, "rngs": nnx.Rngs(0)}
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, **options), nnx.Linear(4 * WIDTH, WIDTH, **options)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(nnx.relu(self.up(x)))


def weighted(model: Any, x: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    out = model(x)
    return (out * weights.astype(out.dtype)).sum(), out


@every_dtype
def test_every_layer(dtype: Any, rng: np.random.Generator) -> None:
    ours, own = Layers(dtype, jaxgemm.dot_general, jaxgemm.einsum), Layers(jnp.float32, jax.lax.dot_general, jnp.einsum)
    x, weights = sparse(rng, (struct((BATCH, SEQ, WIDTH)), struct((BATCH, HEADS, SEQ, 9))))
    params = sparse(rng, nnx.state(own, nnx.Param))

    def out_and_gradients(model: Any) -> Any:
        graph, _ = nnx.split(model)

        def run(params: Any, x: jax.Array) -> Any:
            gradients, out = nnx.grad(weighted, argnums=(0, 1), has_aux=True)(nnx.merge(graph, params), x, weights)
            return out, nnx.to_pure_dict(gradients[0]), gradients[1]

        return run

    with jax.default_matmul_precision("highest"):
        wanted = jax.jit(out_and_gradients(own))(params, x)
    got = jax.jit(out_and_gradients(ours))(params, x.astype(dtype))
    assert got[0].dtype == dtype
    assert_exact(got, wanted, dtype)
    assert_ours(out_and_gradients(ours), params, x.astype(dtype))


@nnx.jit
def step(model: Any, optimizer: Any, x: jax.Array, weights: jax.Array) -> jax.Array:
    gradients, out = nnx.grad(weighted, has_aux=True)(model, x, weights)
    optimizer.update(model, gradients)
    return out


@every_dtype
def test_training(dtype: Any, rng: np.random.Generator) -> None:
    """Each step subtracts a whole gradient: numbers stay integers."""
    ours, own = Mlp(dtype, jaxgemm.dot_general), Mlp(jnp.float32, jax.lax.dot_general)
    x, weights = sparse(rng, (struct((BATCH, WIDTH)),) * 2)
    params = sparse(rng, nnx.state(own, nnx.Param))

    def two_steps(model: Any, x: jax.Array) -> Any:
        nnx.update(model, params)
        optimizer = nnx.Optimizer(model, optax.sgd(1.0), wrt=nnx.Param)
        outs = [step(model, optimizer, x, weights) for _ in range(2)]
        return outs, nnx.to_pure_dict(nnx.state(model, nnx.Param))

    with jax.default_matmul_precision("highest"):
        wanted = two_steps(own, x)
    got = two_steps(ours, x.astype(dtype))
    first, second = wanted[0]
    assert (first != second).any(), "the first step changes nothing"
    assert got[0][1].dtype == dtype
    assert_exact(got, wanted, dtype)


def test_layers_that_are_told_how_their_result_is_split(rng: np.random.Generator) -> None:
    """Under a mesh of explicit axes, with the rows of the second layer's weights split."""
    mesh = jax.make_mesh((len(jax.devices()),), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, _ = sparse(rng, (struct((8, WIDTH)), struct((8, WIDTH))))

    def run(model: Any, x: jax.Array) -> Any:
        rows = model.up(x, out_sharding=P(None, "d"))
        return rows, model.down(nnx.relu(rows), out_sharding=P("d", None))

    models = [Mlp(jnp.float32, dot_general) for dot_general in (jaxgemm.dot_general, jax.lax.dot_general)]
    params = sparse(rng, nnx.state(models[1], nnx.Param))
    for model in models:
        nnx.update(model, params)
    with jax.set_mesh(mesh), jax.default_matmul_precision("highest"):
        for model in models:
            for name, spec in (("up", P(None, "d")), ("down", P("d", None))):
                layer = getattr(model, name)
                layer.kernel.set_value(jax.device_put(layer.kernel.get_value(), spec))
            model.up.bias.set_value(jax.device_put(model.up.bias.get_value(), P("d")))
        got, wanted = (nnx.jit(run)(model, x) for model in models)
        assert [jax.typeof(out) for out in got] == [jax.typeof(out) for out in wanted]
    assert_exact(got, wanted, jnp.float32)


class QuantizedLinear(nnx.Module):
    def __init__(self, linear: nnx.Linear) -> None:
        self.kernel = nnx.Param(jaxgemm.quantize(linear.kernel[...], group_size=32))
        assert linear.bias is not None
        self.bias = nnx.Param(linear.bias[...])

    def __call__(self, x: jax.Array) -> jax.Array:
        return jaxgemm.matmul(x, self.kernel.get_value(), bias=self.bias[...], activation="relu")


def test_quantised_layer(rng: np.random.Generator) -> None:
    """A layer that was trained, quantised for inference."""
    layer = QuantizedLinear(nnx.Linear(96, 40, bias_init=nnx.initializers.normal(), rngs=nnx.Rngs(params=3)))
    x = integers(rng, (BATCH, 96), jnp.bfloat16)
    got = nnx.jit(lambda model, x: model(x))(layer, x)
    kernel, bias = layer.kernel.get_value(), layer.bias[...]
    assert isinstance(kernel, jaxgemm.QuantizedMatrix)
    assert_quantised_product(got, x, kernel, bias, relu=True)
    graph, state = nnx.split(layer)
    assert_ours(lambda state, x: nnx.merge(graph, state)(x), state, x, target=MIXED)
