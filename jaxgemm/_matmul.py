"""``jaxgemm.matmul``: jax.numpy's semantics over dot_general."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core.primitives import convert_element_type_p
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm._compat import has_partial_sums
from jaxgemm._dot_general import bind, canonical_out_sharding
from jaxgemm._epilogue import BIAS_DTYPES, NO_ACTIVATION, accumulator_dtype, apply_epilogue, canonical_activation
from jaxgemm._mixed import bind as mixed
from jaxgemm._mixed_choose import check_mixed_name
from jaxgemm._mixed_local import Form
from jaxgemm._plan import DimensionNumbers
from jaxgemm._quant import SCALE_DTYPES, QuantizedMatrix
from jaxgemm._shapes import MatmulShapes, matmul_shapes


def _operands(lhs: Any, rhs: Any, preferred: Any) -> tuple[jax.Array, jax.Array, bool]:
    """Both operands as arrays of their promoted dtype, and whether that of the result is weak.

    Where the result's dtype is given, ``jnp.matmul`` promotes nothing: so operands keep dtypes that have no promotion,
    and those that no kernel multiplies in any case.
    """
    for what, x in (("lhs", lhs), ("rhs", rhs)):
        if isinstance(x, np.ma.MaskedArray):  # whose mask jnp.asarray loses where it is told a dtype
            raise ValueError(f"jaxgemm.matmul takes no masked arrays, as JAX has none: give {what}.filled(...)")
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


def matmul(
    lhs: Any,
    rhs: Any,
    *,
    alpha: Any = None,
    bias: Any = None,
    activation: str | None = None,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
    kernel: str | None = None,
) -> jax.Array:
    """``activation(alpha * (lhs @ rhs) + bias)`` with the shapes of ``jnp.matmul``.

    Args:
      lhs: (..., M, K), or (K,).
      rhs: (..., K, N), or (K,). Leading dimensions broadcast; operands of different dtypes are promoted as jax.numpy
        does. Or a :class:`jaxgemm.QuantizedMatrix`, whose numbers take part in the dtype of lhs, which is float16,
        bfloat16 or float32.
      alpha: None for 1, or a real number or array of shape (): a factor of the accumulator, e.g. ``lhs_scale *
        rhs_scale`` of 8-bit operands. float32 (float64 for float64 results) and an operand of the kernel: a changed
        value compiles nothing. What IEEE 754 says of 0, infinity and NaN holds: alpha = 0 does not hide a NaN.
      bias: None, or an array that broadcasts to the result, usually (N,), or (..., 1, N) with one for each of the
        batch. Added to the accumulator.
      activation: None, "relu", "gelu" (as "gelu_tanh": JAX's default approximation), "gelu_erf" or "silu".
        Alpha, bias and activation are computed in the accumulator's dtype and rounded once, in the GEMM kernel where
        it can.
      precision: as in :func:`jaxgemm.dot_general`.
      preferred_element_type: dtype of the result; by default that of the promoted operands.
      out_sharding: as in :func:`jaxgemm.dot_general`, of the result as it is returned.
      kernel: as in :func:`jaxgemm.dot_general`.

    Returns:
      (..., M, N), without M or N where an operand has one dimension.

    Raises:
      TypeError: operands that are no numeric arrays, have no dimensions, or do not fit together; an alpha that is no
        real number; alpha or an activation where the result is of integers or complex numbers.
      ValueError: an unknown activation, kernel or precision; an alpha of another shape than (); batch dimensions or a
        bias that do not broadcast; an ``out_sharding`` of more dimensions than the result, of axes that are not
        explicit, or with unreduced axes and an epilogue or quantised weights; a named kernel that cannot run this
        problem.
    """
    if isinstance(lhs, QuantizedMatrix):
        raise TypeError("jaxgemm.matmul takes quantised weights as rhs: swap the operands, or lhs.dequantize()")
    if isinstance(rhs, QuantizedMatrix):
        check_mixed_name(kernel)
        name = canonical_activation(activation)
        return _matmul_quantized(lhs, rhs, alpha, bias, name, preferred_element_type, out_sharding, kernel)
    lhs, rhs, weak = _operands(lhs, rhs, preferred_element_type)
    shapes = matmul_shapes(lhs.shape, rhs.shape)
    activation = canonical_activation(activation)
    out_dtype = lhs.dtype if preferred_element_type is None else jax.dtypes.canonicalize_dtype(preferred_element_type)
    if activation != NO_ACTIVATION and not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(f"activation={activation!r} needs a floating-point result, this one is {out_dtype}")
    if alpha is not None:
        alpha = _checked_alpha(alpha, out_dtype)
    if bias is not None:
        bias = _checked_bias(bias, shapes.out_shape, out_dtype)

    gemm = functools.partial(
        bind,
        lax.squeeze(lhs, shapes.lhs_squeeze),
        lax.squeeze(rhs, shapes.rhs_squeeze),
        dimension_numbers=shapes.dimension_numbers,
        precision=precision,
        out_sharding=sharding_of_dot(
            canonical_out_sharding(out_sharding, len(shapes.out_shape)), shapes.permutation, len(shapes.permutation)
        ),
        kernel=kernel,
    )
    if alpha is None and bias is None and activation == NO_ACTIVATION:
        out = gemm(preferred_element_type=preferred_element_type)
        if weak:
            out = convert_element_type_p.bind(out, new_dtype=out.dtype, weak_type=True, sharding=None)
        return permuted(out, shapes.permutation)
    if gemm.keywords["out_sharding"] is not None and has_partial_sums(gemm.keywords["out_sharding"].spec):
        raise ValueError(
            f"out_sharding={out_sharding} leaves parts of the sums on their devices, to which no alpha, bias or "
            "activation can be applied: jax.reshard the product, then apply them"
        )
    # Kernels scale a float32 accumulator and add a vector to its rows. What is not of that form is composed.
    of_each = len(shapes.dimension_numbers[1][0]) == len(shapes.out_shape) - 2
    vector = _vector_of_columns(bias, shapes, of_each)
    fits = shapes.has_n and not shapes.rhs_keeps_batch and (vector is None) == (bias is None)
    if fits and accumulator_dtype(out_dtype) == np.float32:
        out = gemm(alpha=alpha, bias=vector, activation=activation, preferred_element_type=out_dtype)
        return permuted(out, shapes.permutation)
    accumulator = permuted(gemm(preferred_element_type=accumulator_dtype(out_dtype)), shapes.permutation)
    return apply_epilogue(accumulator, alpha, bias, activation).astype(out_dtype)


def _matmul_quantized(
    lhs: Any,
    rhs: QuantizedMatrix,
    alpha: Any,
    bias: Any,
    activation: str,
    preferred: Any,
    out_sharding: Any,
    kernel: str | None,
) -> jax.Array:
    """:func:`matmul` with quantised weights: those of an expert or layer each, or the same for all of lhs."""
    lhs, rhs, out_dtype = _with_quantised(lhs, rhs, preferred)
    shapes = matmul_shapes(lhs.shape, rhs.shape)
    alpha = None if alpha is None else _checked_alpha(alpha, out_dtype)
    bias = None if bias is None else _checked_bias(bias, shapes.out_shape, out_dtype)
    x, rhs, permutation = _in_batches(lhs, rhs)
    sharding = _of_whole_sums(canonical_out_sharding(out_sharding, len(shapes.out_shape)))
    order = permutation if lhs.ndim > 1 else permutation[:-2] + permutation[-1:]
    sharding = sharding_of_dot(sharding, order, len(permutation))

    def multiply(*epilogue: jax.Array, form: Form) -> jax.Array:
        return permuted(mixed(x, rhs, *epilogue, form=form, kernel=kernel), permutation).reshape(shapes.out_shape)

    of_each = rhs.ndim == len(shapes.out_shape) > 2 and order == tuple(range(rhs.ndim))
    vector = _vector_of_columns(bias, shapes, of_each)
    fused = accumulator_dtype(out_dtype) == np.float32 and (vector is None) == (bias is None)
    form = _form(rhs, out_dtype if fused else np.float32, sharding)
    if fused:
        form = dataclasses.replace(form, has_alpha=alpha is not None, activation=activation)
    if not fused:
        return apply_epilogue(multiply(form=form), alpha, bias, activation).astype(out_dtype)
    return multiply(*(value for value in (alpha, vector) if value is not None), form=form)


def _with_quantised(lhs: Any, rhs: QuantizedMatrix, preferred: Any) -> tuple[jax.Array, QuantizedMatrix, np.dtype]:
    """Both operands, and the result's dtype."""
    lhs, rhs = jnp.asarray(lhs), rhs.of_arrays()
    if lhs.dtype.name not in SCALE_DTYPES:
        raise TypeError(f"lhs of dtype {lhs.dtype} with {rhs!r}: convert lhs to one of {', '.join(SCALE_DTYPES)}")
    if lhs.ndim == 0 or lhs.shape[-1] != rhs.k:
        raise TypeError(f"jaxgemm.matmul cannot contract lhs of shape {lhs.shape} with {rhs!r}: K is {rhs.k}")
    out_dtype = lhs.dtype if preferred is None else jax.dtypes.canonicalize_dtype(preferred)
    if not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(f"the product of {lhs.dtype} and quantised weights is floating-point, not {out_dtype}")
    return lhs, rhs, np.dtype(out_dtype)


def _of_whole_sums(sharding: NamedSharding | None) -> NamedSharding | None:
    """The same, if no parts of the sums are to stay on their devices."""
    if sharding is not None and has_partial_sums(sharding.spec):
        raise ValueError(
            f"out_sharding={sharding.spec} with quantised weights, of whose products no parts of the sums stay on "
            "their devices: leave out its unreduced and reduced axes"
        )
    return sharding


def _form(rhs: QuantizedMatrix, out_dtype: Any, sharding: NamedSharding | None) -> Form:
    """Of a product without an epilogue."""
    has_zeros = rhs.zeros is not None
    return Form(
        rhs.k, rhs.n, rhs.bits, rhs.group_size, has_zeros, False, NO_ACTIVATION, np.dtype(out_dtype),
        out_sharding=sharding,
    )  # fmt: skip


def dot_general_quantized(
    lhs: jax.Array,
    rhs: QuantizedMatrix,
    numbers: DimensionNumbers,
    preferred: Any,
    out_sharding: NamedSharding | None,
    kernel: str | None,
) -> jax.Array:
    """:func:`jaxgemm.dot_general` with quantised weights: a :func:`matmul` of lhs with its dimensions in order."""
    (lhs_contract, rhs_contract), (lhs_batch, rhs_batch) = numbers
    leading = tuple(range(rhs.ndim - 2))
    if rhs_contract != (len(leading),) or tuple(sorted(rhs_batch)) != leading:
        raise TypeError(
            f"jaxgemm.dot_general contracts K of quantised weights, dimension {len(leading)} of {rhs!r}, and all "
            f"dimensions before it are batch dimensions, not as dimension_numbers={numbers} say: give "
            "rhs.dequantize() for any other product"
        )
    rows = [d for d in range(lhs.ndim) if d not in (*lhs_batch, *lhs_contract)]
    x = permuted(lhs, (*(lhs_batch[rhs_batch.index(d)] for d in leading), *rows, *lhs_contract))
    shape = (*x.shape[:-1], rhs.n)
    order = (*rhs_batch, *range(len(leading), len(shape)))
    return permuted(matmul_of_rows(x, rhs, preferred, sharding_of_dot(out_sharding, order, len(shape)), kernel), order)


def matmul_of_rows(
    x: jax.Array, rhs: QuantizedMatrix, preferred: Any, out_sharding: NamedSharding | None, kernel: str | None
) -> jax.Array:
    """Tokens (batch..., rows..., K), of any number of dimensions of rows and batch dimensions that may be 1, times
    quantised weights (batch..., K, N): (batch..., rows..., N).
    """
    check_mixed_name(kernel)
    x, rhs, out_dtype = _with_quantised(x, rhs, preferred)
    batch = rhs.ndim - 2
    sharding = _of_whole_sums(out_sharding)
    has_rows = x.ndim > batch + 1
    if not has_rows:
        x = lax.expand_dims(x, (batch,))
        sharding = sharding_of_dot(sharding, (*range(batch), batch + 1), batch + 2)
    x = _ordered(jnp.broadcast_to(x, (*rhs.shape[:batch], *x.shape[batch:])), rhs, batch)
    form = _form(rhs, out_dtype if accumulator_dtype(out_dtype) == np.float32 else np.float32, sharding)
    out = mixed(x, rhs, form=form, kernel=kernel).astype(out_dtype)
    return out if has_rows else lax.squeeze(out, (batch,))


def _in_batches(lhs: jax.Array, rhs: QuantizedMatrix) -> tuple[jax.Array, QuantizedMatrix, tuple[int, ...]]:
    """The operands of one product, x (batch..., tokens..., K) in the order of the groups and the weights of those batch
    dimensions, and the order in which the result's dimensions are to be put. Leading dimensions that the weights lack,
    or have one of for many of lhs, are tokens.
    """
    rows = lhs[None] if lhs.ndim == 1 else lhs
    batch = rhs.shape[:-2]
    leading = jnp.broadcast_shapes(rows.shape[:-2], batch)
    offset = len(leading) - len(batch)
    shared = [i for i, size in enumerate(batch) if size == 1 and leading[offset + i] != 1]
    own = [offset + i for i in range(len(batch)) if i not in shared]
    order = (*own, *(i for i in range(len(leading) + 2) if i not in own))
    weights = jax.tree.map(lambda leaf: lax.squeeze(leaf, shared), rhs)
    x = permuted(jnp.broadcast_to(rows, (*leading, *rows.shape[-2:])), order)
    return _ordered(x, weights, len(own)), weights, tuple(order.index(i) for i in range(len(order)))


def _ordered(x: jax.Array, weights: QuantizedMatrix, batch: int) -> jax.Array:
    """Tokens with as many batch dimensions as the weights have, and K in the order of their groups."""
    if weights.permutation is None:
        return x
    gather = functools.partial(jnp.take, axis=-1)
    for _ in range(batch):
        gather = jax.vmap(gather)
    return gather(x, weights.permutation)


_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def _kind(dtype: Any) -> int:
    return next(i for i, kind in enumerate(_KINDS) if jnp.issubdtype(dtype, kind))


def _checked_alpha(alpha: Any, out_dtype: Any) -> jax.Array:
    """Alpha in the accumulator's dtype."""
    if not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(
            f"alpha={_in_words(alpha)} needs a floating-point result, this one is {out_dtype}: give "
            "preferred_element_type=, e.g. jnp.float32"
        )
    try:
        array = jnp.asarray(float(alpha) if type(alpha) is int else alpha)  # int32 has not all that float32 has
    except (TypeError, ValueError, OverflowError):
        array = None
    if array is None or not (jnp.issubdtype(array.dtype, jnp.integer) or jnp.issubdtype(array.dtype, jnp.floating)):
        raise TypeError(
            f"alpha={_in_words(alpha)} is no real number: give a number, or an array of shape () of integers or "
            "floating-point numbers"
        )
    if array.shape != ():
        raise ValueError(
            f"alpha of shape {array.shape} is no scalar: "
            + ("use alpha.reshape(())" if array.size == 1 else "multiply lhs, rhs or the result by it")
        )
    return array.astype(accumulator_dtype(out_dtype))


def _in_words(x: Any) -> str:
    """A value of one line, or the type of what has none."""
    if isinstance(x, jax.Array | np.ndarray):
        return f"{x.dtype}{list(x.shape)}"
    return repr(x) if isinstance(x, int | float | complex | str | np.generic) else f"<{type(x).__name__}>"


def _checked_bias(bias: Any, out_shape: tuple[int, ...], out_dtype: Any) -> jax.Array:
    bias = jnp.asarray(bias)
    if _kind(bias.dtype) > _kind(out_dtype):
        raise TypeError(
            f"bias of dtype {bias.dtype} cannot be added to a result of dtype {out_dtype} without loss: convert the "
            "bias, or give preferred_element_type="
        )
    try:
        fits = jnp.broadcast_shapes(bias.shape, out_shape) == out_shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"bias of shape {bias.shape} does not broadcast to the result's shape {out_shape}: a bias for every column "
            f"has shape {out_shape[-1:]}"
        )
    return bias


