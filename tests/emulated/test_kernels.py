"""Every kernel x dtypes x layout at the edges of its tile, in the emulator: exact integers, and nothing found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxgemm._native import _core
from tests.edge_shapes import LAYOUTS, Case, Shape, deep_shape, long_shape, pairwise_shapes, ragged_case
from tests.emulated.support import (
    BUDGET,
    CLUSTER_SPLIT,
    SEEDS,
    affordable,
    assert_all_right,
    cluster_shape,
    edge_trials,
    has_whole_rows,
    in_parallel,
    placements,
    tail_trials,
    try_integers,
    whole_rows_trials,
)
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Placement, Trial, exact, faults
from tests.gpu.support import KERNEL_IDS, KERNELS, first_dtypes, floating, over_modes
from tests.values import DTypes, integers, modes, plant


def test_kernels_are_those_of_the_registry(emulated: Emulator) -> None:
    """Families with a dot in their name are the reference kernels, of which the registry knows nothing."""
    names = [name for name, info in emulated.kernels.items() if "." not in info.family]
    assert names == [info.name for info in _core.kernels()]
    for info in _core.kernels():
        for attribute in (
            "family",
            "cta_tile",
            "warp_tile",
            "stages",
            "threads",
            "cluster_ctas",
            "min_sm",
            "tf32",
            "highest",
            "dtypes",
            "layouts",
        ):
            ours, theirs = getattr(emulated.kernels[info.name], attribute), getattr(info, attribute)
            assert ours == (tuple(theirs) if isinstance(ours, tuple) else theirs), f"{info.name}: {attribute}"


@pytest.mark.parametrize("layout", LAYOUTS)
@over_modes()
def test_edge_shapes(emulated: Emulator, info: Any, dtypes: DTypes, precision: str, layout: str) -> None:
    assert_all_right(emulated, info.name, dtypes, edge_trials(info, dtypes, precision, layout))


def test_shapes_have_their_turn() -> None:
    """What the budget leaves: of each family and dtype some kernel, the one of small tiles, is run at all its edges."""
    covered: dict[tuple[str, str], float] = {}
    for info in KERNELS:
        trials = [edge_trials(info, *mode, layout) for mode in modes(info) for layout in LAYOUTS]
        assert min(map(len, trials)) > 1
        wanted, run = set(pairwise_shapes(info)), {trial.case.shape for some in trials for trial in some}
        share = len(wanted & run) / len(wanted)
        for dtypes in info.dtypes:
            covered[info.family, dtypes[0]] = max(share, covered.get((info.family, dtypes[0]), 0))
    assert min(covered.values()) > 0.9, covered


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("info", KERNELS, ids=KERNEL_IDS)
def test_placements(emulated: Emulator, info: Any, layout: str) -> None:
    """One ragged batch in every place; what the budget cuts in one layout is there in another."""
    case, turn = ragged_case(info, layout, "both"), 2 * LAYOUTS.index(layout)
    for dtypes, precision in {
        (dtypes[0], precision): (dtypes, precision) for dtypes, precision in modes(info)
    }.values():
        trials = [Trial(case, place, Schedule(i), precision=precision) for i, place in enumerate(placements(info))]
        taken = affordable(info, [*trials[turn:], *trials[:turn]], lambda trial: trial, BUDGET // 3)
        assert_all_right(emulated, info.name, dtypes, taken)


@over_modes(first_dtypes)
def test_empty(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    """Nothing to multiply, and nothing to write."""
    shapes = [Shape(0, 5, 7), Shape(5, 0, 7), Shape(0, 0, 0), Shape(1, 1, 0, "both"), Shape(0, 3, 4, "both")]
    trials = [Trial(Case(shape, layout), precision=precision) for shape in shapes for layout in ("NN", "TT")]
    assert_all_right(emulated, info.name, dtypes, trials)


@over_modes(lambda info, dtypes, _: dtypes == info.dtypes[-1])
def test_schedules(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    """The same bits and the same number of switches from the same seed; the same bits from all seeds and workers."""
    schedules = [Schedule(0), Schedule(0), Schedule(1, workers=3), *map(Schedule, SEEDS[1:])]
    trials = [
        Trial(ragged_case(info, LAYOUTS[schedule.seed % 4 if i > 2 else 0]), schedule=schedule, precision=precision)
        for i, schedule in enumerate(schedules)
    ]
    trials = [*trials[:3], *affordable(info, trials[3:], lambda trial: trial, BUDGET // 2)]
    runs = in_parallel(lambda trial: try_integers(emulated, info.name, dtypes, trial), trials)
    by_layout: dict[str, bytes] = {}
    for trial, (result, expected) in zip(trials, runs, strict=True):
        assert not faults(result, expected), trial.command(info.name, dtypes)
        assert by_layout.setdefault(trial.case.layout, result.out.tobytes()) == result.out.tobytes()
    assert runs[0][0].run.switches == runs[1][0].run.switches
    assert (runs[0][0].owners == runs[2][0].owners).all()


@over_modes(lambda info, dtypes, _: info.split_k and dtypes == info.dtypes[0])
def test_splits_of_several_k_tiles(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    """K split into parts of several k-tiles, the last of which is shorter; by a second kernel, or within a cluster."""
    place = Placement(multiple=16 if info.tma else 1)  # where an operand is copied for its rows only, it is not
    shared = cluster_shape(info)
    second_kernel = []
    for shape, split in (
        ((shared, CLUSTER_SPLIT), (long_shape(info), (0, 7))) if shared else ((long_shape(info), (0, 7)),)
    ):
        trial = Trial(Case(shape, "NT"), place, precision=precision, split=split)
        result, expected = try_integers(emulated, info.name, dtypes, trial)
        assert not faults(result, expected)
        copies = 2 if info.tma and precision == "highest" else 0
        second_kernel.append(result.run.launches - copies == 2)
    assert second_kernel == ([False, True] if shared else [True])


@over_modes(lambda info, *_: info.tma)
def test_tiles_that_are_left_over(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    """K of the last tiles split, after each CTA had whole ones."""
    assert_all_right(emulated, info.name, dtypes, tail_trials(info, precision))


@over_modes(lambda info, *_: has_whole_rows(info))
def test_whole_rows_that_begin_anywhere(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    assert_all_right(emulated, info.name, dtypes, whole_rows_trials(info, precision))


@pytest.mark.parametrize("layout", LAYOUTS)
@over_modes(floating)
def test_special_values_stay_in_their_row_and_column(
    emulated: Emulator, info: Any, dtypes: DTypes, precision: str, layout: str
) -> None:
    """NaN and infinity reach what they are multiplied into, and never what padding stands for."""

    def failure(planted: tuple[Trial, float, str]) -> str:
        trial, value, operand = planted
        case = trial.case
        lhs, rhs = trial.operands(dtypes, integers)
        marked = plant(case, {"lhs": lhs, "rhs": rhs}, operand, value)
        result = trial.run(emulated, info.name, dtypes, lhs, rhs)
        special = ~np.isfinite(result.out.astype(np.float32))
        rows = special if operand == "lhs" else special.T
        found = faults(result, exact(case, lhs, rhs, dtypes[2]))
        if not rows[marked].all() or rows.sum() != len(set(marked)) * rows.shape[1]:
            found += f"\n{value} in rows {marked} of {operand} went astray"
        return found

    plants = [(value, operand) for value in (np.nan, np.inf, -np.inf) for operand in ("lhs", "rhs")]
    turn = LAYOUTS.index(layout)
    plants = [*plants[turn:], *plants[:turn]]
    shapes = [ragged_case(info, layout).shape] * len(plants) + [deep_shape(info)] * 2
    places = placements(info)
    trials = [
        Trial(Case(shape, layout), places[(turn + i) % len(places)], Schedule(turn + i), precision=precision)
        for i, shape in enumerate(shapes)
    ]
    items = [(trial, *plants[i % len(plants)]) for i, trial in enumerate(trials)]
    failures = in_parallel(failure, affordable(info, items, lambda item: item[0], BUDGET // 8))
    assert not any(failures), "\n".join(failures)
