"""How several devices share one GEMM.

Under a mesh of automatic axes, Shardy propagates shardings through a rule that says which dimensions belong together
and asks for the program of one device (``custom_partitioning``). Under explicit axes every sharding is part of the
types, so the local program is a ``shard_map`` written into the lowering. Either way a device multiplies what it has,
and a split contraction ends in one all-reduce, or in a reduce-scatter where the result is wanted split over the same
devices: no operand is gathered that need not be.
"""

import dataclasses
import functools
import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.core import ShapedArray
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm import _peer_sums
from jaxgemm._epilogue import NO_ACTIVATION
from jaxgemm._lowering import dot_general_aval, local_gemm_p
from jaxgemm._plan import DimensionNumbers, free_dims

Axes = tuple[str, ...]
# The epilogue of local_gemm_p: what follows a split contraction is left to XLA.
_PLAIN = {"has_alpha": False, "activation": NO_ACTIVATION}


def _factors(
    dimension_numbers: DimensionNumbers, lhs_ndim: int, rhs_ndim: int
) -> tuple[list[str], list[str], list[str], list[str]]:
    """A name for every dimension of lhs, rhs and the result, shared by dimensions that are split together; and the
    names of the contracted ones.
    """
    (lc, rc), (lb, rb) = dimension_numbers
    lhs, rhs = [""] * lhs_ndim, [""] * rhs_ndim
    for prefix, pairs in (("b", zip(lb, rb, strict=True)), ("k", zip(lc, rc, strict=True))):
        for i, (left, right) in enumerate(pairs):
            lhs[left] = rhs[right] = f"{prefix}{i}"
    m, n = free_dims(lhs_ndim, lc, lb), free_dims(rhs_ndim, rc, rb)
    for i, d in enumerate(m):
        lhs[d] = f"m{i}"
    for i, d in enumerate(n):
        rhs[d] = f"n{i}"
    out = [lhs[d] for d in (*lb, *m)] + [rhs[d] for d in n]
    return lhs, rhs, out, [lhs[d] for d in lc]


def _axes(entry: Any) -> Axes:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


def padded_spec(sharding: Any, ndim: int) -> list[Axes]:
    """Mesh axes of every dimension. XLA describes what is replicated by shardings without a spec, too."""
    entries = sharding.spec.partitions if hasattr(sharding, "spec") else ()
    return [_axes(entry) for entry in entries] + [()] * (ndim - len(entries))


@dataclasses.dataclass(frozen=True)
class Sums:
    """What makes the result of the sums that devices have of parts of K.

    Attributes:
      over: mesh axes over which they are added up, and all devices have the result.
      scattered: (dimension of the result, mesh axes, devices along them): they are added up, and each device has its
        part of that dimension.
      peers: how many GPUs at most may add up by themselves (_peer_sums.py).
    """

    over: Axes = ()
    scattered: tuple[tuple[int, Axes, int], ...] = ()
    peers: int = 0

    @property
    def none(self) -> bool:
        return not self.over and not self.scattered

    @staticmethod
    def of(
        of_k: Axes, wanted: Sequence[Axes], shape: Sequence[int], mesh_shape: Mapping[str, int], peers: int
    ) -> "Sums":
        """Of the axes that split K, and those that are wanted to split the dimensions of the result of that shape."""
        lasts = [scattered_axes(entry, of_k, size, mesh_shape) for entry, size in zip(wanted, shape, strict=True)]
        scattered = ((i, last, devices(last, mesh_shape)) for i, last in enumerate(lasts) if last)
        over = tuple(axis for axis in of_k if not any(axis in last for last in lasts))
        return Sums(over, tuple(scattered), peers)


def scattered_axes(entry: Axes, of_k: Container[str], size: int, mesh_shape: Mapping[str, int]) -> Axes:
    """Those axes of a dimension of the result, of so many elements, that may split K instead, and the sums afterwards.

    They are its last ones, as a device's part of what the others leave it must be its part of the whole.
    """
    first = len(entry)
    while first > 0 and entry[first - 1] in of_k:
        first -= 1
    return entry[first:] if size % devices(entry, mesh_shape) == 0 else ()


