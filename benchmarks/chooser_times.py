"""``python -m benchmarks.chooser_times``: the times that the model in cuda/select.cc is fitted to and tested against,
tests/chooser_times*.json, measured again on the attached GPU: every tile of both pipelined families, with K split in
every way that the model may think of, on each of the problems.

Both families, all tiles and splits of a problem run interleaved, as ``python -m jaxgemm tune`` has them. It takes two
minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
from rich.console import Console

from benchmarks.trees import REPOSITORY
from jaxgemm import _choose, _timing, _tune
from jaxgemm._files import dumps, replace_text
from jaxgemm._native import _core
from jaxgemm._target import target_sm
from jaxgemm._tuning_table import Key

FILES = {"mma_multistage": "chooser_times.json", "wgmma": "chooser_times_wgmma.json"}
DTYPE, LAYOUT = "bfloat16", "NN"
ROUNDS, MIN_ROUNDS, BUDGET_S = 11, 7, 1.0

# (batch, m, n, k): squares, ragged ones, the layers of Llama-3 at numbers of tokens, few tiles and long sums, and
# products of GPT-2's and ViT's training.
SQUARES = [(1, size, size, size) for size in (256, 512, 1000, 1024, 1504, 2000, 2048, 3000, 4096, 8192)]
LAYERS = [
    (1, tokens, n, k)
    for n, k in ((14336, 4096), (4096, 14336), (4096, 4096), (10240, 8192), (28672, 8192), (8192, 28672))
    for tokens in (1, 16, 64, 128, 256, 512, 2048)
]
RAGGED = [
    (1, 4224, 4224, 4096), (1, 1536, 6144, 4096), (1, 127, 8192, 8192), (1, 1000, 4000, 1000), (1, 4096, 5000, 4096),
    (1, 384, 12288, 4096), (1, 640, 4096, 11008), (1, 1024, 5120, 5120),
]  # fmt: skip
FEW_TILES = [
    (1, 256, 256, 65536),
    (1, 1152, 1152, 8192),
    (1, 768, 768, 8192),
    (1, 128, 1024, 8192),
    (1, 1, 1024, 4096),
    (64, 512, 512, 512),
]
TRAINING = [
    (1, 8192, 4096, 4096), (1, 8192, 14336, 4096), (1, 8192, 8192, 2048), (1, 8192, 28672, 2048),
    (1, 8192, 3072, 768), (1, 8192, 768, 3072), (1, 12608, 3072, 768), (1, 12608, 768, 3072), (1, 12608, 768, 768),
    (1, 3072, 768, 8192), (1, 768, 3072, 12608),
]  # fmt: skip
PROBLEMS = SQUARES + LAYERS + RAGGED + FEW_TILES + TRAINING

_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
WHAT = (
    "microseconds of all kernels of a call by CUPTI, median, and one more for a second kernel, which adds up sums of "
    "several splits; tiles, splits and families interleaved in random order, operands rotating through twice the L2 "
    "cache; 'tail': K is split of those tiles only that are left over when each multiprocessor has had as many whole "
    "ones as the others"
)
GAP_US = 1.0
"""Between two kernels of a call, which CUPTI does not count: by so much longer than its times were those between two
events around a call of two kernels than around one of one kernel (medians of 585 and 274 calls on an H200).
"""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A kernel, and how K is split: (whole, splits), KSplit in cuda/gemm.h."""

    kernel: str
    split: tuple[int, int] = _choose.NO_SPLIT

    @property
    def splits(self) -> int:
        return self.split[1]

    @property
    def tail(self) -> bool:
        """Whether K is split of those tiles only that are left over."""
        return self.split[0] > 0


