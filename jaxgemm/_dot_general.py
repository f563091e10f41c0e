"""``jaxgemm.dot_general``: lax.dot_general's signature over the kernels."""

import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import dot_general_p
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import _compat
from jaxgemm._choose import Request, check_name, choose
from jaxgemm._epilogue import NO_ACTIVATION
from jaxgemm._interpreters import register_sparse
from jaxgemm._lowering import composed, dot_general_aval
from jaxgemm._partition import padded_spec
from jaxgemm._plan import DimensionNumbers
from jaxgemm._primitives import fused_gemm_p, gemm_p
from jaxgemm._quant import QuantizedMatrix
from jaxgemm._target import attached_gpu, target_sm


def _dims(dims: Any) -> tuple[int, ...]:
    if isinstance(dims, Sequence | np.ndarray):
        return tuple(operator.index(d) for d in dims)
    return (operator.index(dims),)


def canonical_dimension_numbers(dimension_numbers: Any, lhs_ndim: int, rhs_ndim: int) -> DimensionNumbers:
    """Dimension numbers as non-negative tuples of int; TypeError if they are not of lax.dot_general's form."""
    try:
        (lc, rc), (lb, rb) = dimension_numbers
        groups = _dims(lc), _dims(rc), _dims(lb), _dims(rb)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "dimension_numbers must be ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)) with sequences "
            f"of int, got {dimension_numbers!r}"
        ) from error
    for dims, ndim, what in zip(groups, (lhs_ndim, rhs_ndim) * 2, ("lhs", "rhs") * 2, strict=True):
        for d in dims:
            if not 0 <= d < ndim:
                raise TypeError(
                    f"dimension {d} of dimension_numbers={dimension_numbers!r} is out of range: {what} has {ndim} "
                    "dimensions"
                )
    return (groups[0], groups[1]), (groups[2], groups[3])


def bind(
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    alpha: jax.Array | None = None,
    bias: jax.Array | None = None,
    activation: str | None = None,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    kernel: str | None,
) -> jax.Array:
    """Binds the fused primitive if ``activation`` is given (a canonical name, maybe "none"), else the bilinear one,
    which has neither alpha (a float32 scalar) nor bias.

    Checks a named kernel first, so that its error comes from the user's line.
    """
    check_name(kernel)
    register_sparse()
    params: dict[str, Any] = {
        "dimension_numbers": dimension_numbers,
        "precision": _compat.canonical_precision(precision),
        "preferred_element_type": None
        if preferred_element_type is None
        else np.dtype(jax.dtypes.canonicalize_dtype(preferred_element_type)),
        "out_sharding": out_sharding,
    }
    if kernel is not None:
        out = dot_general_aval(jax.typeof(lhs), jax.typeof(rhs), **params)
        request = Request(
            *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs, out)),
            dimension_numbers=dimension_numbers,
            precision=params["precision"],
            activation=activation or "none",
            has_alpha=alpha is not None,
            has_bias=bias is not None,
        )
        if attached_gpu() is not None:  # else the target is not known before lowering
            choose(request, kernel, target_sm())
    operands = _compat.match_varying(lhs, rhs, *(x for x in (alpha, bias) if x is not None))
    specs = [jax.typeof(x).sharding.spec for x in (lhs, rhs)]
    if out_sharding is not None:
        specs.append(out_sharding.spec)
    if any(_compat.has_partial_sums(spec) for spec in specs):
        if kernel is not None:
            raise ValueError(
                f"kernel={kernel!r} knows no sums of which devices keep their parts, as one of the shardings "
                f"{', '.join(map(str, specs))} has: leave kernel=None for XLA's own dot"
            )
        fused = {"has_alpha": alpha is not None, "activation": activation or NO_ACTIVATION}
        return composed(*operands, dot=dot_general_p.bind, **fused, **params)
    if activation is None:
        return gemm_p.bind(*operands, kernel=kernel, **params)
    return fused_gemm_p.bind(*operands, kernel=kernel, has_alpha=alpha is not None, activation=activation, **params)


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
    *,
    out_sharding: Any = None,
    kernel: str | None = None,
) -> jax.Array:
    """``jax.lax.dot_general`` on jaxgemm's kernels.

    Args:
      lhs, rhs: arrays of any rank. Operands of different dtypes, and dtypes without a kernel, run on XLA's own dot.
        rhs may be a :class:`jaxgemm.QuantizedMatrix` (..., K, N): K is contracted, leading dimensions are batch
        dimensions, and lhs is float16, bfloat16 or float32.
      dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.
      precision: as in JAX: None, "default", "high", "highest", a ``jax.lax.Precision``, a pair of them, a
        ``jax.lax.DotAlgorithm`` or preset. For float32 operands HIGHEST is float32-accurate; DEFAULT may use TF32.
        Sums of 8-bit floating-point products may be truncated to fewer bits than float32 has: of 512 of them at
        HIGHEST, of all at DEFAULT (docs/numerics.md).
      preferred_element_type: dtype of the result. Accumulation is float32 (int32 for integers) in any case.
      out_sharding: sharding of the result, under a mesh of explicit axes. Where it has unreduced axes, partial sums
        stay on their devices: XLA's own dot makes them.
      kernel: None to let jaxgemm choose; or the name of a kernel or family in :func:`jaxgemm.kernels`, which then
        runs or raises, here or when the program is lowered. Gradients choose their own kernels.

    Returns:
      Array of shape (batch dims, lhs's free dims, rhs's free dims).

    Raises:
      TypeError: shapes or dtypes that cannot be multiplied, as ``jax.lax.dot_general`` raises it; quantised weights as
        lhs, contracted along N or with leading dimensions that are no batch dimensions.
      ValueError: an unknown kernel, or one that cannot run this problem on this GPU; an ``out_sharding`` of axes that
        are not explicit, or with unreduced axes and a kernel or quantised weights; an unknown precision.
    """
    if isinstance(lhs, QuantizedMatrix):
        raise TypeError("jaxgemm.dot_general takes quantised weights as rhs: swap the operands, or lhs.dequantize()")
    lhs, rhs = (x if isinstance(x, jax.Array | QuantizedMatrix) else jnp.asarray(x) for x in (lhs, rhs))
    numbers = canonical_dimension_numbers(dimension_numbers, lhs.ndim, rhs.ndim)
    _check_sizes(lhs.shape, rhs.shape, numbers)
    (contracting, _), (batch, _) = numbers
    out_sharding = canonical_out_sharding(out_sharding, lhs.ndim + rhs.ndim - 2 * len(contracting) - len(batch))
    if isinstance(rhs, QuantizedMatrix):
        from jaxgemm._matmul import dot_general_quantized

        return dot_general_quantized(lhs, rhs, numbers, preferred_element_type, out_sharding, kernel)
    return bind(
        lhs,
        rhs,
        dimension_numbers=numbers,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        kernel=kernel,
    )


