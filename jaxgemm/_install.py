"""``jaxgemm.install()``: JAX's own ``dot_general`` takes our kernel where one was measured to be faster.

Only the lowering for CUDA of that one primitive is replaced, so that whatever multiplies by it does (``jnp.dot``,
``@``, layers of any library, their gradients), and JAX's differentiation, vmap, remat and sharding stay as they are.
What a tuning table does not say to be faster, JAX's own rule lowers.
"""

import functools
from typing import Any

import jax
from jax.extend.core.primitives import dot_general_p
from jax.interpreters import mlir

from jaxgemm import _compat
from jaxgemm._choose import Request, measured_faster
from jaxgemm._epilogue import NO_ACTIVATION
from jaxgemm._lowering import local_gemm_p
from jaxgemm._options import current
from jaxgemm._target import target_sm

_PLATFORM = "cuda"
_everywhere = False


def install() -> None:
    """Lets all products of JAX run on our kernels where those were measured to be faster: ``jnp.matmul``, ``@``,
    ``jnp.einsum``, ``lax.dot_general``, layers of any library, and their gradients.

    For CUDA programs that are compiled from now on, in all threads, until :func:`uninstall`. Functions that were
    jitted before are compiled anew at their next call. A product takes our kernel if it is one of two matrices (no
    batch dimensions) on one device or inside ``shard_map`` of all axes of the mesh, and a tuning table has both times
    of exactly that problem, ours shorter by more than the margin that tables have for differences between runs (a few
    percent); ``python -m jaxgemm tune`` and :func:`jaxgemm.tune` measure what a program needs.
    Everything else is lowered as without this. Results may differ as those of two kernels do: in how sums are rounded.

    ``with jaxgemm.options(install=True):`` does the same for a block of code.

    Returns:
      Nothing. Called again, it does nothing.
    """
    global _everywhere
    register()
    if not _everywhere:
        _everywhere = True
        jax.clear_caches()  # of programs that were lowered by JAX's rule


def uninstall() -> None:
    """Ends what :func:`install` began. Functions that were jitted before are compiled anew at their next call.

    Returns:
      Nothing. Without :func:`install` before, it does nothing.
    """
    global _everywhere
    if _everywhere:
        _everywhere = False
        jax.clear_caches()


@functools.cache
def register() -> None:
    """Puts our rule in the place of the one that lowers dot_general for CUDA now, which it asks whenever it is not to
    act: that is until it is installed, and for all that no table speaks of.
    """
    own = _compat.lowering_rule(dot_general_p, _PLATFORM)
    mlir.register_lowering(dot_general_p, functools.partial(_lower, own), platform=_PLATFORM)


def taken(request: Request, sm: int) -> tuple[Request, str] | None:
    """The product that our kernel computes in the place of a dot_general, perhaps its transpose, and the kernel; None
    where JAX's own rule is to lower it.
    """
    if request.dimension_numbers[1] != ((), ()):
        return None
    asked = as_computed(request)
    kernel = measured_faster(asked, sm)
    return None if kernel is None else (asked, kernel)


def as_computed(request: Request) -> Request:
    """The product as it is asked of our kernels: transposed where its operands are contracted along rows.

    Such a product is what JAX's differentiation makes of ``x @ w`` for the gradient of w, and it transposes the result.
    XLA makes that part of its own dot, but of no custom call. With the transposed product the two transposes cancel.
    """
    (lhs, rhs), batch = request.dimension_numbers
    if not _along_rows(request):
        return request
    rows = len(request.lhs.shape) - len(lhs)
    shape = request.out.shape[rows:] + request.out.shape[:rows]
    precision = request.precision
    if isinstance(precision, tuple) and not isinstance(precision, jax.lax.DotAlgorithm):  # which is one of names
        precision = precision[1], precision[0]
    out = jax.ShapeDtypeStruct(shape, request.out.dtype)
    return Request(request.rhs, request.lhs, out, ((rhs, lhs), batch), precision)


def _along_rows(request: Request) -> bool:
    """Whether both operands are matrices of which the rows are contracted: of the transposed product they are, too."""
    (lhs, rhs), _ = request.dimension_numbers
    matrices = 0 < len(lhs) < min(len(request.lhs.shape), len(request.rhs.shape))
    return matrices and lhs == rhs == tuple(range(len(lhs)))


def _lower(own: Any, ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    found = None
    if _acts(ctx):
        found = taken(Request.of(*ctx.avals_in, *ctx.avals_out, **params), target_sm())
    if found is None:
        return own(ctx, lhs, rhs, **params)
    return mlir.lower_fun(functools.partial(_multiply, *found), multiple_results=False)(ctx, lhs, rhs)


def _acts(ctx: Any) -> bool:
    """Whether the shapes are those of one device, and of this one: an exported program is for others, too."""
    installed = current().install
    if not (_everywhere if installed is None else installed) or _compat.is_export(ctx):
        return False
    if _compat.has_explicit_axes(ctx.avals_out[0].sharding.mesh):
        return False
    return _compat.is_fully_manual(ctx) or (not _compat.is_manual(ctx) and _compat.device_count(ctx) in (None, 1))


def _multiply(request: Request, kernel: str, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
    """The product that ``request``, of :func:`as_computed`, is for."""
    transposed = _along_rows(request)
    out = local_gemm_p.bind(
        *((rhs, lhs) if transposed else (lhs, rhs)),
        dimension_numbers=request.dimension_numbers,
        precision=request.precision,
        preferred_element_type=request.out.dtype,
        out_sharding=None,
        kernel=kernel,
        has_alpha=False,
        activation=NO_ACTIVATION,
    )
    if not transposed:
        return out
    rows = len(request.lhs.shape) - len(request.dimension_numbers[0][0])
    return jax.lax.transpose(out, (*range(rows, out.ndim), *range(rows)))
