"""Optax: a network learns scikit-learn's digits as well with fused layers as with jax.numpy's.

Works with: Optax (optax >= 0.2.8)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.datasets import load_digits

import jaxgemm
from tests.works_with.support import assert_ours, every_dtype

WIDTHS = (64, 128, 64, 10)
STEPS, BATCH, TRAINED = 200, 128, 11 * 128  # of 1797 digits
SEEDS = range(3)
CLOSE = 1 / 8
"""How near both must stay to each other on their way, in parts of how near runs from two seeds are."""

Layer = Callable[[jax.Array, jax.Array, jax.Array, str | None], jax.Array]
Params = list[tuple[jax.Array, jax.Array]]
OPTIMIZER = optax.adam(2e-3)


def ours(x: jax.Array, w: jax.Array, b: jax.Array, activation: str | None) -> jax.Array:
    return jaxgemm.matmul(x, w, bias=b, activation=activation)


def own(x: jax.Array, w: jax.Array, b: jax.Array, activation: str | None) -> jax.Array:
    out = jnp.matmul(x, w) + b
    return jax.nn.relu(out) if activation else out


def initial(seed: int) -> Params:
    keys = jax.random.split(jax.random.key(seed), 2 * (len(WIDTHS) - 1))
    shapes = list(itertools.pairwise(WIDTHS))
    return [
        (jax.random.normal(keys[2 * i], (k, n)) * (2 / k) ** 0.5, jax.random.normal(keys[2 * i + 1], (n,)) / 4)
        for i, (k, n) in enumerate(shapes)
    ]


def logits(layer: Layer, dtype: Any, params: Params, x: jax.Array) -> jax.Array:
    h = x.astype(dtype)
    for i, (w, b) in enumerate(params):
        h = layer(h, w.astype(dtype), b.astype(dtype), "relu" if i < len(params) - 1 else None)
    return h.astype(jnp.float32)


def loss(params: Params, layer: Layer, dtype: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits(layer, dtype, params, x), y).mean()


def train(layer: Layer, dtype: Any) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """A function of parameters and data: the losses of all steps, that of all training data in the end, and the share
    of the other digits that are told right.
    """

    def run(params: Params, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        def step(carry: Any, i: Any) -> Any:
            params, state = carry
            start = i % (TRAINED // BATCH) * BATCH
            batch = [jax.lax.dynamic_slice_in_dim(data, start, BATCH) for data in (x, y)]
            value, gradients = jax.value_and_grad(loss)(params, layer, dtype, *batch)
            updates, state = OPTIMIZER.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), value

        (params, _), losses = jax.lax.scan(step, (params, OPTIMIZER.init(params)), jnp.arange(STEPS))
        right = logits(layer, dtype, params, x[TRAINED:]).argmax(-1) == y[TRAINED:]
        return losses, loss(params, layer, dtype, x[:TRAINED], y[:TRAINED]), right.mean()

    return run


@pytest.fixture(scope="module")
def digits() -> tuple[jax.Array, jax.Array]:
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return jnp.asarray(images[order] / 16, jnp.float32), jnp.asarray(labels[order], jnp.int32)


@every_dtype
def test_learns_as_well(dtype: Any, digits: tuple[jax.Array, jax.Array]) -> None:
    run_ours, run_own = (jax.jit(train(layer, dtype)) for layer in (ours, own))
    got, wanted = (
        [jax.device_get(run(initial(seed), *digits)) for seed in SEEDS] for run in (run_ours, run_own)
    )  # of each seed: losses, last loss, accuracy

    def distance(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.abs(a - b).max())

    finals = [final for _, final, _ in wanted]
    spread = float(max(finals) - min(finals))
    nearest = min(distance(a, b) for (a, _, _), (b, _, _) in itertools.combinations(wanted, 2))
    for seed, (losses, final, accuracy), (own_losses, own_final, own_accuracy) in zip(SEEDS, got, wanted, strict=True):
        what = f"seed {seed}: last loss {final}, with jax.numpy {own_final}; accuracy {accuracy}, {own_accuracy}"
        assert final < losses[0] / 20, what
        assert min(accuracy, own_accuracy) > 0.95, what
        assert abs(final - own_final) <= spread, f"{what}; seeds are within {spread}"
        away = distance(losses, own_losses)
        assert away <= CLOSE * nearest, f"{what}; losses differ by {away}, those of two seeds by {nearest}"
    assert_ours(run_ours, initial(0), *digits)
