"""Every kernel x dtypes x layout at the edges of its tile, in the emulator: exact integers, and nothing found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxgemm._native import _core
from tests.edge_shapes import LAYOUTS, Case, Shape, ragged_case
from tests.emulated.support import PLACEMENTS, SEEDS, assert_all_right, edge_trials, in_parallel, try_integers
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Trial, exact, faults, run
from tests.gpu.support import KERNEL_DTYPE_IDS, KERNEL_DTYPES, KERNEL_IDS, KERNELS
from tests.values import DTypes, integers, plant


def test_kernels_are_those_of_the_registry(emulated: Emulator) -> None:
    """Families with a dot in their name are the reference kernels, of which the registry knows nothing."""
    names = [name for name, info in emulated.kernels.items() if "." not in info.family]
    assert names == [info.name for info in _core.kernels()]
    for info in _core.kernels():
        for attribute in ("family", "cta_tile", "warp_tile", "stages", "threads", "min_sm", "dtypes", "layouts"):
            ours, theirs = getattr(emulated.kernels[info.name], attribute), getattr(info, attribute)
            assert ours == (tuple(theirs) if isinstance(ours, tuple) else theirs), f"{info.name}: {attribute}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_edge_shapes(emulated: Emulator, info: Any, dtypes: DTypes, layout: str) -> None:
    assert_all_right(emulated, info.name, dtypes, edge_trials(info, list(info.dtypes).index(dtypes), layout))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_placements(emulated: Emulator, info: Any, layout: str) -> None:
    """One ragged batch in every place."""
    case = ragged_case(info, layout, "both")
    trials = [Trial(case, placement, Schedule(i)) for i, placement in enumerate(PLACEMENTS)]
    for dtypes in {dtypes[0]: dtypes for dtypes in info.dtypes}.values():
        assert_all_right(emulated, info.name, dtypes, trials)


@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_empty(emulated: Emulator, info: Any) -> None:
    """Nothing to multiply, and nothing to write."""
    shapes = [Shape(0, 5, 7), Shape(5, 0, 7), Shape(0, 0, 0), Shape(1, 1, 0, "both"), Shape(0, 3, 4, "both")]
    trials = [Trial(Case(shape, layout)) for shape in shapes for layout in ("NN", "TT")]
    assert_all_right(emulated, info.name, info.dtypes[0], trials)


@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_schedules(emulated: Emulator, info: Any) -> None:
    """The same bits and the same number of switches from the same seed; the same bits from all seeds and workers."""
    dtypes = info.dtypes[-1]
    trials = [Trial(ragged_case(info, LAYOUTS[seed % 4]), schedule=Schedule(seed)) for seed in SEEDS]
    trials += [Trial(trials[0].case, schedule=schedule) for schedule in (Schedule(0), Schedule(1, workers=3))]
    runs = in_parallel(lambda trial: try_integers(emulated, info.name, dtypes, trial), trials)
    by_layout: dict[str, bytes] = {}
    for trial, (result, expected) in zip(trials, runs, strict=True):
        assert not faults(result, expected), trial.command(info.name, dtypes)
        assert by_layout.setdefault(trial.case.layout, result.out.tobytes()) == result.out.tobytes()
    assert runs[0][0].run.switches == runs[len(SEEDS)][0].run.switches
    assert (runs[0][0].owners == runs[len(SEEDS) + 1][0].owners).all()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_special_values_stay_in_their_row_and_column(
    emulated: Emulator, info: Any, dtypes: DTypes, layout: str
) -> None:
    """NaN and infinity reach what they are multiplied into, and never what padding stands for."""
    case = ragged_case(info, layout)

    def failure(planted: tuple[float, str, int]) -> str:
        value, operand, turn = planted
        trial = Trial(case, PLACEMENTS[turn % len(PLACEMENTS)], Schedule(turn))
        lhs, rhs = trial.operands(dtypes, integers)
        marked = plant(case, {"lhs": lhs, "rhs": rhs}, operand, value)
        result = run(emulated, info.name, case, lhs, rhs, dtypes[2], trial.placement, schedule=trial.schedule)
        special = ~np.isfinite(result.out.astype(np.float32))
        rows = special if operand == "lhs" else special.T
        found = faults(result, exact(case, lhs, rhs, dtypes[2]))
        if not rows[marked].all() or rows.sum() != len(set(marked)) * rows.shape[1]:
            found += f"\n{value} in rows {marked} of {operand} went astray"
        return found

    plants = [(value, operand) for value in (np.nan, np.inf, -np.inf) for operand in ("lhs", "rhs")]
    turn = LAYOUTS.index(layout)
    failures = in_parallel(failure, [(*planted, turn + i) for i, planted in enumerate(plants)])
    assert not any(failures), "\n".join(failures)
