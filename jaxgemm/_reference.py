"""What a GEMM's result should be, and how far from it a float32 accumulator may end.

The bound is componentwise: |out - exact| <= E + u_out (|exact| + E) + eta with E = (t / (1 - t) + 2 d) (|lhs| |rhs|)
and t = c K' 2^-24. c counts float32 ulps lost per multiply-add: 1 for round-to-nearest FMA (Higham, "Accuracy and
Stability of Numerical Algorithms", section 3.1), and below 1 for Hopper's tensor cores, which truncate sums of 16
products (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021, and later models of it).
K' adds the partial sums and the bias to K; d is the relative rounding of the operands, for TF32 only. An alpha makes
both |lhs| |rhs| and the exact product alpha times as large, and K' larger by its own rounding.

Of 8-bit floating-point operands Hopper's tensor cores add 32 products and the sum so far with 13 bits of fraction below
the largest of them, and truncate: 33 * 2^-13 (|lhs| |rhs|) at most for each instruction. At precision HIGHEST sums of
512 products, of 16 instructions, are added up outside, so that E grows by 16 times that and not with K.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxgemm._plan import DimensionNumbers

# Roundings of the accumulator beyond K: partial sums of split contractions and the bias.
_EXTRA_TERMS = 16
# Operand rounding of TF32 when float32 bits are passed as they are: 10 explicit bits of fraction, truncated.
_TF32_ROUNDING = 2.0**-10
# Products of 8-bit floating-point numbers that one instruction adds, instructions to a sum at HIGHEST, its last bit.
_FP8_PRODUCTS, _FP8_INSTRUCTIONS, _FP8_UNIT = 32, 16, 2.0**-13


def reference(lhs: Any, rhs: Any, dimension_numbers: DimensionNumbers) -> tuple[jax.Array, jax.Array]:
    """(lhs · rhs, |lhs| · |rhs|) in float64, on the default device.

    Args:
      lhs, rhs: arrays of a real dtype, as for ``lax.dot_general``; their values are exact in float64.
      dimension_numbers: as for ``lax.dot_general``.
    """
    with jax.enable_x64(True):
        lhs64, rhs64 = jnp.asarray(lhs).astype(jnp.float64), jnp.asarray(rhs).astype(jnp.float64)
        return _products(lhs64, rhs64, dimension_numbers)


@jax.jit(static_argnums=2)
def _products(lhs: jax.Array, rhs: jax.Array, dimension_numbers: DimensionNumbers) -> tuple[jax.Array, jax.Array]:
    highest = lax.Precision.HIGHEST
    return (
        lax.dot_general(lhs, rhs, dimension_numbers, precision=highest),
        lax.dot_general(abs(lhs), abs(rhs), dimension_numbers, precision=highest),
    )


def error_over_bound(
    out: Any,
    exact: Any,
    magnitude: Any,
    k: int,
    lhs_dtype: Any,
    out_dtype: Any,
    precision: str = "highest",
    alpha: float | None = None,
    weight_rounding: float = 0.0,
) -> float:
    """The largest elementwise error of ``out`` over its bound: at most 1 if the kernel is right.

    Args:
      out: the result to judge.
      exact, magnitude: what :func:`reference` gives; where an epilogue follows, apply it to ``exact`` and see that
        ``magnitude`` bounds what it makes of the error.
      k: length of the contraction.
      lhs_dtype, out_dtype: dtypes of the operands and of the result.
      precision: "default" allows float32 operands to be rounded to TF32, and sums of 8-bit floating-point products to
        be the tensor cores' alone; "highest" does not.
      alpha: what the epilogue multiplied the sums by, if it did: one rounding more, and a factor of what underflows.
        ``exact`` and ``magnitude`` are those of the products with it.
      weight_rounding: of quantised weights, whose exact numbers ``exact`` and ``magnitude`` are of: the relative error
        of those that are multiplied.

    Returns:
      A non-negative number; infinity if any element is NaN or infinite where the exact result is not, or is finite
      where it cannot be. A result without elements gives 0.
    """
    lhs_dtype, out_dtype = jnp.dtype(lhs_dtype), jnp.dtype(out_dtype)
    rounding = _TF32_ROUNDING if lhs_dtype == jnp.float32 and precision == "default" else 0.0
    t = (k + _EXTRA_TERMS + (alpha is not None)) * 2.0**-24 if k > 0 else 0.0
    truncation = 0.0
    if jnp.issubdtype(lhs_dtype, jnp.floating) and lhs_dtype.itemsize == 1:
        instructions = -(-k // _FP8_PRODUCTS)
        if precision == "highest":
            instructions = min(instructions, _FP8_INSTRUCTIONS)
        truncation = instructions * (_FP8_PRODUCTS + 1) * _FP8_UNIT
    if jnp.issubdtype(out_dtype, jnp.floating):
        info = jnp.finfo(out_dtype)
        unit, largest = float(info.eps) / 2, float(info.max)
        eta = 2.0**-25 if out_dtype == jnp.float16 else max(k, 1) * max(1.0, abs(alpha or 1.0)) * 2.0**-126
    else:
        unit, largest, eta = 0.0, float(jnp.iinfo(out_dtype).max), 0.0
        t = 0.0
    relative = t / (1 - t) * (1 + weight_rounding) + weight_rounding + 2 * rounding + truncation
    with jax.enable_x64(True):
        return float(_error_over_bound(jnp.asarray(out), exact, magnitude, relative, unit, largest, eta))


@jax.jit
def _error_over_bound(
    out: jax.Array, exact: jax.Array, magnitude: jax.Array, relative: Any, unit: Any, largest: Any, eta: Any
) -> jax.Array:
    out = out.astype(jnp.float64)
    inner = relative * magnitude
    bound = inner + unit * (abs(exact) + inner) + eta
    error = abs(out - exact)
    # An infinite result is right where the exact one, within its bound, rounds past the largest finite number.
    overflow_right = jnp.isinf(out) & (jnp.sign(out) == jnp.sign(exact)) & (abs(exact) + bound >= largest * (1 + unit))
    both_special = (jnp.isnan(out) & jnp.isnan(exact)) | (jnp.isinf(exact) & (out == exact))
    ratio = jnp.where(error == 0, 0.0, error / bound)  # 0 / 0 of exact integers is no error
    ratio = jnp.where(both_special | overflow_right, 0.0, ratio)
    return jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio), initial=0.0)
