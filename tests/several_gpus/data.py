"""Weights and tokens of integers, chosen so that every sum of a layer, whole or of one device, is exact in bfloat16.

Numbers of 8 bits are exact, so sums must not exceed 256 of their unit; whether they do is checked against float64.
``silu(g)`` is g for g >= 32, and 0 for 0: the gate's numbers are multiples of 32, and neither they nor those of x are
negative. Every 128th row of the weights has 7.5 of the unit: ``quantize`` then makes that unit the scale. These rows,
at the head of each group, meet zeros only.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from benchmarks.sharded_layers import GROUP_SIZE, Dims

GATE_UNIT = 32
_NONZEROS_OF_X, _NONZEROS_OF_DOWN, _NONZEROS_OF_O, _DENSITY = 4, 30, 100, 0.3


@functools.partial(jax.jit, static_argnames=("shape", "density", "bound", "signed", "planted", "unit", "zero_columns"))
def _sparse(
    key: jax.Array, shape: tuple[int, int], density: float, bound: int = 1, signed: bool = True,
    planted: bool = False, unit: int = 1, zero_columns: bool = False,
) -> jax.Array:  # fmt: skip
    keys = jax.random.split(key, 3)
    values = jax.random.randint(keys[0], shape, 1, bound + 1)
    if signed:
        values *= jnp.where(jax.random.bernoulli(keys[1], 0.5, shape), 1, -1)
    values *= jax.random.bernoulli(keys[2], density, shape)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    values = jnp.where(zero_columns & (columns % GROUP_SIZE == 0), 0, values).astype(jnp.float32)
    return (jnp.where(planted & (rows % GROUP_SIZE == 0), 7.5, values) * unit).astype(jnp.bfloat16)


def tokens(seed: int, count: int, dims: Dims) -> jax.Array:
    """x: zeros and a few ones."""
    key = jax.random.fold_in(jax.random.key(seed), 100)
    return _sparse(key, (count, dims.hidden), _NONZEROS_OF_X / dims.hidden, signed=False, zero_columns=True)


def dense_weights(seed: int, block: str, dims: Dims, *, planted: bool = True) -> dict[str, jax.Array]:
    """Of a block, by name."""
    options: dict[str, dict[str, Any]] = {
        "gate": {"density": _DENSITY, "signed": False, "unit": GATE_UNIT, "zero_columns": True},
        "up": {"density": _DENSITY, "bound": 2},
        "down": {"density": _NONZEROS_OF_DOWN / dims.intermediate},
        **{name: {"density": _DENSITY, "bound": 2, "zero_columns": True} for name in "qkv"},
        "o": {"density": _NONZEROS_OF_O / dims.hidden},
    }
    key = jax.random.key(seed)
    return {
        name: _sparse(jax.random.fold_in(key, i), shape, planted=planted, **options[name])
        for i, (name, shape) in enumerate(dims.shapes(block).items())
    }


@jax.jit
def quantized(weights: dict[str, jax.Array]) -> dict[str, jaxgemm.QuantizedMatrix]:
    """The same numbers in 4 bits, but for the planted rows."""
    return {name: jaxgemm.quantize(w, bits=4, group_size=GROUP_SIZE) for name, w in weights.items()}


def factors(seed: int, count: int, dims: Dims) -> jax.Array:
    """What the results of a layer are multiplied by in a loss: -1, 0 and 1."""
    key = jax.random.fold_in(jax.random.key(seed), 200)
    return _sparse(key, (count, dims.hidden), 0.05)


def in_float64(values: Any) -> np.ndarray:
    return np.asarray(values).astype(np.float64)


def exact_mlp(x: Any, weights: Any) -> dict[str, np.ndarray]:
    """Every intermediate result in float64, of weights without planted rows or of x that does not meet them."""
    x, gate, up, down = (in_float64(value) for value in (x, *(weights[name] for name in ("gate", "up", "down"))))
    gated, upped = x @ gate, x @ up
    assert ((gated == 0) | (gated >= GATE_UNIT)).all(), "silu is not exact of these numbers"
    hidden = gated * upped
    return {"gate": gated, "up": upped, "hidden": hidden, "out": hidden @ down}


def exact_attention(x: Any, weights: Any, dims: Dims) -> dict[str, np.ndarray]:
    """The same of the projections."""
    x, q, k, v, o = (in_float64(value) for value in (x, *(weights[name] for name in "qkvo")))
    queries = (x @ q).reshape(len(x), dims.kv_heads, -1, dims.head_dim)
    mixed = queries + (x @ k + x @ v).reshape(len(x), dims.kv_heads, 1, dims.head_dim)
    hidden = mixed.reshape(len(x), -1)
    return {"hidden": hidden, "out": hidden @ o}


def exact_gradients(x: Any, weights: Any, factor: Any) -> dict[str, np.ndarray]:
    """Of the sum of factor * mlp(x), by weights. The derivative of silu is 1 where it is the identity, 1/2 at 0."""
    found = exact_mlp(x, weights)
    x, factor, down = in_float64(x), in_float64(factor), in_float64(weights["down"])
    by_hidden = factor @ down.T
    slope = np.where(found["gate"] == 0, 0.5, 1.0)
    return {
        "gate": x.T @ (by_hidden * found["up"] * slope),
        "up": x.T @ (by_hidden * found["gate"]),
        "down": found["hidden"].T @ factor,
    }
