"""Every GPU gives the same bits, alone and while threads use all of them at once."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.several_gpus.each import CASES, Case, check_same_bits, check_threads

pytestmark = pytest.mark.several_gpus


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_same_bits_on_every_gpu(devices: list[jax.Device], case: Case, rng: np.random.Generator) -> None:
    check_same_bits(devices, case, rng)


def test_threads_with_a_gpu_each(devices: list[jax.Device], rng: np.random.Generator) -> None:
    check_threads(devices, CASES, rng)
