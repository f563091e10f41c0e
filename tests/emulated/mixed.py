"""Quantised weights and products with them to try on the emulator."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from jaxgemm._native import _core
from tests.emulator.library import Codes, Emulator, KernelInfo, Operand, Schedule
from tests.quantised import Weights, pack, streams
from tests.values import nan_bytes, rounded

SEED = 7
CLUSTER_SPLITS = (3, 2)
"""CTAs of a cluster: three that share four tiles have parts of two each, one of which waits for the other."""
Trial = tuple[tuple[int, int, int, int], int, str, str, tuple[int, int]]
"""(batch, M, N, K), group size, zero points, dtype of scales, split."""


def by_tma(info: Any) -> bool:
    """Whether TMA brings scales and zero points, which takes fewer kinds of them."""
    return info.min_sm >= 90


def splits_of(info: Any) -> tuple[int, ...]:
    """How many CTAs share K, beside one."""
    if not info.split_k:
        return (1,)
    return CLUSTER_SPLITS if by_tma(info) else (2,)


def weights_of(shape: tuple[int, int, int], group_size: int, kind: str, dtype: str) -> Weights:
    """Random ones: sums of their products with small integers are exact."""
    return Weights.random(np.random.default_rng([SEED, *shape, group_size]), shape, group_size, kind, dtype, exact=True)


def run(
    emulated: Emulator, info: KernelInfo, x: np.ndarray, weights: Weights, out_dtype: str,
    split: tuple[int, int] | None, schedule: Schedule, **epilogue: Any,
) -> tuple[np.ndarray, str]:  # fmt: skip
    """The product of x (batch, M, K), and what was found."""
    batch, m, k = x.shape
    n = weights.n
    out = nan_bytes((batch * m * n,), np.dtype(out_dtype))
    packed = pack(weights.codes)
    ran = emulated.run(
        info.name, Operand(x.reshape(-1), m, k, k, m * k), Operand(packed.reshape(-1), k, n, n, k * n),
        Operand(out, m, n, n, m * n), batch, split=split, schedule=schedule,
        codes=Codes(weights.bits, weights.group_size, weights.scales, weights.zeros), **epilogue,
    )  # fmt: skip
    return out.reshape(batch, m, n), str(ran)


def trials(info: Any) -> list[Trial]:
    """All of a kernel."""
    return usual_trials(info) + (stream_trials(info) if info.stream_k else [])


def usual_trials(info: Any) -> list[Trial]:
    """Each value with some others."""
    tile_m, tile_n, tile_k = info.cta_tile
    unit = 2 * _core.PACKED_TILE_K
    ms = (1, tile_m, tile_m + 1, max(1, tile_m - 3))
    ns = (tile_n, tile_n + 5, 3, tile_n + _core.PACKED_TILE_N, tile_n + _core.PACKED_TILE_N // 2)
    if by_tma(info):  # which wants rows of whole vectors of scales and zero points
        ns = (tile_n, tile_n + 16, 16, tile_n + 3 * _core.PACKED_TILE_N)
    # Where warpgroups take turns (they do not split K), the ring goes round twice between those of one.
    rounds = 1 if info.split_k else 2
    ks = (3 * unit - 24, unit + 8, tile_k + unit + _core.PACKED_TILE_K, 37, (rounds * info.stages + 1) * tile_k + 8)
    groups = [g for g in (32, 64, 128, 256, 96) if g % info.group_multiple == 0 and not (by_tma(info) and g == 96)] + [
        10**6
    ]
    kinds, dtypes = ("middle", "integer"), ("bfloat16", "float16", "bfloat16" if by_tma(info) else "float32")
    splits = splits_of(info)
    rng = np.random.default_rng(SEED)
    found = []
    for i, (m, k) in enumerate(itertools.product(ms, ks)):
        batch = 2 if i % 5 == 4 else 1
        split = (0, min(splits[i // 3 % len(splits)], -(-k // tile_k))) if i % 3 == 2 else (0, 1)
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


def stream_trials(info: Any) -> list[Trial]:
    """All CTAs share K: parts of several CTAs to a tile, tiles that end in the middle of a CTA's part and with it, and
    whole tiles before, which are no multiple of the CTAs. And CTAs with several tiles each that TMA stores, while the
    ring goes round; of an instance that no trial before runs as a stream, whose CTAs would count for these too.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    few = _core.MOST_MIXED_CLUSTER_SPLITS + 1
    return [
        ((1, tile_m - 3, 2 * tile_n, 16 * tile_k), 128, "middle", "bfloat16", (0, few + 4)),
        ((1, tile_m + 1, 2 * tile_n + 16, 5 * tile_k - 24), 64, "integer", "float16", (0, few)),
        ((2, tile_m // 2, 3 * tile_n, 3 * tile_k), 32, "middle", "bfloat16", (0, few)),
        ((2, tile_m + tile_m // 2, 4 * tile_n, 2 * tile_k), 10**6, "integer", "bfloat16", (few - 3, few + 2)),
        ((2, 2 * tile_m - 5, 3 * tile_n + 16, (info.stages // 2 + 1) * tile_k), 64, "middle", "float16", (0, 1)),
        ((1, 2 * tile_m + 1, 5 * tile_n + 8, 3 * tile_k), 64, "middle", "bfloat16", (few, few + 1)),
    ]


def fault(emulated: Emulator, info: Any, index: int) -> str:
    """What is wrong with the product of trial ``index``, "" if nothing is: sums are exact."""
    (batch, m, n, k), group, kind, scale_dtype, split = trials(info)[index]
    workers = 2 if index % 2 and streams(split) else 1
    dtype, out_dtype = info.dtypes[index % len(info.dtypes)][::2]
    weights = weights_of((batch, k, n), group, kind, scale_dtype)
    rng = np.random.default_rng([SEED, index])
    x = rounded(rng.integers(-4, 5, (batch, m, k)), dtype)
    out, found = run(emulated, info, x, weights, out_dtype, split, Schedule(index, workers=workers))
    expected = rounded(x.astype(np.float64) @ weights.dense() + 0.0, out_dtype)
    wrong = np.argwhere(~(out == expected))
    if wrong.size:
        found += f"{len(wrong)} of {out.size} wrong, first at {wrong[0]}, last at {wrong[-1]}"
    return f"{info.name} trial {index}: {found}" if found else ""
