"""How several devices share a product with quantised weights.

The weights are what is large, unless tokens are many, so they stay where they are: a device multiplies the columns that
it has, or the rows, whose partial results are then summed before an epilogue, by one all-reduce, or by a reduce-scatter
where tokens are wanted split over the same devices. N is split at multiples of the packed tiles' columns, K at
multiples of their rows and of the groups; a dimension that cannot be is whole on every device.

As in _partition.py, meshes of automatic axes ask for the program of one device through ``custom_partitioning``, and
for explicit axes a ``shard_map`` is written into the lowering.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.interpreters import mlir
from jax.sharding import NamedSharding

from jaxgemm import _compat, _peer_sums
from jaxgemm._epilogue import NO_ACTIVATION
from jaxgemm._mixed_local import Form, check_shapes, multiply
from jaxgemm._packing import TILE_K, TILE_N, packed_shape
from jaxgemm._partition import Axes, Sums, add_up, devices, mesh_of, of_result, padded_spec, spec_of
from jaxgemm._quant import QuantizedMatrix


@dataclass(frozen=True)
class _Call:
    """The form of a call, and a name for every dimension of every operand and of the result, shared by dimensions that
    are split together.
    """

    form: Form
    operands: tuple[tuple[str, ...], ...]
    out: tuple[str, ...]
    contracted: str
    groups: int
    sizes: dict[str, int]

    @staticmethod
    def of(shapes: Sequence[tuple[int, ...]], form: Form) -> "_Call":
        x, packed, scales = shapes[:3]
        batch = tuple(f"b{i}" for i in range(len(packed) - 3))
        tokens = tuple(f"m{i}" for i in range(len(x) - 1 - len(batch)))
        groups = scales[-2]
        of_group = (*batch, "k" if groups > 1 else "g", "n")
        contracted, column = ("n", "k") if form.transposed else ("k", "n")
        operands = [(*batch, *tokens, contracted), (*batch, "n", "k", "p"), of_group]
        operands += [of_group] * form.has_zeros + [()] * form.has_alpha
        operands += [(*batch[: len(bias) - 1], column) for bias in shapes[len(operands) :]]
        sizes = dict(zip(operands[0][:-1], x[:-1], strict=True))
        return _Call(form, tuple(operands), (*batch, *tokens, column), contracted, groups, sizes)

    def can_be_split(self, factor: str, parts: int) -> bool:
        """Whether a dimension has so many equal parts that are products of their own."""
        if parts == 1:
            return True
        if factor == "n":
            return self.form.n % (TILE_N * parts) == 0
        if factor == "k":
            whole_groups = self.groups == 1 or self.form.k % (self.form.group_size * parts) == 0
            return whole_groups and self.form.k % (TILE_K * parts) == 0
        return self.sizes[factor] % parts == 0

    def possible(self, factor: str, wanted: Axes, mesh_shape: Mapping[str, int]) -> Axes:
        """Those axes that can split a dimension, the first ones."""
        while not self.can_be_split(factor, devices(wanted, mesh_shape)):
            wanted = wanted[:-1]
        return wanted

    @property
    def few_tokens(self) -> bool:
        """Whether x and the result are fewer bytes than the weights, of 16 bits each number."""
        tokens = math.prod(size for name, size in self.sizes.items() if name.startswith("m"))
        return 2 * 8 * tokens * (self.form.k + self.form.n) < self.form.bits * self.form.k * self.form.n

    def assign(
        self, specs: Sequence[list[Axes]], out_spec: list[Axes], mesh_shape: Mapping[str, int], peers: int = 0
    ) -> tuple[dict[str, Axes], Sums]:
        """The mesh axes of each factor of the operands, of shardings of the operands and of the result; and what then
        makes the result.

        N and K are split as those of the weights, batch dimensions and tokens as those of the result: by other axes, or
        by those of K when sums are added up, or when the result is moved. But many tokens that x has split already stay
        where they are, and weights are gathered. Where N and K of the weights are whole, they are split as the result
        and x are, which moves no weights.
        """
        axes: dict[str, Axes] = dict.fromkeys((*self.out, self.contracted), ())
        used: set[str] = set()

        possible = functools.partial(self.possible, mesh_shape=mesh_shape)

        def take(factor: str, wanted: Axes) -> None:
            if axes[factor]:
                return
            axes[factor] = possible(factor, tuple(axis for axis in wanted if axis not in used))
            used.update(axes[factor])

        x, packed, scales = specs[:3]
        rows, columns = (packed[-3], packed[-2]) if self.form.transposed else (packed[-2], packed[-3])
        of_x = {axis for entry in x[:-1] for axis in entry if not self.few_tokens}
        of_k = [axis for axis in possible(self.contracted, rows) if axis not in of_x]
        of_weights = [*of_k, *(axis for axis in possible(self.out[-1], columns) if self.few_tokens)]
        for factor, entry in zip(self.out[:-1], out_spec[:-1], strict=True):
            take(factor, tuple(axis for axis in entry if axis not in of_weights))
        wishes = [("n", packed[-3]), ("k", packed[-2]), ("n", scales[-1])]
        wishes += [(self.out[-1], out_spec[-1]), (self.contracted, x[-1])]
        for factor, wanted in wishes:
            take(factor, wanted)
        sizes = [self.sizes[factor] for factor in self.out[:-1]]
        return axes, Sums.of(axes[self.contracted], out_spec[:-1], sizes, mesh_shape, peers)

    def shard(self, axes: dict[str, Axes], mesh_shape: Mapping[str, int]) -> tuple[int, int]:
        """K and N of one device."""
        k, n = (devices(axes[factor], mesh_shape) for factor in ("k", "n"))
        return self.form.k // k, self.form.n // n

    def local(
        self, *operands: Any, axes: dict[str, Axes], sums: Sums, mesh_shape: Mapping[str, int], kernel: str | None
    ) -> Any:
        """The product of what one device has."""
        form = self.form.of_shard(*self.shard(axes, mesh_shape))
        epilogue = form.epilogue(operands)
        if sums.none or (not epilogue and form.activation == NO_ACTIVATION):
            return add_up(multiply(*operands, form=form, kernel=kernel), sums)
        accumulator = multiply(*operands[: form.batched_operands], form=form.accumulates, kernel=kernel)
        return form.finish(add_up(accumulator, sums), *epilogue)


# --- automatic axes ---------------------------------------------------------------------------------------------------


def _sharding_rule(form: Form, kernel: str | None, peers: int, mesh: Any, operand_types: Any, result_types: Any) -> Any:
    call = _Call.of([tuple(t.shape) for t in operand_types], form)
    rule = f"{', '.join(' '.join(factors) for factors in call.operands)} -> {' '.join(call.out)}"
    whole = ("p",) if call.groups > 1 else ("p", "g")
    return rule, {"reduction_factors": (call.contracted,), "need_replication_factors": whole}


def _partition(form: Form, kernel: str | None, peers: int, mesh: Any, operand_shapes: Any, result_shape: Any) -> Any:
    call = _Call.of([x.shape for x in operand_shapes], form)
    specs = [padded_spec(x.sharding, len(x.shape)) for x in operand_shapes]
    axes, sums = call.assign(specs, padded_spec(result_shape.sharding, len(call.out)), mesh.shape, peers)
    local = functools.partial(call.local, axes=axes, sums=sums, mesh_shape=dict(mesh.shape), kernel=kernel)
    operands = tuple(NamedSharding(mesh, spec_of(factors, axes)) for factors in call.operands)
    return mesh, local, NamedSharding(mesh, of_result(call.out, axes, sums)), operands


@functools.partial(custom_partitioning, static_argnums=(0, 1, 2))
def _partitioned(form: Form, kernel: str | None, peers: int, *operands: Any) -> Any:
    return multiply(*operands, form=form, kernel=kernel)


_partitioned.def_partition(partition=_partition, sharding_rule=_sharding_rule)

# --- explicit axes ----------------------------------------------------------------------------------------------------


def _explicit_axes(call: _Call, avals: Sequence[Any], mesh: Any, peers: int = 0) -> tuple[dict[str, Axes], Sums]:
    specs = [padded_spec(x.sharding, x.ndim) for x in avals]
    x, packed, scales = specs[:3]
    batch = packed[:-3]
    for i, (left, right) in enumerate(zip(x, batch, strict=False)):
        if left and right and left != right:
            raise TypeError(
                f"dimension {i} is split over mesh axes {left} in x and over {right} in the quantised weights: "
                "jax.reshard one of them"
            )
    rows = [entry or (batch[i] if i < len(batch) else ()) for i, entry in enumerate(x[:-1])]
    columns = packed[-2] if call.form.transposed else packed[-3] or scales[-1]
    both = sorted({axis for entry in rows for axis in entry}.intersection(columns))
    if both and not call.form.transposed:  # whose result is no user's, so that it may be split in another way
        raise TypeError(
            f"mesh axis {both[0]!r} splits x and the columns of the quantised weights, so that the result would be "
            "split twice over it: jax.reshard one of them"
        )
    return call.assign(specs, [*rows, columns], mesh.shape, peers)


def mixed_aval(*operands: Any, form: Form, kernel: str | None) -> Any:
    """The abstract result of ``mixed_gemm_p``: shape and sharding of x but for the columns, which are the weights'."""
    x = operands[0]
    check_shapes(x, operands[1], form)
    mesh = mesh_of(*(x.sharding for x in operands), form.out_sharding)
    sharding = form.out_sharding or x.sharding
    if form.out_sharding is None and _compat.has_explicit_axes(mesh):
        call = _Call.of([operand.shape for operand in operands], form)
        sharding = NamedSharding(mesh, of_result(call.out, *_explicit_axes(call, operands, mesh)))
    return x.update(shape=(*x.shape[:-1], form.columns), dtype=form.out_dtype, weak_type=False, sharding=sharding)


