"""Kernels of quantised weights whose CTAs share the K of all tiles without being clusters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._native import _core
from tests.gpu.mixed import MIXED, MixedCase, raw_mixed_call, split_results
from tests.gpu.support import poison_free_memory
from tests.quantised import mixed_error_ratio, rounding_of, streams
from tests.values import nan_bytes

pytestmark = pytest.mark.gpu

DTYPE = "bfloat16"
STREAMS = [info for info in MIXED if info.stream_k]
_RUNS = 20


@pytest.mark.parametrize("split", [(0, 128), (3, 61), (0, 9)], ids=str)
@pytest.mark.parametrize("info", STREAMS, ids=[info.name for info in STREAMS])
def test_same_bits_run_after_run(info: Any, split: tuple[int, int], rng: np.random.Generator) -> None:
    """Whichever CTA begins first, with other work on the GPU before and after; tiles of two parts and of many."""
    tile_m, tile_n, tile_k = info.cta_tile
    case = MixedCase(tile_m + 1, 5 * tile_n, 30 * tile_k, out=DTYPE)
    x, weights = case.draw(rng, DTYPE)
    operands = jax.device_put((x[None], weights.alone().matrix()))
    results = split_results(info.name, case, DTYPE, split)

    def run(operands: Any, poison: Any) -> list[jax.Array]:
        return raw_mixed_call(results, *operands, info.name, split)

    gemm = jax.jit(run, donate_argnums=1, keep_unused=True)
    noise = jnp.ones((2048, 2048), jnp.float32)
    poison_free_memory()
    outs = []
    for i in range(_RUNS):
        noise = noise @ noise * 1e-4 + i
        outs.append(gemm(operands, jax.device_put([nan_bytes(result.shape, result.dtype) for result in results]))[0])
    first = np.asarray(outs[0])
    ratio = mixed_error_ratio(first[0], x, weights, rounding_of(info, DTYPE, weights))
    assert ratio <= 1, f"error {ratio:.3g} times its bound"
    assert all(np.asarray(out).tobytes() == first.tobytes() for out in outs)


@pytest.mark.parametrize("m", [128, 200])
def test_what_is_chosen_is_exact(m: int, rng: np.random.Generator) -> None:
    """At a size of real weights; XLA multiplies the same integers in float32, in which all sums are exact."""
    case = MixedCase(m, 10240, 8192, out="float32")
    chosen = _core.select(case.problem(DTYPE))
    assert streams(_core.k_split(chosen, case.problem(DTYPE))), chosen
    x, weights = case.draw(rng, DTYPE, exact=True)
    matrix = jax.device_put(weights.matrix())
    out = jax.jit(lambda x, matrix: jaxgemm.matmul(x, matrix, preferred_element_type=np.float32))(x, matrix)
    wide = jax.device_put((x.astype(np.float32), weights.dense().astype(np.float32)))
    expected = jax.jit(lambda x, y: jnp.matmul(x, y, precision="highest"))(*wide)
    assert np.array_equal(np.asarray(out), np.asarray(expected))
