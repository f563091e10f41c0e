"""The checks of tests/several_gpus, on two and four of the CPU's devices, and that they find what they look for."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from benchmarks import sharded_layers as sl
from benchmarks.sharded_layers import BLOCKS, MODEL, PARTITIONS, Dims
from tests.several_gpus import checks
from tests.several_gpus.each import CASES, Case, check_same_bits, check_threads
from tests.several_gpus.program import Array, Call, Program, compiled

SMALL = Dims(hidden=1024, intermediate=2048, heads=8, kv_heads=4)
every_partition = pytest.mark.parametrize("partition", PARTITIONS)
every_form = pytest.mark.parametrize("quantised", [False, True], ids=["bfloat16", "int4"])


@pytest.fixture(params=[2, 4])
def devices(request: pytest.FixtureRequest) -> list[jax.Device]:
    return jax.devices("cpu")[: request.param]


@every_form
@every_partition
@pytest.mark.parametrize("block", BLOCKS)
def test_tensor_parallel(devices: list[jax.Device], block: str, partition: str, quantised: bool) -> None:
    checks.check_tensor_parallel(devices, SMALL, block, 12, partition, quantised)


@every_form
@every_partition
@pytest.mark.parametrize("block", BLOCKS)
def test_sequence_parallel(devices: list[jax.Device], block: str, partition: str, quantised: bool) -> None:
    checks.check_tensor_parallel(devices, SMALL, block, 12, partition, quantised, split_tokens=True)


def test_exact_numbers_of_one_device_do_in_place_of_float64(devices: list[jax.Device]) -> None:
    checks.check_tensor_parallel(devices, SMALL, "mlp", 12, "auto", quantised=True, in_float64=False)
    checks.check_data_parallel(devices, SMALL, 64, "auto", runs=2, in_float64=False)


def test_quantising_in_place(devices: list[jax.Device]) -> None:
    checks.check_quantize(devices, SMALL)


@every_partition
def test_training(devices: list[jax.Device], partition: str) -> None:
    checks.check_data_parallel(devices, SMALL, 64, partition)
    checks.check_fully_sharded(devices, SMALL, 64, partition)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_same_bits(devices: list[jax.Device], case: Case, rng: np.random.Generator) -> None:
    check_same_bits(devices, case, rng)


def test_threads(devices: list[jax.Device], rng: np.random.Generator) -> None:
    check_threads(devices, CASES[:2], rng, calls=3)


# Each defect is one that the check is there for.


def check_mlp_with(monkeypatch: pytest.MonkeyPatch, layer: Any, message: str) -> None:
    monkeypatch.setattr(sl, "tensor_parallel", lambda *args: layer(*args))
    with pytest.raises(AssertionError, match=message):
        checks.check_tensor_parallel(jax.devices("cpu")[:2], SMALL, "mlp", 12, "shard_map", quantised=False)


def test_sums_of_one_device_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the devices counts twice."""
    psum = lax.psum

    def wrong(x: Any, axis: str) -> Any:
        return psum(x * (1 - lax.axis_index(axis)) * 2, axis).astype(x.dtype)

    monkeypatch.setattr(lax, "psum", wrong)
    check_mlp_with(monkeypatch, sl.tensor_parallel, "bytes differ")


def test_gathered_weights_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def gathered(block: str, dims: Dims, product: Any, mesh: Any, partition: str) -> Any:
        whole = sl.whole_layer(block, dims, product)

        def layer(x: Any, weights: Any) -> Any:
            everywhere = NamedSharding(mesh, P())
            return whole(x, {name: lax.with_sharding_constraint(w, everywhere) for name, w in weights.items()})

        return layer

    check_mlp_with(monkeypatch, gathered, "weights are moved")


def test_another_rounding_is_found() -> None:
    """A NaN, and one number that is not the exact one."""
    exact = np.array([[1.0, 2.0], [3.0, 4.0]])
    checks.assert_exact(jnp.asarray(exact), exact, "equal")
    for wrong in (float("nan"), 3.0000002):
        with pytest.raises(AssertionError, match="one number"):
            checks.assert_exact(jnp.asarray(exact).at[1, 0].set(wrong), exact, "one number")
    with pytest.raises(AssertionError, match="nothing but zeros"):
        checks.assert_exact(jnp.zeros(3), np.zeros(3), "zeros")
    with pytest.raises(AssertionError, match="1 of 8 bytes differ"):
        checks.assert_equal_bits(np.float32([0.0, 1.0]), np.float32([-0.0, 1.0]), "zeros")


