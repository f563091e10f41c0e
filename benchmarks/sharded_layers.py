"""Layers of Llama-3-70B split over devices, with any function as their matrix product.

Tensor-parallel: the first products of a block have their columns split, so that each device computes columns of the
intermediate result; the last one has its rows split, so that each device holds a part of the sums, which one all-reduce
adds up. Sequence-parallel: the same, and between blocks tokens are split. Data-parallel: tokens are split, weights are
on every device, and their gradients are added up.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm

MODEL, DATA = "model", "data"
COLUMNS, ROWS = P(None, MODEL), P(MODEL, None)
PARTITIONS = ("auto", "explicit", "shard_map")
"""``jax.jit`` over automatic axes, over explicit ones, and ``jax.shard_map``."""
GROUP_SIZE = 128

Product: TypeAlias = Callable[..., Any]
Weights: TypeAlias = Mapping[str, Any]
"""By name: arrays (K, N), or quantised matrices."""
Layer: TypeAlias = Callable[[Any, Weights], Any]


@dataclass(frozen=True)
class Dims:
    """Of a decoder's blocks."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    def shapes(self, block: str) -> dict[str, tuple[int, int]]:
        """(K, N) of each weight of a block."""
        if block == "mlp":
            wide = self.hidden, self.intermediate
            return {"gate": wide, "up": wide, "down": (self.intermediate, self.hidden)}
        if block == "joined_mlp":
            return {"gate_up": (self.hidden, 2 * self.intermediate), "down": (self.intermediate, self.hidden)}
        square, narrow = (self.hidden, self.hidden), (self.hidden, self.kv_heads * self.head_dim)
        if block == "joined_attention":
            return {"qkv": (self.hidden, self.hidden + 2 * narrow[1]), "o": square}
        return {"q": square, "k": narrow, "v": narrow, "o": square}


LLAMA_70B = Dims(hidden=8192, intermediate=28672, heads=64, kv_heads=8)
BLOCKS = ("mlp", "attention")
JOINED_BLOCKS = ("joined_mlp", "joined_attention")
"""The same with one product in place of those of the same x, as servers decode: the columns of their weights are dealt
in turn, so that any number of devices has as many of each.
"""
ALL_BLOCKS = (*BLOCKS, *JOINED_BLOCKS)
ROW_SPLIT = ("down", "o")
"""The weights that have their rows split; the others have their columns split."""


def spec_of(name: str) -> P:
    return ROWS if name in ROW_SPLIT else COLUMNS


def make_mesh(devices: Sequence[Any], axis: str, partition: str) -> Mesh:
    """All devices in a row."""
    kind = AxisType.Explicit if partition == "explicit" else AxisType.Auto
    return Mesh(np.array(devices), (axis,), axis_types=(kind,))


def array_specs(weight: Any, spec: P) -> Any:
    """The spec, or for quantised weights one for each of their arrays."""
    return weight.specs(spec) if isinstance(weight, jaxgemm.QuantizedMatrix) else spec


def shardings(mesh: Mesh, weight: Any, spec: P) -> Any:
    """The same as shardings."""
    specs = array_specs(weight, spec)
    return jax.tree.map(lambda s: NamedSharding(mesh, s), specs, is_leaf=lambda s: isinstance(s, P))


def place(mesh: Mesh, weights: Weights) -> dict[str, Any]:
    """Weights where their block wants them."""
    return {name: jax.device_put(w, shardings(mesh, w, spec_of(name))) for name, w in weights.items()}


def mlp(x: Any, weights: Weights, column: Product, row: Product, dims: Dims) -> Any:
    hidden = jax.nn.silu(column(x, weights["gate"])) * column(x, weights["up"])
    return row(hidden, weights["down"])


def attention(x: Any, weights: Weights, column: Product, row: Product, dims: Dims) -> Any:
    """The projections. In place of attention, every query head is added to its key and its value head: as local to a
    device, and next to nothing to compute.
    """
    q, k, v = (column(x, weights[name]) for name in "qkv")
    tokens, group = len(q), dims.heads // dims.kv_heads
    queries = q.reshape(tokens, -1, group, dims.head_dim)
    mixed = queries + (k + v).reshape(tokens, -1, 1, dims.head_dim)
    return row(mixed.reshape(q.shape), weights["o"])


def joined_mlp(x: Any, weights: Weights, column: Product, row: Product, dims: Dims) -> Any:
    """``head_dim`` columns of gate, and as many of up, in turn."""
    both = column(x, weights["gate_up"]).reshape(len(x), -1, 2, dims.head_dim)
    hidden = jax.nn.silu(both[:, :, 0]) * both[:, :, 1]
    return row(hidden.reshape(len(x), -1), weights["down"])


def joined_attention(x: Any, weights: Weights, column: Product, row: Product, dims: Dims) -> Any:
    """The query heads of one key and value head, that key head and that value head, in turn."""
    tokens, group = len(x), dims.heads // dims.kv_heads
    heads = column(x, weights["qkv"]).reshape(tokens, -1, group + 2, dims.head_dim)
    mixed = heads[:, :, :group] + (heads[:, :, group] + heads[:, :, group + 1])[:, :, None]
    return row(mixed.reshape(tokens, -1), weights["o"])


