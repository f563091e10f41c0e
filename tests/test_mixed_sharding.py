"""jaxgemm/_mixed_partition.py: eight host devices share a product with quantised weights, which stay where they are.

Numbers are small integers and scales powers of two: every sum is exact, so results are equal bit by bit.
"""

from __future__ import annotations

import dataclasses
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
from jaxgemm import _mixed_partition
from jaxgemm._quant import from_codes
from tests.helpers import assert_same, integers
from tests.test_sharding import COLLECTIVES, collectives, mesh_of, put

K, N, M = 512, 128, 16
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def weights(
    rng: np.random.Generator, *batch: int, k: int = K, n: int = N, group_size: int = 64, bits: int = 4, zeros: str = ""
) -> Any:
    codes = rng.integers(4, 13, (*batch, k, n), np.uint8)
    groups = (*batch, 1 if group_size == -1 else -(-k // group_size), n)
    scales = 2.0 ** rng.integers(-1, 2, groups).astype(np.float32)
    if zeros:
        zero_points = rng.integers(5, 11, groups).astype(np.uint8 if zeros == "integer" else np.float32)
    codes = codes if bits == 4 else codes + 120
    offset = np.uint8(0 if bits == 4 else 120)
    return from_codes(codes, scales, zero_points + offset if zeros else None, bits=bits, group_size=group_size)


def place(mesh: Mesh, matrix: Any, spec: P) -> Any:
    return jax.tree.map(functools.partial(put, mesh), matrix, matrix.specs(spec))


def moved_weights(function: Callable[..., Any], *operands: Any) -> list[str]:
    """The collectives of the compiled program that :func:`moves_of_weights` finds."""
    return moves_of_weights(jax.jit(function).lower(*operands).compile().as_text())


def moves_of_weights(text: str) -> list[str]:
    """Collectives whose results are of bytes, as packed codes are, or larger than x and the result."""
    moves = re.compile(rf"= \(?(\w+)\[([\d,]*)\].*\b({'|'.join(COLLECTIVES)})(-start)?\(")
    found = [(line.strip(), moves.search(line)) for line in text.splitlines()]
    return [
        line for line, m in found if m and (m[1] == "u8" or np.prod([int(d) for d in m[2].split(",") if d]) > M * K)
    ]


# x, weights, result, collectives.
CASES: dict[str, tuple[P, P, P, dict[str, int]]] = {
    "M": (P("x", None), P(None, None), P("x", None), {}),
    "N": (P(None, None), P(None, "x"), P(None, "x"), {}),
    "N by both axes": (P(None, None), P(None, ("x", "y")), P(None, ("x", "y")), {}),
    "M and N": (P("x", None), P(None, "y"), P("x", "y"), {}),
    "K": (P(None, "x"), P("x", None), P(None, None), {"all-reduce": 1}),
    "K by both axes": (P(None, ("x", "y")), P(("x", "y"), None), P(None, None), {"all-reduce": 1}),
    "K of the weights": (P(None, None), P("x", None), P(None, None), {"all-reduce": 1}),
    "M and K": (P("y", "x"), P("x", None), P("y", None), {"all-reduce": 1}),
    "N and K": (P(None, "x"), P("x", "y"), P(None, "y"), {"all-reduce": 1}),
}
FORMS: dict[str, dict[str, Any]] = {
    "symmetric": {},
    "integer zeros": {"zeros": "integer"},
    "float zeros, 8 bits": {"zeros": "float", "bits": 8},
    "whole columns": {"group_size": -1},
    "groups of 32": {"group_size": 32},
}


@every_kind
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", FORMS)
def test_products(form: str, name: str, kind: AxisType, rng: np.random.Generator) -> None:
    x_spec, spec, out_spec, expected = CASES[name]
    mesh = mesh_of(kind)
    x, matrix = integers(rng, (M, K)), weights(rng, **FORMS[form])
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, x_spec), place(mesh, matrix, spec)
        out = jax.jit(jaxgemm.matmul)(*sharded)
        assert collectives(jaxgemm.matmul, *sharded) == expected
        if kind == AxisType.Explicit:
            assert jax.typeof(out).sharding.spec == out_spec
        else:
            assert out.sharding.is_equivalent_to(NamedSharding(mesh, out_spec), out.ndim)
    assert_same(np.asarray(out), np.asarray(jnp.matmul(x, matrix.dequantize(), precision="highest")))


@every_kind
@pytest.mark.parametrize("group_size", [64, -1])
def test_local_calls_have_local_sizes(
    group_size: int, kind: AxisType, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh, calls = mesh_of(kind), []
    multiply = _mixed_partition.multiply

    def spy(*operands: Any, form: Any, kernel: Any) -> Any:
        calls.append((form, [x.shape for x in operands]))
        return multiply(*operands, form=form, kernel=kernel)

    monkeypatch.setattr(_mixed_partition, "multiply", spy)
    matrix = weights(rng, group_size=group_size)
    with jax.set_mesh(mesh):
        sharded = put(mesh, integers(rng, (M, K)), P(None, "x")), place(mesh, matrix, P("x", "y"))
        jax.jit(lambda x, w: jaxgemm.matmul(x, w)).lower(*sharded).compile()
    form, shapes = calls[-1]
    assert (form.k, form.n, form.group_size) == (K // 4, N // 2, 64 if group_size == 64 else K // 4)
    assert shapes == [(M, K // 4), (N // 2 // 16, K // 4 // 64, 512), (2 if group_size == 64 else 1, N // 2)]


@every_kind
@pytest.mark.parametrize(
    ("options", "spec"),
    [
        ({"n": 120}, P(None, "x")),  # 30 columns are no whole tiles
        ({"k": 256, "group_size": 128}, P("x", None)),  # 64 rows are half a group
        ({"k": 384, "group_size": 96}, P("y", None)),  # 192 rows are two groups and three tiles: can be
        ({"k": 512, "group_size": 128}, P(("x", "y"), None)),  # can be by one of the axes
        ({"k": 100, "n": 17}, P(None, None)),
    ],
)
def test_parts_that_are_no_whole_tiles_and_groups(
    options: dict[str, Any], spec: P, kind: AxisType, rng: np.random.Generator
) -> None:
    mesh = mesh_of(kind)
    matrix = weights(rng, **options)
    x = integers(rng, (M, matrix.k))
    specs = dataclasses.replace(matrix.specs(spec), scales=P())  # they may have fewer groups than there are devices
    with jax.set_mesh(mesh):
        placed = jax.tree.map(functools.partial(put, mesh), matrix, specs)
        for x_spec in (P(), P("y", None), P(None, "x")):
            out = jax.jit(jaxgemm.matmul)(put(mesh, x, x_spec), placed)
            assert_same(np.asarray(out), np.asarray(jnp.matmul(x, matrix.dequantize(), precision="highest")))


def test_a_result_that_is_split_where_weights_cannot_be(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    x, matrix = integers(rng, (M, K)), weights(rng, n=40)
    split = jax.jit(jaxgemm.matmul, out_shardings=NamedSharding(mesh, P(None, "x")))
    assert_same(split(x, matrix), jnp.matmul(x, matrix.dequantize(), precision="highest"))


@pytest.mark.parametrize("out_spec", [P(), P("x"), P(None, "x")], ids=str)
def test_weights_stay_whatever_the_result_is_to_be(out_spec: P, rng: np.random.Generator) -> None:
    """The result is moved, which is the smaller one where tokens are few."""
    mesh = mesh_of(AxisType.Auto)
    x, matrix = integers(rng, (M, K)), weights(rng)
    wanted = np.asarray(jnp.matmul(x, matrix.dequantize(), precision="highest"))
    product = jax.jit(jaxgemm.matmul, out_shardings=NamedSharding(mesh, out_spec))
    sharded = put(mesh, x, P()), place(mesh, matrix, P("y", None))
    assert_same(np.asarray(product(*sharded)), wanted)
    assert moved_weights(product, *sharded) == []


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.parametrize(
    ("x_spec", "spec", "out_spec", "expected"),
    [
        (P(None, "x"), P("x", None), P("x", None), {"reduce-scatter": 1}),
        (P("y", "x"), P("x", None), P(("y", "x"), None), {"reduce-scatter": 1}),
        (P(None, "x"), P("x", "y"), P("x", "y"), {"reduce-scatter": 1}),
        (P(None, ("x", "y")), P(("x", "y"), None), P("y", None), {"reduce-scatter": 1, "all-reduce": 1}),
        (P("y", "x"), P("x", None), P(("x", "y"), None), {"all-reduce": 1, "collective-permute": 1}),
    ],
    ids=str,
)
def test_sums_that_are_wanted_split(
    x_spec: P, spec: P, out_spec: P, expected: dict[str, int], fused: bool, rng: np.random.Generator
) -> None:
    """An epilogue comes after the sums, on each device's tokens."""
    mesh = mesh_of(AxisType.Auto)
    x, matrix, bias = integers(rng, (16, K)), weights(rng), integers(rng, (N,))
    dense = jnp.matmul(x, matrix.dequantize(), precision="highest")
    wanted = jax.nn.relu(dense + bias) if fused else dense
    epilogue = {"bias": bias, "activation": "relu"} if fused else {}
    product = jax.jit(functools.partial(jaxgemm.matmul, **epilogue), out_shardings=NamedSharding(mesh, out_spec))
    sharded = put(mesh, x, x_spec), place(mesh, matrix, spec)
    assert_same(np.asarray(product(*sharded)), np.asarray(wanted))
    assert collectives(product, *sharded) == expected


@pytest.mark.parametrize(
    ("kind", "spec"),
    [(AxisType.Auto, P("x", None)), (AxisType.Auto, P(None, "x")), (AxisType.Explicit, P("x", None))],
    ids=str,
)
@pytest.mark.parametrize("tokens", [16, 64])
def test_weights_stay_unless_many_tokens_would_be_moved(
    tokens: int, spec: P, kind: AxisType, rng: np.random.Generator
) -> None:
    """Where both are split over one axis, and the result is wanted split as x."""
    mesh = mesh_of(kind)
    x, matrix = integers(rng, (tokens, K)), weights(rng)
    assert (4 * tokens * (K + N) < K * N) == (tokens == 16), "one is few, the other many"
    with jax.set_mesh(mesh):
        product = jax.jit(jaxgemm.matmul, out_shardings=NamedSharding(mesh, P("x", None)))
        sharded = put(mesh, x, P("x", None)), place(mesh, matrix, spec)
        out = product(*sharded)
        assert (moved_weights(product, *sharded) == []) == (tokens == 16)
    assert_same(np.asarray(out), np.asarray(jnp.matmul(x, matrix.dequantize(), precision="highest")))


def test_operands_that_disagree_are_still_multiplied(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Auto)
    x, matrix = integers(rng, (M, K)), weights(rng, zeros="integer")
    wanted = np.asarray(jnp.matmul(x, matrix.dequantize(), precision="highest"))
    specs = [P(), P("x"), P("y"), P(None, "x"), P("x", "y"), P("y", "x"), P(("x", "y")), P(None, ("y", "x"))]
    for left in specs:
        for right in specs:
            out = jax.jit(jaxgemm.matmul)(put(mesh, x, left), place(mesh, matrix, right))
            np.testing.assert_array_equal(out, wanted, err_msg=f"{left} {right}")


@every_kind
@pytest.mark.parametrize(("spec", "expected"), [(P(None, "x"), {}), (P("x", None), {"all-reduce": 1})], ids=str)
def test_epilogues(spec: P, expected: dict[str, int], kind: AxisType, rng: np.random.Generator) -> None:
    """After the sum over the devices; of bfloat16, whose sums are then still float32."""
    mesh = mesh_of(kind)
    matrix = weights(rng).astype(jnp.bfloat16)
    x, bias = integers(rng, (M, K)).astype(jnp.bfloat16), integers(rng, (N,)).astype(jnp.bfloat16)

    def layer(x: Any, w: Any, b: Any) -> Any:
        return jaxgemm.matmul(x, w, alpha=0.5, bias=b, activation="relu")

    dense = jnp.matmul(x, matrix.dequantize(), preferred_element_type=jnp.float32)
    wanted = jax.nn.relu(dense * 0.5 + bias.astype(jnp.float32)).astype(jnp.bfloat16)
    with jax.set_mesh(mesh):
        for bias_spec in (P(None), P(spec[1])):
            sharded = put(mesh, x, P(None, None)), place(mesh, matrix, spec), put(mesh, bias, bias_spec)
            assert_same(np.asarray(jax.jit(layer)(*sharded)), np.asarray(wanted))
            assert collectives(layer, *sharded) == expected


@every_kind
@pytest.mark.parametrize("spec", [P(None, "x"), P("x", None), P("x", "y"), P(("x", "y"), None)], ids=str)
def test_gradients(spec: P, kind: AxisType, rng: np.random.Generator) -> None:
    mesh = mesh_of(kind)
    x, matrix, factor = integers(rng, (M, K)), weights(rng, zeros="float"), integers(rng, (M, N))

    def loss(x: Any, scales: Any, zeros: Any, bias: Any, w: Any, factor: Any, product: Any) -> Any:
        w = dataclasses.replace(w, scales=scales, zeros=zeros)
        return (product(x, w, bias) * factor).sum()

    def ours(x: Any, w: Any, bias: Any) -> Any:
        return jaxgemm.matmul(x, w, bias=bias)

    def dense(x: Any, w: Any, bias: Any) -> Any:
        return jnp.matmul(x, w.dequantize(), precision="highest") + bias

    every, bias = tuple(range(4)), jnp.ones(N)
    wanted = jax.grad(loss, every)(x, matrix.scales, matrix.zeros, bias, matrix, factor, dense)
    with jax.set_mesh(mesh):
        w, b = place(mesh, matrix, spec), put(mesh, bias, P(spec[1]))
        operands = put(mesh, x, P()), w.scales, w.zeros, b, w, put(mesh, factor, P())
        gradient = jax.grad(functools.partial(loss, product=ours), every)
        got = jax.jit(gradient)(*operands)
        assert [g.sharding.spec for g in got[1:3]] == [matrix.specs(spec).scales] * 2 or kind == AxisType.Auto
        assert moved_weights(gradient, *operands) == []
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=0, atol=K * M * 2.0**-24 * float(abs(b).max()))


@every_kind
def test_tokens_and_rows_by_one_axis(kind: AxisType, rng: np.random.Generator) -> None:
    """What "fully sharded" training does: tokens stay where they are, and the rows of the weights are gathered."""
    mesh = mesh_of(kind)
    x, matrix, factor = integers(rng, (M, K)), weights(rng), integers(rng, (M, N))

    def loss(x: Any, w: Any, factor: Any, product: Any) -> Any:
        return (product(x, w) * factor).sum()

    wanted = jax.grad(loss)(x, matrix.dequantize(), factor, functools.partial(jnp.matmul, precision="highest"))
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, P("x", None)), place(mesh, matrix, P("x", None))
        out = jax.jit(jaxgemm.matmul)(*sharded)
        assert out.sharding.is_equivalent_to(NamedSharding(mesh, P("x", None)), 2)
        gradient = jax.jit(jax.grad(functools.partial(loss, product=jaxgemm.matmul)))
        got = gradient(*sharded, put(mesh, factor, P("x", None)))
        assert kind == AxisType.Auto or jax.typeof(got).sharding.spec == P("x", None)
    assert_same(np.asarray(out), np.asarray(jnp.matmul(x, matrix.dequantize(), precision="highest")))
    assert_same(np.asarray(got), np.asarray(wanted))


@every_kind
def test_experts_and_layers(kind: AxisType, rng: np.random.Generator) -> None:
    """vmap over experts that are split over devices, and scan over layers whose rows are."""
    mesh = mesh_of(kind)
    x, experts = integers(rng, (8, M, K)), weights(rng, 8, group_size=128)
    names = {"spmd_axis_name": "x"} if kind == AxisType.Auto else {}
    wanted = np.asarray(jnp.matmul(x, experts.dequantize(), precision="highest"))
    with jax.set_mesh(mesh):
        sharded = put(mesh, x, P("x", None, None)), place(mesh, experts, P("x", None, "y"))
        for product in (jaxgemm.matmul, jax.vmap(jaxgemm.matmul, **names)):
            assert_same(np.asarray(jax.jit(product)(*sharded)), wanted)
            assert collectives(product, *sharded) == {}

    layers, y = weights(rng, 3, k=128, n=128), integers(rng, (M, 128))

    def scanned(y: Any, layers: Any) -> Any:
        def layer(y: Any, w: Any) -> Any:
            return jnp.clip(jaxgemm.matmul(y, w), -2, 2), None

        return lax.scan(layer, y, layers)[0]

    wanted = y
    for i in range(3):
        layer = jax.tree.map(lambda a, i=i: a[i], layers).dequantize()
        wanted = jnp.clip(jnp.matmul(wanted, layer, precision="highest"), -2, 2)
    with jax.set_mesh(mesh):
        sharded = put(mesh, y, P(None, None)), place(mesh, layers, P(None, "y", None))
        assert_same(np.asarray(jax.jit(scanned)(*sharded)), np.asarray(wanted))
        assert collectives(scanned, *sharded)["all-reduce"] == 1
        assert moved_weights(scanned, *sharded) == []


@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(check_vma: bool, rng: np.random.Generator) -> None:
    """Static sizes are those of the whole matrix there, arrays those of one device."""
    mesh = mesh_of(AxisType.Auto)
    x, matrix = integers(rng, (M, K)), weights(rng, zeros="integer")
    wanted = jnp.matmul(x, matrix.dequantize(), precision="highest")
    mapped = functools.partial(jax.shard_map, mesh=mesh, check_vma=check_vma)

    by_columns = matrix.specs(P(None, "x"))
    columns = mapped(jaxgemm.matmul, in_specs=(P(), by_columns), out_specs=P(None, "x"))
    assert_same(jax.jit(columns)(x, matrix), wanted)
    assert collectives(columns, x, place(mesh, matrix, P(None, "x"))) == {}

    def summed(x: Any, w: Any) -> Any:
        return lax.psum(jaxgemm.matmul(x, w), "x")

    rows = mapped(summed, in_specs=(P(None, "x"), matrix.specs(P("x"))), out_specs=P())
    assert_same(jax.jit(rows)(x, matrix), wanted)
    sharded = put(mesh, x, P(None, "x")), place(mesh, matrix, P("x", None))
    assert collectives(rows, *sharded) == {"all-reduce": 1}
    gradient = jax.jit(jax.grad(lambda x: rows(x, matrix).sum()))(x)
    assert_same(gradient, jnp.ones((M, N)) @ matrix.dequantize().T)

    whole = mapped(lambda w: w.dequantize(), in_specs=(matrix.specs(P("x", "y")),), out_specs=P("x", "y"))
    assert_same(jax.jit(whole)(matrix), matrix.dequantize())
    uneven = dataclasses.replace(matrix.specs(P("x")), scales=P())
    with pytest.raises(ValueError, match=r"packed \(8, 2, 512\), scales \(8, 128\).* nor an equal part of one"):
        mapped(jaxgemm.matmul, in_specs=(P(None, "x"), uneven), out_specs=P())(x, matrix)


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, "x"), P("x", "y"), P(None, ("x", "y"))], ids=str)
def test_dequantize_with_explicit_axes(spec: P, rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    for options in ({}, {"zeros": "float"}):
        matrix = weights(rng, 2, **options)
        with jax.set_mesh(mesh):
            placed = place(mesh, matrix, P(None, *spec))
            out = placed.dequantize(jnp.float32)
            assert jax.typeof(out).sharding.spec == P(None, *spec, *[None] * (2 - len(spec)))
        assert_same(np.asarray(out), np.asarray(matrix.dequantize()))
    order = rng.permutation(K)
    permuted = dataclasses.replace(weights(rng), permutation=jnp.asarray(order, jnp.int32))
    x = integers(rng, (M, K))
    wanted = jnp.matmul(x, permuted.dequantize(), precision="highest")
    with jax.set_mesh(mesh):
        placed = place(mesh, permuted, spec)
        assert_same(np.asarray(placed.dequantize()), np.asarray(permuted.dequantize()))
        assert_same(np.asarray(jax.jit(jaxgemm.matmul)(put(mesh, x, P(None, None)), placed)), np.asarray(wanted))
    experts = weights(rng, 2)
    orders = rng.permuted(np.broadcast_to(np.arange(K), (2, K)), axis=-1)
    experts = dataclasses.replace(experts, permutation=jnp.asarray(orders, jnp.int32))
    x = integers(rng, (3, 2, M, K))
    wanted = jnp.matmul(x, experts.dequantize(), precision="highest")
    with jax.set_mesh(mesh):
        operands = put(mesh, x, P()), place(mesh, experts, P(None, *spec))
        assert_same(np.asarray(jax.jit(jaxgemm.matmul)(*operands)), np.asarray(wanted))


def test_explicit_shardings_that_cannot_be(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    x, matrix, experts = integers(rng, (M, K)), weights(rng), weights(rng, 4, k=64)
    with jax.set_mesh(mesh):
        with pytest.raises(TypeError, match="mesh axis 'x' splits x and the columns of the quantised weights"):
            jaxgemm.matmul(put(mesh, x, P("x", None)), place(mesh, matrix, P(None, "x")))
        with pytest.raises(TypeError, match=r"dimension 0 is split over mesh axes \('y',\) in x and over \('x',\)"):
            jaxgemm.matmul(put(mesh, integers(rng, (4, M, 64)), P("y")), place(mesh, experts, P("x")))


def test_a_mesh_that_nothing_is_put_on(rng: np.random.Generator) -> None:
    x, matrix = integers(rng, (M, K)), weights(rng)
    wanted = jnp.matmul(x, matrix.dequantize(), precision="highest")
    for kind in KINDS.values():
        with jax.set_mesh(mesh_of(kind)):
            assert_same(np.asarray(jax.jit(jaxgemm.matmul)(x, matrix)), np.asarray(wanted))
            assert_same(np.asarray(matrix.dequantize()), np.asarray(matrix.dequantize()))


def test_moved_weights_are_found(rng: np.random.Generator) -> None:
    mesh = mesh_of(AxisType.Explicit)
    with jax.set_mesh(mesh):
        matrix = place(mesh, weights(rng), P("x", "y"))
        (line,) = moved_weights(lambda packed: jax.reshard(packed, P("y", None, None)), matrix.packed)
        assert "u8[" in line
        assert moved_weights(lambda w: jax.reshard(w.dequantize(), P("x", None)), matrix)


def test_specs(rng: np.random.Generator) -> None:
    matrix = weights(rng, 2, zeros="integer")
    specs = matrix.specs(P("e", ("a", "b"), "c"))
    assert (specs.packed, specs.scales) == (P("e", "c", ("a", "b"), None), P("e", ("a", "b"), "c"))
    assert specs.zeros == specs.scales
    assert weights(rng, group_size=-1).specs(P("a", "b")).scales == P(None, "b")
    assert matrix.specs(P("e")).packed == P("e", None, None, None)
    with pytest.raises(ValueError, match=r"has more dimensions than QuantizedMatrix\(K=512"):
        matrix.specs(P(None, None, None, "x"))
