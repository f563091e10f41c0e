"""Every kernel of quantised weights at the edges of its tile, in the emulator: exact sums, and nothing found."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from jaxgemm import _packing
from jaxgemm._native import _core
from tests.emulator.library import Codes, Emulator, KernelInfo, Operand, Schedule
from tests.values import nan_bytes, rounded

MIXED = _core.mixed_kernels()
IDS = [info.name for info in MIXED]
SEED = 7


@dataclass(frozen=True)
class Weights:
    """Random codes of a matrix whose scales are powers of two: sums of their products with small integers are exact."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    group_size: int
    bits: int

    @classmethod
    def random(cls, shape: tuple[int, int, int], group_size: int, kind: str, dtype: str, bits: int) -> Weights:
        batch, k, n = shape
        rng = np.random.default_rng([SEED, k, n, group_size])
        groups = (batch, -(-k // group_size), n)
        scales = rounded(np.exp2(rng.integers(-2, 3, groups)), dtype)
        zeros = rng.integers(0, 2**bits + 1, groups, np.uint8) if kind == "integer" else None
        return cls(rng.integers(0, 2**bits, shape, np.uint8), scales, zeros, group_size, bits)

    def dense(self) -> np.ndarray:
        """The matrices, in float64."""
        k = self.codes.shape[1]

        def rows(x: np.ndarray) -> np.ndarray:
            return np.repeat(x.astype(np.float64), self.group_size, axis=1)[:, :k]

        zeros = 2.0 ** (self.bits - 1) if self.zeros is None else rows(self.zeros)
        return (self.codes - zeros) * rows(self.scales)

    def packed(self) -> np.ndarray:
        return np.array(_packing.pack(self.codes, self.bits, 2 ** (self.bits - 1)))


def run(
    emulated: Emulator, info: KernelInfo, x: np.ndarray, weights: Weights, out_dtype: str,
    split: tuple[int, int] | None, schedule: Schedule, **epilogue: Any,
) -> tuple[np.ndarray, str]:  # fmt: skip
    """The product of x (batch, M, K), and what was found."""
    batch, m, k = x.shape
    n = weights.codes.shape[2]
    out = nan_bytes((batch * m * n,), np.dtype(out_dtype))
    packed = weights.packed()
    ran = emulated.run(
        info.name, Operand(x.reshape(-1), m, k, k, m * k), Operand(packed.reshape(-1), k, n, n, k * n),
        Operand(out, m, n, n, m * n), batch, split=split, schedule=schedule,
        codes=Codes(weights.bits, weights.group_size, weights.scales, weights.zeros), **epilogue,
    )  # fmt: skip
    return out.reshape(batch, m, n), str(ran)


def trials(info: Any) -> list[tuple[tuple[int, int, int, int], int, str, str, tuple[int, int] | None]]:
    """(batch, M, N, K), group size, zero points, dtype of scales, split: each value with some others."""
    tile_m, tile_n, tile_k = info.cta_tile
    unit = 2 * _core.PACKED_TILE_K
    ms = (1, tile_m, tile_m + 1, max(1, tile_m - 3))
    ns = (tile_n, tile_n + 5, 3, tile_n + _core.PACKED_TILE_N)
    if info.tma:  # which wants rows of whole vectors of scales and zero points
        ns = (tile_n, tile_n + 16, 16, tile_n + 3 * _core.PACKED_TILE_N)
    ks = (tile_k, unit + 8, tile_k + unit + _core.PACKED_TILE_K, 37, 3 * unit - 24)
    groups = [g for g in (32, 64, 128, 256, 96) if g % info.group_multiple == 0 and not (info.tma and g == 96)] + [
        10**6
    ]
    kinds, dtypes = ("middle", "integer"), ("bfloat16", "float16", "bfloat16" if info.tma else "float32")
    rng = np.random.default_rng(SEED)
    found = []
    for i, (m, k) in enumerate(itertools.product(ms, ks)):
        batch = 2 if i % 5 == 4 else 1
        split = (0, 2) if i % 3 == 2 and k > tile_k else (0, 1)
        found.append(
            (
                (batch, m, ns[(i + i // len(ks)) % len(ns)], k),
                int(rng.choice(groups)),
                kinds[i % 2],
                dtypes[i % 3],
                split,
            )
        )
    return found


@pytest.mark.parametrize("index", range(20))
@pytest.mark.parametrize("info", MIXED, ids=IDS)
def test_exact_sums(emulated: Emulator, info: Any, index: int) -> None:
    (batch, m, n, k), group, kind, scale_dtype, split = trials(info)[index]
    dtype, out_dtype = info.dtypes[index % len(info.dtypes)][::2]
    weights = Weights.random((batch, k, n), group, kind, scale_dtype, info.bits)
    rng = np.random.default_rng([SEED, index])
    x = rounded(rng.integers(-4, 5, (batch, m, k)), dtype)
    out, found = run(emulated, info, x, weights, out_dtype, split, Schedule(index))
    assert not found
    expected = rounded(x.astype(np.float64) @ weights.dense() + 0.0, out_dtype)
    wrong = np.argwhere(~(out == expected))
    assert not wrong.size, f"{len(wrong)} of {out.size} wrong, first at {wrong[0]}, last at {wrong[-1]}"


def test_trials_cover_what_there_is() -> None:
    """All groups and zero points that a kernel takes, of each kernel with each dtype."""
    for info in MIXED:
        listed = trials(info)
        assert len(listed) == 20
        assert {group % 10**6 == 0 for _, group, *_ in listed} == {True, False}
        assert len({group for _, group, *_ in listed}) >= 4
        assert len({(kind, dtype) for _, _, kind, dtype, _ in listed}) == (4 if info.tma else 6)
        assert {split for *_, split in listed} == {(0, 1), (0, 2)}


@pytest.mark.parametrize("info", MIXED, ids=IDS)
def test_epilogue(emulated: Emulator, info: Any) -> None:
    tile_m, tile_n, tile_k = info.cta_tile
    m, n, k = tile_m + 1, tile_n + 8, tile_k + 8
    weights = Weights.random((1, k, n), 128, "middle", "bfloat16", info.bits)
    rng = np.random.default_rng(SEED)
    x = rounded(rng.integers(-4, 5, (1, m, k)), "bfloat16")
    bias = rounded(rng.integers(-64, 65, n), "bfloat16")
    for split in ((0, 1), (0, 2)):
        out, found = run(
            emulated, info, x, weights, "float32", split, Schedule(), alpha=0.5, bias=bias, activation="relu"
        )
        assert not found
        expected = np.maximum(0.5 * (x.astype(np.float64) @ weights.dense()) + bias.astype(np.float64), 0)
        assert (out == expected).all()


@pytest.mark.parametrize("info", MIXED, ids=IDS)
def test_no_k_is_the_epilogue_of_zero(emulated: Emulator, info: Any) -> None:
    weights = Weights.random((1, 0, 8), 128, "middle", "bfloat16", info.bits)
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
    weights = Weights.random((1, k, n), 128, "integer", "bfloat16", info.bits)
    weights.scales[0, -1, n // 2] = np.nan
    x = rounded(np.ones((1, m, k)), "bfloat16")
    x[0, m // 2, 5] = np.nan
    out, found = run(emulated, info, x, weights, "float32", None, Schedule())
    assert not found
    expected = np.zeros((m, n), bool)
    expected[m // 2], expected[:, n // 2] = True, True
    assert (np.isnan(out[0]) == expected).all()


def test_zero_points_beyond_the_most_count_as_it(emulated: Emulator) -> None:
    info = MIXED[0]
    weights = Weights.random((1, 128, 8), 128, "integer", "float32", info.bits)
    assert weights.zeros is not None
    weights.zeros[...] = np.arange(_core.MOST_ZERO - 3, _core.MOST_ZERO + 5)
    x = rounded(np.ones((1, 1, 128)), "bfloat16")
    out, found = run(emulated, info, x, weights, "float32", None, Schedule())
    assert not found
    capped = Weights(weights.codes, weights.scales, np.minimum(weights.zeros, _core.MOST_ZERO), 128, info.bits)
    assert (out == x.astype(np.float64) @ capped.dense()).all()


def test_kernels_are_those_of_the_registry(emulated: Emulator) -> None:
    assert list(emulated.mixed_kernels) == IDS
    for info in MIXED:
        ours = emulated.mixed_kernels[info.name]
        for attribute in ("family", "cta_tile", "stages", "threads", "bits", "group_multiple", "dtypes"):
            value = getattr(info, attribute)
            assert getattr(ours, attribute) == (tuple(value) if isinstance(value, list | tuple) else value)
