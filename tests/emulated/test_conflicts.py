"""Bank conflicts of shared memory: no kernel has more than it is known to have; swizzled tiles have none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated.support import in_parallel
from tests.emulator.conflicts import BUDGET_FILE, budget_trials, conflict_ratios, read_budget
from tests.emulator.library import Emulator
from tests.gpu.support import KERNEL_IDS, KERNELS

_ROUNDING = 1e-4  # of the committed numbers


def test_every_kernel_has_a_budget() -> None:
    assert set(read_budget()) == set(KERNEL_IDS), (
        f"python -m tests.emulator --write-conflict-budget writes {BUDGET_FILE}"
    )


@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_conflicts_stay_within_budget(emulated: Emulator, info: Any) -> None:
    budget = read_budget()[info.name]
    trials, row = budget_trials(info), (info.name, info.dtypes[0])
    measured = in_parallel(lambda trial: conflict_ratios(emulated, *row, trial), trials)
    for trial, ratios in zip(trials, measured, strict=True):
        layout = trial.case.layout
        print(f"{info.name} {layout}: wavefronts over ideal {ratios}")
        assert ratios.keys() <= budget[layout].keys(), f"{layout}: no budget for these accesses"
        for what, ratio in ratios.items():
            assert ratio <= budget[layout][what] + _ROUNDING, (
                f"{layout} {what}: see python -m tests.emulator --conflicts"
            )


def test_ldmatrix_has_none(emulated: Emulator) -> None:
    info = emulated.kernels[next(name for name in emulated.kernels if name.startswith("sm80.clean"))]
    for trial in budget_trials(info):
        ratios = conflict_ratios(emulated, info.name, info.dtypes[0], trial)
        assert ratios["ldmatrix"] == 1.0, f"{trial.case}: {ratios}"