def devices(axes: Axes, mesh_shape: Mapping[str, int]) -> int:
    """How many there are along mesh axes."""
    return math.prod(mesh_shape[axis] for axis in axes)


@dataclasses.dataclass(frozen=True)
class _Array:
    """An operand or result: the factor that each dimension is, and the mesh axes that split it or are wanted to."""

    factors: list[str]
    spec: list[Axes]
    shape: Sequence[int]

    def axes_of(self, factor: str) -> Axes:
        return self.spec[self.factors.index(factor)]

    def axes_of_others(self, factor: str) -> set[str]:
        return {axis for name, entry in zip(self.factors, self.spec, strict=True) if name != factor for axis in entry}


@dataclasses.dataclass(frozen=True)
class _Product:
    """A product of several devices."""

    lhs: _Array
    rhs: _Array
    out: _Array
    contracted: list[str]
    mesh_shape: Mapping[str, int]
    peers: int

    def _of_k(self, factor: str) -> Axes:
        """The axes that split a contracted dimension.

        Those that it has in one operand, if the other does not have them elsewhere: of that each device takes the part
        that it needs. Where both have others, those of the larger one stay.
        """
        left = tuple(axis for axis in self.lhs.axes_of(factor) if axis not in self.rhs.axes_of_others(factor))
        right = tuple(axis for axis in self.rhs.axes_of(factor) if axis not in self.lhs.axes_of_others(factor))
        shorter, longer = sorted((left, right), key=len)
        if longer[: len(shorter)] == shorter:
            return longer
        shared = tuple(axis for axis in left if axis in right)
        return shared or (left if math.prod(self.lhs.shape) >= math.prod(self.rhs.shape) else right)

    def assign(self, *, operands_move: bool) -> tuple[dict[str, Axes], Sums]:
        """The mesh axes of each factor of the operands, and what then makes the result.

        Contracted dimensions keep an axis that both operands have there, whether or not the result is wanted split over
        it: moving sums is cheaper than moving operands. So is an axis of one operand alone, unless ``operands_move``
        from one split dimension to another in parts; otherwise XLA gathers them first. The other dimensions are split
        as those of the result, and those that are wanted whole as they are: the result is gathered then.
        """
        axes: dict[str, Axes] = {}
        used: set[str] = set()

        def take(factor: str, wanted: Axes) -> Axes:
            axes[factor] = tuple(axis for axis in wanted if axis not in used)
            used.update(axes[factor])
            return axes[factor]

        of_k = {factor: self._of_k(factor) for factor in self.contracted}
        shared = {axis for factor, entry in of_k.items() for axis in entry if self._both_have(factor, axis)}
        kept = shared if operands_move else {axis for entry in of_k.values() for axis in entry}
        for factor, entry in zip(self.out.factors, self.out.spec, strict=True):
            take(factor, tuple(axis for axis in entry if axis not in kept))
        split: Axes = ()
        for factor, entry in of_k.items():
            split += take(factor, entry)
        for factor, entry in zip(self.out.factors, self.out.spec, strict=True):
            if not entry:
                take(factor, self._own(factor))
        return axes, Sums.of(split, self.out.spec, self.out.shape, self.mesh_shape, self.peers)

    def _both_have(self, factor: str, axis: str) -> bool:
        return axis in self.lhs.axes_of(factor) and axis in self.rhs.axes_of(factor)

    def _own(self, factor: str) -> Axes:
        """How a dimension is split in an operand, if the other one lacks it or can follow by taking parts."""
        entries = (operand.axes_of(factor) for operand in (self.lhs, self.rhs) if factor in operand.factors)
        *shorter, longest = sorted(entries, key=len)
        return longest if all(longest[: len(entry)] == entry for entry in shorter) else ()


