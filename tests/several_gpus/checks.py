"""What is checked of layers over several devices, which may be GPUs or, without our kernels, the CPU's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from benchmarks import sharded_layers as sl
from benchmarks.sharded_layers import DATA, GROUP_SIZE, MODEL, Dims
from jaxgemm import _peer_sums
from jaxgemm._native import PEER_SUM_TARGET, _core
from tests.several_gpus import data
from tests.several_gpus.program import Array, Program, compiled

Devices = Sequence[jax.Device]


def has_kernels(devices: Devices) -> bool:
    return devices[0].platform in ("gpu", "cuda")


def assert_equal_bits(actual: Any, expected: Any, what: str) -> None:
    a, b = np.asarray(actual), np.asarray(expected)
    assert (a.shape, a.dtype) == (b.shape, b.dtype), what
    wrong = np.frombuffer(a.tobytes(), np.uint8) != np.frombuffer(b.tobytes(), np.uint8)
    assert not wrong.any(), f"{what}: {wrong.sum()} of {wrong.size} bytes differ"


def assert_exact(actual: Any, exact: np.ndarray, what: str) -> None:
    """NaNs fail: they equal nothing."""
    found = data.in_float64(actual)
    assert np.abs(exact).max() > 0, f"{what}: nothing but zeros"
    np.testing.assert_array_equal(found, exact, err_msg=what)
    assert found.shape == exact.shape


def exact_layer(block: str, x: Any, weights: Any, dims: Dims) -> np.ndarray:
    found = data.exact_mlp(x, weights) if block == "mlp" else data.exact_attention(x, weights, dims)
    return found["out"]


def kind_of_sums(devices: Devices, numbers: int) -> str:
    """What by default adds up so many of bfloat16 over all devices."""
    few = len(devices) <= _peer_sums.RUN_ON
    ours = few and has_kernels(devices) and not _core.why_no_peer_sum(list(range(len(devices))), "bfloat16", numbers)
    return PEER_SUM_TARGET if ours else "all-reduce"


def local_calls(block: str, count: int, dims: Dims, parts: int, quantised: bool) -> list[tuple[Array, Array, Array]]:
    """x, weights and result of each product of one device."""
    found = []
    for name, (k, n) in dims.shapes(block).items():
        k, n = (k // parts, n) if name in sl.ROW_SPLIT else (k, n // parts)
        tile = _core.PACKED_TILE_N * _core.PACKED_TILE_K // 2
        packed = Array("u8", (n // _core.PACKED_TILE_N, k // _core.PACKED_TILE_K, tile))
        weights = packed if quantised else Array("bf16", (k, n))
        found.append((Array("bf16", (count, k)), weights, Array("bf16", (count, n))))
    return sorted(found)


def check_tensor_parallel(
    devices: Devices, dims: Dims, block: str, count: int, partition: str, quantised: bool, *,
    in_float64: bool = True, split_tokens: bool = False,
) -> Program:  # fmt: skip
    """Bits of one device, exact numbers, one all-reduce and no other collective, products of the local sizes. With
    ``split_tokens`` x and the result have their rows split: x is gathered, and the sums are scattered.

    Args:
      in_float64: whether the host computes the exact numbers; without, one device does so, in float32.
    """
    with jax.default_device(devices[0]):
        x, dense = data.tokens(1, count, dims), data.dense_weights(2, block, dims)
        weights = data.quantized(dense) if quantised else dense
        alone = jax.jit(sl.whole_layer(block, dims, jaxgemm.matmul))(x, weights)
        if in_float64:
            assert_exact(alone, exact_layer(block, x, dense, dims), "one device against float64")
        else:
            product = functools.partial(jnp.matmul, precision="highest", preferred_element_type=jnp.float32)
            wide = jax.jit(sl.whole_layer(block, dims, product))(x, dense)
            assert_exact(alone, data.in_float64(wide), "one device against float32")
        assert jax.typeof(alone).dtype == jnp.bfloat16
    mesh = sl.make_mesh(devices, MODEL, partition)
    with jax.set_mesh(mesh):
        placed = sl.place(mesh, weights)
        tokens = jax.device_put(x, NamedSharding(mesh, P(MODEL if split_tokens else None, None)))
        made = sl.sequence_parallel if split_tokens else sl.tensor_parallel
        layer = made(block, dims, jaxgemm.matmul, mesh, partition)
        run, program = compiled(layer, tokens, placed)
        out = run(tokens, placed)
    moved, all_tokens = program.collectives(), count * dims.hidden
    if not split_tokens:
        kind = "all-reduce" if partition == "shard_map" else kind_of_sums(devices, all_tokens)
        assert moved == {kind: [all_tokens]}, "weights are moved, or sums more than once"
    elif partition == "explicit" and quantised:  # which have no out_sharding: XLA may make a reduce-scatter of it
        assert moved.pop("all-gather") == [all_tokens]
        assert moved in ({"all-reduce": [all_tokens]}, {"reduce-scatter": [all_tokens // len(devices)]}), moved
    else:
        assert moved == {"all-gather": [all_tokens], "reduce-scatter": [all_tokens // len(devices)]}
    if has_kernels(devices):
        calls = sorted((*call.operands[:2], call.out) for call in program.calls())
        assert calls == local_calls(block, count, dims, len(devices), quantised)
        targets = {call.target for call in program.calls()}
        assert targets == {"jaxgemm_mixed" if quantised else "jaxgemm_gemm"}
    assert len(out.addressable_shards) == len(devices)
    for shard in out.addressable_shards:
        assert_equal_bits(shard.data, alone[shard.index], f"{shard.device} against one device")
    assert all(shard.data.size == out.size // (len(devices) if split_tokens else 1) for shard in out.addressable_shards)
    return program


def check_quantize(devices: Devices, dims: Dims) -> None:
    """Weights that are quantised where they lie are those that one device quantises."""
    mesh = sl.make_mesh(devices, MODEL, "auto")
    with jax.default_device(devices[0]):
        dense = data.dense_weights(3, "mlp", dims)
        alone = data.quantized(dense)
    placements = {name: sl.shardings(mesh, w, sl.spec_of(name)) for name, w in alone.items()}
    ours = functools.partial(jaxgemm.quantize, bits=4, group_size=GROUP_SIZE)
    for name, w in sl.place(mesh, dense).items():
        found = jax.jit(ours, out_shardings=placements[name])(w)
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(alone[name]), strict=True):
            assert_equal_bits(a, b, name)


RATE = 2.0**-6


def _step_alone(devices: Devices, dims: Dims, count: int, in_float64: bool = True) -> tuple[Any, Any, Any, Any]:
    """x, factor, weights, and the step of one device, compared with float64 unless that would take too long."""
    with jax.default_device(devices[0]):
        x, factor = data.tokens(4, count, dims), data.factors(5, count, dims)
        weights = data.dense_weights(6, "mlp", dims, planted=False)
        mesh = sl.make_mesh(devices[:1], DATA, "auto")
        loss = sl.data_parallel_loss(sl.whole_layer("mlp", dims, jaxgemm.matmul), mesh, "auto")
        gradients = jax.jit(jax.grad(loss))(weights, x, factor)
        value, updated = jax.jit(sl.sgd_step(loss))(weights, x, factor, RATE)
    if not in_float64:
        return x, factor, weights, (value, updated)
    exact = data.exact_gradients(x, weights, factor)
    for name, gradient in gradients.items():
        assert_exact(gradient, exact[name], f"gradient of {name}")
        stepped = data.in_float64(weights[name]) - RATE * exact[name]
        assert_exact(updated[name], data.in_float64(jnp.asarray(stepped, jnp.bfloat16)), f"updated {name}")
    out = data.exact_mlp(x, weights)["out"]
    assert_exact(value, (out * data.in_float64(factor)).sum(), "loss")
    return x, factor, weights, (value, updated)


def check_data_parallel(
    devices: Devices, dims: Dims, count: int, partition: str, *, runs: int = 1, in_float64: bool = True
) -> Program:
    """Tokens are split and gradients added up: the same weights on every device, and those of one device, run after
    run. GPUs multiply while they exchange the first gradients, on another stream.
    """
    x, factor, weights, (value, updated) = _step_alone(devices, dims, count, in_float64)
    mesh = sl.make_mesh(devices, DATA, partition)
    with jax.set_mesh(mesh):
        split, whole = NamedSharding(mesh, P(DATA, None)), NamedSharding(mesh, P(None, None))
        operands = jax.device_put(weights, whole), jax.device_put(x, split), jax.device_put(factor, split)
        step = sl.sgd_step(sl.data_parallel_loss(sl.whole_layer("mlp", dims, jaxgemm.matmul), mesh, partition))
        run, program = compiled(step, *operands, RATE)
        steps = [run(*operands, RATE) for _ in range(runs)]
    for found_value, found in steps:
        assert_equal_bits(found_value, value, "loss")
        for name, w in found.items():
            for shard in w.addressable_shards:
                assert_equal_bits(shard.data, updated[name], f"{name} on {shard.device}")
    assert not has_kernels(devices) or program.overlapped() > 0, "nothing is multiplied while gradients are exchanged"
    reduced = program.collectives()
    sizes = sorted([1, *(w.size for w in weights.values())])
    assert reduced.keys() == {"all-reduce"}, reduced
    assert sorted(reduced["all-reduce"]) == sizes, "something else than gradients and the loss is added up"
    _check_training_calls(devices, dims, count, program)
    return program


def check_fully_sharded(devices: Devices, dims: Dims, count: int, partition: str) -> None:
    """Weights have their rows split by the axis of the tokens, and are gathered for a product; so are new ones."""
    x, factor, weights, (value, updated) = _step_alone(devices, dims, count)
    mesh = sl.make_mesh(devices, DATA, partition)
    gathered = sl.whole_layer("mlp", dims, jaxgemm.matmul)

    def layer(x: Any, weights: Any) -> Any:
        if partition == "explicit":
            weights = {name: jax.reshard(w, P(None, None)) for name, w in weights.items()}
        if partition == "shard_map":
            weights = {name: jax.lax.all_gather(w, DATA, axis=0, tiled=True) for name, w in weights.items()}
        return gathered(x, weights)

    def local(weights: Any, x: Any, factor: Any) -> Any:
        inner = sl.data_parallel_loss(layer, mesh, "auto")
        return jax.lax.psum(inner(weights, x, factor), DATA)

    loss = sl.data_parallel_loss(layer, mesh, "auto")
    if partition == "shard_map":
        loss = jax.shard_map(local, mesh=mesh, in_specs=(P(DATA, None),) * 3, out_specs=P())
    with jax.set_mesh(mesh):
        split = NamedSharding(mesh, P(DATA, None))
        operands = jax.device_put((weights, x, factor), split)
        step = jax.jit(sl.sgd_step(loss), out_shardings=(NamedSharding(mesh, P()), split))
        run, program = compiled(step, *operands, RATE)
        found_value, found = run(*operands, RATE)
    moved = program.collectives()
    assert sorted(moved["all-gather"])[-1] == dims.hidden * dims.intermediate, "weights are not gathered"
    assert_equal_bits(found_value, value, "loss")
    for name, w in found.items():
        assert w.sharding.is_equivalent_to(split, 2), f"{name} is {w.sharding}"
        assert_equal_bits(w, updated[name], name)
    if partition != "auto":  # there XLA may split rows of a gradient, and gather tokens, as with its own products
        _check_training_calls(devices, dims, count, program)
    elif has_kernels(devices):
        assert len(program.calls()) == 7, "not every product is ours"


def _check_training_calls(devices: Devices, dims: Dims, count: int, program: Program) -> None:
    """Seven products: three, and for their gradients by weights three and by the hidden numbers one."""
    if not has_kernels(devices):
        return
    local = count // len(devices)
    tokens, hidden = (dims.hidden, local), (dims.intermediate, local)
    weights = dims.hidden, dims.intermediate

    def unordered(shapes: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return sorted(tuple(sorted(shape)) for shape in shapes)  # an operand may come transposed

    found = [unordered([array.shape for array in (*call.operands[:2], call.out)]) for call in program.calls()]
    assert found == [unordered((tokens, hidden, weights))] * 7
