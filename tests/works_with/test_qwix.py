"""Qwix: what it quantised, as weights of jaxgemm's, number by number; and the same products.

Works with: Qwix (qwix >= 0.1.8)
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import qwix

import jaxgemm
from jaxgemm.formats import from_codes
from tests.helpers import integers, normal
from tests.works_with.support import MIXED, assert_ours

K, N, GROUP = 256, 48, 64
MATRIX = (((1,), (0,)), ((), ()))
EXPERTS = (((2,), (1,)), ((0,), (0,)))


def from_qwix(array: qwix.QArray) -> jaxgemm.QuantizedMatrix:
    """The same numbers. The array (..., K, N) has a scale for each column, or for each group of rows of each column."""
    zeros = None if array.zero_point is None else array.zero_point.astype(jnp.int32)
    bits = jnp.iinfo(array.qvalue.dtype).bits
    return from_codes(array.qvalue, array.scale, zeros, bits=bits, group_size=array.scale_tile_shape[-2])


def quantised(w: jax.Array, dtype: Any, group_size: int, method: str) -> qwix.QArray:
    *batch, _, columns = range(w.ndim)
    return qwix.quantize(
        w, dtype, channelwise_axes=(*batch, columns), tiled_axes={w.ndim - 2: group_size}, calibration_method=method
    )


@pytest.mark.parametrize("method", ["absmax", "minmax"])
@pytest.mark.parametrize("group_size", [GROUP, K], ids=["groups", "columns"])
@pytest.mark.parametrize("scale_dtype", [jnp.float32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("dtype", [jnp.int4, jnp.int8], ids=lambda dtype: dtype.__name__)
def test_the_same_numbers(dtype: Any, scale_dtype: Any, group_size: int, method: str, rng: np.random.Generator) -> None:
    w = normal(rng, (3, K, N), scale_dtype) + jnp.asarray(0.5, scale_dtype)
    array = quantised(w, dtype, group_size, method)
    assert array.qvalue.dtype == dtype
    assert (array.zero_point is None) == (method == "absmax")
    matrix = from_qwix(array)
    assert (matrix.dtype, matrix.group_size, matrix.symmetric) == (scale_dtype, group_size, method == "absmax")
    got, wanted = matrix.dequantize(), qwix.dequantize(array)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
    assert np.unique(np.asarray(got)).size > 10


@pytest.mark.parametrize("group_size", [GROUP, K], ids=["groups", "columns"])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_the_same_products(asymmetric: bool, group_size: int, rng: np.random.Generator) -> None:
    """Exact ones: scales are powers of two."""
    batch = 3
    codes = jnp.asarray(rng.integers(-8, 8, (batch, K, N)), jnp.int4)
    groups = (batch, K // group_size, N)
    scales = jnp.asarray(2.0 ** rng.integers(-1, 2, groups), jnp.bfloat16)
    zeros = jnp.asarray(rng.integers(-3, 4, groups), jnp.int4) if asymmetric else None
    array = qwix.QArray(codes, scales, zeros)
    x = integers(rng, (batch, 5, K), jnp.bfloat16)

    def ours(x: jax.Array, array: qwix.QArray) -> jax.Array:
        """The arrays of Qwix's are arguments: the codes are packed in the program."""
        return jaxgemm.dot_general(x, from_qwix(array), EXPERTS, preferred_element_type=jnp.float32)

    wanted = qwix.dot_general(x, array, EXPERTS, preferred_element_type=jnp.float32)
    exact = np.asarray(x, np.float64) @ np.asarray(qwix.dequantize(array), np.float64)
    np.testing.assert_array_equal(np.asarray(wanted), exact)
    got = jax.jit(ours)(x, array)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))

    matrix = from_qwix(array[0])
    one = jaxgemm.dot_general(x[0], matrix, MATRIX, preferred_element_type=jnp.float32)
    np.testing.assert_array_equal(np.asarray(one), exact[0])
    assert_ours(jaxgemm.matmul, x[0], matrix, target=MIXED)
