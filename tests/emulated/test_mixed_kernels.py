"""Every kernel of quantised weights at the edges of its tile, in the emulator: exact sums, and nothing found."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxgemm._native import _core
from tests.emulated.mixed import SEED, by_tma, fault, run, splits_of, trials, usual_trials, weights_of
from tests.emulator.library import Emulator, Schedule
from tests.quantised import mixed_error_ratio, rounding_of, streams
from tests.values import rounded

MIXED = _core.mixed_kernels()
IDS = [info.name for info in MIXED]


@pytest.mark.parametrize(
    ("info", "index"),
    [(info, i) for info in MIXED for i in range(len(trials(info)))],
    ids=[f"{info.name}-{i}" for info in MIXED for i in range(len(trials(info)))],
)
def test_exact_sums(emulated: Emulator, info: Any, index: int) -> None:
    assert not fault(emulated, info, index)


def test_trials_cover_what_there_is() -> None:
    """All groups and zero points that a kernel takes, of each kernel with each dtype."""
    for info in MIXED:
        assert any(streams(split) for *_, split in trials(info)) == info.stream_k
        listed = usual_trials(info)
        assert {group % 10**6 == 0 for _, group, *_ in listed} == {True, False}
        assert len({group for _, group, *_ in listed}) >= 4
        assert len({(kind, dtype) for _, _, kind, dtype, _ in listed}) == (4 if by_tma(info) else 6)
        assert {split for *_, split in listed} == {(0, n) for n in (1, *splits_of(info))}


@pytest.mark.parametrize("info", MIXED, ids=IDS)
def test_epilogue(emulated: Emulator, info: Any) -> None:
    tile_m, tile_n, tile_k = info.cta_tile
    m, n, k = tile_m + 1, tile_n + 8, tile_k + 8
    rng = np.random.default_rng(SEED)
    for shared, (split, out_dtype) in itertools.product(
        (True, False), itertools.product(sorted({(0, 1), (0, splits_of(info)[-1])}), ("float32", "bfloat16"))
    ):
        batch = 1 if shared else 2
        weights = weights_of((batch, k, n), 128, "middle", "bfloat16")
        x = rounded(rng.integers(-4, 5, (batch, m, k)), "bfloat16")
        bias = rounded(rng.integers(-64, 65, n if shared else (batch, n)), "bfloat16")
        products = x.astype(np.float64) @ weights.dense()
        exact = np.maximum(0.5 * products + bias.reshape(batch, 1, n).astype(np.float64), 0)
        out, found = run(
            emulated, info, x, weights, out_dtype, split, Schedule(), alpha=0.5, bias=bias, activation="relu"
        )
        assert not found
        assert (out == rounded(exact, out_dtype)).all()


@pytest.mark.parametrize("info", MIXED, ids=IDS)
def test_no_k_is_the_epilogue_of_zero(emulated: Emulator, info: Any) -> None:
    weights = weights_of((1, 0, 8), 128, "middle", "bfloat16")
    bias = np.arange(8, dtype=np.float32)
    out, found = run(
        emulated, info, rounded(np.zeros((1, 2, 0)), "float16"), weights, "float16", None, Schedule(), bias=bias
    )
    assert not found
    assert (out == bias.astype(np.float16)).all()


@pytest.mark.parametrize("info", MIXED, ids=IDS)
def test_nan_stays_in_its_row_or_column(emulated: Emulator, info: Any) -> None:
    """A NaN of a token reaches that token alone; of a scale, its column alone."""
    tile_m, tile_n, tile_k = info.cta_tile
    m, n, k = tile_m, tile_n - _core.PACKED_TILE_N, tile_k
    n = max(n, _core.PACKED_TILE_N)
    weights = weights_of((1, k, n), 128, "integer", "bfloat16")
    weights.scales[0, -1, n // 2] = np.nan
    x = rounded(np.ones((1, m, k)), "bfloat16")
    x[0, m // 2, 5] = np.nan
    out, found = run(emulated, info, x, weights, "float32", None, Schedule())
    assert not found
    expected = np.zeros((m, n), bool)
    expected[m // 2], expected[:, n // 2] = True, True
    assert (np.isnan(out[0]) == expected).all()


@pytest.mark.parametrize(
    ("info", "group_size"),
    [
        pytest.param(info, group_size, id=f"{info.name}-{group_size}")
        for info in MIXED
        for group_size in (32, 64, 128)
        if group_size % info.group_multiple == 0
    ],
)
def test_scales_of_any_size(emulated: Emulator, info: Any, group_size: int) -> None:
    """bfloat16 has the exponents of float32: scales of 0, subnormal and near both ends, side by side in a tile."""
    n, k = 2 * info.cta_tile[1], 256
    weights = weights_of((1, k, n), group_size, "middle", "bfloat16")
    patterns = np.array([0x3FFF, 0x4000, 0x0001, 0x0080, 0x5F00, 0xBFFF, 0xC000, 0x0000, 0x3C01], np.uint16)
    sizes = patterns.view(weights.scales.dtype)
    weights.scales[...] = np.random.default_rng(SEED).choice(sizes, weights.scales.shape)
    x = rounded(np.random.default_rng(SEED).integers(-4, 5, (1, 3, k)), "bfloat16")
    out, found = run(emulated, info, x, weights, "float32", None, Schedule())
    assert not found
    assert mixed_error_ratio(out, x, weights, rounding_of(info, "bfloat16", weights)) <= 1


def test_zero_points_beyond_the_most_count_as_it(emulated: Emulator) -> None:
    info = MIXED[0]
    weights = weights_of((1, 128, 8), 128, "integer", "float32")
    assert weights.zeros is not None
    weights.zeros[...] = np.arange(_core.MOST_ZERO - 3, _core.MOST_ZERO + 5)
    x = rounded(np.ones((1, 1, 128)), "bfloat16")
    out, found = run(emulated, info, x, weights, "float32", None, Schedule())
    assert not found
    capped = replace(weights, zeros=np.minimum(weights.zeros, _core.MOST_ZERO))
    assert (out == x.astype(np.float64) @ capped.dense()).all()


def test_kernels_are_those_of_the_registry(emulated: Emulator) -> None:
    assert list(emulated.mixed_kernels) == IDS
    for info in MIXED:
        ours = emulated.mixed_kernels[info.name]
        shape = ("family", "cta_tile", "stages", "threads")
        for attribute in (*shape, "bits", "group_multiple", "split_k", "stream_k", "dtypes"):
            value = getattr(info, attribute)
            assert getattr(ours, attribute) == (tuple(value) if isinstance(value, list | tuple) else value)