def of_result(factors: Sequence[str], axes: dict[str, Axes], sums: Sums) -> PartitionSpec:
    """How the result is split, of axes that split the operands."""
    last = {factors[dimension]: axes for dimension, axes, _ in sums.scattered}
    return spec_of(factors, {factor: axes.get(factor, ()) + last.get(factor, ()) for factor in factors})


def spec_of(factors: Sequence[str], axes: dict[str, Axes]) -> PartitionSpec:
    entries = [axes.get(factor, ()) for factor in factors]
    return PartitionSpec(*(None if not e else e[0] if len(e) == 1 else e for e in entries))


def _local_product(lhs: Any, rhs: Any, sums: Sums, params: dict[str, Any]) -> Any:
    out = local_gemm_p.bind(lhs, rhs, **(params | _PLAIN | {"out_sharding": None}))
    if out.dtype == np.bool_ and not sums.none:  # "any" is the sum of booleans
        return add_up(out.astype(np.int32), sums) != 0
    return add_up(out, sums)


def add_up(x: Any, sums: Sums) -> Any:
    """The result on one device, of its sums."""
    return x if sums.none else _add_up_p.bind(x, sums=sums)


# psum and psum_scatter, whose lowering knows no mesh. While a program with automatic axes is partitioned, JAX lowers
# that of one device in the mesh that the user has set: if its axes are explicit, the scalars that all-reduce adds are
# annotated with a sharding, and XLA refuses that reduction, or aborts the process (of 16-bit numbers).
_add_up_p = Primitive("jaxgemm_sum_over_devices")


@_add_up_p.def_abstract_eval
def _scattered_aval(x: Any, *, sums: Sums) -> Any:
    shape = list(x.shape)
    for dimension, _, parts in sums.scattered:
        shape[dimension] //= parts
    return x.update(shape=tuple(shape))


def _lower_add_up(ctx: Any, x: Any, *, sums: Sums) -> Any:
    def function(x: Any) -> Any:
        for dimension, axes, _ in sums.scattered:
            x = lax.psum_scatter(x, axes, scatter_dimension=dimension, tiled=True)
        return lax.psum(x, sums.over) if sums.over else x

    avals = ctx.avals_in, ctx.avals_out
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        plain, result = ([ShapedArray(aval.shape, aval.dtype)] for (aval,) in avals)
        return mlir.lower_fun(function, multiple_results=False)(ctx.replace(avals_in=plain, avals_out=result), x)


def _lower_add_up_on_gpus(ctx: Any, x: Any, *, sums: Sums) -> Any:
    (aval,) = ctx.avals_in
    gpus = None if sums.scattered else _peer_sums.gpus(ctx, sums.over, aval, sums.peers)
    return _lower_add_up(ctx, x, sums=sums) if gpus is None else _peer_sums.lower(ctx, x, gpus)


mlir.register_lowering(_add_up_p, _lower_add_up)
mlir.register_lowering(_add_up_p, _lower_add_up_on_gpus, platform="cuda")

# --- automatic axes ---------------------------------------------------------------------------------------------------


def _sharding_rule(params: Any, peers: int, mesh: Any, operand_types: Any, result_types: Any) -> Any:
    lhs_ndim, rhs_ndim = (len(t.shape) for t in operand_types)
    lhs, rhs, out, contracted = _factors(dict(params)["dimension_numbers"], lhs_ndim, rhs_ndim)
    rule = f"{' '.join(lhs)}, {' '.join(rhs)} -> {' '.join(out)}"
    # Shardy wants them in the order in which the rule names them first.
    return (rule, {"reduction_factors": tuple(sorted(contracted, key=lhs.index))}) if contracted else rule


