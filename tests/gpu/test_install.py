"""JAX's own products on our kernels, and the products of a program measured, on the GPU."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import _install, _tuning
from jaxgemm._choose import Request, choose
from tests.helpers import assert_same, integers

pytestmark = pytest.mark.gpu

M, N, K = 520, 136, 384
SIZE = 1544  # of no table that ships


def loss(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.sum((x @ w).astype(jnp.float32) * 2)


def test_a_gradient_is_the_same(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """As if a table said of everything that our kernels are faster."""

    def faster(asked: Request, sm: int) -> str | None:
        return choose(asked, None, sm).kernel

    x, w = integers(rng, (M, K), jnp.bfloat16, 3), integers(rng, (K, N), jnp.bfloat16, 3)
    gradient = jax.jit(jax.value_and_grad(loss, (0, 1)))
    own = gradient(x, w)
    monkeypatch.setattr(_install, "measured_faster", faster)
    with jaxgemm.options(install=True):
        text = gradient.lower(x, w).compile().as_text() or ""
        ours = gradient(x, w)
    assert text.count('custom_call_target="jaxgemm_gemm"') == 3
    assert " transpose(" not in text
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(own), strict=True):
        assert_same(one, other)
    assert "jaxgemm" not in (gradient.lower(x, w).compile().as_text() or "")


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAXGEMM_TUNING", "on")
    _tuning.forget()
    yield
    _tuning.forget()


@pytest.mark.usefixtures("empty_cache")
def test_what_was_measured_decides() -> None:
    """Of a product of float32 at HIGHEST, for which cuBLAS has no tensor cores; it is measured once."""
    x = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32)

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.matmul(x, y, precision="highest")

    tuned = jaxgemm.tune(multiply, x, x)
    assert not tuned.failures and not tuned.left and not tuned.known
    ((key, entry),) = tuned.measured.items()
    assert (key.m, key.n, key.k, key.precision, entry.us > 0) == (SIZE, SIZE, SIZE, "highest", True)
    assert entry.jax_us is not None
    again = jaxgemm.tune(multiply, x, x)
    assert (again.measured, again.known) == ({}, (key,))
    with jaxgemm.options(install=True):
        text = jax.jit(multiply).lower(x, x).compile().as_text() or ""
    assert ("jaxgemm_gemm" in text) == (_tuning.MARGIN * entry.us < entry.jax_us)
