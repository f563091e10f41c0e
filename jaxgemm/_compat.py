"""Everything that is not public in JAX, or that differs between the versions of JAX that jaxgemm supports.

``tests/test_compat.py`` holds the list of private names used here and checks that no other file has any.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax._src import checkify as _checkify
from jax._src import dispatch as _dispatch
from jax._src.ad_checkpoint import primal_left_tangent_right as _primal_left_tangent_right
from jax._src.interpreters import batching as _batching
from jax._src.interpreters import mlir as _mlir
from jax._src.interpreters import remat as _remat
from jax._src.lax import parallel as _parallel
from jax.ad_checkpoint import Offloadable, Saveable
from jax.extend.core import Primitive
from jax.interpreters import xla

Precision = None | tuple[lax.Precision, lax.Precision] | lax.DotAlgorithm | lax.DotAlgorithmPreset


def canonical_precision(precision: Any) -> Precision:
    """``precision=`` of JAX's matmul functions in the form that ``dot_general_p`` takes."""
    if precision is None:
        default = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
        return None if default is None else canonical_precision(default)
    if isinstance(precision, lax.DotAlgorithm | lax.DotAlgorithmPreset):
        return precision
    if isinstance(precision, list | tuple) and len(precision) == 2:
        pair = tuple(canonical_precision(p) for p in precision)
        if all(isinstance(p, tuple) for p in pair):
            return (pair[0][0], pair[1][1])  # type: ignore[index]
    elif isinstance(precision, lax.Precision):
        return (precision, precision)
    elif isinstance(precision, str):
        try:
            return (lax.Precision(precision), lax.Precision(precision))
        except ValueError:
            if precision in lax.DotAlgorithmPreset.__members__:
                return lax.DotAlgorithmPreset[precision]
    raise ValueError(
        f"precision={precision!r} is none of: None, 'default', 'high', 'highest', a jax.lax.Precision, a pair of "
        f"those, a jax.lax.DotAlgorithm, or one of the presets {sorted(lax.DotAlgorithmPreset.__members__)}"
    )


def compile_when_eager(primitive: Primitive) -> None:
    """Lets a primitive be called outside ``jit``: it is then compiled on its own."""
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))


def match_varying(*operands: jax.Array) -> tuple[jax.Array, ...]:
    """Casts operands inside ``shard_map`` to one set of varying mesh axes, as JAX's own primitives do."""
    varying = [jax.typeof(x).manual_axis_type.varying for x in operands]
    union = frozenset().union(*varying)
    return tuple(
        lax.pcast(x, tuple(sorted(union - axes)), to="varying") if union - axes else x
        for x, axes in zip(operands, varying, strict=True)
    )


def requires_devices_during_lowering(primitive: Primitive) -> None:
    """Lets a lowering rule use custom_partitioning, which wants to know the devices."""
    _dispatch.prim_requires_devices_during_lowering.add(primitive)


def report_nan(primitive: Primitive) -> None:
    """Lets ``checkify.float_checks`` look for NaN in the results of a primitive."""
    _checkify.error_checks[primitive] = functools.partial(_checkify.nan_error_check, primitive)


