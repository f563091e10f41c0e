"""Results that are wanted split: what is moved between eight host devices to make them, and ``out_sharding=``."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm._partition import scattered_axes
from tests.helpers import assert_same, integers, struct
from tests.several_gpus.program import compiled
from tests.test_sharding import collectives, mesh_of, put

# K split over axes that the result is wanted split over, too: sums are moved, not operands.
SCATTERED: dict[str, tuple[P, P, P, dict[str, int]]] = {
    "M": (P(None, "x"), P("x", None), P("x", None), {"reduce-scatter": 1}),
    "N": (P(None, "x"), P("x", None), P(None, "x"), {"reduce-scatter": 1}),
    "M and N": (P(None, ("x", "y")), P(("x", "y"), None), P("x", "y"), {"reduce-scatter": 2}),
    "M by both axes": (P(None, ("x", "y")), P(("x", "y"), None), P(("x", "y"), None), {"reduce-scatter": 1}),
    "M after another axis": (P("y", "x"), P("x", None), P(("y", "x"), None), {"reduce-scatter": 1}),
    "N after another axis": (P(None, "x"), P("x", "y"), P(None, ("y", "x")), {"reduce-scatter": 1}),
    "M before another axis": (
        P("y", "x"),
        P("x", None),
        P(("x", "y"), None),
        {"all-reduce": 1, "collective-permute": 1},
    ),
    "one of two": (P(None, ("x", "y")), P(("x", "y"), None), P("y", None), {"all-reduce": 1, "reduce-scatter": 1}),
}


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.bool_], ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", list(SCATTERED))
def test_sums_that_are_wanted_split(name: str, kind: AxisType, dtype: Any, rng: np.random.Generator) -> None:
    lhs_spec, rhs_spec, out_spec, expected = SCATTERED[name]
    mesh = mesh_of(kind)
    x, y = integers(rng, (16, 24), dtype), integers(rng, (24, 8), dtype)
    wanted = NamedSharding(mesh, out_spec)
    product = jax.jit(jaxgemm.matmul, out_shardings=wanted)
    if kind == AxisType.Explicit:
        product = functools.partial(jaxgemm.matmul, out_sharding=out_spec)
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, lhs_spec), put(mesh, y, rhs_spec)
        out = product(*sharded)
        assert collectives(product, *sharded) == expected
    assert out.sharding.is_equivalent_to(wanted, 2)
    assert_same(np.asarray(out), np.asarray(jnp.matmul(x, y)))


# Elements that four devices receive, each, for one of a collective's result.
RECEIVED = {"all-gather": 0.75, "all-to-all": 0.75, "all-reduce": 1.5, "reduce-scatter": 3.0, "collective-permute": 1.0}
SPECS = [P(None, None), P("x", None), P(None, "x")]
# Where operands of a call are to be split along another dimension XLA gathers them; those of its own dot it exchanges,
# from JAX 0.11 on.
GATHERED = {
    (P(None, "x"), P(None, "x"), P("x", None)),
    (P("x", None), P("x", None), P(None, "x")),
    (P(None, None), P("x", None), P(None, "x")),
}


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("lhs_spec", SPECS, ids=str)
@pytest.mark.parametrize("rhs_spec", SPECS, ids=str)
def test_no_more_is_moved_than_for_jnp_matmul(lhs_spec: P, rhs_spec: P, kind: AxisType) -> None:
    mesh = mesh_of(kind)
    lhs, rhs = (
        struct(shape).update(sharding=NamedSharding(mesh, spec))
        for shape, spec in (((64, 128), lhs_spec), ((128, 32), rhs_spec))
    )

    def received(matmul: Any, out_spec: P) -> float:
        if kind == AxisType.Explicit:
            _, program = compiled(functools.partial(matmul, out_sharding=out_spec), lhs, rhs)
        else:
            wanted = NamedSharding(mesh, out_spec)
            _, program = compiled(lambda x, w: lax.with_sharding_constraint(matmul(x, w), wanted), lhs, rhs)
        return sum(RECEIVED[name] * sum(sizes) for name, sizes in program.collectives().items())

    with jax.set_mesh(mesh):
        for out_spec in SPECS:
            more = received(jaxgemm.matmul, out_spec) - received(jnp.matmul, out_spec)
            allowed = kind == AxisType.Auto and (lhs_spec, rhs_spec, out_spec) in GATHERED
            as_expected = (more > 0) == allowed or (more <= 0 and jax.__version_info__ < (0, 11))
            assert as_expected, f"{lhs_spec} x {rhs_spec} -> {out_spec}: {more} elements more"


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_operands_are_not_gathered_where_the_result_can_be(kind: AxisType, rng: np.random.Generator) -> None:
    mesh = mesh_of(kind)
    for lhs_spec, rhs_spec, batch in [
        (P("x", None), P(None, None), False),
        (P(None, None), P(None, "x"), False),
        (P("x", None, None), P(None, None, None), True),
    ]:
        lhs, rhs = ((4, 16, 24), (4, 24, 8)) if batch else ((16, 24), (24, 8))
        x, w = integers(rng, lhs), integers(rng, rhs)
        whole = P(*[None] * x.ndim)
        explicit = {"out_sharding": whole} if kind == AxisType.Explicit else {}
        product = jax.jit(functools.partial(jaxgemm.matmul, **explicit), out_shardings=NamedSharding(mesh, whole))
        with jax.set_mesh(mesh):
            sharded = put(mesh, x, lhs_spec), put(mesh, w, rhs_spec)
            out = product(*sharded)
            _, program = compiled(product, *sharded)
        assert program.collectives() == {"all-gather": [out.size]}
        assert_same(np.asarray(out), np.asarray(jnp.matmul(x, w)))


def test_which_axes_sums_are_scattered_over() -> None:
    shape = {"x": 4, "y": 2, "z": 3}
    for entry, of_k, size, found in [
        (("y", "x"), "x", 16, ("x",)),
        (("x", "y"), "x", 16, ()),
        (("z", "y", "x"), "xy", 48, ("y", "x")),
        (("y", "x"), "yx", 20, ()),  # which is no whole number of rows for each of eight
        ((), "x", 16, ()),
    ]:
        assert scattered_axes(entry, of_k, size, shape) == found


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(
    ("lhs", "rhs", "specs"),
    [
        ((16, 24), (24, 8), (P(None, "x"), P("x", "y"), P(None, "y"))),
        ((16, 24), (24, 8), (P(None, "x"), P("x", None), P("x", None))),
        ((2, 16, 24), (24, 8), (P(None, None, "x"), P("x", "y"), P(None, None, "y"))),
        ((4, 2, 16, 24), (2, 24, 8), (P("x", "y"), P("y"), P("x", "y", None, None))),
        ((2, 16, 24), (3, 2, 24, 8), (P("y", None, "x"), P(None, "y", "x"), P(None, "y", "x", None))),
        ((24,), (4, 24, 8), (P("x"), P(None, "x", "y"), P(None, "y"))),
    ],
    ids=str,
)
def test_out_sharding_of_matmul(lhs: Any, rhs: Any, specs: Any, fused: bool, rng: np.random.Generator) -> None:
    """Is that of the result as it is returned, and of its gradient."""
    x, w, bias = integers(rng, lhs), integers(rng, rhs), integers(rng, rhs[-1:])
    epilogue = {"bias": bias, "activation": "relu"} if fused else {}
    mesh = mesh_of(AxisType.Explicit)

    def loss(x: Any, w: Any, **kwargs: Any) -> Any:
        out = jaxgemm.matmul(x, w, **kwargs)
        return out.sum(), out

    wanted, gradients = (jaxgemm.matmul(x, w, **epilogue), jax.grad(loss, (0, 1), has_aux=True)(x, w, **epilogue)[0])
    with jax.set_mesh(mesh):
        if fused:
            epilogue["bias"] = put(mesh, bias, P(*specs[2][len(wanted.shape) - 1 :]))
        sharded = put(mesh, x, specs[0]), put(mesh, w, specs[1])
        both = jax.jit(jax.grad(functools.partial(loss, out_sharding=specs[2], **epilogue), (0, 1), has_aux=True))
        got, out = both(*sharded)
        assert jax.typeof(out).sharding.is_equivalent_to(NamedSharding(mesh.abstract_mesh, specs[2]), out.ndim)
        forward = functools.partial(jaxgemm.matmul, out_sharding=specs[2], **epilogue)
        assert set(collectives(forward, *sharded)) <= {"all-reduce", "reduce-scatter"}
    assert_same(np.asarray(out), np.asarray(wanted))
    for a, b in zip(got, gradients, strict=True):
        assert_same(np.asarray(a), np.asarray(b))


def test_out_shardings_that_matmul_refuses() -> None:
    x, w = jnp.ones((4, 2, 16, 24)), jnp.ones((2, 24, 8))
    with jax.set_mesh(mesh_of(AxisType.Explicit)):
        with pytest.raises(ValueError, match="has 5 dimensions, the result has 4"):
            jaxgemm.matmul(x, w, out_sharding=P(None, None, None, None, "x"))
        with pytest.raises(ValueError, match=r"leaves parts of the sums on their devices.*jax\.reshard"):
            jaxgemm.matmul(x, w, activation="relu", out_sharding=P(None, unreduced={"x"}))
    with pytest.raises(TypeError, match="takes no out_sharding with quantised weights"):
        jaxgemm.matmul(x, jaxgemm.quantize(w[0], group_size=8), out_sharding=P())
