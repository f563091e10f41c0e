"""jaxgemm/_join.py: columns of several matrices as those of one, moved as they are.

Numbers are small integers and scales powers of two: every sum is exact, so results are equal bit by bit.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jaxgemm
from tests.helpers import assert_same, integers
from tests.test_mixed_sharding import every_kind, place, weights
from tests.test_sharding import collectives, mesh_of, put

K, WIDTHS = 128, (512, 128, 128)


def in_turn(matrices: Sequence[np.ndarray], parts: int) -> np.ndarray:
    """What join_columns is to make, a column at a time."""
    columns = []
    for part in range(parts):
        for matrix in matrices:
            width = matrix.shape[-1] // parts
            columns += [matrix[..., part * width + j] for j in range(width)]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("parts", [1, 2, 8])
@pytest.mark.parametrize("zeros", ["", "integer", "float"])
@pytest.mark.parametrize("bits", [4, 8])
def test_quantised_columns(bits: int, zeros: str, parts: int, rng: np.random.Generator) -> None:
    matrices = [weights(rng, 3, k=K, n=n, bits=bits, zeros=zeros) for n in WIDTHS]
    joined = jax.jit(functools.partial(jaxgemm.join_columns, parts=parts))(matrices)
    assert joined.shape == (3, K, sum(WIDTHS)) and (joined.bits, joined.group_size) == (bits, 64)
    assert (joined.zeros is None) == (not zeros)
    assert_same(joined.dequantize(), in_turn([np.asarray(m.dequantize()) for m in matrices], parts))


@pytest.mark.parametrize("parts", [1, 4])
@pytest.mark.parametrize("quantised", [True, False])
def test_products_and_biases(quantised: bool, parts: int, rng: np.random.Generator) -> None:
    """One product with an epilogue is those of the matrices, each with its own."""
    matrices = [weights(rng, k=K, n=n) for n in WIDTHS]
    matrices = matrices if quantised else [m.dequantize() for m in matrices]
    biases = [integers(rng, (n,)) for n in WIDTHS]
    x = integers(rng, (2, 5, K))

    def one(x: Any, matrices: Any, biases: Any) -> Any:
        w, b = (jaxgemm.join_columns(each, parts) for each in (matrices, biases))
        return jaxgemm.split_columns(jaxgemm.matmul(x, w, bias=b, activation="relu"), WIDTHS, parts)

    found = jax.jit(one)(x, matrices, biases)
    assert [out.shape for out in found] == [(2, 5, n) for n in WIDTHS]
    for out, w, b in zip(found, matrices, biases, strict=True):
        assert_same(out, jaxgemm.matmul(x, w, bias=b, activation="relu"))


def test_one_result_row_and_one_matrix(rng: np.random.Generator) -> None:
    matrix, x = weights(rng, k=K, n=40), integers(rng, (K,))
    (out,) = jaxgemm.split_columns(jaxgemm.matmul(x, jaxgemm.join_columns([matrix])), [40])
    assert_same(out, jaxgemm.matmul(x, matrix))


def test_gradients_reach_every_matrix(rng: np.random.Generator) -> None:
    matrices = [weights(rng, k=K, n=n).dequantize() for n in WIDTHS]
    x = integers(rng, (4, K))

    def loss(matrices: Any, joins: bool) -> Any:
        if joins:
            outs = jaxgemm.split_columns(x @ jaxgemm.join_columns(matrices, 8), WIDTHS, 8)
        else:
            outs = [x @ w for w in matrices]
        return sum((i + 1) * out.sum() for i, out in enumerate(outs))

    found, wanted = (jax.grad(loss)(matrices, joins) for joins in (True, False))
    for left, right in zip(found, wanted, strict=True):
        assert_same(left, right)


def test_the_last_columns_may_be_no_whole_tile(rng: np.random.Generator) -> None:
    matrices = [weights(rng, k=K, n=n) for n in (32, 40)]
    joined = jaxgemm.join_columns(matrices)
    assert_same(joined.dequantize(), in_turn([np.asarray(m.dequantize()) for m in matrices], 1))
    with pytest.raises(ValueError, match=r"parts of 40 columns, of number 0 of \(40, 32\), are no whole tiles of 16"):
        jaxgemm.join_columns(matrices[::-1])
    with pytest.raises(ValueError, match=r"parts of 8 columns, of number 0 of \(32, 32\), are no whole tiles"):
        jaxgemm.join_columns([matrices[0]] * 2, 4)


@pytest.mark.parametrize("zeros", ["integer", "float"])
def test_symmetric_beside_others(zeros: str, rng: np.random.Generator) -> None:
    """Its zero points are then written down: the middle."""
    matrices = [weights(rng, k=K, n=32), weights(rng, k=K, n=32, zeros=zeros)]
    joined = jaxgemm.join_columns(matrices, 2)
    assert_same(joined.dequantize(), in_turn([np.asarray(m.dequantize()) for m in matrices], 2))


def test_orders_of_rows(rng: np.random.Generator) -> None:
    order = rng.permutation(K).astype(np.int32)
    matrices = [dataclasses.replace(weights(rng, k=K, n=n), permutation=jnp.array(order)) for n in (32, 64)]
    joined = jaxgemm.join_columns(matrices, 2)
    x = integers(rng, (3, K))
    found = jaxgemm.split_columns(jaxgemm.matmul(x, joined), (32, 64), 2)
    for out, w in zip(found, matrices, strict=True):
        assert_same(out, jaxgemm.matmul(x, w))
    same = dataclasses.replace(matrices[1], permutation=matrices[0].permutation)
    assert_same(jaxgemm.join_columns([matrices[0], same]).permutation, order)
    with pytest.raises(ValueError, match=r"under jax\.jit: join outside"):
        jax.jit(jaxgemm.join_columns)(matrices)
    with pytest.raises(ValueError, match="only some of the weights have a permutation"):
        jaxgemm.join_columns([matrices[0], dataclasses.replace(matrices[1], permutation=None)])
    with pytest.raises(ValueError, match="permutations differ"):
        jaxgemm.join_columns([matrices[0], dataclasses.replace(matrices[1], permutation=jnp.array(order[::-1]))])


@every_kind
@pytest.mark.parametrize("quantised", [True, False])
def test_split_over_devices(quantised: bool, kind: AxisType, rng: np.random.Generator) -> None:
    """Every device has as much of each matrix, and its columns of each result: nothing is exchanged."""
    mesh, spec = mesh_of(kind), P(None, "x")
    matrices = [weights(rng, k=K, n=n) for n in WIDTHS]
    matrices = matrices if quantised else [m.dequantize() for m in matrices]
    x = integers(rng, (4, K))
    joined = jaxgemm.join_columns(matrices, 8)
    placed = place(mesh, joined, spec) if quantised else put(mesh, joined, spec)

    def projections(x: Any, joined: Any) -> Any:
        return jaxgemm.split_columns(jaxgemm.matmul(x, joined), WIDTHS, 8)

    mapped = jax.shard_map(
        projections, mesh=mesh, in_specs=(P(), joined.specs(spec) if quantised else spec), out_specs=(spec,) * 3
    )
    with jax.set_mesh(mesh):
        for function in (projections, mapped):
            assert collectives(function, put(mesh, x, P()), placed) == {}
            for out, w in zip(jax.jit(function)(put(mesh, x, P()), placed), matrices, strict=True):
                assert out.sharding.spec == spec
                assert_same(out, jaxgemm.matmul(x, w))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 64}, "got K 128, 64"),
        ({"bits": 8}, "got bits 4, 8"),
        ({"group_size": 32}, "got group_size 64, 32"),
        ({"batch": 2}, r"got dimensions in front \(\), \(2,\)"),
    ],
    ids=str,
)
def test_quantised_weights_that_do_not_fit(change: dict[str, int], message: str, rng: np.random.Generator) -> None:
    batch = (change.pop("batch"),) if "batch" in change else ()
    other: dict[str, Any] = {"k": K, "n": 32, **change}
    with pytest.raises(ValueError, match=message):
        jaxgemm.join_columns([weights(rng, k=K, n=32), weights(rng, *batch, **other)])


def test_other_errors(rng: np.random.Generator) -> None:
    matrix = weights(rng, k=K, n=32)
    with pytest.raises(ValueError, match="needs weights, got none"):
        jaxgemm.join_columns([])
    with pytest.raises(TypeError, match="not both: got QuantizedMatrix, ArrayImpl"):
        jaxgemm.join_columns([matrix, matrix.dequantize()])
    with pytest.raises(ValueError, match=r"got scale dtype float32, float16: convert scales by \.astype"):
        jaxgemm.join_columns([matrix, matrix.astype(jnp.float16)])
    with pytest.raises(ValueError, match="zero points of one dtype, got float32, uint8"):
        jaxgemm.join_columns([weights(rng, k=K, n=32, zeros=zeros) for zeros in ("integer", "float")])
    with pytest.raises(TypeError, match="arrays of one dtype, got float16, float32: convert them"):
        jaxgemm.join_columns([jnp.ones((2, 4)), jnp.ones((2, 4), jnp.float16)])
    with pytest.raises(ValueError, match=r"their last dimension alone, got shapes \(2, 4\), \(3, 4\)"):
        jaxgemm.join_columns([jnp.ones((2, 4)), jnp.ones((3, 4))])
    with pytest.raises(ValueError, match=r"their last dimension alone, got shapes \(\), \(\)"):
        jaxgemm.join_columns([jnp.float32(1), jnp.float32(2)])
    for parts in (0, -2, 1.0, True):
        with pytest.raises(ValueError, match="is no positive number of parts"):
            jaxgemm.join_columns([jnp.ones((2, 4))], parts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"6 columns, of number 1 of \(4, 6\), are not parts=4 equal parts"):
        jaxgemm.join_columns([jnp.ones((2, 4)), jnp.ones((2, 6))], 4)


@pytest.mark.parametrize(
    ("shape", "parts", "message"),
    [
        ((2, 11), 1, r"out has shape \(2, 11\), whose columns are neither those of widths \(8, 4\), 12"),
        ((2, 6), 1, "neither those of widths"),
        ((2, 6), 2, "nor, inside jax.shard_map, an equal share of their 2 parts"),
        ((2, 13), 1, "neither those of widths"),
        ((2, 24), 2, "neither those of widths"),
        ((), 1, "neither those of widths"),
        ((2, 12), 3, r"8 columns, of number 0 of \(8, 4\), are not parts=3 equal parts"),
    ],
    ids=str,
)
def test_results_that_do_not_fit(shape: tuple[int, ...], parts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        jaxgemm.split_columns(jnp.ones(shape), (8, 4), parts)


@pytest.mark.parametrize(("columns", "parts", "fits"), [
    (32, 4, True), (16, 4, True), (8, 4, True), (4, 8, True), (4, 4, False), (8, 2, False), (2, 16, False),
])  # fmt: skip
def test_shares_of_one_device(columns: int, parts: int, fits: bool) -> None:
    """Inside ``jax.shard_map``, here of 4 x 2 devices: of as many as there can be, and of whole parts."""
    local = functools.partial(jaxgemm.split_columns, widths=(16, 16), parts=parts)
    mapped = jax.shard_map(local, mesh=mesh_of(AxisType.Auto), in_specs=P(), out_specs=P())
    if fits:
        assert [out.shape for out in mapped(jnp.ones((2, columns)))] == [(2, columns // 2)] * 2
    else:
        with pytest.raises(ValueError, match="an equal share of their"):
            mapped(jnp.ones((2, columns)))


@pytest.mark.parametrize("quantised", [True, False])
def test_parts_are_joined_before_shard_map(quantised: bool, rng: np.random.Generator) -> None:
    """Inside it, where columns are those of one device, they would be other parts than those that are taken apart."""
    mesh, spec = mesh_of(AxisType.Auto), P(None, "x")
    matrices = [weights(rng, k=K, n=n) for n in WIDTHS]
    specs = [m.specs(spec) if quantised else spec for m in matrices]
    operands = matrices if quantised else [m.dequantize() for m in matrices]
    x = integers(rng, (4, K))

    def projections(x: Any, operands: Any, widths: Sequence[int], parts: int) -> Any:
        return jaxgemm.split_columns(jaxgemm.matmul(x, jaxgemm.join_columns(operands, parts)), widths, parts)

    def mapped(widths: Sequence[int], parts: int) -> Any:
        local = functools.partial(projections, widths=widths, parts=parts)
        return jax.shard_map(local, mesh=mesh, in_specs=(P(), specs), out_specs=(spec,) * 3)(x, operands)

    with pytest.raises(ValueError, match=r"parts=8 inside jax\.shard_map: join before it"):
        mapped(WIDTHS, 8)
    with pytest.raises(ValueError, match="an equal share of their 1 parts"):
        mapped(WIDTHS, 1)
    for out, w in zip(mapped([n // 4 for n in WIDTHS], 1), operands, strict=True):
        assert_same(out, jaxgemm.matmul(x, w))