def _check_sizes(lhs: Any, rhs: Any, numbers: DimensionNumbers) -> None:
    for what, (left, right) in zip(("contracting", "batch"), numbers, strict=True):
        if len(left) != len(right):
            raise TypeError(f"jaxgemm.dot_general got {len(left)} {what} dimensions of lhs and {len(right)} of rhs")
        for i, j in zip(left, right, strict=True):
            if lhs[i] != rhs[j]:
                raise TypeError(
                    f"jaxgemm.dot_general requires {what} dimensions of equal sizes: dimension {i} of lhs {tuple(lhs)} "
                    f"has {lhs[i]}, dimension {j} of rhs {tuple(rhs)} has {rhs[j]}. Check dimension_numbers={numbers}"
                )


def canonical_out_sharding(out_sharding: Any, ndim: int) -> NamedSharding | None:
    """``out_sharding=`` of JAX's functions, for a result of so many dimensions, of the abstract mesh: that of the
    context if it is a PartitionSpec.

    Raises:
      TypeError: it is neither a NamedSharding nor a PartitionSpec.
      ValueError: a PartitionSpec, and no mesh is set; a mesh that is not the one that is set; a spec of axes that are
        not explicit, or of more dimensions.
    """
    if out_sharding is None or (isinstance(out_sharding, NamedSharding) and out_sharding.mesh.empty):
        return None
    context = jax.sharding.get_abstract_mesh()
    if isinstance(out_sharding, NamedSharding):
        mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec
        if mesh != context and not context.empty and any(map(_compat.has_explicit_axes, (mesh, context))):
            raise ValueError(
                f"out_sharding is of {mesh}, but the mesh that is set is {context}: give a PartitionSpec of its axes"
            )
    elif isinstance(out_sharding, PartitionSpec):
        mesh, spec = context, out_sharding
        if mesh.empty:
            raise ValueError(
                f"out_sharding={spec} without a mesh: give a NamedSharding, or set a mesh with jax.set_mesh"
            )
    else:
        raise TypeError(
            f"out_sharding={out_sharding!r} is a {type(out_sharding).__name__}: give a jax.sharding.PartitionSpec or "
            "NamedSharding"
        )
    if len(spec.partitions) > ndim:
        raise ValueError(f"out_sharding={spec} has {len(spec.partitions)} dimensions, the result has {ndim}")
    sharding = NamedSharding(mesh, spec)  # which says so if an axis is none of the mesh
    parts = {axis for entry in padded_spec(sharding, 0) for axis in entry}
    for axis in (*parts, *spec.unreduced, *spec.reduced):
        if axis not in mesh.explicit_axes:
            raise ValueError(
                f"out_sharding={spec} asks for axis {axis!r}, but the explicit axes of the mesh are "
                f"{mesh.explicit_axes}: make it a jax.sharding.AxisType.Explicit, or use "
                "jax.lax.with_sharding_constraint on the result"
            )
    return sharding
