"""jaxgemm/_interpreters.py, what tests/works_with/test_jax_experimental.py does not say of it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import sparse as jax_sparse
from jax.experimental.jet import jet

import jaxgemm
from tests.helpers import normal, struct


@pytest.mark.parametrize("kind", ["arrays", "quantised"])
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_taylor_series_of_activations(activation: str, kind: str, rng: np.random.Generator) -> None:
    x, w, bias = normal(rng, (8, 64)), normal(rng, (64, 32)) / 8, normal(rng, (32,))
    terms = [normal(rng, x.shape) for _ in range(3)]
    weights: Any = jaxgemm.quantize(w, bits=4, group_size=32) if kind == "quantised" else w
    matrix = weights.dequantize() if kind == "quantised" else w

    def ours(x: jax.Array) -> jax.Array:
        return jaxgemm.matmul(jnp.sin(x), weights, bias=bias, alpha=0.5, activation=activation)

    def plain(x: jax.Array) -> jax.Array:
        return getattr(jax.nn, activation)(0.5 * jnp.matmul(jnp.sin(x), matrix, precision="highest") + bias)

    got, wanted = (jet(f, (x,), (terms,)) for f in (ours, plain))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3)


def test_a_named_kernel_takes_no_sparse_operands() -> None:
    x = jax_sparse.BCOO.fromdense(jnp.eye(4))
    with pytest.raises(ValueError, match=r"kernel='naive' takes no sparse operands: leave kernel=None"):
        jax_sparse.sparsify(lambda x, w: jaxgemm.matmul(x, w, kernel="naive"))(x, jnp.eye(4))


def test_sparse_arrays_are_imported_by_who_uses_them() -> None:
    code = "import sys, jaxgemm; print('jax.experimental.sparse' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.split() == ["False"]


@pytest.mark.parametrize("missing", ["absl", "jax.experimental.jet", "jax.experimental.roofline"])
def test_what_is_experimental_need_not_be_there(missing: str) -> None:
    """absl is needed by JAX's rooflines, and not by JAX."""
    code = f"""
import sys
sys.modules[{missing!r}] = None
import jax.numpy as jnp, jaxgemm
print(jaxgemm.matmul(jnp.full((1, 1), 2.0), jnp.full((1, 1), 3.0)))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout.split() == ["[[6.]]"]


def test_rooflines_with_an_epilogue_and_of_quantised_weights() -> None:
    roofline = pytest.importorskip("jax.experimental.roofline")
    x, w, bias = struct((9, 64), jnp.bfloat16), struct((64, 32), jnp.bfloat16), struct((32,))

    def fused(x: Any, w: Any, bias: Any) -> Any:
        return jaxgemm.matmul(x, w, bias=bias, activation="relu")

    _, of = roofline.roofline(fused)(x, w, bias)
    assert (of.flops, of.hbm_bytes) == (2 * 9 * 32 * 64, 2 * (9 * 64 + 64 * 32 + 9 * 32) + 4 * 32)
    weights = jax.eval_shape(lambda w: jaxgemm.quantize(w, bits=4, group_size=32), w)
    stored = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(weights))
    _, of = roofline.roofline(jaxgemm.matmul)(x, weights)
    assert (of.flops, of.hbm_bytes) == (2 * 9 * 32 * 64, 2 * (9 * 64 + 9 * 32) + stored)
    assert stored < w.size
