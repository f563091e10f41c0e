"""Rules of our primitives for those transformations of JAX that ask each primitive for one: Taylor series (``jet``),
checks for NaN (``checkify``), rooflines, sparse operands (``sparsify``), ``jax.checkpoint`` under ``jax_remat3``.

Without a rule ``jet`` and ``sparsify`` fail; the others leave a primitive out and do not say so.
"""

import functools
import math
import sys
from typing import Any

from jax.extend.core.primitives import dot_general_p

from jaxgemm import _compat
from jaxgemm._mixed import mixed_gemm_p
from jaxgemm._mixed_local import composed as composed_mixed
from jaxgemm._primitives import composed_fused, fused_gemm_p, gemm_p, known_fused

# What is experimental may not be there, or may need packages that JAX does not: who has none of it needs no rule.
try:
    from jax.experimental import jet
except ImportError:
    jet = None
try:
    from jax.experimental import roofline
except ImportError:
    roofline = None

PRODUCTS = (gemm_p, fused_gemm_p, mixed_gemm_p)

for _primitive in PRODUCTS:
    _compat.report_nan(_primitive)
    _compat.decided_by_checkpoint_policies(_primitive, known_fused if _primitive is fused_gemm_p else None)

# --- jet --------------------------------------------------------------------------------------------------------------


def _register_jet(jet: Any) -> None:
    def fused(primals: Any, series: Any, **params: Any) -> Any:
        return jet.jet(functools.partial(composed_fused, **params), primals, series, factorial_scaled=False)

    def mixed(primals: Any, series: Any, *, kernel: str | None, form: Any) -> Any:
        return jet.jet(functools.partial(composed_mixed, form=form), primals, series, factorial_scaled=False)

    jet.jet_rules[gemm_p] = functools.partial(jet.jet_rules[dot_general_p].func, gemm_p)  # that of what is bilinear
    jet.jet_rules[fused_gemm_p] = fused
    jet.jet_rules[mixed_gemm_p] = mixed


if jet is not None:
    _register_jet(jet)

# --- roofline ---------------------------------------------------------------------------------------------------------


def _register_roofline(roofline: Any) -> None:
    def rule(ctx: Any, *operands: Any, dimension_numbers: Any = None, form: Any = None, **params: Any) -> Any:
        """Twice the multiply-adds, and what is read and written, quantised weights as they are stored."""
        lhs, *rest = (roofline.RooflineShape.from_aval(aval) for aval in ctx.avals_in)
        out = roofline.RooflineShape.from_aval(ctx.avals_out[0])
        contracted = [form.contracted] if form is not None else [lhs.shape[d] for d in dimension_numbers[0][0]]
        flops = 2 * out.size * math.prod(contracted)
        # JAX's own rule counts the result as pinned where lhs is.
        moved = 0 if ctx.pin_lhs_in_vmem else lhs.bytes + out.bytes
        moved += 0 if ctx.pin_rhs_in_vmem else sum(operand.bytes for operand in rest)
        return roofline.RooflineResult(flops=flops, unfused_flops=flops, hbm_bytes=moved, unfused_hbm_bytes=moved)

    for primitive in PRODUCTS:
        roofline.register_roofline(primitive)(rule)


if roofline is not None:
    _register_roofline(roofline)

# --- sparsify ---------------------------------------------------------------------------------------------------------


def register_sparse() -> None:
    """Hands products with sparse operands to JAX's own rules, once ``jax.experimental.sparse`` is imported: it takes
    longer to import than all of jaxgemm.
    """
    transform = sys.modules.get("jax.experimental.sparse.transform")
    for rules in () if transform is None else (transform.sparse_rules_bcoo, transform.sparse_rules_bcsr):
        if gemm_p not in rules and dot_general_p in rules:
            rules[gemm_p] = functools.partial(_sparse, rules[dot_general_p])


def _sparse(rule: Any, env: Any, *operands: Any, kernel: str | None, **params: Any) -> Any:
    if kernel is not None:
        raise ValueError(f"kernel={kernel!r} takes no sparse operands: leave kernel=None, or make them dense")
    return rule(env, *operands, **params)