def decided_by_checkpoint_policies(primitive: Primitive, known: Callable[..., Any] | None = None) -> None:
    """Lets the policy of ``jax.checkpoint`` decide about a primitive under ``jax_remat3`` too, which computes again
    whatever has no rule of its own, and asks nobody.

    ``known(out, *operands, **params)`` is the result, once it is known, to be differentiated; by default what is
    computed again is, of which a linear operation leaves nothing behind.
    """
    # From JAX 0.12 on a rule returns what is kept and rounds it; before, JAX rounds all that the last function closes
    # over.
    returns_kept = jax.__version_info__ >= (0, 12)
    rounded = _remat.reduce_precision if returns_kept else lambda out: out

    def computed_again(out: Any, *operands: Any, **params: Any) -> Any:
        return _primal_left_tangent_right(out, primitive.bind(*operands, **params))

    def decide(asker: Any, *operands: Any, **params: Any) -> tuple[Any, Any, Callable[..., Any]]:
        """The result, what of it is kept, and what gets that and the operands once more in the backward pass."""
        out = primitive.bind(*operands, **params)
        policy = getattr(asker, "policy", asker)  # in JAX 0.10 it asks itself
        verdict = policy is not None and policy(primitive, *map(jax.typeof, operands), **params)
        saved = functools.partial(known or computed_again, **params)
        if isinstance(verdict, Offloadable):
            out, space = rounded(out), _memory_space(verdict.src)
            there = jax.device_put(out, _memory_space(verdict.dst), may_alias=False)
            return out, there, lambda there, *xs: saved(jax.device_put(there, space, may_alias=False), *xs)
        if verdict is True or verdict is Saveable:
            out = rounded(out)
            return out, out, saved
        return out, (), lambda _, *xs: primitive.bind(*xs, **params)

    def rule(asker: Any, *operands: Any, **params: Any) -> Any:
        out, kept, backward = decide(asker, *operands, **params)
        return (out, kept, backward) if returns_kept else (out, functools.partial(backward, kept))

    _remat.rules[primitive] = rule


def _memory_space(kind: str) -> Any:
    return jax.memory.Space.Host if kind == "pinned_host" else jax.memory.Space.Device


def lowering_rule(primitive: Primitive, platform: str) -> Callable[..., Any]:
    """The rule that lowers a primitive for a platform now."""
    entry = _mlir._platform_specific_lowerings[platform].get(primitive) or _mlir._lowerings[primitive]
    return entry.rule


def out_sharding_for_vmap(axis_data: Any, out_sharding: Any, dim: int) -> Any:
    """The output sharding of an operation to which vmap adds dimension ``dim``."""
    return _batching.get_sharding_for_vmap(axis_data, out_sharding, dim)


def psum_primitives() -> tuple[Primitive, ...]:
    """What ``lax.psum`` is made of: outside of ``shard_map`` and where that does not check what varies, and there."""
    return _parallel.psum_p, _parallel.psum_invariant_p


def is_export(ctx: Any) -> bool:
    """Whether a lowering context belongs to jax.export."""
    return bool(ctx.module_context.lowering_parameters.for_export)


def device_count(ctx: Any) -> int | None:
    """Devices that the module being lowered runs on, None where the context does not say."""
    return getattr(ctx.module_context.axis_context, "num_devices", None)


def concrete_mesh(ctx: Any) -> Any:
    """The mesh, with its devices, whose device the program being lowered is of; None where the context has none."""
    mesh = getattr(ctx.module_context.axis_context, "mesh", None)
    return mesh if isinstance(mesh, jax.sharding.Mesh) and not mesh.empty else None


def is_manual(ctx: Any) -> bool:
    """Whether the lowering happens inside ``shard_map``, of some axes at least."""
    return len(getattr(ctx.module_context.axis_context, "manual_axes", ())) > 0


def manual_devices() -> int:
    """How many devices the ``shard_map`` around what is traced now has; 1 where there is none."""
    mesh = jax.sharding.get_abstract_mesh()
    return math.prod(mesh.shape[axis] for axis in mesh.manual_axes)


def is_fully_manual(ctx: Any) -> bool:
    """Whether the lowering happens inside ``shard_map`` of all axes, so that no axis is left for XLA to split over."""
    axis_context = ctx.module_context.axis_context
    return is_manual(ctx) and all(
        size == 1 or axis in axis_context.manual_axes for axis, size in axis_context.mesh.shape.items()
    )


def has_explicit_axes(mesh: Any) -> bool:
    """Whether a mesh has an axis whose sharding is part of the types."""
    return any(axis_type == jax.sharding.AxisType.Explicit for axis_type in mesh.axis_types)


def static_sizes(shape: Sequence[Any]) -> bool:
    """Whether no dimension is symbolic (jax.export)."""
    return all(isinstance(size, int) for size in shape)


def has_partial_sums(spec: Any) -> bool:
    """Whether a PartitionSpec says of an array that devices hold parts of its sums, or will of its gradient's."""
    return bool(spec.unreduced or spec.reduced)
