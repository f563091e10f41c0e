"""The device-local primitive: one GEMM of one device, lowered to the custom call or to XLA's own dot."""

import functools
import warnings
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.extend.core.primitives import dot_general_p
from jax.interpreters import mlir

from jaxgemm import _compat
from jaxgemm._choose import Request, choose
from jaxgemm._epilogue import NO_ACTIVATION, accumulator_dtype, alpha_and_bias, finish
from jaxgemm._native import GEMM_TARGET
from jaxgemm._target import target_sm

# Operands lhs, rhs, then alpha (a number; if has_alpha) and, optionally, bias: a vector along the last dimension of the
# result, or one for each of its batch dimensions.
local_gemm_p = Primitive("jaxgemm_local_gemm")


class CpuFallbackWarning(UserWarning):
    """Said once, when a program without a named kernel is lowered for a platform without kernels."""


def dot_general_aval(lhs: Any, rhs: Any, **params: Any) -> Any:
    """The abstract result of ``lax.dot_general``: shape, dtype, sharding and varying axes by JAX's own rules."""
    aval, _ = dot_general_p.abstract_eval(lhs, rhs, **params)
    return aval


def composed(
    lhs: Any,
    rhs: Any,
    *epilogue: Any,
    has_alpha: bool,
    activation: str,
    dot: Any,
    dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
) -> Any:
    """A GEMM with an epilogue, written with ``dot(lhs, rhs, dimension_numbers=..., ...)`` and jax.numpy: the meaning
    of every fused kernel, and what runs where none can.
    """
    params = {"dimension_numbers": dimension_numbers, "precision": precision, "out_sharding": out_sharding}
    if not epilogue and activation == NO_ACTIVATION:
        return dot(lhs, rhs, preferred_element_type=preferred_element_type, **params)
    out_dtype = jax.eval_shape(
        functools.partial(dot_general_p.bind, preferred_element_type=preferred_element_type, **params), lhs, rhs
    ).dtype
    accumulator = dot(lhs, rhs, preferred_element_type=accumulator_dtype(out_dtype), **params)
    return finish(accumulator, epilogue, has_alpha, activation).astype(out_dtype)


def gemm_aval(
    lhs: Any,
    rhs: Any,
    *epilogue: Any,
    kernel: str | None,
    has_alpha: bool = False,
    activation: str = NO_ACTIVATION,
    **params: Any,
) -> Any:
    """The abstract result of all our primitives: alpha, bias, activation and kernel change nothing of it."""
    return dot_general_aval(lhs, rhs, **params)


def _xla(*operands: Any, kernel: str | None, **params: Any) -> Any:
    # The primitive, not lax.dot_general: a user may have put jaxgemm in that function's place.
    return composed(*operands, dot=dot_general_p.bind, **params)


_lower_to_xla = mlir.lower_fun(_xla, multiple_results=False)
_said_fallback = False


def without_kernels(ctx: Any, kernel: str | None) -> None:
    """What a platform without kernels says: an error of a named kernel, else a warning, once."""
    global _said_fallback
    platforms = ctx.module_context.platforms
    if kernel is not None:
        raise ValueError(
            f"kernel={kernel!r} is a CUDA kernel and this program is compiled for {'/'.join(platforms)}: leave "
            "kernel=None, or run it on a CUDA GPU"
        )
    if not _said_fallback:
        _said_fallback = True
        warnings.warn(
            f"jaxgemm has no kernels for {'/'.join(platforms)}: XLA's own dot runs instead (said once)",
            CpuFallbackWarning,
            stacklevel=3,
        )


def _lower_anywhere(ctx: Any, *operands: Any, kernel: str | None, **params: Any) -> Any:
    without_kernels(ctx, kernel)
    return _lower_to_xla(ctx, *operands, kernel=kernel, **params)


def _lower_for_cuda(
    ctx: Any,
    *operands: Any,
    dimension_numbers: Any,
    precision: Any,
    preferred_element_type: Any,
    out_sharding: Any,
    kernel: str | None,
    has_alpha: bool,
    activation: str,
) -> Any:
    lhs, rhs, *epilogue = ctx.avals_in
    _, bias = alpha_and_bias(epilogue, has_alpha)
    (out,) = ctx.avals_out
    request = Request(
        *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (lhs, rhs, out)),
        dimension_numbers=dimension_numbers,
        precision=precision,
        activation=activation,
        has_alpha=has_alpha,
        has_bias=bias is not None,
    )
    choice = choose(request, kernel, target_sm())
    if choice.kernel is None:
        return _lower_to_xla(
            ctx,
            *operands,
            dimension_numbers=dimension_numbers,
            precision=precision,
            preferred_element_type=preferred_element_type,
            out_sharding=out_sharding,
            kernel=kernel,
            has_alpha=has_alpha,
            activation=activation,
        )
    plan = request.plan()
    results = [out]
    if choice.workspace_bytes:
        results.append(ShapedArray((choice.workspace_bytes,), np.dtype(np.uint8)))
    rule = jax.ffi.ffi_lowering(
        GEMM_TARGET,
        operand_layouts=[
            *(plan.lhs.minor_to_major, plan.rhs.minor_to_major),
            *(tuple(reversed(range(aval.ndim))) for aval in epilogue),
        ],
        result_layouts=[plan.out.minor_to_major] + [(0,)] * (len(results) - 1),
    )
    lowered = rule(
        ctx.replace(avals_out=results),
        *operands,
        kernel=choice.kernel,
        precision=choice.precision,
        activation=activation,
        has_alpha=has_alpha,
        split=np.array(choice.split, np.int64),
        lhs=plan.lhs.attribute(),
        rhs=plan.rhs.attribute(),
        out=plan.out.attribute(),
    )
    return list(lowered)[:1]


local_gemm_p.def_abstract_eval(gemm_aval)
_compat.compile_when_eager(local_gemm_p)
mlir.register_lowering(local_gemm_p, _lower_anywhere)
mlir.register_lowering(local_gemm_p, _lower_for_cuda, platform="cuda")
