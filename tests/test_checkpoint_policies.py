"""jaxgemm/checkpoint_policies.py: what is computed once more in the backward pass, and what is not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm import checkpoint_policies as ours
from jaxgemm._choose import sub_jaxprs
from tests.helpers import normal

theirs = jax.checkpoint_policies
POLICIES = [
    "dots_saveable",
    "checkpoint_dots",
    "dots_with_no_batch_dims_saveable",
    "checkpoint_dots_with_no_batch_dims",
]
PRODUCTS = ("dot_general", "jaxgemm_gemm", "jaxgemm_fused_gemm", "jaxgemm_mixed_gemm")


@contextlib.contextmanager
def remat3(on: bool) -> Iterator[None]:
    before = jax.config.jax_remat3  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_remat3", on)
    try:
        yield
    finally:
        jax.config.update("jax_remat3", before)


@pytest.fixture(autouse=True, params=[False, True], ids="remat3={}".format)
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both of JAX's: the second, behind ``jax_remat3``, asks policies of its own classes only."""
    with remat3(request.param):
        yield


def count(jaxpr: Any, names: tuple[str, ...]) -> int:
    inner = sum(count(sub, names) for equation in jaxpr.eqns for sub in sub_jaxprs(equation.params))
    return inner + sum(equation.primitive.name in names for equation in jaxpr.eqns)


def products(matmul: Callable[..., Any], policy: Any, *operands: Any, names: tuple[str, ...] = PRODUCTS) -> int:
    """Those of the gradient of two layers that are one checkpoint."""

    def layers(x: Any, w: Any, v: Any) -> Any:
        return jnp.sin(matmul(jnp.sin(matmul(x, w)), v)).astype(jnp.float32).sum()

    gradient = jax.grad(jax.checkpoint(layers, policy=policy))
    return count(jax.make_jaxpr(gradient)(*operands).jaxpr, names)


def fused(x: Any, w: Any) -> Any:
    return jaxgemm.matmul(x, w, activation="relu")


def composed(x: Any, w: Any) -> Any:
    return jax.nn.relu(jnp.matmul(x, w))


def struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


WEIGHTS = struct(48, 64), struct(64, 80), struct(80, 96)
BATCHES = struct(5, 48, 64), struct(5, 64, 80), struct(5, 80, 96)


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("operands", [WEIGHTS, BATCHES], ids=["weights", "batches"])
@pytest.mark.parametrize(("matmul", "plain"), [(jaxgemm.matmul, jnp.matmul), (fused, composed)], ids=["plain", "fused"])
def test_products_are_saved_as_jaxs_are(matmul: Any, plain: Any, operands: Any, name: str) -> None:
    expected = products(plain, getattr(theirs, name), *operands)
    assert products(matmul, getattr(ours, name), *operands) == expected
    assert products(plain, getattr(ours, name), *operands) == expected, "JAX's own products, too"


def test_what_is_saved_is_rounded_as_jaxs_is() -> None:
    """Else XLA might keep more bits of it than the result had that it was computed with."""
    ours_, theirs_ = (
        products(matmul, ours.dots_saveable, *WEIGHTS, names=("reduce_precision",))
        for matmul in (jaxgemm.matmul, jnp.matmul)
    )
    assert ours_ == theirs_


def test_jaxs_own_policies_compute_them_again() -> None:
    """Which is why these exist; and so do ours where the products have batch dimensions and are not to be saved."""
    again = products(jaxgemm.matmul, theirs.dots_saveable, *WEIGHTS)
    once = products(jaxgemm.matmul, ours.dots_saveable, *WEIGHTS)
    assert again == products(jnp.matmul, theirs.nothing_saveable, *WEIGHTS) > once
    assert products(jaxgemm.matmul, ours.dots_with_no_batch_dims_saveable, *BATCHES) > once


def quantised(*shape: int) -> Any:
    return jax.eval_shape(lambda w: jaxgemm.quantize(w, bits=4, group_size=32), struct(*shape))


def test_products_with_quantised_weights_are_saved() -> None:
    weights, batches = (struct(48, 64), quantised(64, 96), quantised(96, 64)), (
        struct(5, 48, 64), quantised(5, 64, 96), quantised(5, 96, 64)
    )  # fmt: skip
    for operands, no_batch in ((weights, True), (batches, False)):
        nothing = products(jaxgemm.matmul, theirs.nothing_saveable, *operands)
        saved = products(jaxgemm.matmul, ours.dots_saveable, *operands)
        assert saved < nothing
        unbatched = products(jaxgemm.matmul, ours.dots_with_no_batch_dims_saveable, *operands)
        assert unbatched == (saved if no_batch else nothing)


def test_offloading() -> None:
    policy = ours.offload_dot_with_no_batch_dims("device", "pinned_host")
    assert policy == ours.offload_dot_with_no_batch_dims("device", "pinned_host")
    assert hash(policy) == hash(ours.offload_dot_with_no_batch_dims("device", "pinned_host"))
    jaxs = theirs.offload_dot_with_no_batch_dims("device", "pinned_host")

    def moves(matmul: Any, policy: Any, operands: Any) -> tuple[int, int]:
        def layers(x: Any, w: Any, v: Any) -> Any:
            return jnp.sin(matmul(jnp.sin(matmul(x, w)), v)).astype(jnp.float32).sum()

        jaxpr = jax.make_jaxpr(jax.grad(jax.checkpoint(layers, policy=policy)))(*operands).jaxpr
        return count(jaxpr, PRODUCTS), count(jaxpr, ("device_put",))

    for operands in (WEIGHTS, BATCHES):
        # Under jax_remat3 JAX 0.10 offloads none of its own products, whatever the policy; ours are.
        assert moves(jnp.matmul, policy, operands) == moves(jnp.matmul, jaxs, operands)
        with remat3(False):
            expected = moves(jnp.matmul, jaxs, operands)
        assert moves(jaxgemm.matmul, policy, operands) == expected
        assert bool(expected[1]) == (operands is WEIGHTS)


def test_every_policy_of_jax_about_dots_has_one_of_ours() -> None:
    assert set(ours.__all__) == {name for name in vars(theirs) if "dot" in name}


@pytest.mark.parametrize("policy", [None, "dots_saveable", "dots_with_no_batch_dims_saveable", "offload"])
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
@pytest.mark.parametrize("kind", ["arrays", "quantised"])
def test_gradients_are_those_without_a_checkpoint(
    kind: str, activation: str | None, policy: str | None, rng: np.random.Generator
) -> None:
    x, w, bias = normal(rng, (24, 64)), normal(rng, (64, 32)), normal(rng, (32,))
    weights = jaxgemm.quantize(w, bits=4, group_size=32) if kind == "quantised" else w

    def layer(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        rhs = weights if kind == "quantised" else w
        return jnp.sin(jaxgemm.matmul(jnp.sin(x), rhs, bias=bias, alpha=0.5, activation=activation)).sum()

    name = {"offload": ours.offload_dot_with_no_batch_dims("device", "pinned_host"), None: None}
    chosen = name[policy] if policy in name else getattr(ours, policy)
    wanted = jax.jit(jax.grad(layer, argnums=(0, 1, 2)))(x, w, bias)
    got = jax.jit(jax.grad(jax.checkpoint(layer, policy=chosen), argnums=(0, 1, 2)))(x, w, bias)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    tangents = (jnp.ones_like(x), jnp.ones_like(w), jnp.ones_like(bias))
    for a, b in zip(
        *(jax.jvp(f, (x, w, bias), tangents) for f in (jax.checkpoint(layer, policy=chosen), layer)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5)