def _on_shards(mesh: Any, function: Any, operands: Sequence[Any], in_specs: Sequence[Any], out_spec: Any) -> Any:
    """A function of what one device has, under explicit axes."""
    with jax.sharding.use_abstract_mesh(mesh):
        placed = [
            x
            if padded_spec(NamedSharding(mesh, spec), x.ndim) == padded_spec(jax.typeof(x).sharding, x.ndim)
            else jax.reshard(x, spec)
            for x, spec in zip(operands, in_specs, strict=True)
        ]
        return jax.shard_map(function, mesh=mesh, in_specs=tuple(in_specs), out_specs=out_spec, check_vma=False)(
            *placed
        )


def _explicit(*operands: Any, form: Form, kernel: str | None) -> Any:
    avals = [jax.typeof(x) for x in operands]
    mesh = mesh_of(*(x.sharding for x in avals), form.out_sharding)
    call = _Call.of([x.shape for x in avals], form)
    peers = _peer_sums.most_gpus()
    if form.out_sharding is None:
        axes, sums = _explicit_axes(call, avals, mesh, peers)
    else:
        specs = [padded_spec(x.sharding, x.ndim) for x in avals]
        axes, sums = call.assign(specs, padded_spec(form.out_sharding, len(call.out)), mesh.shape, peers)
    local = functools.partial(call.local, axes=axes, sums=sums, mesh_shape=dict(mesh.shape), kernel=kernel)
    in_specs = [spec_of(factors, axes) for factors in call.operands]
    made = of_result(call.out, axes, sums)
    result = _on_shards(mesh, local, operands, in_specs, made)
    wanted = made if form.out_sharding is None else form.out_sharding.spec
    with jax.sharding.use_abstract_mesh(mesh):
        return result if wanted == made else jax.reshard(result, wanted)


