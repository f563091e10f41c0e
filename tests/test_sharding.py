"""jaxgemm/_partition.py: eight host devices share a GEMM, and exchange no more than they must."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from tests.helpers import assert_same, integers

MATRICES = (((1,), (0,)), ((), ()))
BATCHED = (((2,), (1,)), ((0,), (0,)))
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def mesh_of(kind: AxisType) -> Mesh:
    devices = jax.devices("cpu")
    assert len(devices) == 8
    return jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind), devices=devices)


def put(mesh: Mesh, value: jax.Array, spec: P) -> jax.Array:
    """By way of NumPy: JAX would compile a program that cuts an array of its own."""
    return jax.device_put(np.asarray(value), NamedSharding(mesh, spec))


def collectives(function: Callable[..., Any], *operands: Any) -> dict[str, int]:
    """How many collectives of each kind the compiled program has."""
    text = jax.jit(function).lower(*operands).compile().as_text()
    found = {name: len(re.findall(rf"\b{name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in found.items() if count}


# (lhs, rhs, result, collectives); the contracted dimension of the first four is whole.
CASES: dict[str, tuple[P, P, P, dict[str, int]]] = {
    "M": (P("x", None), P(None, None), P("x", None), {}),
    "N": (P(None, None), P(None, "x"), P(None, "x"), {}),
    "M and N": (P("x", None), P(None, "y"), P("x", "y"), {}),
    "M by both axes": (P(("x", "y"), None), P(None, None), P(("x", "y"), None), {}),
    "K": (P(None, "x"), P("x", None), P(None, None), {"all-reduce": 1}),
    "K by both axes": (P(None, ("x", "y")), P(("x", "y"), None), P(None, None), {"all-reduce": 1}),
    "M and K": (P("y", "x"), P("x", None), P("y", None), {"all-reduce": 1}),
    "N and K": (P(None, "x"), P("x", "y"), P(None, "y"), {"all-reduce": 1}),
}
BATCH_CASES: dict[str, tuple[P, P, P, dict[str, int]]] = {
    "batch": (P("x", None, None), P("x", None, None), P("x", None, None), {}),
    "batch and M": (P("x", "y", None), P("x", None, None), P("x", "y", None), {}),
    "batch and K": (P("x", None, "y"), P("x", "y", None), P("x", None, None), {"all-reduce": 1}),
}
ALL = [(MATRICES, (16, 24), (24, 8), case) for case in CASES.items()] + [
    (BATCHED, (8, 4, 6), (8, 6, 4), case) for case in BATCH_CASES.items()
]
every_case = pytest.mark.parametrize(("numbers", "lhs", "rhs", "case"), ALL, ids=[c[3][0] for c in ALL])


@every_case
def test_automatic_axes(numbers: Any, lhs: Any, rhs: Any, case: Any, rng: np.random.Generator) -> None:
    _, (lhs_spec, rhs_spec, out_spec, expected) = case
    mesh = mesh_of(AxisType.Auto)
    x, y = integers(rng, lhs), integers(rng, rhs)
    sharded = put(mesh, x, lhs_spec), put(mesh, y, rhs_spec)
    function = functools.partial(jaxgemm.dot_general, dimension_numbers=numbers)
    out = jax.jit(function)(*sharded)
    assert_same(out, lax.dot_general(x, y, numbers))
    assert collectives(function, *sharded) == expected
    if not expected:
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, out_spec), out.ndim)


@every_case
def test_explicit_axes(numbers: Any, lhs: Any, rhs: Any, case: Any, rng: np.random.Generator) -> None:
    _, (lhs_spec, rhs_spec, out_spec, expected) = case
    mesh = mesh_of(AxisType.Explicit)
    x, y = integers(rng, lhs), integers(rng, rhs)
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, lhs_spec), put(mesh, y, rhs_spec)
        function = functools.partial(jaxgemm.dot_general, dimension_numbers=numbers, out_sharding=out_spec)
        out = jax.jit(function)(*sharded)
        assert jax.typeof(out).sharding.spec == out_spec
        assert collectives(function, *sharded) == expected
    assert_same(np.asarray(out), np.asarray(lax.dot_general(x, y, numbers)))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", list(CASES))
def test_gradients(name: str, kind: AxisType, rng: np.random.Generator) -> None:
    lhs_spec, rhs_spec, out_spec, _ = CASES[name]
    mesh = mesh_of(kind)
    x, y = integers(rng, (16, 24)), integers(rng, (24, 8))
    scale = integers(rng, (16, 8))
    sharding = out_spec if kind == AxisType.Explicit else None

    def loss(dot: Any, a: Any, b: Any, c: Any) -> Any:
        return (dot(a, b) * c).sum()

    want = jax.grad(functools.partial(loss, jnp.matmul), (0, 1))(x, y, scale)
    ours = functools.partial(jaxgemm.dot_general, dimension_numbers=MATRICES, out_sharding=sharding)
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, lhs_spec), put(mesh, y, rhs_spec), put(mesh, scale, out_spec)
        gradient = jax.grad(functools.partial(loss, ours), (0, 1))
        got = jax.jit(gradient)(*sharded)
        if kind == AxisType.Explicit:
            assert [jax.typeof(g).sharding.spec for g in got] == [lhs_spec, rhs_spec]
            assert "all-gather" not in collectives(gradient, *sharded)
    for a, b in zip(got, want, strict=True):
        assert_same(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_matmul_with_bias_and_activation(kind: AxisType, rng: np.random.Generator) -> None:
    mesh = mesh_of(kind)
    x, y, bias = integers(rng, (16, 24)), integers(rng, (24, 8)), integers(rng, (8,))
    want = jax.nn.relu(x @ y + bias)
    with jax.set_mesh(mesh):
        for specs in [(P("x", None), P(None, "y"), P("y")), (P("x", None), P(None, None), P(None))]:
            operands = [put(mesh, value, spec) for value, spec in zip((x, y, bias), specs, strict=True)]

            def function(a: Any, b: Any, c: Any) -> Any:
                return jaxgemm.matmul(a, b, bias=c, activation="relu")

            assert_same(np.asarray(jax.jit(function)(*operands)), np.asarray(want))
            assert collectives(function, *operands) == {}
    if kind == AxisType.Auto:
        # The sum over the devices comes before the activation.
        split = [put(mesh, x, P(None, "x")), put(mesh, y, P("x", None)), put(mesh, bias, P(None))]
        assert_same(jax.jit(function)(*split), want)
        assert collectives(function, *split) == {"all-reduce": 1}


def test_operands_that_disagree_are_still_multiplied(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    x, y = integers(rng, (16, 24)), integers(rng, (24, 8))
    specs = [
        P(),
        P("x"),
        P("y"),
        P(None, "x"),
        P(None, "y"),
        P("x", "y"),
        P("y", "x"),
        P(("x", "y")),
        P(None, ("y", "x")),
    ]
    for left in specs:
        for right in specs:
            out = jax.jit(jaxgemm.matmul)(put(mesh, x, left), put(mesh, y, right))
            np.testing.assert_array_equal(out, x @ y, err_msg=f"{left} {right}")


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma: bool, rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    x, y, bias = integers(rng, (16, 24)), integers(rng, (24, 8)), integers(rng, (8,))
    mapped = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)

    rows = mapped(jaxgemm.matmul, in_specs=(P("x", None), P(None, "y")), out_specs=P("x", "y"))
    assert_same(jax.jit(rows)(x, y), x @ y)
    assert collectives(rows, put(mesh, x, P("x", None)), put(mesh, y, P(None, "y"))) == {}

    def split(a: Any, b: Any) -> Any:
        return lax.psum(jaxgemm.matmul(a, b), "x")

    summed = mapped(split, in_specs=(P(None, "x"), P("x", None)), out_specs=P())
    assert_same(jax.jit(summed)(x, y), x @ y)
    assert collectives(summed, put(mesh, x, P(None, "x")), put(mesh, y, P("x", None))) == {"all-reduce": 1}

    def layer(a: Any, b: Any, c: Any) -> Any:
        return jaxgemm.matmul(a, b, bias=c, activation="relu")

    # lhs varies over x, rhs and bias do not: their gradients are summed over it.
    fused = mapped(layer, in_specs=(P("x", None), P(), P()), out_specs=P("x", None))
    assert_same(jax.jit(fused)(x, y, bias), jax.nn.relu(x @ y + bias))
    got = jax.jit(jax.grad(lambda *xs: fused(*xs).sum(), (0, 1, 2)))(x, y, bias)
    want = jax.grad(lambda a, b, c: jax.nn.relu(a @ b + c).sum(), (0, 1, 2))(x, y, bias)
    for a, b in zip(got, want, strict=True):
        assert_same(a, b)
    inside = mapped(
        lambda a, b: jax.grad(lambda v: jaxgemm.matmul(v, b).sum())(a), in_specs=(P("x"), P()), out_specs=P("x")
    )
    assert_same(jax.jit(inside)(x, y), jax.grad(lambda v: (v @ y).sum())(x))


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("other", [P(None, None), P(None, "y"), P("y", None)], ids=str)
def test_shard_map_over_one_of_two_axes(check_vma: bool, other: P, rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    x, y = integers(rng, (16, 24)), integers(rng, (24, 8))
    mapped = jax.shard_map(
        jaxgemm.matmul, mesh=mesh, in_specs=(P("x", None), P()), out_specs=P("x", None), axis_names={"x"},
        check_vma=check_vma,
    )  # fmt: skip
    sharded = put(mesh, x, P("x", None)), put(mesh, y, other)
    assert_same(jax.jit(mapped)(*sharded), x @ y)
    grads = jax.jit(jax.grad(lambda a, b: mapped(a, b).sum(), (0, 1)))(*sharded)
    for a, b in zip(grads, jax.grad(lambda a, b: (a @ b).sum(), (0, 1))(x, y), strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
def test_vmap_over_a_sharded_axis(kind: AxisType, rng: np.random.Generator) -> None:
    mesh = mesh_of(kind)
    x, y, bias = integers(rng, (8, 4, 6)), integers(rng, (6, 4)), integers(rng, (4,))
    names = {"spmd_axis_name": "x"} if kind == AxisType.Auto else {}
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, P("x", None, None)), put(mesh, y, P(None, None)), put(mesh, bias, P(None))
        plain = jax.vmap(jaxgemm.matmul, (0, None), **names)
        assert_same(np.asarray(jax.jit(plain)(*sharded[:2])), np.asarray(x @ y))
        assert collectives(plain, *sharded[:2]) == {}
        fused = jax.vmap(lambda a, b, c: jaxgemm.matmul(a, b, bias=c, activation="relu"), (0, None, None), **names)
        assert_same(np.asarray(jax.jit(fused)(*sharded)), np.asarray(jax.nn.relu(x @ y + bias)))
        assert collectives(fused, *sharded) == {}
    both = integers(rng, (8, 6, 4))
    with jax.set_mesh(mesh):
        pair = put(mesh, x, P("x", None, None)), put(mesh, both, P("x", None, None))
        assert_same(np.asarray(jax.jit(jax.vmap(jaxgemm.matmul, **names))(*pair)), np.asarray(x @ both))
        assert collectives(jax.vmap(jaxgemm.matmul, **names), *pair) == {}


def test_vmap_of_a_given_out_sharding(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    x, y = integers(rng, (8, 4, 6)), integers(rng, (6, 4))
    with jax.set_mesh(mesh):
        dot = functools.partial(jaxgemm.dot_general, dimension_numbers=MATRICES, out_sharding=P("y", None))
        mapped = jax.jit(jax.vmap(dot, (0, None)))
        out = mapped(put(mesh, x, P("x", "y", None)), put(mesh, y, P(None, None)))
        assert jax.typeof(out).sharding.spec == P("x", "y", None)
    assert_same(np.asarray(out), np.asarray(x @ y))


def test_explicit_axes_follow_the_rules_of_lax(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    x, y = integers(rng, (16, 24)), integers(rng, (24, 8))
    with jax.set_mesh(mesh):
        specs = [P(None, None), P("x", None), P(None, "x"), P("y", "x"), P("x", "y")]
        agreed = 0
        for left in specs:
            for right in specs:
                pair = put(mesh, x, left), put(mesh, y, right)
                try:
                    want = jax.jit(lambda a, b: lax.dot_general(a, b, MATRICES))(*pair)
                except Exception as error:
                    with pytest.raises(type(error)):
                        jax.jit(lambda a, b: jaxgemm.dot_general(a, b, MATRICES))(*pair)
                    continue
                got = jax.jit(lambda a, b: jaxgemm.dot_general(a, b, MATRICES))(*pair)
                assert jax.typeof(got).sharding.spec == jax.typeof(want).sharding.spec
                np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
                agreed += 1
        assert agreed >= 8
        assert jaxgemm.matmul(pair[0], put(mesh, y, P(None, None))).shape == (16, 8)
        with pytest.raises(TypeError, match="contract"):
            jaxgemm.matmul(pair[0], pair[0])


def test_the_program_for_cuda_has_one_local_call(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    x = jax.ShapeDtypeStruct((16, 24), np.float32, sharding=NamedSharding(mesh, P("x", None)))
    y = jax.ShapeDtypeStruct((24, 8), np.float32, sharding=NamedSharding(mesh, P(None, None)))
    mapped = jax.shard_map(jaxgemm.matmul, mesh=mesh, in_specs=(P("x", None), P()), out_specs=P("x", None))
    text = jax.jit(mapped).trace(x, y).lower(lowering_platforms=("cuda",)).as_text()
    (line,) = [line for line in text.splitlines() if "@jaxgemm_gemm(" in line]
    assert "tensor<4x24xf32>, tensor<24x8xf32>) -> tensor<4x8xf32>" in line


def test_a_mesh_that_nothing_is_put_on() -> None:
    """Operands that no one has placed: XLA describes them by shardings without a spec."""
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("d",), axis_types=(AxisType.Auto,))
    lhs, rhs = jnp.arange(32.0).reshape(8, 4), jnp.arange(64.0).reshape(4, 16)
    with jax.set_mesh(mesh):
        assert np.array_equal(jax.jit(jaxgemm.matmul)(lhs, rhs), lhs @ rhs)
        placed = jax.device_put(lhs, NamedSharding(mesh, P("d", None)))
        gradient = jax.jit(jax.grad(lambda x: jaxgemm.matmul(x, rhs).sum()))(placed)
        assert np.array_equal(gradient, jnp.ones((8, 16)) @ rhs.T)


def test_booleans_with_a_split_contraction() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:8]), ("d",), axis_types=(AxisType.Auto,))
    lhs, rhs = np.eye(8, 16, dtype=bool), np.eye(16, 8, dtype=bool)[:, ::-1]
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in ((lhs, P(None, "d")), (rhs, P("d", None)))]
    with jax.set_mesh(mesh):
        out = jax.jit(jaxgemm.matmul)(*placed)
    assert out.dtype == np.bool_
    assert np.array_equal(out, lhs @ rhs)


def test_out_sharding_of_concrete_meshes_and_of_unreduced_axes() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:8]).reshape(2, 4), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
    numbers = (((1,), (0,)), ((), ()))
    with jax.set_mesh(mesh):
        lhs = jax.device_put(jnp.ones((8, 16)), NamedSharding(mesh, P("a", "b")))
        rhs = jax.device_put(jnp.ones((16, 4)), NamedSharding(mesh, P("b", None)))
        out = jaxgemm.dot_general(lhs, rhs, numbers, out_sharding=NamedSharding(mesh, P("a", None)))
        assert np.array_equal(out, np.full((8, 4), 16.0))
        unreduced = P("a", None, unreduced={"b"})
        partial = jaxgemm.dot_general(lhs, rhs, numbers, out_sharding=unreduced)
        assert partial.sharding.spec == unreduced
        assert all(np.array_equal(shard.data, np.full((4, 4), 4.0)) for shard in partial.addressable_shards)
        assert np.array_equal(jax.reshard(partial, P("a", None)), out)
        with pytest.raises(ValueError, match="kernel='wgmma' knows no sums of which devices keep their parts"):
            jaxgemm.dot_general(lhs, rhs, numbers, out_sharding=unreduced, kernel="wgmma")


def test_gradients_that_stay_unreduced() -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Explicit,), devices=jax.devices("cpu")[:2])
    x, w = np.arange(8.0).reshape(4, 2), np.arange(6.0).reshape(2, 3)

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jaxgemm.matmul(x, w, alpha=np.float32(2), activation="relu").sum()

    with jax.set_mesh(mesh):
        weights = jax.reshard(jnp.asarray(w), P(None, None, reduced={"d"}))
        tokens = jax.device_put(jnp.asarray(x), NamedSharding(mesh, P("d", None)))
        gradient = jax.jit(jax.grad(loss))(weights, tokens)
        assert gradient.sharding.spec == P(None, None, unreduced={"d"})
        whole = jax.reshard(gradient, P(None, None))
    assert np.array_equal(whole, 2 * x.T @ np.ones((4, 3)))


@pytest.mark.parametrize("dtype", ["int32", "float32", "bfloat16"])
def test_automatic_axes_of_an_explicit_mesh(dtype: str, rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    lhs, rhs = (integers(rng, shape).astype(dtype) for shape in ((16, 8), (8, 4)))

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jax.sharding.auto_axes(jaxgemm.matmul, out_sharding=P(None, "y"))(lhs, rhs)

    with jax.set_mesh(mesh):
        out = jax.jit(product)(put(mesh, lhs, P(None, "x")), put(mesh, rhs, P("x", "y")))
    assert out.sharding.spec == P(None, "y")
    assert_same(out, jnp.matmul(lhs, rhs))


def test_automatic_axes_whose_sum_is_wanted_unreduced(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    lhs, rhs, unreduced = integers(rng, (16, 8)), integers(rng, (8, 4)), P(None, "y", unreduced={"x"})

    def product(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jax.sharding.auto_axes(jaxgemm.matmul, out_sharding=unreduced)(lhs, rhs)

    with jax.set_mesh(mesh):
        out = jax.jit(product)(put(mesh, lhs, P(None, "x")), put(mesh, rhs, P("x", "y")))
        assert out.sharding.spec == unreduced
        assert_same(jax.reshard(out, P(None, "y")), jnp.matmul(lhs, rhs))


@pytest.mark.parametrize("order", [(0, 1, 3), (3, 1, 0), (1, 3, 0)])
def test_several_contracted_dimensions_in_any_order(order: tuple[int, ...], rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    lhs, rhs = integers(rng, (4, 2, 3, 5)), integers(rng, (4, 2, 6, 5))
    numbers = ((order, order), ((), ()))
    out = jax.jit(functools.partial(jaxgemm.dot_general, dimension_numbers=numbers))(
        put(mesh, lhs, P("x", "y")), put(mesh, rhs, P("x", "y"))
    )
    assert_same(out, lax.dot_general(lhs, rhs, numbers))
