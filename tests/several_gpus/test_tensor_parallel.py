"""The MLP and the projections of Llama-3-70B, split over all GPUs: the bits of one GPU, and one all-reduce."""

from __future__ import annotations

import jax
import pytest

from benchmarks.sharded_layers import BLOCKS, LLAMA_70B, PARTITIONS, Dims
from tests.several_gpus.checks import check_quantize, check_tensor_parallel

pytestmark = pytest.mark.several_gpus

REDUCED = Dims(hidden=2048, intermediate=7168, heads=16, kv_heads=8)
"""Each part of up to eight is whole tiles of the packed codes, and whole groups."""
every_partition = pytest.mark.parametrize("partition", PARTITIONS)
every_block = pytest.mark.parametrize("block", BLOCKS)
every_form = pytest.mark.parametrize("quantised", [False, True], ids=["bfloat16", "int4"])


@every_form
@every_partition
@every_block
@pytest.mark.parametrize("count", [2, 515])
def test_reduced_sizes(devices: list[jax.Device], block: str, count: int, partition: str, quantised: bool) -> None:
    check_tensor_parallel(devices, REDUCED, block, count, partition, quantised)


@every_form
@every_partition
@every_block
def test_tokens_that_are_split_between_blocks(
    devices: list[jax.Device], block: str, partition: str, quantised: bool
) -> None:
    check_tensor_parallel(devices, REDUCED, block, 64 * len(devices), partition, quantised, split_tokens=True)


@every_form
@every_partition
@every_block
def test_full_sizes(devices: list[jax.Device], block: str, partition: str, quantised: bool) -> None:
    check_tensor_parallel(devices, LLAMA_70B, block, 64, partition, quantised, in_float64=False)


def test_quantising_in_place(devices: list[jax.Device]) -> None:
    check_quantize(devices, REDUCED)
