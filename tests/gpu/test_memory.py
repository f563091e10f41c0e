"""What kernels touch: nothing outside their buffers, every element of their output; and sizes past 32 bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._choose import BY_MODEL
from tests.edge_shapes import BATCHES, LAYOUTS, Case, Shape, deep_shape, ragged_case
from tests.gpu.native import attributes_of, batched_plan, device_view, raw_call, split_and_workspace
from tests.gpu.support import (
    KERNELS,
    MODES,
    NARROW_PRODUCTS,
    first_dtypes,
    first_floating,
    over_modes,
    poison_free_memory,
)
from tests.helpers import MULTIPROCESSORS
from tests.values import DTypes, assert_equal, integers, nan_bytes, precisions, rounded

pytestmark = pytest.mark.gpu

_REDZONE_BYTES = 4096
_MAX_ALIGNMENT = 256
# Arrays of NumPy's own dtypes can be views of other arrays' memory; bfloat16 ones cannot.
_VIEWABLE = list({
    (row[0].name, row[2]): row for row in reversed(MODES) if row[1][0] in ("float32", "float16", "int8")
}.values())  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
@over_modes(first_dtypes)
def test_batches_and_workspace(
    info: Any, dtypes: DTypes, precision: str, layout: str, rng: np.random.Generator
) -> None:
    """Every kind of batch kept a batch."""
    cases = [ragged_case(info, layout, batch) for batch in BATCHES]
    cases += [Case(dataclasses.replace(deep_shape(info), batch=batch), layout) for batch in ("none", "both")]
    _check_workspace(info, dtypes, precision, [(case, BY_MODEL) for case in cases], rng)


@over_modes(lambda info, *_: info.tma)
def test_tiles_that_are_taken(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """After fewer, as many and more than there are clusters were dealt; each once."""
    (tile_m, tile_n, tile_k), clusters = info.cta_tile, MULTIPROCESSORS // info.cluster_ctas
    rows, cols = 2 * info.cluster_ctas * tile_m, clusters * tile_n
    cases = [
        (Case(Shape(rows - 3, 3 * cols // 2 - 16, 2 * tile_k + 16), "NN"), (1, 1)),
        (Case(Shape(rows // 2, cols // 2 + tile_n, 4 * tile_k, "both"), "NN"), (clusters, 1)),
        (Case(Shape(rows, cols, tile_k), "NT"), (clusters + 7, 1)),
    ]
    _check_workspace(info, dtypes, precision, cases, rng)


def _check_workspace(
    info: Any, dtypes: DTypes, precision: str, rows: Sequence[tuple[Case, tuple[int, int]]], rng: np.random.Generator
) -> None:
    """Cases, each with its split: output and workspace are full of NaN, and a redzone is behind the workspace."""
    cases = [case for case, _ in rows]
    plans = [batched_plan(case) for case in cases]
    planned = [
        split_and_workspace(info.name, dtypes, precision, case, plan, split)
        for (case, split), plan in zip(rows, plans, strict=True)
    ]
    results = [
        [jax.ShapeDtypeStruct(case.out_shape, dtypes[2])]
        + ([jax.ShapeDtypeStruct((size + _REDZONE_BYTES,), np.uint8)] if size else [])
        for case, (_, size) in zip(cases, planned, strict=True)
    ]

    def run(operands: Any, poison: Any) -> list[list[jax.Array]]:
        return [
            raw_call(result, xs, **attributes_of(plan, info.name, precision, split=split))
            for result, xs, plan, (split, _) in zip(results, operands, plans, planned, strict=True)
        ]

    operands = [(integers(rng, c.lhs_shape, dtypes[0]), integers(rng, c.rhs_shape, dtypes[1])) for c in cases]
    poison = jax.device_put([[nan_bytes(r.shape, r.dtype) for r in result] for result in results])
    outs = jax.device_get(jax.jit(run, donate_argnums=1, keep_unused=True)(operands, poison))
    for case, (lhs, rhs), out, (_, size) in zip(cases, operands, outs, planned, strict=True):
        assert_equal(out[0], rounded(case.product(lhs, rhs), dtypes[2]), str(case))
        assert not size or (out[1][size:] == 0xFF).all(), f"{case}: wrote past the workspace's {size} bytes"


@over_modes(rows=_VIEWABLE)
def test_operands_inside_nan(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Operands that lie in the middle of NaN, at addresses with no more alignment than XLA promises (16 bytes)."""
    dtype = jnp.dtype(dtypes[0])
    tile_m, tile_n, tile_k = info.cta_tile
    shapes = [
        Shape(tile_m + 3, tile_n + 5, 2 * tile_k + 3, "both"),
        Shape(2 * tile_m, 2 * tile_n, (info.stages + 1) * max(tile_k, 16)),  # whole vectors and tiles
    ]
    cases = [Case(shape, layout) for shape in shapes for layout in LAYOUTS]

    def run(operands: Any) -> list[jax.Array]:
        return [
            jaxgemm.dot_general(
                lhs, rhs, case.dimension_numbers, precision=precision, preferred_element_type=dtypes[2],
                kernel=info.name,
            )
            for case, (lhs, rhs) in zip(cases, operands, strict=True)
        ]  # fmt: skip

    run = jax.jit(run)
    for offset in (16, _MAX_ALIGNMENT):
        bases, views, originals = [], [], []
        for case in cases:
            pair = integers(rng, case.lhs_shape, dtypes[0]), integers(rng, case.rhs_shape, dtypes[1])
            originals.append(pair)
            inside = []
            for x in pair:
                memory = nan_bytes((2 * _REDZONE_BYTES + x.nbytes,), np.uint8)
                first = _REDZONE_BYTES + offset
                memory[first : first + x.nbytes] = np.frombuffer(x.tobytes(), np.uint8)
                bases.append((jax.device_put(memory), memory))
                inside.append(device_view(jax.block_until_ready(bases[-1][0]), first, x.shape, dtype))
                assert inside[-1].unsafe_buffer_pointer() == bases[-1][0].unsafe_buffer_pointer() + first
            views.append(tuple(inside))
        outs = jax.device_get(run(views))
        for case, (lhs, rhs), out in zip(cases, originals, outs, strict=True):
            assert_equal(out, rounded(case.product(lhs, rhs), dtypes[2]), f"{case} at offset {offset}")
        assert all((np.asarray(base) == memory).all() for base, memory in bases), "an operand's surroundings changed"


