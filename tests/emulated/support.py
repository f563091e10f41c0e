"""What to try on the emulator, and trying it on all cores."""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from jaxgemm._choose import NO_SPLIT
from tests.edge_shapes import LAYOUTS, Case, Shape, cases, ragged_case, tiled_work
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Placement, Result, Trial, exact, faults
from tests.gpu.support import INFO
from tests.values import EXACT_ALPHA, DTypes, integers, is_float, modes, rounded

PLACEMENTS = (
    Placement(),
    Placement(gap=1),
    Placement(multiple=8),
    Placement(misaligned=("lhs",)),
    Placement(multiple=8, gap=8, misaligned=("rhs",)),
    Placement(gap=2, misaligned=("out",)),
    Placement(gap=3, misaligned=("lhs", "rhs", "out")),
)
"""Dense, views into larger arrays, and addresses that are aligned to an element and no more."""
_TMA = {info.family for info in INFO.values() if info.tma}


def fitting(info: Any, placement: Placement) -> Placement:
    """As the kernel takes it: TMA reads operands that begin at multiples of 16 bytes, as XLA's do."""
    if info.family not in _TMA:
        return placement
    return replace(placement, misaligned=tuple(array for array in placement.misaligned if array == "out"))


def placements(info: Any) -> list[Placement]:
    return [fitting(info, placement) for placement in PLACEMENTS]


CLUSTER_SPLIT = (0, 3)
"""K of every tile is shared by a cluster: see :class:`Trial`."""


def cluster_shape(info: Any) -> Shape | None:
    """To be split so, if the kernel does that: whole and ragged tiles, whose rows cannot be dealt evenly."""
    tile_m, tile_n, tile_k = info.cta_tile
    assert tile_m % CLUSTER_SPLIT[1] != 0
    shares = info.family in _TMA and info.cluster_ctas == 1
    return Shape(tile_m + 3, 2 * tile_n - 3, 7 * tile_k + 3) if shares else None


BUDGET = 200_000_000
"""Multiply-adds of 16-bit operands, whole tiles counted, that one test of a kernel may take: a second of one core."""
EDGE_BUDGET = 6 * BUDGET
"""What all tests of a kernel at the edges of its tile take together, if it has four dtypes in as many layouts."""
_USUAL_EDGE_TESTS = 16

SEEDS = (0, 40, 80, 13, 67, 5, 30)
"""Schedules with all engines slow, all in between, all prompt; and mixtures."""

CLEAN = {
    "simt": ("simt.clean",),
    "sm80": ("sm80.clean",),
    "sm90": ("sm90.registers", "sm90.tma_store", "sm90.multicast"),
}
"""Reference kernels by group: the families without a defect. All other families of the group have one."""

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def in_parallel(function: Callable[[_Item], _Answer], items: Iterable[_Item]) -> list[_Answer]:
    """``map``, on all cores: the emulator's library releases Python's lock."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(function, items))


def tail_trials(info: Any, precision: str = "default", layouts: Sequence[str] = LAYOUTS) -> list[Trial]:
    """Whole tiles for CTAs that stay, and K of those that are left over split over a cluster, or for a second kernel:
    one tile, and more than the emulated multiprocessors have clusters. Ragged ones, of a batch, with shared operands.
    Whole tiles only, several to a CTA, where a kernel does not split K. And tiles that are taken by who has time. Once
    on so many multiprocessors that there are more clusters than tiles whose K is split.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    rows = tile_m * info.cluster_ctas + 3
    shapes = [
        (Shape(rows, 2 * tile_n - 3, (info.stages + 2) * tile_k + 3), (3, 2)),
        (Shape(rows, tile_n + 1, 5 * tile_k, "both"), (5, 3)),
        (Shape(rows - 8, 3 * tile_n + 8, 6 * tile_k + 1, "lhs_shared"), (7, 2)),
        (Shape(tile_m, 2 * tile_n, 3 * tile_k, "rhs_shared"), (3, 3)),
        (Shape(2 * rows, 3 * tile_n - 8, 2 * tile_k + 1), (2, 1)),
        (Shape(tile_m * info.cluster_ctas, 3 * tile_n, tile_k, "both"), (7, 1)),
    ]
    place = Placement(multiple=16)
    return [
        Trial(
            Case(shape, layouts[i % len(layouts)]),
            place,
            Schedule(SEEDS[i], multiprocessors=12 if i == 2 else Schedule.multiprocessors),
            precision=precision,
            split=split if info.split_k or split[1] == 1 else NO_SPLIT,
        )
        for i, (shape, split) in enumerate(shapes)
    ]


def has_whole_rows(info: Any) -> bool:
    """Whether rows of out that begin anywhere and lie end to end take a way of their own where a tile has all columns
    (cuda/epilogue/whole_rows.cuh, lane_out.cuh).
    """
    return info.family == "wgmma" or INFO[info.name].tiles_at_once > 1


