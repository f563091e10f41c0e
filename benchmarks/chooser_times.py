"""``python -m benchmarks.chooser_times``: the times that the model in cuda/select.cc is fitted to and tested against,
tests/chooser_times*.json, measured again on the attached GPU: every tile of both pipelined families, with K split in
every way that the model may think of, on each of the problems. With ``--rows``, what gemv is judged by: on
products of one row or column, all of its tiles, what the model takes of each of the other two families, and jnp.dot.
With ``--odd``, on operands whose rows are no whole vectors, all tiles of these two families, those of gemv that might
compete, and jnp.dot. With ``--small``, where there is little to multiply, the same and the tiles of mma that load
several k-tiles at once.

All that is measured of a problem runs interleaved, as ``tune`` has it. It takes two minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import jax
from rich.console import Console

from benchmarks.shapes import Precision
from benchmarks.trees import REPOSITORY
from jaxgemm import _choose, _timing, _tune
from jaxgemm._files import dumps, replace_text
from jaxgemm._native import _core
from jaxgemm._target import target_sm
from jaxgemm._tuning_table import Key

Sizes = tuple[int, int, int, int]
"""(batch, m, n, k)"""

FILES = {"mma_multistage": "chooser_times.json", "wgmma": "chooser_times_wgmma.json"}
DTYPE, LAYOUT = "bfloat16", "NN"
ROUNDS, MIN_ROUNDS, BUDGET_S = 11, 7, 1.0

# Squares, ragged ones, the layers of Llama-3 at numbers of tokens, few tiles and long sums, and
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


JNP = "jnp"
"""Stands for XLA's own dot."""
ROWS_FAMILY, ROWS_FILE = "gemv", "chooser_times_gemv.json"


def row_keys() -> list[Key]:
    """Products of one row or column: the layers of language models for one token, attention with one query (scores and
    values), short and long sums, few columns, sizes that no vector divides.
    """
    layers = [
        (256, 256),
        (1024, 1024),
        (4096, 4096),
        (1024, 4096),
        (14336, 4096),
        (4096, 14336),
        (28672, 8192),
        (768, 3072),
    ]
    others = [(1000, 999), (1001, 4096), (4097, 4097), (64, 65536), (8, 8192), (8, 4096), (128, 7168)]
    heads = [
        (256, 512, 128), (256, 128, 512), (32, 1024, 64), (32, 64, 1024), (512, 577, 80), (512, 80, 577), (96, 49, 64),
        (64, 512, 512), (16, 2048, 1024), (64, 2048, 128), (64, 128, 2048), (4096, 128, 64), (64, 333, 77),
    ]  # fmt: skip
    both = [(1, 1, n, k) for n, k in layers + others] + [(batch, 1, n, k) for batch, n, k in heads]
    keys = [_key("bfloat16", layout, sizes) for layout in ("NN", "NT") for sizes in both]
    keys += [
        _key("bfloat16", layout, sizes) for layout, sizes in (("NN", (1, 50257, 1, 768)), ("NT", (1, 1, 50257, 768)))
    ]
    wide = [(1, 1, 1024, 1024), (1, 1, 4096, 4096), (1, 1, 1000, 999), (256, 1, 512, 128), (32, 1, 64, 1024)]
    keys += [_key("float32", layout, sizes) for layout in ("NN", "NT") for sizes in wide]
    columns = [(1, 4096, 1, 4096), (64, 512, 1, 512), (256, 128, 1, 512), (1, 4096, 1, 64), (1, 100, 1, 2048)]
    keys += [_key("bfloat16", layout, sizes) for layout in ("NN", "TN") for sizes in columns]
    return keys + [_key("float32", layout, (1, 1000, 1, 999)) for layout in ("NN", "TN")]


def _key(dtype: str, layout: str, sizes: Sizes, precision: Precision | None = None) -> Key:
    return Key(dtype, dtype, dtype, precision or ("highest" if dtype == "float32" else "default"), layout, *sizes)


def _keys(dtype: str, precision: Precision, layouts: Mapping[str, Sequence[Sizes]]) -> list[Key]:
    return [_key(dtype, layout, sizes, precision) for layout in layouts for sizes in layouts[layout]]


ODD_FILE = "chooser_times_odd.json"


