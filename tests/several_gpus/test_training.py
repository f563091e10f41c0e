"""A training step of an MLP over all GPUs: with weights on each of them, and with weights split over them."""

from __future__ import annotations

import jax
import pytest

from benchmarks.sharded_layers import LLAMA_70B, PARTITIONS
from tests.several_gpus.checks import check_data_parallel, check_fully_sharded
from tests.several_gpus.test_tensor_parallel import REDUCED

pytestmark = pytest.mark.several_gpus

TOKENS = 256
every_partition = pytest.mark.parametrize("partition", PARTITIONS)


@every_partition
def test_weights_on_every_gpu(devices: list[jax.Device], partition: str) -> None:
    check_data_parallel(devices, REDUCED, TOKENS, partition, runs=10)


def test_full_sizes(devices: list[jax.Device]) -> None:
    """So long that collectives take multiprocessors from kernels, whose tiles are then taken by the other CTAs."""
    program = check_data_parallel(devices, LLAMA_70B, 2048, "auto", runs=3, in_float64=False)
    assert program.takes_tiles()


@every_partition
def test_weights_split_over_the_gpus(devices: list[jax.Device], partition: str) -> None:
    check_fully_sharded(devices, REDUCED, TOKENS, partition)
