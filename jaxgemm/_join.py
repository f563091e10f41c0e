"""Weights of several products of the same x as those of one, and the results of that one product."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxgemm import _compat
from jaxgemm._packing import TILE_N
from jaxgemm._quant import QuantizedMatrix, middle


def join_columns(weights: Sequence[Any], parts: int = 1) -> Any:
    """Matrices side by side, so that one product with x takes the place of several.

    Few tokens are multiplied in the time that it takes to read the weights, and each kernel costs some microseconds
    more: query, key and value projections, or gate and up, of one layer want to be one product. :func:`split_columns`
    takes its result apart.

    Codes and scales are moved as they are: nothing is quantised again, and every column of the result has the numbers
    that it had.

    Args:
      weights: (..., K, N_i) each, all arrays or all :class:`QuantizedMatrix`; or arrays (..., N_i), such as biases.
      parts: in so many equal parts, in turn: the first of every matrix, then the second of every matrix, and so on.
        Split over devices along N, of whose number it has to be a multiple, each device then has as much of all of
        them: with as many as there are key and value heads, each of these with its query heads. Parts of quantised
        weights have to be whole tiles of 16 columns; only where there is one, the last matrix may end within a tile.

    Returns:
      (..., K, sum of N_i). Join before the result is split over devices: arrays that are split already may be moved.

    Raises:
      TypeError: arrays beside quantised weights, or arrays of different dtypes.
      ValueError: no weights; parts that do not divide each N_i, or are no whole tiles; shapes but for N_i, bits,
        groups, dtypes of scales or of zero points, or orders of rows (act-order) that are not the same; orders of rows
        that are not known yet, under ``jax.jit``; several parts inside ``jax.shard_map``, where a device has its share
        of each matrix already, which are not the parts that :func:`split_columns` would take.
    """
    weights = list(weights)
    if not weights:
        raise ValueError("jaxgemm.join_columns needs weights, got none")
    if parts != 1 and _compat.manual_devices() > 1:
        raise ValueError(
            f"jaxgemm.join_columns with parts={parts!r} inside jax.shard_map: join before it, or with parts=1"
        )
    quantised = [isinstance(w, QuantizedMatrix) for w in weights]
    if any(quantised) != all(quantised):
        kinds = ", ".join(type(w).__name__ for w in weights)
        raise TypeError(f"jaxgemm.join_columns takes arrays or quantised weights, not both: got {kinds}")
    if all(quantised):
        return _joined([w.of_arrays() for w in weights], parts)
    arrays = [jnp.asarray(w) for w in weights]
    dtypes = {a.dtype.name for a in arrays}
    if len(dtypes) > 1:
        raise TypeError(
            f"jaxgemm.join_columns takes arrays of one dtype, got {', '.join(sorted(dtypes))}: convert them"
        )
    shapes = {a.shape[:-1] for a in arrays}
    if min(a.ndim for a in arrays) < 1 or len(shapes) > 1:
        raise ValueError(
            "jaxgemm.join_columns takes arrays that differ in their last dimension alone, got shapes "
            f"{', '.join(str(a.shape) for a in arrays)}"
        )
    _check_parts([a.shape[-1] for a in arrays], parts)
    return _in_turn(arrays, parts, -1)


def split_columns(out: jax.Array, widths: Sequence[int], parts: int = 1) -> tuple[jax.Array, ...]:
    """What the product with each of several matrices is, of that with :func:`join_columns` of them.

    Args:
      out: (..., sum of widths); inside ``jax.shard_map`` the columns of one device, which are an equal share of those.
      widths: the columns N_i of each matrix, all of them.
      parts: as they were joined.

    Returns:
      (..., N_i) for each, inside ``jax.shard_map`` an equal share of it: slices, which XLA makes part of what reads
      them.

    Raises:
      ValueError: an ``out`` of other columns; parts that do not divide each width.
    """
    _check_parts(widths, parts)
    total, columns = sum(widths), out.shape[-1] if out.ndim else 0
    shares = total // columns if columns else 1
    possible = shares > 0 and _compat.manual_devices() % shares == 0 and parts % shares == 0
    if columns * shares != total or not possible:
        raise ValueError(
            f"out has shape {out.shape}, whose columns are neither those of widths {tuple(widths)}, {total}, nor, "
            f"inside jax.shard_map, an equal share of their {parts} parts"
        )
    parts //= shares
    pieces = [width // (shares * parts) for width in widths]
    of_parts = out.reshape(*out.shape[:-1], parts, sum(pieces))
    starts = np.cumsum([0, *pieces])
    return tuple(
        jax.lax.slice_in_dim(of_parts, int(start), int(start) + piece, axis=-1).reshape(*out.shape[:-1], parts * piece)
        for start, piece in zip(starts, pieces, strict=False)
    )


def _check_parts(widths: Sequence[int], parts: int) -> None:
    if type(parts) is not int or parts < 1:
        raise ValueError(f"parts={parts!r} is no positive number of parts")
    for i, width in enumerate(widths):
        if width % parts:
            raise ValueError(f"{width} columns, of number {i} of {tuple(widths)}, are not parts={parts} equal parts")


def _in_turn(arrays: Sequence[jax.Array], parts: int, axis: int) -> jax.Array:
    """Joined along an axis, that of a negative number, which is as many equal parts in each."""
    before, after = (slice(None, axis), slice(arrays[0].ndim + axis + 1, None))
    cut = [a.reshape(*a.shape[before], parts, a.shape[axis] // parts, *a.shape[after]) for a in arrays]
    size = sum(a.shape[axis] for a in arrays)
    return jnp.concatenate(cut, axis=axis).reshape(*arrays[0].shape[before], size, *arrays[0].shape[after])


def _joined(weights: list[QuantizedMatrix], parts: int) -> QuantizedMatrix:
    first, widths = weights[0], [w.n for w in weights]
    _check_parts(widths, parts)
    traits = {
        "K": [w.k for w in weights],
        "bits": [w.bits for w in weights],
        "group_size": [w.group_size for w in weights],
        "dimensions in front": [w.shape[:-2] for w in weights],
        "scale dtype": [w.dtype.name for w in weights],
    }
    for what, found in traits.items():
        if any(value != found[0] for value in found):
            raise ValueError(
                f"jaxgemm.join_columns takes quantised weights that differ in N alone, got {what} "
                f"{', '.join(map(str, found))}" + (": convert scales by .astype" if what == "scale dtype" else "")
            )
    for i, width in enumerate(widths):
        last = parts == 1 and i == len(widths) - 1
        if (width // parts) % TILE_N and not last:
            raise ValueError(
                f"parts of {width // parts} columns, of number {i} of {tuple(widths)}, are no whole tiles of {TILE_N}: "
                "choose fewer parts, or join the matrices before they are quantised"
            )
    zeros = _zeros(weights)
    return QuantizedMatrix(
        _in_turn([w.packed for w in weights], parts, -3),
        _in_turn([w.scales for w in weights], parts, -1),
        None if zeros is None else _in_turn(zeros, parts, -1),
        _permutation(weights),
        first.k,
        sum(widths),
        first.bits,
        first.group_size,
    )


def _zeros(weights: list[QuantizedMatrix]) -> list[jax.Array] | None:
    """Of each; the middle, where others have zero points and this one does not say."""
    dtypes = {w.zeros.dtype for w in weights if w.zeros is not None}
    if not dtypes:
        return None
    if len(dtypes) > 1:
        names = ", ".join(sorted(dtype.name for dtype in dtypes))
        raise ValueError(f"jaxgemm.join_columns takes zero points of one dtype, got {names}: join before quantising")
    dtype = dtypes.pop()
    return [jnp.full(w.scales.shape, middle(w.bits), dtype) if w.zeros is None else w.zeros for w in weights]


def _permutation(weights: list[QuantizedMatrix]) -> Any:
    """The one order of rows that all have."""
    orders = [w.permutation for w in weights]
    if all(order is orders[0] for order in orders):
        return orders[0]
    if any(order is None for order in orders):
        raise ValueError(
            "jaxgemm.join_columns takes rows in one order, but only some of the weights have a permutation"
        )
    if any(isinstance(order, Tracer) for order in orders):
        raise ValueError("jaxgemm.join_columns cannot compare orders of rows under jax.jit: join outside of it")
    if not all(np.array_equal(order, orders[0]) for order in orders):
        raise ValueError(
            "jaxgemm.join_columns takes rows in one order, but permutations differ: multiply by these weights singly"
        )
    return orders[0]
