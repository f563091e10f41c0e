"""``jaxgemm.quantize``: each group's scale by its largest number or by the squared error, and rounding to nearest."""

from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxgemm._quant import QuantizedMatrix, check_bits_and_group, middle, of_parts, pack, scale_dtype_of

METHODS = ("rtn", "mse")
_SHRINKS = np.linspace(1.0, 0.5, 51, dtype=np.float32)


def quantize(
    w: Any,
    *,
    bits: int = 4,
    group_size: int = 128,
    symmetric: bool = True,
    axis: int = -2,
    method: Literal["rtn", "mse"] = "rtn",
    scale_dtype: Any = None,
) -> QuantizedMatrix:
    """Rounds a matrix to codes of few bits, with a scale for each group of rows of each column.

    Args:
      w: floating-point (..., K, N), or (..., N, K) with ``axis=-1``. Leading dimensions are kept: layers, experts.
      bits: 4 or 8.
      group_size: rows to a scale, e.g. 32, 64 or 128; -1: all. The last group may be shorter.
      symmetric: codes mean ``(code - 2**(bits - 1)) * scale``; else ``(code - zero) * scale`` with a zero, an integer,
        for each group.
      axis: which of the last two dimensions is contracted.
      method: "rtn": the largest number of a group decides its scale, all are rounded to nearest. "mse": of some scales
        up to that one, the one with the least squared error (as Nahshan et al., "Loss Aware Post-training
        Quantization", Machine Learning 110, 2021, choose clipping).
      scale_dtype: float16, bfloat16 or float32; by default that of ``w``.

    Returns:
      A :class:`QuantizedMatrix` of shape (..., K, N).

    Raises:
      TypeError: ``w`` is no floating-point array of two or more dimensions; a scale_dtype that is none of the above.
      ValueError: bits, group_size, axis or method that are none of the above.
    """
    w = jnp.asarray(w)
    if w.ndim < 2 or not jnp.issubdtype(w.dtype, jnp.floating):
        raise TypeError(f"jaxgemm.quantize takes floating-point matrices, got {w.dtype}{list(w.shape)}")
    if axis not in (-2, -1, w.ndim - 2, w.ndim - 1):
        raise ValueError(
            f"axis={axis!r} is none of the last two of shape {w.shape}: -2 for (..., K, N), -1 for (..., N, K)"
        )
    if method not in METHODS:
        raise ValueError(f"method={method!r} is none of {', '.join(map(repr, METHODS))}")
    if axis % w.ndim == w.ndim - 1:
        w = jnp.swapaxes(w, -1, -2)
    k, n = w.shape[-2:]
    group_size = max(k, 1) if group_size == -1 else group_size
    check_bits_and_group(bits, group_size)
    dtype = scale_dtype_of(w.dtype if scale_dtype is None else scale_dtype)

    def arrays(w: jax.Array) -> tuple[jax.Array, ...]:
        scales, zeros = _scales(_groups(w, group_size), bits, symmetric, method, dtype)
        of_rows = lambda x: jnp.repeat(x.astype(jnp.float32), group_size, axis=-2)[..., : w.shape[-2], :]  # noqa: E731
        offsets = middle(bits) if zeros is None else of_rows(zeros)
        codes = _rounded(w.astype(jnp.float32), of_rows(scales), offsets, bits).astype(jnp.uint8)
        return (pack(codes, bits), scales) if zeros is None else (pack(codes, bits), scales, zeros)

    outs = ("packed", "groups") + ("groups",) * (not symmetric)
    packed, scales, *zeros = of_parts(arrays, w, outs, bits, group_size)
    return QuantizedMatrix(packed, scales, zeros[0] if zeros else None, None, k, n, bits, group_size)


def _groups(w: jax.Array, group_size: int) -> jax.Array:
    """(..., groups, rows, N) in float32; zeros, which change no scale, after the last row."""
    *batch, k, n = w.shape
    count = -(-k // group_size)
    padded = jnp.pad(w.astype(jnp.float32), [(0, 0)] * len(batch) + [(0, count * group_size - k), (0, 0)])
    return padded.reshape(*batch, count, group_size, n)


def _rounded(x: jax.Array, scale: jax.Array, offset: Any, bits: int) -> jax.Array:
    return jnp.clip(jnp.round(x / scale) + offset, 0, 2**bits - 1)


def _scales(
    groups: jax.Array, bits: int, symmetric: bool, method: str, dtype: np.dtype
) -> tuple[jax.Array, jax.Array | None]:
    """Scales (..., groups, N) and zeros, as integers, of the same shape."""
    low, high = (jnp.minimum(groups.min(-2), 0), jnp.maximum(groups.max(-2), 0)) if groups.size else (0, 0)
    if not groups.size:
        empty = jnp.ones((*groups.shape[:-2], groups.shape[-1]), dtype)
        return empty, None if symmetric else jnp.full(empty.shape, middle(bits), jnp.uint8)

    def at(shrink: Any) -> tuple[jax.Array, jax.Array | None]:
        span = 2 * jnp.maximum(-low, high) if symmetric else high - low
        scale = span * shrink / (2**bits - 1)
        smallest = jnp.float32(jnp.finfo(dtype).smallest_normal)
        scale = jnp.where(scale < smallest, jnp.float32(1), scale).astype(dtype)  # a group of zeros; NaN stays
        if symmetric:
            return scale, None
        return scale, jnp.clip(jnp.round(-low * shrink / scale.astype(jnp.float32)), 0, 2**bits - 1).astype(jnp.uint8)

    if method == "rtn":
        return at(1.0)

    def error(scale: jax.Array, zero: jax.Array | None) -> jax.Array:
        offset = jnp.float32(middle(bits)) if zero is None else zero.astype(jnp.float32)[..., None, :]
        wide = scale.astype(jnp.float32)[..., None, :]
        return jnp.square((_rounded(groups, wide, offset, bits) - offset) * wide - groups).sum(-2)

    def better(best: Any, shrink: jax.Array) -> tuple[Any, None]:
        candidate = at(shrink)
        errors = error(*candidate)
        wins = errors < best[0]
        pick = lambda new, old: jnp.where(wins, new, old)  # noqa: E731
        return (pick(errors, best[0]), jax.tree.map(pick, candidate, best[1])), None

    first = at(_SHRINKS[0])
    (_, chosen), _ = lax.scan(better, (error(*first), first), jnp.asarray(_SHRINKS[1:]))
    return chosen
