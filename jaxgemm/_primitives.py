"""The primitives that users' programs hold: a dot_general that JAX can differentiate, batch and shard.

``gemm_p`` is bilinear and has dot_general's parameters plus ``kernel``; ``fused_gemm_p`` adds alpha, bias and
activation and is differentiated through its composition. Both are lowered, once shapes are those of one device, to
``local_gemm_p`` (_lowering.py); how the devices share the work is in _partition.py.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxgemm import _compat
from jaxgemm._choose import Request
from jaxgemm._epilogue import (
    NO_ACTIVATION,
    accumulator_dtype,
    alpha_and_bias,
    apply_epilogue,
    batched_epilogue,
    finish,
    of_columns,
)
from jaxgemm._lowering import composed, gemm_aval, local_gemm_p
from jaxgemm._partition import lower_partitioned, mesh_of
from jaxgemm._plan import DimensionNumbers, Dims, free_dims

gemm_p = Primitive("jaxgemm_gemm")
fused_gemm_p = Primitive("jaxgemm_fused_gemm")


for _primitive in (gemm_p, fused_gemm_p):
    _primitive.def_abstract_eval(gemm_aval)
    _compat.compile_when_eager(_primitive)


def request_of(equation: Any) -> tuple[Request, str | None] | None:
    """(request, named kernel) of a jaxpr equation that binds one of the primitives above, else None."""
    if equation.primitive not in (gemm_p, fused_gemm_p):
        return None
    lhs, rhs, *epilogue = (v.aval for v in equation.invars)
    has_alpha = equation.params.get("has_alpha", False)
    _, bias = alpha_and_bias(epilogue, has_alpha)
    out = equation.outvars[0].aval
    request = Request(
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs, out)),
        dimension_numbers=equation.params["dimension_numbers"],
        precision=equation.params["precision"],
        activation=equation.params.get("activation", "none"),
        has_alpha=has_alpha,
        has_bias=bias is not None,
    )
    return request, equation.params["kernel"]


def composed_fused(*operands: Any, kernel: str | None, **params: Any) -> Any:
    """``fused_gemm_p`` by ``gemm_p`` and jax.numpy."""
    return composed(*operands, dot=functools.partial(gemm_p.bind, kernel=kernel), **params)


# --- lowering ---------------------------------------------------------------------------------------------------------


def _local(*operands: Any, has_alpha: bool = False, activation: str = "none", **params: Any) -> Any:
    return local_gemm_p.bind(*operands, has_alpha=has_alpha, activation=activation, **params)


_lower_local = mlir.lower_fun(_local, multiple_results=False)
_lower_composed_fused = mlir.lower_fun(composed_fused, multiple_results=False)


def _lower(ctx: Any, *operands: Any, **params: Any) -> Any:
    one_device = _compat.is_manual(ctx) or _compat.device_count(ctx) in (None, 1) or _compat.is_export(ctx)
    explicit = _compat.has_explicit_axes(ctx.avals_out[0].sharding.mesh) and not _compat.is_export(ctx)
    if one_device and not explicit:
        return _lower_local(ctx, *operands, **params)
    if "activation" in params:
        # A split contraction must be summed before the epilogue, so the epilogue is left to XLA.
        return _lower_composed_fused(ctx, *operands, **params)
    return lower_partitioned(ctx, *operands, explicit=explicit, **params)


for _primitive in (gemm_p, fused_gemm_p):
    mlir.register_lowering(_primitive, _lower)
    _compat.requires_devices_during_lowering(_primitive)

# --- differentiation --------------------------------------------------------------------------------------------------


def _cotangent(
    wrt_lhs: bool,
    g: Any,
    undefined: Any,
    other: Any,
    *,
    dimension_numbers: DimensionNumbers,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    kernel: str | None,
) -> Any:
    """The cotangent of one operand: the product of ``g`` and the other operand.

    JAX's own rule always computes dot(g, other) and transposes the result, which XLA folds into its own dot but not
    into a custom call. Here the operands are put in the order that gives the result its final order where there is
    one, so that no transpose is launched. The gradient is another problem, so its kernel is chosen anew.
    """
    (lc, rc), (lb, rb) = dimension_numbers
    mine, its = ((lc, lb), (rc, rb)) if wrt_lhs else ((rc, rb), (lc, lb))
    (my_contracting, my_batch), (its_contracting, its_batch) = mine, its
    ndim, other_ndim = undefined.aval.ndim, np.ndim(other)
    my_free, its_free = free_dims(ndim, *mine), free_dims(other_ndim, *its)
    nb = len(my_batch)
    g_batch = tuple(range(nb))
    lhs_free = len(my_free) if wrt_lhs else len(its_free)
    g_lhs, g_rhs = tuple(range(nb, nb + lhs_free)), tuple(range(nb + lhs_free, np.ndim(g)))
    g_its_free = g_rhs if wrt_lhs else g_lhs
    # Dimensions of the product: batch, then the free dimensions of its first operand, then those of its second. Those
    # of `other` are its contracting dimensions in ascending order, each of which pairs with one of ours.
    pairs = sorted(zip(its_contracting, my_contracting, strict=True))
    my_from_other = tuple(mine_dim for _, mine_dim in pairs)
    order_g_first: Dims = my_batch + my_free + my_from_other
    order_other_first: Dims = my_batch + my_from_other + my_free
    identity = tuple(range(ndim))
    g_first = order_g_first == identity or order_other_first != identity
    order = order_g_first if g_first else order_other_first
    if g_first:
        first, second, dims = g, other, ((g_its_free, its_free), (g_batch, its_batch))
    else:
        first, second, dims = other, g, ((its_free, g_its_free), (its_batch, g_batch))
    sharding = undefined.aval.sharding
    mesh = mesh_of(sharding, *(jax.typeof(x).sharding for x in (g, other)))
    if _compat.has_explicit_axes(mesh):
        spec = tuple(sharding.spec) + (None,) * (ndim - len(sharding.spec))
        sharding = sharding.update(mesh=mesh, spec=jax.sharding.PartitionSpec(*(spec[d] for d in order)))
    else:
        sharding = None
    out = gemm_p.bind(
        *_compat.match_varying(first, second),
        dimension_numbers=dims,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=sharding,
        kernel=None,
    )
    if order != identity:
        out = lax.transpose(out, tuple(int(d) for d in np.argsort(order)))
    return out.astype(undefined.aval.dtype)


ad.defbilinear(
    gemm_p,
    functools.partial(_cotangent, True),
    lambda g, lhs, rhs, **params: _cotangent(False, g, rhs, lhs, **params),
)


def _fused_jvp(
    primals: Any,
    tangents: Any,
    *,
    out: Any = None,
    has_alpha: bool,
    activation: str,
    preferred_element_type: Any,
    **params: Any,
) -> Any:
    """The tangent of the accumulator is rounded to the dtype of the result, as it is where an epilogue follows
    ``jnp.matmul``: so the cotangent has that dtype too, and the gradient's two GEMMs have dtypes of kernels.

    Where the result itself says what the tangent is multiplied by, it stays one kernel's, and no accumulator is stored.
    It may be known already: ``out``.
    """
    lhs, rhs, *epilogue = primals
    d_lhs, d_rhs, *d_epilogue = tangents
    dot = functools.partial(gemm_p.bind, **params)
    out_dtype = jax.eval_shape(functools.partial(dot, preferred_element_type=preferred_element_type), lhs, rhs).dtype
    accumulator_type = accumulator_dtype(out_dtype)
    terms = [
        dot(*operands, preferred_element_type=out_dtype)
        for operands, tangent in (((d_lhs, rhs), d_lhs), ((lhs, d_rhs), d_rhs))
        if not isinstance(tangent, ad.Zero)
    ]
    d_accumulator = sum(terms[1:], terms[0]).astype(accumulator_type) if terms else None
    d_epilogue = [None if isinstance(t, ad.Zero) else t for t in d_epilogue]
    alpha, _ = alpha_and_bias(epilogue, has_alpha)
    d_alpha, d_bias = alpha_and_bias(d_epilogue, has_alpha)
    if d_accumulator is not None and d_alpha is None and activation in (NO_ACTIVATION, "relu"):
        if out is None:
            out = fused_gemm_p.bind(
                *primals, has_alpha=has_alpha, activation=activation, preferred_element_type=out_dtype, **params
            )
        d_out = apply_epilogue(d_accumulator, alpha, of_columns(d_bias, d_accumulator.ndim), NO_ACTIVATION)
        if activation == "relu":
            d_out = jnp.where(out > 0, d_out, 0)
        return out, d_out.astype(out_dtype)
    accumulator = dot(lhs, rhs, preferred_element_type=accumulator_type)
    values, d_values = [accumulator, *epilogue], [d_accumulator, *d_epilogue]
    # What does not vary has no tangent, not one of zeros: zero times an infinite accumulator would be NaN.
    varying = [i for i, tangent in enumerate(d_values) if tangent is not None]

    def finished(*varied: Any) -> Any:
        accumulator, *epilogue = _replaced(values, varying, varied)
        return finish(accumulator, epilogue, has_alpha, activation).astype(out_dtype)

    return jax.jvp(finished, [values[i] for i in varying], [d_values[i] for i in varying])


def known_fused(out: Any, *operands: Any, **params: Any) -> Any:
    """``fused_gemm_p`` of the operands, which is ``out``: what differentiates it need not compute it."""
    known = jax.custom_jvp(lambda out, *operands: out)

    def jvp(primals: Any, tangents: Any) -> Any:
        tangents = [
            ad.Zero(jax.typeof(x)) if isinstance(t, SymbolicZero) else t for x, t in zip(primals, tangents, strict=True)
        ]
        _, d_out = _fused_jvp(primals[1:], tangents[1:], out=primals[0], **params)
        return primals[0], d_out

    known.defjvp(jvp, symbolic_zeros=True)
    return known(out, *operands)


def _replaced(values: Sequence[Any], places: Sequence[int], by: Sequence[Any]) -> list[Any]:
    values = list(values)
    for place, value in zip(places, by, strict=True):
        values[place] = value
    return values


def _fused_transpose(g: Any, *operands: Any, **params: Any) -> Any:
    """Of what is linear: one operand, or bias and another one, without an activation."""
    if params["activation"] != NO_ACTIVATION:
        raise NotImplementedError(f"jaxgemm.matmul with activation={params['activation']!r} is not linear")
    linear = [i for i, x in enumerate(operands) if ad.is_undefined_primal(x)]
    avals = [jax.ShapeDtypeStruct(operands[i].aval.shape, operands[i].aval.dtype) for i in linear]
    transposed = jax.linear_transpose(lambda *xs: composed_fused(*_replaced(operands, linear, xs), **params), *avals)
    return _replaced([None] * len(operands), linear, transposed(g))


ad.primitive_jvps[fused_gemm_p] = _fused_jvp
ad.primitive_transposes[fused_gemm_p] = _fused_transpose

# --- vmap -------------------------------------------------------------------------------------------------------------


def _batched_dimension_numbers(
    ndims: tuple[int, int], dims: tuple[int | None, int | None], dimension_numbers: DimensionNumbers
) -> tuple[DimensionNumbers, int]:
    """(dimension numbers, result dimension of the mapped axis) once ``dims`` of the operands are mapped.

    An axis of both operands becomes a leading batch dimension; an axis of one becomes a free dimension of it: no
    operand is broadcast. ndims count the mapped axis.
    """
    (lc, rc), (lb, rb) = dimension_numbers
    ld, rd = dims

    def shifted(group: Dims, axis: int | None) -> Dims:
        return group if axis is None else tuple(d + (d >= axis) for d in group)

    lc, lb, rc, rb = shifted(lc, ld), shifted(lb, ld), shifted(rc, rd), shifted(rb, rd)
    if ld is not None and rd is not None:
        return ((lc, rc), ((ld, *lb), (rd, *rb))), 0
    if ld is not None:
        return ((lc, rc), (lb, rb)), len(lb) + free_dims(ndims[0], lc, lb).index(ld)
    assert rd is not None
    return ((lc, rc), (lb, rb)), ndims[0] - len(lc) + free_dims(ndims[1], rc, rb).index(rd)


def _batch_gemm(axis_data: Any, operands: Any, dims: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    if all(d is None for d in dims):
        return gemm_p.bind(*operands, dimension_numbers=dimension_numbers, **params), None
    lhs, rhs = operands
    batched, out_dim = _batched_dimension_numbers((np.ndim(lhs), np.ndim(rhs)), dims, dimension_numbers)
    if params["out_sharding"] is not None:
        params["out_sharding"] = _compat.out_sharding_for_vmap(axis_data, params["out_sharding"], out_dim)
    return gemm_p.bind(lhs, rhs, dimension_numbers=batched, **params), out_dim


def _batch_fused(axis_data: Any, operands: Any, dims: Any, *, dimension_numbers: Any, **params: Any) -> Any:
    if all(d is None for d in dims[:2]) and not any(d is not None for d in dims[2:]):
        return fused_gemm_p.bind(*operands, dimension_numbers=dimension_numbers, **params), None
    lhs, rhs, *epilogue = operands
    if dims[0] is not None and not params["out_sharding"]:
        batched, out_dim = _batched_dimension_numbers((np.ndim(lhs), np.ndim(rhs)), dims[:2], dimension_numbers)
        sizes = tuple(lhs.shape[d] for d in batched[1][0])
        kept = batched_epilogue(epilogue, dims[2:], params["has_alpha"], sizes, dims[1] is not None)
        if kept is not None:
            return fused_gemm_p.bind(lhs, rhs, *kept, dimension_numbers=batched, **params), out_dim
    function = functools.partial(composed_fused, dimension_numbers=dimension_numbers, **params)
    mapped = jax.vmap(
        function,
        in_axes=tuple(dims),
        axis_size=axis_data.size,
        axis_name=axis_data.name,
        spmd_axis_name=axis_data.spmd_name,
    )
    return mapped(*operands), 0


batching.fancy_primitive_batchers[gemm_p] = _batch_gemm
batching.fancy_primitive_batchers[fused_gemm_p] = _batch_fused