def odd_keys() -> list[Key]:
    """Operands, or out, whose rows begin anywhere, or at multiples of 4 or 8 bytes: tokens of images (49, 197, 577),
    77 of text, vocabularies, primes; below and above the multiply-adds from which on copies pay (cuda/tile/padding.h).
    """
    halves = {
        "NN": [
            (1, 250, 500, 500), (1, 500, 250, 500), (1, 77, 77, 8191), (1, 1000, 1000, 999),
            (1, 100, 50257, 768), (1, 50, 50257, 768), (1, 577, 1021, 4093), (1, 2, 4097, 4097), (1, 3, 4097, 100),
            (1, 3, 333, 3), (64, 77, 80, 77), (16, 197, 256, 197), (8, 577, 128, 577),
            (32, 64, 64, 500), (16, 197, 64, 197), (1, 2049, 515, 257),
            (1, 2001, 2003, 2005), (1, 520, 520, 1030), (1, 8192, 50257, 768), (1, 4095, 1023, 4095),
        ],
        "NT": [
            (64, 197, 197, 64), (1, 1001, 999, 1003), (1, 50257, 100, 768), (1, 61, 1999, 333),
            (16, 577, 577, 80), (1, 333, 333, 333), (1, 3001, 3001, 3001),
        ],
        "TN": [(1, 257, 511, 1023), (1, 768, 3001, 197), (1, 1023, 65, 513), (1, 333, 333, 333), (1, 4097, 4097, 4097)],
        "TT": [(1, 3001, 1000, 333), (1, 127, 131, 521), (1, 2047, 8191, 4095)],
    }  # fmt: skip
    wide = {
        "NN": [
            (1, 1001, 999, 1003), (1, 999, 250, 501), (8, 577, 80, 577),
            (1, 2, 4097, 4097), (1, 2001, 2003, 2005),
        ],
        "NT": [(1, 333, 333, 333)],
    }  # fmt: skip
    return _keys("bfloat16", "default", halves) + _keys("float32", "default", wide)


SMALL_FILE = "chooser_times_small.json"


def small_keys() -> list[Key]:
    """Little to multiply: heads of few tokens, short sums, few tiles; up to where tiles that wait for memory once or
    twice, and do nothing meanwhile, are many, or K is long.
    """
    halves = {
        "NT": [
            (12, 49, 49, 128), (12, 49, 49, 64), (24, 50, 50, 32), (64, 49, 49, 32), (192, 49, 49, 32),
            (768, 49, 49, 32), (192, 50, 50, 64), (1536, 12, 12, 64), (512, 77, 77, 96), (96, 197, 197, 80),
            (12, 77, 77, 64), (16, 64, 64, 64), (128, 64, 64, 64), (768, 64, 64, 64), (4, 128, 128, 64),
            (8, 128, 128, 128), (1, 200, 300, 40), (12, 197, 197, 64), (1, 128, 512, 128), (1, 16, 1024, 64),
            (1, 100, 100, 100), (1, 64, 64, 192),
        ],
        "NN": [
            (12, 49, 64, 49), (16, 50, 64, 50), (64, 49, 32, 49), (192, 49, 32, 49), (192, 50, 64, 50),
            (24, 64, 64, 64), (64, 77, 80, 77), (12, 64, 128, 128), (1, 256, 256, 64), (1, 64, 1024, 64),
            (1, 9, 512, 64), (1, 333, 192, 100), (4, 100, 77, 80), (32, 64, 64, 160), (16, 50, 64, 197),
            (64, 32, 61, 197), (8, 197, 32, 197), (1, 127, 521, 131),
        ],
        "TN": [(12, 64, 64, 49), (1, 128, 128, 64), (1, 100, 160, 33), (1, 64, 768, 16)],
        "TT": [(4, 50, 64, 50), (1, 192, 100, 160), (1, 77, 77, 77)],
    }  # fmt: skip
    wide = {
        "NT": [
            (8, 49, 49, 128), (8, 64, 64, 64), (24, 50, 50, 32), (64, 77, 77, 32), (256, 77, 77, 32),
            (192, 49, 49, 32), (16, 197, 197, 64),
        ],
        "NN": [
            (1, 3002, 77, 77), (12, 77, 77, 77), (64, 49, 64, 49), (8, 64, 64, 64), (1, 300, 20, 50),
            (8, 197, 32, 197), (1, 127, 521, 131),
        ],
        "TN": [(4, 64, 64, 64), (1, 65, 129, 33)],
    }  # fmt: skip
    exact = {
        "NT": [(8, 64, 64, 64), (12, 77, 77, 96), (12, 49, 49, 32)],
        "NN": [(12, 49, 64, 49), (4, 128, 64, 64), (1, 300, 20, 50)],
        "TN": [(1, 100, 160, 33)],
    }
    default = _keys("bfloat16", "default", halves) + _keys("float32", "default", wide)
    return default + _keys("float32", "highest", exact)