def test_collectives_of_a_program_are_counted() -> None:
    mesh = sl.make_mesh(jax.devices("cpu")[:2], MODEL, "auto")
    x = jax.device_put(jnp.ones((4, 6)), NamedSharding(mesh, P(MODEL, None)))
    _, program = compiled(lambda x: lax.with_sharding_constraint(x, NamedSharding(mesh, P())), x)
    assert program.collectives() == {"all-gather": [24]}
    started = """
  %all-reduce-start.1 = ((bf16[16,8]{1,0}, f32[]), (bf16[16,8]{1,0}, f32[])) all-reduce-start(%a, %b)
  %all-reduce-done.1 = (bf16[16,8]{1,0}, f32[]) all-reduce-done(%all-reduce-start.1)
  ROOT %all-to-all.3 = u8[4,2]{1,0} all-to-all(%all-reduce-done.1)"""
    assert Program(started).collectives() == {"all-reduce": [128, 1], "all-to-all": [8]}


def test_tiles_that_are_taken_are_found() -> None:
    calls = [f"split = dense<[{whole}, {splits}]> : tensor<2xi64>" for whole, splits in ((0, 1), (0, 12), (66, 1))]
    assert [Program(call).takes_tiles() for call in calls] == [False, False, True]


def test_calls_during_a_collective_are_counted() -> None:
    call = 'custom-call(%a), custom_call_target="jaxgemm_gemm"'
    lines = [
        "all-reduce(%a)", call, "all-reduce-start(%a)", "fusion(%a)", "all-gather-start(%a)", call,
        "all-reduce-done(%a)", call, 'custom-call(%a), custom_call_target="other"', "all-gather-done(%a)", call,
    ]  # fmt: skip
    text = "\n".join(f"  %n{i} = bf16[8]{{0}} {line}" for i, line in enumerate(lines))
    assert Program(text).overlapped() == 2


@pytest.mark.parametrize("typed", ["", "bf16[64,512]{1,0} "])
def test_calls_of_a_program_are_read(typed: str) -> None:
    """As XLA writes them for GPUs: names with or without types, results alone or with a workspace."""
    text = f"""
  %x.1 = bf16[64,512]{{1,0}} parameter(0)
  %w = (u8[32,8,512]{{2,1,0}}, bf16[1,4,512]{{2,1,0}}) parameter(1)
  %packed = u8[1,32,8,512]{{3,2,1,0}} bitcast(%w)
  ROOT %c.2 = (bf16[1,64,512]{{2,1,0}}, u8[128]{{0}}) custom-call({typed}%x.1, %packed), \
custom_call_target="jaxgemm_mixed", backend_config={{a = "(%x.1)"}}
  %other = f32[2]{{0}} custom-call(%x.1), custom_call_target="other"
"""
    expected = Call("jaxgemm_mixed", [Array("bf16", (64, 512)), Array("u8", (32, 8, 512))], Array("bf16", (64, 512)))
    assert Program(text).calls() == [expected]


@every_form
@pytest.mark.parametrize("block", BLOCKS)
def test_local_calls_are_those_that_are_lowered_for_cuda(block: str, quantised: bool) -> None:
    parts = 2
    mesh = sl.make_mesh(jax.devices("cpu")[:parts], MODEL, "shard_map")
    weights: dict[str, Any] = {
        name: jax.ShapeDtypeStruct(shape, jnp.bfloat16) for name, shape in SMALL.shapes(block).items()
    }
    if quantised:
        quantize = functools.partial(jaxgemm.quantize, bits=4, group_size=128)
        weights = {name: jax.eval_shape(quantize, w) for name, w in weights.items()}
    placed = {
        name: jax.tree.map(
            lambda a, s: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s), w, sl.shardings(mesh, w, sl.spec_of(name))
        )
        for name, w in weights.items()
    }
    x = jax.ShapeDtypeStruct((12, SMALL.hidden), jnp.bfloat16, sharding=NamedSharding(mesh, P()))
    layer = sl.tensor_parallel(block, SMALL, jaxgemm.matmul, mesh, "shard_map")
    lowered = jax.jit(layer).trace(x, placed).lower(lowering_platforms=("cuda",))
    module = lowered.compiler_ir("hlo")
    assert module is not None
    calls = [(*call.operands[:2], call.out) for call in Program(module.as_hlo_text()).calls()]
    assert sorted(calls) == checks.local_calls(block, 12, SMALL, parts, quantised)
