"""``jnp.einsum`` of our products, and of quantised weights."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from opt_einsum.parser import parse_einsum_input

from jaxgemm._choose import check_name
from jaxgemm._dot_general import canonical_out_sharding, dot_general
from jaxgemm._matmul import matmul_of_rows, permuted, sharding_of_dot
from jaxgemm._quant import QuantizedMatrix


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
    out_sharding: Any = None,
    kernel: str | None = None,
) -> jax.Array:
    """``jnp.einsum`` whose contractions are :func:`jaxgemm.dot_general`.

    Args:
      subscripts, *operands, optimize, out_sharding: as for ``jnp.einsum``. One of two operands may be a
        :class:`jaxgemm.QuantizedMatrix` (..., K, N), as in "btk,kn->btn" or "ebk,ekn->ebn": K is contracted with the
        other operand, float16, bfloat16 or float32, and all other subscripts are those of the result.
      precision, preferred_element_type, kernel: as for :func:`jaxgemm.dot_general`, for every contraction.

    Returns:
      The array that ``jnp.einsum`` returns.

    Raises:
      ValueError, TypeError: as ``jnp.einsum`` and :func:`jaxgemm.dot_general` raise them; a TypeError for subscripts
        that are no product of quantised weights.
    """
    if any(isinstance(operand, QuantizedMatrix) for operand in operands):
        return _quantized(subscripts, operands, preferred_element_type, out_sharding, kernel)
    check_name(kernel)
    return jnp.einsum(
        subscripts,
        *operands,
        optimize=optimize,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        _dot_general=_dot_general_with(kernel),
    )


def _quantized(subscripts: Any, operands: Any, preferred: Any, out_sharding: Any, kernel: str | None) -> jax.Array:
    """One operand times quantised weights, in either order."""
    if not isinstance(subscripts, str) or len(operands) != 2:
        raise TypeError(
            "jaxgemm.einsum takes quantised weights as one of two operands, after subscripts in a string: multiply the "
            "others in an einsum of their own, or give dequantize() of the weights"
        )
    x, rhs = operands if isinstance(operands[1], QuantizedMatrix) else reversed(operands)
    if isinstance(x, QuantizedMatrix):
        raise TypeError("jaxgemm.einsum takes quantised weights as one operand: give dequantize() of the other")
    x = jnp.asarray(x)
    inputs, result, _ = parse_einsum_input((subscripts, *(x if o is not rhs else rhs for o in operands)))
    of_x, of_rhs = inputs.split(",") if rhs is operands[1] else reversed(inputs.split(","))
    *batch, k, n = of_rhs.rjust(2)  # of too few, none of the other operand
    made = [*batch, *(name for name in of_x if name not in of_rhs), n]
    fits = (len(of_x), len(of_rhs)) == (x.ndim, rhs.ndim) and k in of_x and n not in of_x
    once = all(len(set(names)) == len(names) for names in (of_x, of_rhs))
    if not fits or not once or sorted(made) != sorted(result):
        raise TypeError(
            f"jaxgemm.einsum contracts K of quantised weights, dimension {rhs.ndim - 2} of {rhs!r}, with a dimension "
            f"of the other operand, and keeps all others once. {subscripts!r} with that operand of shape {x.shape} "
            "does not: give dequantize() of the weights for any other product"
        )
    for name, size in zip(of_rhs, rhs.shape, strict=True):
        if name in of_x and x.shape[of_x.index(name)] != size:
            raise ValueError(
                f"jaxgemm.einsum: {name!r} of {subscripts!r} is {x.shape[of_x.index(name)]} in the operand of shape "
                f"{x.shape} and {size} in {rhs!r}"
            )
    order = tuple(made.index(name) for name in result)
    sharding = sharding_of_dot(canonical_out_sharding(out_sharding, len(made)), order, len(made))
    x = permuted(x, tuple(of_x.index(name) for name in (*made[:-1], k) if name in of_x))
    x = lax.expand_dims(x, [i for i, name in enumerate(batch) if name not in of_x])
    return permuted(matmul_of_rows(x, rhs, preferred, sharding, kernel), order)