_SPLITS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
WHAT = (
    "microseconds of all kernels of a call by CUPTI, median, and one more for a second kernel, which adds up sums of "
    "several splits; tiles, splits and families interleaved in random order, operands rotating through twice the L2 "
    "cache; 'tail': K is split of those tiles only that are left over when each multiprocessor has had as many whole "
    "ones as the others"
)
ROWS_WHAT = (
    "microseconds of all kernels of a call by CUPTI, median, and one more for each kernel but the first: of every tile "
    "of gemv, of what the model takes of the other families, and of jax.lax.dot_general; interleaved in random order, "
    "operands rotating through twice the L2 cache"
)


def _rivals_what(also: str = "") -> str:
    return (
        "microseconds of all kernels of a call by CUPTI, median, and one more for each kernel but the first: of all "
        f"tiles of mma_multistage and wgmma, {also}those of gemv that the model took to be at most three times slower "
        "than its choice, and jax.lax.dot_general; K split as the model does; interleaved in random order, operands "
        "rotating through twice the L2 cache"
    )


ODD_WHAT = _rivals_what()
SMALL_WHAT = _rivals_what("those of mma that load several k-tiles at once, ")
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


def cells(info: _core.KernelInfo, sizes: Sizes) -> Iterator[Cell]:
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


def sizes_of(key: Key) -> Sizes:
    return key.batch, key.m, key.n, key.k


def every_cell(key: Key, sm: int) -> list[Cell]:
    """Of both pipelined families."""
    infos = [info for info in _core.kernels() if info.family in FILES]
    able = _choose.able_kernels(_tune.request_of(key), _choose.native_problem(_tune.request_of(key), sm))
    return [cell for info in infos if info.name in able for cell in cells(info, sizes_of(key))]


def row_cells(key: Key, sm: int) -> list[Cell]:
    """All tiles of gemv, what the model takes of the others, split as it does, and JNP."""
    native = _choose.native_problem(_tune.request_of(key), sm)
    able = _choose.able_kernels(_tune.request_of(key), native)
    families = [family for family in FILES if any(name.startswith(f"{family}:") for name in able)]
    chosen = [_core.select(native, family) for family in families]
    own = [Cell(name) for name in able if name.startswith(f"{ROWS_FAMILY}:")]
    return [*own, *(Cell(name, _choose.BY_MODEL) for name in chosen), Cell(JNP)]


def small_cells(key: Key, sm: int) -> list[Cell]:
    """Those of odd_cells(), and the tiles of mma that load several k-tiles at once."""
    request = _tune.request_of(key)
    able = _choose.able_kernels(request, _choose.native_problem(request, sm))
    small = [info.name for info in _core.kernels() if info.tiles_at_once > 1 and info.name in able]
    others = [cell for cell in odd_cells(key, sm) if cell.kernel not in small]
    return [*(Cell(name, _choose.BY_MODEL) for name in small), *others]


def odd_cells(key: Key, sm: int) -> list[Cell]:
    """All tiles of both pipelined families, those of gemv that ``python -m jaxgemm tune`` would try, and JNP."""
    request = _tune.request_of(key)
    _, competing = _tune.contenders(key, sm)
    able = _choose.able_kernels(request, _choose.native_problem(request, sm))
    tried = [name for name in able if name.partition(":")[0] in FILES or name in competing]
    return [*(Cell(name, _choose.BY_MODEL) for name in tried), Cell(JNP)]


def measure(key: Key, tried: Sequence[Cell]) -> dict[Cell, float]:
    """Microseconds of every cell of a problem."""
    operands = _timing.rotating_arg_sets(functools.partial(_tune._operands, key), _tune._operand_bytes(key))
    lowered = {}
    model = _choose.BY_MODEL
    try:
        for cell in tried:
            _choose.BY_MODEL = cell.split  # what a problem asks for where nobody names a split: read when it is traced
            function = _tune.jax_function(key) if cell.kernel == JNP else _tune.kernel_function(key, cell.kernel)
            lowered[repr(cell)] = function.lower(*operands[0])  # type: ignore[attr-defined]
    finally:
        _choose.BY_MODEL = model
    us = call_times(lowered, operands)
    return {cell: us[repr(cell)] for cell in tried}