BLOCK_FUNCTIONS = {
    "mlp": mlp,
    "attention": attention,
    "joined_mlp": joined_mlp,
    "joined_attention": joined_attention,
}


def whole_layer(block: str, dims: Dims, product: Product) -> Layer:
    """The block as one device computes it."""
    return functools.partial(BLOCK_FUNCTIONS[block], column=product, row=product, dims=dims)


def tensor_parallel(block: str, dims: Dims, product: Product, mesh: Mesh, partition: str) -> Layer:
    """The block over a mesh, of weights that :func:`place` has placed; x and the result are on every device."""
    function = BLOCK_FUNCTIONS[block]
    if partition == "auto":
        return whole_layer(block, dims, product)
    if partition == "explicit":
        row = functools.partial(product, out_sharding=P(None, None))
        return functools.partial(function, column=product, row=row, dims=dims)

    return _mapped(block, dims, product, mesh, P(), lambda x: x, lambda out: lax.psum(out, MODEL))


def sequence_parallel(block: str, dims: Dims, product: Product, mesh: Mesh, partition: str) -> Layer:
    """The same, but x and the result have their rows split: x is gathered, and the sums are added up and scattered."""
    split, whole = P(MODEL, None), P(None, None)
    if partition == "shard_map":
        gather = functools.partial(lax.all_gather, axis_name=MODEL, axis=0, tiled=True)
        scatter = functools.partial(lax.psum_scatter, axis_name=MODEL, scatter_dimension=0, tiled=True)
        return _mapped(block, dims, product, mesh, split, gather, scatter)
    explicit = partition == "explicit"

    def moved(x: Any, spec: P) -> Any:
        return jax.reshard(x, spec) if explicit else lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    def row(x: Any, w: Any) -> Any:
        return product(x, w, out_sharding=split) if explicit else moved(product(x, w), split)

    function = functools.partial(BLOCK_FUNCTIONS[block], column=product, row=row, dims=dims)
    return lambda x, weights: function(moved(x, whole), weights)


def _mapped(
    block: str, dims: Dims, product: Product, mesh: Mesh, tokens: P, first: Callable[[Any], Any],
    last: Callable[[Any], Any],
) -> Layer:  # fmt: skip
    """The block in a ``shard_map``, of x and with a result that are split so."""
    function = BLOCK_FUNCTIONS[block]

    def local(x: Any, weights: Weights) -> Any:
        return function(first(x), weights, column=product, row=lambda x, w: last(product(x, w)), dims=dims)

    def mapped(x: Any, weights: Weights) -> Any:
        specs = {name: array_specs(w, spec_of(name)) for name, w in weights.items()}
        return jax.shard_map(local, mesh=mesh, in_specs=(tokens, specs), out_specs=tokens)(x, weights)

    return mapped


def chain(layer: Layer, layers: int) -> Callable[[Any, Sequence[Weights]], Any]:
    """Layers one after the other, each with the next set of weights; x is added to every result, which keeps numbers in
    range. Not a scan, in which XLA may copy the weights of a layer.
    """

    def run(x: Any, sets: Sequence[Weights]) -> Any:
        y = x
        for i in range(layers):
            y = x + layer(y, sets[i % len(sets)])
        return y

    return run


def all_reduces(mesh: Mesh, layers: int) -> Callable[[Any], Any]:
    """As many all-reduces of x (devices, M, N), and additions, as that many layers have, and nothing else."""

    def local(x: Any) -> Any:
        y = x
        for _ in range(layers):
            y = x + lax.psum(y, MODEL) * jnp.asarray(0.5 / mesh.size, x.dtype)
        return y

    return jax.shard_map(local, mesh=mesh, in_specs=P(MODEL), out_specs=P(MODEL))


def data_parallel_loss(layer: Callable[[Any, Any], Any], mesh: Mesh, partition: str) -> Callable[[Any, Any, Any], Any]:
    """The sum of factor * layer(x), in float32, over all tokens, which are split over the mesh."""

    def local(weights: Any, x: Any, factor: Any) -> Any:
        return (layer(x, weights).astype(jnp.float32) * factor.astype(jnp.float32)).sum()

    if partition != "shard_map":
        return local
    tokens = P(DATA, None)
    return jax.shard_map(
        lambda *args: lax.psum(local(*args), DATA), mesh=mesh, in_specs=(P(), tokens, tokens), out_specs=P()
    )


def sgd_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """(weights, x, factor, rate) -> (loss, weights less rate times their gradients)."""

    def step(weights: Any, x: Any, factor: Any, rate: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(weights, x, factor)

        def updated(w: Any, gradient: Any) -> Any:
            return (w.astype(jnp.float32) - rate * gradient.astype(jnp.float32)).astype(w.dtype)

        return value, jax.tree.map(updated, weights, gradients)

    return step