def _partition(params: Any, peers: int, mesh: Any, operand_shapes: Any, result_shape: Any) -> Any:
    lhs_ndim, rhs_ndim = (len(x.shape) for x in operand_shapes)
    *factors, contracted = _factors(dict(params)["dimension_numbers"], lhs_ndim, rhs_ndim)
    lhs, rhs, out = (
        _Array(names, padded_spec(x.sharding, len(names)), x.shape)
        for names, x in zip(factors, (*operand_shapes, result_shape), strict=True)
    )
    axes, sums = _Product(lhs, rhs, out, contracted, mesh.shape, peers).assign(operands_move=False)
    local = functools.partial(_local_product, sums=sums, params=dict(params))
    operands = tuple(NamedSharding(mesh, spec_of(x.factors, axes)) for x in (lhs, rhs))
    return mesh, local, NamedSharding(mesh, of_result(out.factors, axes, sums)), operands


@functools.partial(custom_partitioning, static_argnums=(2, 3))
def _partitioned(lhs: Any, rhs: Any, params: Any, peers: int) -> Any:
    return local_gemm_p.bind(lhs, rhs, **_PLAIN, **dict(params))


_partitioned.def_partition(partition=_partition, sharding_rule=_sharding_rule)

# --- explicit axes ----------------------------------------------------------------------------------------------------


def mesh_of(*shardings: Any) -> Any:
    """The mesh of those that are on one: what is on none is whole on every device."""
    meshes = [sharding.mesh for sharding in shardings if sharding is not None]
    return next((mesh for mesh in meshes if not mesh.empty), meshes[0])


def _explicit(lhs: Any, rhs: Any, **params: Any) -> Any:
    mesh = mesh_of(jax.typeof(lhs).sharding, jax.typeof(rhs).sharding, params["out_sharding"])
    with jax.sharding.use_abstract_mesh(mesh):
        out_aval = dot_general_aval(
            jax.typeof(lhs), jax.typeof(rhs), **{name: value for name, value in params.items() if name != "kernel"}
        )
        *factors, contracted = _factors(params["dimension_numbers"], lhs.ndim, rhs.ndim)
        avals = jax.typeof(lhs), jax.typeof(rhs), out_aval
        left, right, out = (
            _Array(names, padded_spec(x.sharding, x.ndim), x.shape) for names, x in zip(factors, avals, strict=True)
        )
        product = _Product(left, right, out, contracted, mesh.shape, _peer_sums.most_gpus())
        axes, sums = product.assign(operands_move=True)
        in_specs = spec_of(left.factors, axes), spec_of(right.factors, axes)
        placed = (
            x if padded_spec(NamedSharding(mesh, wanted), x.ndim) == have.spec else jax.reshard(x, wanted)
            for x, have, wanted in zip((lhs, rhs), (left, right), in_specs, strict=True)
        )
        local = functools.partial(_local_product, sums=sums, params=params)
        made = of_result(out.factors, axes, sums)
        result = jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=made, check_vma=False)(*placed)
        wanted = spec_of(out.factors, dict(zip(out.factors, out.spec, strict=True)))
        return result if wanted == made else jax.reshard(result, wanted)


_lower_explicit = mlir.lower_fun(_explicit, multiple_results=False)


def _automatic(lhs: Any, rhs: Any, **params: Any) -> Any:
    mesh = mesh_of(jax.typeof(lhs).sharding, jax.typeof(rhs).sharding)
    out = _partitioned(lhs, rhs, tuple(sorted(params.items())), _peer_sums.most_gpus())
    if mesh.empty:
        return out
    # Leaves every dimension as it is, and has no unreduced axes. Without it, where the automatic axes are those of an
    # explicit mesh and the result is wanted unreduced (jnp.einsum asks so), that is propagated to the call, whose
    # callbacks are not told: sums that are complete would be added up again.
    unconstrained = PartitionSpec(*(PartitionSpec.UNCONSTRAINED for _ in range(out.ndim)))
    return lax.with_sharding_constraint(out, NamedSharding(mesh, unconstrained))


_lower_automatic = mlir.lower_fun(_automatic, multiple_results=False)


def lower_partitioned(ctx: Any, lhs: Any, rhs: Any, *, explicit: bool, **params: Any) -> Any:
    """The lowering of ``gemm_p`` for a mesh of several devices."""
    return (_lower_explicit if explicit else _lower_automatic)(ctx, lhs, rhs, **params)