def call_times(lowered: Mapping[str, Any], operands: Sequence[_timing.Args]) -> dict[str, float]:
    """Microseconds of a call of each lowered program, with GAP_US for each kernel but the first."""
    with ThreadPoolExecutor() as pool:
        compiled = dict(zip(lowered, pool.map(lambda program: program.compile(), lowered.values()), strict=True))
    timings = _timing.compare(compiled, operands, rounds=ROUNDS, min_rounds=MIN_ROUNDS, budget_s=BUDGET_S)
    assert all(timing.source == "cupti" for timing in timings.values()), "no device time: CUPTI is not available"
    return {name: timing.us + GAP_US * (len(timing.kernels) - 1) for name, timing in timings.items()}


def rows(family: str, found: dict[Sizes, dict[Cell, float]]) -> Iterator[dict[str, object]]:
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


def row_of(key: Key, times: dict[Cell, float]) -> dict[str, object]:
    """A problem of one row or column, or of odd sizes."""
    sizes = dict(zip(("batch", "m", "n", "k"), sizes_of(key), strict=True))
    us = {cell.kernel: float(f"{time_us:.4g}") for cell, time_us in times.items()}
    return {"dtype": key.lhs_dtype, "precision": key.precision, "layout": key.layout, **sizes, "us": us}


Document: TypeAlias = dict[str, object]


def tile_documents(found: dict[Key, dict[Cell, float]]) -> dict[str, Document]:
    by_sizes = {sizes_of(key): times for key, times in found.items()}
    shared: Document = {"dtype": DTYPE, "layout": LAYOUT, "what": WHAT}
    return {name: shared | {"family": family, "rows": list(rows(family, by_sizes))} for family, name in FILES.items()}


def row_documents(found: dict[Key, dict[Cell, float]]) -> dict[str, Document]:
    measured = [row_of(*item) for item in found.items()]
    return {ROWS_FILE: {"family": ROWS_FAMILY, "what": ROWS_WHAT, "rows": measured}}


def one_document(name: str, what: str, found: dict[Key, dict[Cell, float]]) -> dict[str, Document]:
    return {name: {"what": what, "rows": [row_of(*item) for item in found.items()]}}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one call measures: problems, the ways to run each, and the files, by name, without what is in all."""

    problems: Callable[[], list[Key]]
    ways: Callable[[Key, int], list[Cell]]
    documents: Callable[[dict[Key, dict[Cell, float]]], dict[str, Document]]


TILES = Plan(lambda: [_key(DTYPE, LAYOUT, sizes) for sizes in PROBLEMS], every_cell, tile_documents)
ROWS = Plan(row_keys, row_cells, row_documents)
ODD = Plan(odd_keys, odd_cells, functools.partial(one_document, ODD_FILE, ODD_WHAT))
SMALL = Plan(small_keys, small_cells, functools.partial(one_document, SMALL_FILE, SMALL_WHAT))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chooser_times", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests", help="folder to write to (default: tests)")
    parser.set_defaults(plan=TILES)
    other = parser.add_mutually_exclusive_group()
    others = (
        ("--rows", ROWS, f"what {ROWS_FAMILY} is judged by"),
        ("--odd", ODD, "odd sizes"),
        ("--small", SMALL, "little to multiply"),
    )
    for name, plan, what in others:
        other.add_argument(name, dest="plan", action="store_const", const=plan, help=f"{what}, and not the others")
    arguments = parser.parse_args()
    console = Console()
    found: dict[Key, dict[Cell, float]] = {}
    header = {"device": jax.devices()[0].device_kind, "date": datetime.date.today().isoformat()}
    for key in arguments.plan.problems():
        found[key] = measure(key, arguments.plan.ways(key, target_sm()))
        best = min(found[key], key=found[key].__getitem__)
        console.print(f"{key}: {len(found[key])} ways, {found[key][best]:.1f} us {best.kernel} {best.splits}")
        jax.clear_caches()
        for name, document in arguments.plan.documents(found).items():  # so far: a run may be cut off
            replace_text(arguments.out / name, dumps(header | document))


if __name__ == "__main__":
    main()