def whole_rows_trials(info: Any, precision: str = "default", layouts: Sequence[str] = LAYOUTS) -> list[Trial]:
    """All columns that a tile may have, and several warps' rows with a rest; the same with gaps between the rows; fewer
    elements than a vector; a column more than a tile has.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    rows = tile_m + 11
    tried = [
        (Shape(rows, tile_n - 1, 3, "both"), Placement(misaligned=("out",))),
        (Shape(rows, tile_n - 1, tile_k + 1, "both"), Placement(gap=3)),
        (Shape(1, 3, tile_k), Placement(misaligned=("out",))),
        (Shape(rows, tile_n + 1, tile_k), Placement()),
    ]
    return [
        Trial(Case(shape, layouts[(i + 1) % len(layouts)]), place, Schedule(SEEDS[i]), precision=precision)
        for i, (shape, place) in enumerate(tried)
    ]


def affordable(
    info: Any, items: Iterable[_Item], trial_of: Callable[[_Item], Trial], budget: int = BUDGET
) -> list[_Item]:
    """The first of the items, and of the others, in their order, those whose trials the budget has room for."""
    taken: list[_Item] = []
    left = float(budget)
    for item in items:
        trial = trial_of(item)
        # By the time that TF32 (in one product, or in three), int8 and wgmma take.
        factor = {"default": 2.5, "highest": 4.0}[trial.precision] if info.tf32 else 1.0
        factor = factor if is_float(info.dtypes[0][2]) else 0.6
        factor = 0.4 if info.family in _TMA else factor  # wgmma: many products to one instruction
        work = tiled_work(info, trial.case.shape) * factor
        if not taken or work <= left:
            taken.append(item)
            left -= work
    return taken


@functools.cache
def _edge_trials(name: str) -> dict[tuple[DTypes, str, str], list[Trial]]:
    info, seen = INFO[name], Counter[Shape]()
    places = placements(info)
    rows = list(itertools.product(modes(info), LAYOUTS))
    tests = {}
    for turn, ((dtypes, precision), layout) in enumerate(rows):
        ragged, *rest = [
            Trial(case, places[(i + turn) % len(places)], Schedule(i + 7 * turn), turn, precision)
            for i, case in enumerate([ragged_case(info, layout), *cases(info, turn // len(LAYOUTS), layout)])
        ]
        rest.sort(key=lambda trial: (seen[trial.case.shape], tiled_work(info, trial.case.shape)))
        taken = affordable(info, [ragged, *rest], lambda trial: trial, EDGE_BUDGET // min(len(rows), _USUAL_EDGE_TESTS))
        seen.update(trial.case.shape for trial in taken)
        tests[dtypes, precision, layout] = taken
    return tests


def edge_trials(info: Any, dtypes: DTypes, precision: str, layout: str) -> list[Trial]:
    """A ragged case, then the cases of :func:`tests.edge_shapes.cases` as far as the budget goes, those first that no
    other test of the kernel has had. Each placement and each combination of latencies has its turn.
    """
    return _edge_trials(info.name)[dtypes, precision, layout]


def try_integers(emulated: Emulator, kernel: str, dtypes: DTypes, trial: Trial) -> tuple[Result, np.ndarray]:
    """The result of a product of integers, and what it must be, bit by bit."""
    lhs, rhs = trial.operands(dtypes, integers)
    result = trial.run(emulated, kernel, dtypes, lhs, rhs)
    return result, exact(trial.case, lhs, rhs, dtypes[2])


def assert_all_right(emulated: Emulator, kernel: str, dtypes: DTypes, trials: Iterable[Trial]) -> None:
    """Every trial's result is exact, and nothing is found."""

    def failure(trial: Trial) -> str:
        found = faults(*try_integers(emulated, kernel, dtypes, trial))
        return f"{trial.command(kernel, dtypes)}\n{found}" if found else ""

    failures = [text for text in in_parallel(failure, trials) if text]
    assert not failures, f"{len(failures)} trials failed:\n" + "\n\n".join(failures[:3])


def fault_of_biases(emulated: Emulator, info: Any, dtypes: DTypes, precision: str = "default") -> str:
    """The first fault of products with a bias for each of the batch, "" if there is none: rests, whole tiles, no K."""
    tile_m, tile_n, tile_k = info.cta_tile
    for shape in ((3, tile_n + 5, tile_k + 3), (tile_m + 1, 2 * tile_n, tile_k), (tile_m, 16, 0)):
        trial = Trial(Case(Shape(*shape, "both"), "NN"), precision=precision)
        lhs, rhs = trial.operands(dtypes, integers)
        batch, _, n = trial.case.out_shape
        bias = np.random.default_rng(0).integers(-4, 5, (batch, n)).astype(np.float32)
        result = trial.run(emulated, info.name, dtypes, lhs, rhs, bias=bias, alpha=EXACT_ALPHA, activation="relu")
        expected = np.maximum(EXACT_ALPHA * trial.case.product(lhs, rhs) + bias[:, None], 0)
        if found := faults(result, rounded(expected, dtypes[2])):
            return f"{trial.command(info.name, dtypes)} with a bias for each of the batch\n{found}"
    return ""