def of_parts_explicit(
    function: Callable[[jax.Array], tuple[jax.Array, ...]],
    matrix: jax.Array,
    outs: Sequence[str],
    bits: int,
    group_size: int,
) -> tuple[jax.Array, ...]:
    """See ``_quant.of_parts``: split as the matrix (..., K, N) is, where its parts are whole tiles and groups."""
    *batch, k, n = matrix.shape
    groups = (*batch, -(-k // group_size), n)
    form = Form(k, n, bits, group_size, False, False, NO_ACTIVATION, np.dtype(np.float32))
    call = _Call.of([(*batch, k), (*batch, *packed_shape(k, n, bits)), groups], form)
    sharding = jax.typeof(matrix).sharding
    factors = [*call.out[:-1], "k", "n"]
    axes = {
        factor: call.possible(factor, entry, sharding.mesh.shape)
        for factor, entry in zip(factors, padded_spec(sharding, matrix.ndim), strict=True)
    }
    if call.groups == 1 and "groups" in outs:  # one scale for all rows
        axes["k"] = ()
    specs = {"packed": spec_of(call.operands[1], axes), "groups": spec_of(call.operands[2], axes)}
    return _on_shards(sharding.mesh, function, [matrix], [spec_of(factors, axes)], tuple(specs[out] for out in outs))


def dequantize_explicit(matrix: QuantizedMatrix, dtype: Any) -> jax.Array:
    """The matrix (..., K, N) of arrays on a mesh of explicit axes, split as they are."""
    operands = [matrix.packed, matrix.scales] + ([] if matrix.zeros is None else [matrix.zeros])
    avals = [jax.typeof(x) for x in operands]
    mesh = mesh_of(*(x.sharding for x in avals))
    batch = matrix.packed.shape[:-3]
    form = Form(
        matrix.k, matrix.n, matrix.bits, matrix.group_size, matrix.zeros is not None, False, NO_ACTIVATION, dtype
    )
    call = _Call.of([(*batch, matrix.k), *(x.shape for x in avals)], form)
    specs = [padded_spec(x.sharding, x.ndim) for x in avals]
    axes, _ = call.assign([[()] * (len(batch) + 1), *specs], [*specs[0][:-3], ()], mesh.shape)
    factors = list(call.operands[1:])
    if matrix.permutation is not None:  # rows go from device to device
        axes["k"] = ()
        operands.append(matrix.permutation)
        factors.append((*call.out[:-1], "k"))
    k, n = call.shard(axes, mesh.shape)

    def local(packed: Any, scales: Any, *rest: Any) -> jax.Array:
        zeros = rest[0] if form.has_zeros else None
        permutation = None if matrix.permutation is None else rest[-1]
        shard = form.of_shard(k, n)
        return QuantizedMatrix(packed, scales, zeros, permutation, k, n, form.bits, shard.group_size).dequantize(dtype)

    in_specs = [spec_of(names, axes) for names in factors]
    return _on_shards(mesh, local, operands, in_specs, spec_of([*call.out[:-1], "k", "n"], axes))


# --- lowering ---------------------------------------------------------------------------------------------------------

_lower_local = mlir.lower_fun(multiply, multiple_results=False)
_lower_explicit = mlir.lower_fun(_explicit, multiple_results=False)
_lower_automatic = mlir.lower_fun(
    lambda *operands, form, kernel: _partitioned(form, kernel, _peer_sums.most_gpus(), *operands),
    multiple_results=False,
)


def lower_mixed(ctx: Any, *operands: Any, form: Form, kernel: str | None) -> Any:
    """The lowering of ``mixed_gemm_p`` for one device and for several."""
    one_device = _compat.is_manual(ctx) or _compat.device_count(ctx) in (None, 1) or _compat.is_export(ctx)
    explicit = _compat.has_explicit_axes(ctx.avals_out[0].sharding.mesh) and not _compat.is_export(ctx)
    # Under a mesh of explicit axes, operands that are on none are whole on every device.
    whole = _compat.has_explicit_axes(jax.sharding.get_abstract_mesh())
    lower = _lower_explicit if explicit else _lower_local if one_device or whole else _lower_automatic
    return lower(ctx, *operands, form=form, kernel=kernel)