def _vector_of_columns(bias: jax.Array | None, shapes: MatmulShapes, of_each: bool) -> jax.Array | None:
    """The bias as kernels take it: (N), or (batch..., N) if ``of_each``, where all but the last two dimensions of the
    result are batch dimensions of both operands. None if there is none, or if it is not of that form.
    """
    if bias is None or not shapes.has_n or bias.shape[-1:] != shapes.out_shape[-1:]:
        return None
    if all(size == 1 for size in bias.shape[:-1]):
        vector = lax.squeeze(bias, range(bias.ndim - 1))
    elif of_each and bias.shape[-2] == 1:
        vector = jnp.broadcast_to(lax.squeeze(bias, (bias.ndim - 2,)), (*shapes.out_shape[:-2], bias.shape[-1]))
    else:
        return None
    return vector if str(vector.dtype) in BIAS_DTYPES else vector.astype(np.float32)


def sharding_of_dot(sharding: NamedSharding | None, order: tuple[int, ...], ndim: int) -> NamedSharding | None:
    """The sharding of an array of so many dimensions, of which those in ``order`` are an array of this one."""
    if sharding is None or order == tuple(range(ndim)):
        return sharding
    spec = sharding.spec
    placed = dict(zip(order, spec.partitions, strict=False))
    parts = (placed.get(d) for d in range(ndim))
    return sharding.update(spec=PartitionSpec(*parts, unreduced=spec.unreduced, reduced=spec.reduced))


def permuted(out: jax.Array, permutation: tuple[int, ...]) -> jax.Array:
    return out if permutation == tuple(range(out.ndim)) else lax.transpose(out, permutation)
