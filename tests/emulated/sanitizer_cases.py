"""Kernels on small ragged shapes: test_sanitized.py runs this in a process with AddressSanitizer's runtime.

python -m tests.emulated.sanitizer_cases LIBRARY FAMILY ...
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

from tests.edge_shapes import LAYOUTS, Case, ragged_case
from tests.emulated.support import SEEDS, fitting
from tests.emulator.library import Emulator, KernelInfo, Schedule
from tests.emulator.problem import Placement, Trial, faults
from tests.values import EXACT_ALPHA, integers, is_float, modes, rounded

_ALIGNED = Placement(multiple=8)  # where rows must begin at 16-byte boundaries
_PLACEMENTS = (Placement(), Placement(misaligned=("lhs", "rhs", "out")), _ALIGNED, Placement(multiple=8, gap=8))


def run_kernel(emulated: Emulator, info: KernelInfo) -> int:
    """One product for each layout, over all dtypes and placements, with an epilogue if it can be; returns how many."""
    for i, layout in enumerate(LAYOUTS):
        dtypes, precision = modes(info)[i % len(modes(info))]
        tma = info.family.startswith("sm90.")  # a reference kernel, which copies nothing first
        placement = _ALIGNED if tma else fitting(info, _PLACEMENTS[i])
        shape = ragged_case(info, layout, "both" if i % 2 else "none").shape
        if tma:  # which stores rows that end on a 16-byte boundary
            shape = dataclasses.replace(shape, n=-(-shape.n // 8) * 8)
        trial = Trial(Case(shape, layout), placement, Schedule(SEEDS[i], workers=2), i, precision)
        lhs, rhs = trial.operands(dtypes, integers)
        expected = trial.case.product(lhs, rhs)
        epilogue = {}
        if is_float(dtypes[2]):
            bias = np.arange(trial.case.shape.n, dtype=np.float32) % 5
            epilogue = {"alpha": EXACT_ALPHA, "bias": bias, "activation": "relu"}
            expected = np.maximum(EXACT_ALPHA * expected + bias, 0)
        result = trial.run(emulated, info.name, dtypes, lhs, rhs, **epilogue)
        found = faults(result, rounded(expected, dtypes[2]))
        assert not found, f"{trial.command(info.name, dtypes)}\n{found}"
    return len(LAYOUTS)


def main() -> None:
    library, *families = sys.argv[1:]
    emulated = Emulator(Path(library))
    infos = [info for info in emulated.kernels.values() if info.family in families]
    assert {info.family for info in infos} == set(families)
    print("right products:", sum(run_kernel(emulated, info) for info in infos), flush=True)


if __name__ == "__main__":
    main()
