"""Bank conflicts of every kernel, and the committed file that says how many they may have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.edge_shapes import LAYOUTS, Case, Shape
from tests.emulator.library import Emulator, Run, Schedule
from tests.emulator.problem import Trial
from tests.values import DTypes, integers

BUDGET_FILE = Path(__file__).resolve().parent.parent / "emulated" / "conflict_budget.json"


def budget_trials(info: Any) -> list[Trial]:
    """Whole tiles, so that every lane takes part, in each layout."""
    tile_m, tile_n, tile_k = info.cta_tile
    shape = Shape(tile_m, 2 * tile_n, (info.stages + 1) * max(tile_k, 16))
    return [Trial(Case(shape, layout), schedule=Schedule(conflicts=True)) for layout in LAYOUTS]


def ratios(ran: Run) -> dict[str, float]:
    """Wavefronts over those of conflict-free accesses, by what accesses."""
    sums: dict[str, tuple[int, int]] = {}
    for row in ran.wavefronts:
        wavefronts, ideal = sums.get(row.what, (0, 0))
        sums[row.what] = wavefronts + row.wavefronts, ideal + row.ideal
    return {what: round(wavefronts / ideal, 4) for what, (wavefronts, ideal) in sorted(sums.items())}


def conflict_ratios(emulator: Emulator, kernel: str, dtypes: DTypes, trial: Trial) -> dict[str, float]:
    """Of one run, which must be clean."""
    lhs, rhs = trial.operands(dtypes, integers)
    result = trial.run(emulator, kernel, dtypes, lhs, rhs)
    assert result.run.clean, f"{trial.command(kernel, dtypes)}\n{result.run}"
    return ratios(result.run)


def read_budget() -> dict[str, dict[str, dict[str, float]]]:
    """Kernel -> layout -> kind of access -> wavefronts over ideal."""
    return json.loads(BUDGET_FILE.read_text())


def write_budget(emulator: Emulator) -> None:
    """What every kernel of the registry has now."""
    budget = {
        name: {
            trial.case.layout: conflict_ratios(emulator, name, info.dtypes[0], trial) for trial in budget_trials(info)
        }
        for name, info in emulator.kernels.items()
        if "." not in info.family
    }
    BUDGET_FILE.write_text(json.dumps(budget, indent=1) + "\n")
