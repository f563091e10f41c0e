"""What to try on the emulator, and trying it on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from tests.edge_shapes import LAYOUTS, cases
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Placement, Result, Trial, exact, faults
from tests.values import DTypes, integers, modes

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


def edge_trials(info: Any, dtypes: DTypes, precision: str, layout: str) -> list[Trial]:
    """The cases of :func:`tests.edge_shapes.cases`; each placement and each combination of latencies has its turn."""
    mode = modes(info).index((dtypes, precision))
    turn = mode * len(LAYOUTS) + LAYOUTS.index(layout)
    return [
        Trial(case, PLACEMENTS[(i + turn) % len(PLACEMENTS)], Schedule(i + 7 * turn), turn, precision)
        for i, case in enumerate(cases(info, mode, layout))
    ]


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
