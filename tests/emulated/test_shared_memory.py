"""cuda/registry.cc: no kernel runs on a GPU whose CTAs have less shared memory than it needs."""

from __future__ import annotations

import pytest

from tests.emulator.library import Emulator
from tests.gpu_limits import MAX_SMEM_BYTES


@pytest.mark.parametrize(("sm", "limit"), MAX_SMEM_BYTES.items())
def test_the_limit_of_each_gpu(sm: int, limit: int, emulated: Emulator) -> None:
    assert not emulated.why_not(limit, sm)
    assert emulated.why_not(limit + 1, sm) == f"needs {limit + 1} bytes of shared memory per CTA, sm_{sm} has {limit}"


@pytest.mark.parametrize("sm", [88, 130])
def test_an_unknown_gpu_has_the_least(sm: int, emulated: Emulator) -> None:
    limit = min(MAX_SMEM_BYTES.values())
    assert not emulated.why_not(limit, sm)
    assert emulated.why_not(limit + 1, sm)