@over_modes()
def test_slices_of_nan_arrays(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Operands that XLA cuts out of arrays of NaN, in place where it can: one layer of a stack, and a corner."""
    m, n, k = (size + 8 for size in info.cta_tile)
    lhs, rhs = integers(rng, (m, k), dtypes[0]), integers(rng, (k, n), dtypes[1])

    def surrounded(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        stack = nan_bytes((3, *x.shape), x.dtype).copy()
        stack[1] = x
        wide = nan_bytes((x.shape[0] + 16, x.shape[1] + 16), x.dtype).copy()
        wide[8:-8, 8:-8] = x
        return stack, wide

    def gemm(x: jax.Array, y: jax.Array) -> jax.Array:
        return jaxgemm.matmul(x, y, precision=precision, preferred_element_type=dtypes[2], kernel=info.name)

    @jax.jit
    def run(lhs_arrays: Any, rhs_arrays: Any, i: jax.Array) -> list[jax.Array]:
        (lhs_stack, lhs_wide), (rhs_stack, rhs_wide) = lhs_arrays, rhs_arrays
        return [
            gemm(lhs_stack[1], rhs_stack[1]),
            gemm(lhs_stack[i], rhs_stack[i]),
            gemm(lhs_wide[8:-8, 8:-8], rhs_wide[8:-8, 8:-8]),
        ]

    poison_free_memory()
    expected = rounded(lhs.astype(np.float64) @ rhs.astype(np.float64), dtypes[2])
    for out in run(surrounded(lhs), surrounded(rhs), np.int32(1)):
        assert_equal(np.asarray(out), expected, f"{m}x{n}x{k}")


_ZERO_K = [((3, 0), (0, 7)), ((2, 3, 0), (2, 0, 7)), ((2, 3, 0), (0, 7))]


def _of_ones(shapes: Any, info: Any, dtypes: DTypes, precision: str, **epilogue: Any) -> jax.Array:
    operands = (jnp.ones(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))
    return jaxgemm.matmul(
        *operands, precision=precision, preferred_element_type=dtypes[2], kernel=info.name, **epilogue
    )


@over_modes(first_dtypes)
def test_empty(info: Any, dtypes: DTypes, precision: str) -> None:
    """K = 0 gives zeros, empty outputs are empty, and the next call works."""
    empty = [((0, 5), (5, 7)), ((5, 6), (6, 0)), ((0, 0), (0, 0)), ((0, 3, 4), (0, 4, 5)), ((2, 3, 0), (2, 0, 0))]

    @jax.jit
    def run() -> list[jax.Array]:
        return [_of_ones(shapes, info, dtypes, precision) for shapes in [*empty, *_ZERO_K, ((2, 3), (3, 4))]]

    poison_free_memory()
    outs = jax.device_get(run())
    for (lhs, rhs), out in zip(empty, outs, strict=False):
        assert out.shape == np.matmul(np.ones(lhs), np.ones(rhs)).shape
    assert all(not x.astype(np.float32).any() for x in outs[len(empty) : -1])
    np.testing.assert_array_equal(outs[-1].astype(np.float32), np.full((2, 4), 3))


@over_modes(first_floating)
def test_empty_sums_have_an_epilogue(info: Any, dtypes: DTypes, precision: str) -> None:
    """K = 0 gives activation(bias), whatever alpha."""
    bias = np.arange(-3, 4, dtype=np.float32)

    @jax.jit
    def run(bias: jax.Array) -> list[jax.Array]:
        return [
            _of_ones(shapes, info, dtypes, precision, alpha=alpha, bias=bias, activation="relu")
            for shapes in _ZERO_K
            for alpha in (None, -2.5)
        ]

    poison_free_memory()
    for out in jax.device_get(run(bias)):
        np.testing.assert_array_equal(out.astype(np.float32), np.broadcast_to(np.maximum(bias, 0), out.shape))


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtypes", "precision"), NARROW_PRODUCTS)
@pytest.mark.parametrize("shapes", [((70001, 3, 5), (70001, 5, 4)), ((1100003, 4), (4, 3)), ((3, 4), (4, 1100003))])
def test_many_tiles(shapes: tuple[Any, Any], dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """More than 65535 batches, and more than a million rows or columns."""
    names = [info.name for info in KERNELS if dtypes in info.dtypes and precision in precisions(info, dtypes)]
    lhs, rhs = (integers(rng, shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))
    expected = rounded(np.matmul(lhs.astype(np.float64), rhs.astype(np.float64)), dtypes[2])

    def run(x: jax.Array, y: jax.Array) -> list[jax.Array]:
        options = {"precision": precision, "preferred_element_type": dtypes[2]}
        return [jaxgemm.matmul(x, y, kernel=name, **options) for name in names]

    for name, out in zip(names, jax.jit(run)(lhs, rhs), strict=True):
        assert_equal(np.asarray(out), expected, name)