def cells(info: _core.KernelInfo, sizes: tuple[int, int, int, int]) -> Iterator[Cell]:
    """Every way to run a problem that is worth a try, as ``plan`` in cuda/select.cc sees it."""
    batch, m, n, k = sizes
    tile_m, tile_n, tile_k = info.cta_tile
    ctas = info.cluster_ctas
    clusters = batch * -(-m // (tile_m * ctas)) * -(-n // tile_n)
    multiprocessors = _core.planned_multiprocessors(90)
    at_once = multiprocessors // ctas
    yield Cell(info.name)
    if not info.split_k:
        return
    wholes = [0] + ([clusters // at_once * at_once] if info.tma and clusters > at_once else [])
    for whole, splits in itertools.product(wholes, _SPLITS):
        shared = (clusters - whole) * ctas
        if shared and splits <= min(-(-k // tile_k), 2 * multiprocessors // shared):
            yield Cell(info.name, (whole, splits))


def measure(sizes: tuple[int, int, int, int], sm: int) -> dict[Cell, float]:
    """Microseconds of every cell of a problem."""
    key = Key(DTYPE, DTYPE, DTYPE, "default", LAYOUT, *sizes)
    infos = [info for info in _core.kernels() if info.family in FILES]
    able = _choose.able_kernels(_tune.request_of(key), _choose.native_problem(_tune.request_of(key), sm))
    tried = [cell for info in infos if info.name in able for cell in cells(info, sizes)]
    operands = _timing.rotating_arg_sets(functools.partial(_tune._operands, key), _tune._operand_bytes(key))
    lowered = {}
    model = _choose.BY_MODEL
    try:
        for cell in tried:
            _choose.BY_MODEL = cell.split  # what a problem asks for where nobody names a split: read when it is traced
            function = _tune.kernel_function(key, cell.kernel)
            lowered[repr(cell)] = function.lower(*operands[0])  # type: ignore[attr-defined]
    finally:
        _choose.BY_MODEL = model
    with ThreadPoolExecutor() as pool:
        compiled = dict(zip(lowered, pool.map(lambda program: program.compile(), lowered.values()), strict=True))
    timings = _timing.compare(compiled, operands, rounds=ROUNDS, min_rounds=MIN_ROUNDS, budget_s=BUDGET_S)
    assert all(timing.source == "cupti" for timing in timings.values()), "no device time: CUPTI is not available"
    found = {cell: timings[repr(cell)] for cell in tried}
    return {cell: timing.us + GAP_US * (len(timing.kernels) - 1) for cell, timing in found.items()}


def rows(family: str, found: dict[tuple[int, int, int, int], dict[Cell, float]]) -> Iterator[dict[str, object]]:
    """One row for each problem and way to split K, with the times of all tiles that were split so."""
    for (batch, m, n, k), times in found.items():
        own = {cell: us for cell, us in times.items() if cell.kernel.startswith(f"{family}:")}
        for tail, splits in sorted({(cell.tail, cell.splits) for cell in own}):
            us = {
                cell.kernel.partition(":")[2]: float(f"{time_us:.4g}")
                for cell, time_us in own.items()
                if (cell.tail, cell.splits) == (tail, splits)
            }
            yield {"batch": batch, "m": m, "n": n, "k": k, "splits": splits, "tail": tail, "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chooser_times", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests", help="folder to write to (default: tests)")
    arguments = parser.parse_args()
    console = Console()
    found: dict[tuple[int, int, int, int], dict[Cell, float]] = {}
    for sizes in PROBLEMS:
        found[sizes] = measure(sizes, target_sm())
        best = min(found[sizes], key=found[sizes].__getitem__)
        console.print(f"{sizes}: {len(found[sizes])} ways, {found[sizes][best]:.1f} us {best.kernel} {best.splits}")
        jax.clear_caches()
    header = {
        "device": jax.devices()[0].device_kind, "date": datetime.date.today().isoformat(), "dtype": DTYPE,
        "layout": LAYOUT,
    }  # fmt: skip
    for family, name in FILES.items():
        document = header | {"family": family, "what": WHAT, "rows": list(rows(family, found))}
        replace_text(arguments.out / name, dumps(document))


if __name__ == "__main__":
    main()
