"""``jaxgemm.matmul`` and ``jaxgemm.einsum``: jax.numpy's semantics over dot_general."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import convert_element_type_p

from jaxgemm._dot_general import bind, dot_general
from jaxgemm._epilogue import NO_ACTIVATION, accumulator_dtype, apply_epilogue, canonical_activation


def _operands(lhs: Any, rhs: Any, preferred: Any) -> tuple[jax.Array, jax.Array, bool]:
    """Both operands as arrays of their promoted dtype, and whether that of the result is weak.

    Where the result's dtype is given, ``jnp.matmul`` promotes nothing: so operands keep dtypes that have no promotion,
    and those that no kernel multiplies in any case.
    """
    for what, x in (("lhs", lhs), ("rhs", rhs)):
        try:
            dtype = jnp.result_type(x)
        except TypeError:
            dtype = None
        if x is None or dtype is None or not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
            raise TypeError(
                f"jaxgemm.matmul takes arrays of numbers, got {what} of type {type(x).__name__}"
                + ("" if x is None or dtype is None else f" and dtype {dtype}")
                + ": convert it with jnp.asarray first"
            )
    try:
        dtype, weak = jax.dtypes.result_type(lhs, rhs, return_weak_type_flag=True)
    except jax.dtypes.TypePromotionError:
        if preferred is None:
            raise
        return jnp.asarray(lhs), jnp.asarray(rhs), False
    if preferred is not None and not jnp.issubdtype(dtype, jnp.floating):
        return jnp.asarray(lhs), jnp.asarray(rhs), False
    return jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype), weak and preferred is None


def _batch_sizes(lhs: jax.Array, rhs: jax.Array) -> list[tuple[Any, Any]]:
    """Sizes of the batch dimensions of both, aligned from the right; None where an operand has no such dimension."""
    left, right = list(lhs.shape[:-2]), list(rhs.shape[:-2])
    depth = max(len(left), len(right))
    return list(zip([None] * (depth - len(left)) + left, [None] * (depth - len(right)) + right, strict=True))


def matmul(
    lhs: Any,
    rhs: Any,
    *,
    bias: Any = None,
    activation: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    kernel: str | None = None,
) -> jax.Array:
    """``activation(lhs @ rhs + bias)`` with the shapes of ``jnp.matmul``.

    Args:
      lhs: (..., M, K), or (K,).
      rhs: (..., K, N), or (K,). Leading dimensions broadcast; operands of different dtypes are promoted as jax.numpy
        does.
      bias: None, or an array that broadcasts to the result, usually (N,). Added to the accumulator.
      activation: None, "relu", "gelu" (as "gelu_tanh": JAX's default approximation), "gelu_erf" or "silu".
        Bias and activation are computed in the accumulator's dtype and rounded once, in the GEMM kernel where it can.
      precision: as in :func:`jaxgemm.dot_general`.
      preferred_element_type: dtype of the result; by default that of the promoted operands.
      kernel: as in :func:`jaxgemm.dot_general`.

    Returns:
      (..., M, N), without M or N where an operand has one dimension.

    Raises:
      TypeError: operands that are no numeric arrays, have no dimensions, or do not fit together; an activation of
        integers or complex numbers.
      ValueError: an unknown activation, kernel or precision; batch dimensions or a bias that do not broadcast; a named
        kernel that cannot run this problem.
    """
    lhs, rhs, weak = _operands(lhs, rhs, preferred_element_type)
    if lhs.ndim == 0 or rhs.ndim == 0:
        raise TypeError(
            f"jaxgemm.matmul takes operands of one or more dimensions, got shapes {lhs.shape} and {rhs.shape}: use "
            "lhs * rhs"
        )
    rhs_k = max(rhs.ndim - 2, 0)
    if lhs.shape[-1] != rhs.shape[rhs_k]:
        raise TypeError(
            f"jaxgemm.matmul cannot contract lhs of shape {lhs.shape} with rhs of shape {rhs.shape}: K={lhs.shape[-1]} "
            f"(last dimension of lhs) is not K={rhs.shape[rhs_k]} (dimension {rhs_k} of rhs). Transpose an operand, or "
            "name the dimensions with jaxgemm.dot_general"
        )
    activation = canonical_activation(activation)
    out_dtype = lhs.dtype if preferred_element_type is None else jnp.dtype(preferred_element_type)
    if activation != NO_ACTIVATION and not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(f"activation={activation!r} needs a floating-point result, this one is {out_dtype}")

    # Dimensions of size 1 that the other operand has larger are dropped; those that both have are batch dimensions,
    # and those that one has are free dimensions of it.
    lhs_batch, rhs_batch, lhs_drop, rhs_drop, lhs_only, rhs_only = [], [], [], [], [], []
    sizes = _batch_sizes(lhs, rhs)
    lhs_first, rhs_first = len(sizes) - max(lhs.ndim - 2, 0), len(sizes) - max(rhs.ndim - 2, 0)
    for i, (left, right) in enumerate(sizes):
        if left is not None and left == right:
            lhs_batch.append(i)
            rhs_batch.append(i)
        elif left is None or (left == 1 and right is not None):
            rhs_only.append(i)
            lhs_drop += [] if left is None else [i]
        elif right is None or right == 1:
            lhs_only.append(i)
            rhs_drop += [] if right is None else [i]
        else:
            raise ValueError(
                f"jaxgemm.matmul cannot broadcast the batch dimensions of lhs {lhs.shape} and rhs {rhs.shape}: "
                f"{left} is neither {right} nor 1"
            )
    lhs_dims = [i for i in range(lhs_first, len(sizes)) if i not in lhs_drop]
    rhs_dims = [i for i in range(rhs_first, len(sizes)) if i not in rhs_drop]
    lhs = lax.squeeze(lhs, [i - lhs_first for i in lhs_drop])
    rhs = lax.squeeze(rhs, [i - rhs_first for i in rhs_drop])
    dimension_numbers = (
        ((lhs.ndim - 1,), (len(rhs_dims),)),
        (tuple(lhs_dims.index(i) for i in lhs_batch), tuple(rhs_dims.index(i) for i in rhs_batch)),
    )
    has_m, has_n = lhs.ndim > len(lhs_dims) + 1, rhs.ndim > len(rhs_dims) + 1
    gemm = functools.partial(
        bind, lhs, rhs, dimension_numbers=dimension_numbers, precision=precision, out_sharding=None, kernel=kernel
    )
    # Where the result's dimensions come out of dot_general: batch, lhs's own, M, rhs's own, N.
    produced = lhs_batch + lhs_only + (["m"] if has_m else []) + rhs_only + (["n"] if has_n else [])
    wanted = [*range(len(sizes))] + (["m"] if has_m else []) + (["n"] if has_n else [])
    permutation = tuple(produced.index(d) for d in wanted)
    out_shape = tuple(
        {"m": lhs.shape[-2] if has_m else None, "n": rhs.shape[-1]}[d]
        if isinstance(d, str)
        else sizes[d][0]
        if sizes[d][0] not in (None, 1)
        else (sizes[d][1] if sizes[d][1] is not None else sizes[d][0])
        for d in wanted
    )

    if bias is not None:
        bias = jnp.asarray(bias)
        try:
            fits = np.broadcast_shapes(bias.shape, out_shape) == out_shape
        except ValueError:
            fits = False
        if not fits:
            raise ValueError(f"bias of shape {bias.shape} does not broadcast to the result's shape {out_shape}")
    if bias is None and activation == NO_ACTIVATION:
        out = gemm(preferred_element_type=preferred_element_type)
        if weak:
            out = convert_element_type_p.bind(out, new_dtype=out.dtype, weak_type=True, sharding=None)
        return out if permutation == tuple(range(out.ndim)) else lax.transpose(out, permutation)

    row_bias = bias is not None and has_n and bias.shape == (rhs.shape[-1],)
    if accumulator_dtype(out_dtype) == np.float32 and has_n and not rhs_only and (bias is None or row_bias):
        operands = [] if bias is None else [bias.astype(np.float32)]
        out = gemm(*operands, activation=activation, preferred_element_type=out_dtype)
        return out if permutation == tuple(range(out.ndim)) else lax.transpose(out, permutation)
    accumulator = gemm(preferred_element_type=accumulator_dtype(out_dtype))
    return apply_epilogue(lax.transpose(accumulator, permutation), bias, activation).astype(out_dtype)


@functools.lru_cache(maxsize=256)
def _dot_general_with(kernel: str | None) -> Any:
    # One function object per kernel: jnp.einsum keys its compilation cache on it.
    return functools.partial(dot_general, kernel=kernel)


def einsum(
    subscripts: Any,
    /,
    *operands: Any,
    optimize: Any = "auto",
    precision: Any = None,
    preferred_element_type: Any = None,
    kernel: str | None = None,
) -> jax.Array:
    """``jnp.einsum`` whose contractions are :func:`jaxgemm.dot_general`.

    Args:
      subscripts, *operands, optimize: as for ``jnp.einsum``.
      precision, preferred_element_type, kernel: as for :func:`jaxgemm.dot_general`, for every contraction.

    Returns:
      The array that ``jnp.einsum`` returns.

    Raises:
      ValueError, TypeError: as ``jnp.einsum`` and :func:`jaxgemm.dot_general` raise them.
    """
    return jnp.einsum(
        subscripts,
        *operands,
        optimize=optimize,
        precision=precision,
        preferred_element_type=preferred_element_type,
        _dot_general=_dot_general_with(kernel),
    )
