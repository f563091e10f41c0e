"""float32 operands in the emulator: rounded to TF32 where a kernel says so, else worth all their 24 bits and range."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from tests.edge_shapes import LAYOUTS, Case, Shape, deep_shape, ragged_case
from tests.emulated.support import PLACEMENTS, affordable, in_parallel, placements
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Result, Trial, exact, faults
from tests.gpu.support import float32_highest, over_modes
from tests.values import (
    DTypes,
    float32_extremes,
    judged_at,
    normals,
    product_error_ratio,
    rounds_operands,
    stored,
    tf32_neighbours,
    wide_normals,
)


@over_modes(lambda _, dtypes, __: dtypes[0] == "float32")
def test_products_are_within_their_bound(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    """Of a few values, and of values of very different sizes."""
    cases = [ragged_case(info, layout) for layout in LAYOUTS] + [Case(deep_shape(info), "NN")]
    places = PLACEMENTS if precision == "highest" else placements(info)  # at HIGHEST operands are copied
    trials = [
        (Trial(case, places[i % len(places)], Schedule(i), i, precision), make)
        for i, (case, make) in enumerate(itertools.product(cases, (normals, wide_normals)))
    ]
    trials = affordable(info, [*trials[::4], *trials[3::4], *trials[1::4], *trials[2::4]], lambda numbered: numbered[0])

    def ratio(numbered: tuple[Trial, Any]) -> float:
        trial, make = numbered
        operands = trial.operands(dtypes, make)
        result = trial.run(emulated, info.name, dtypes, *operands)
        assert result.run.clean, f"{trial.command(info.name, dtypes)}\n{result.run}"
        bound = judged_at(info, dtypes, precision)
        return product_error_ratio(trial.case, result.out, operands, dtypes, bound)

    for (trial, make), error in zip(trials, in_parallel(ratio, trials), strict=True):
        assert error <= 1, f"{trial.case} {make.__name__}: error {error:.3g} times its bound"


@over_modes(rounds_operands)
def test_tf32_rounding(emulated: Emulator, info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Each operand becomes one of its two neighbours in TF32, and the roundings of many have no direction."""
    lhs, rhs = (wide_normals(rng, shape, "float32") for shape in ((35, 40), (40, 37)))
    ones = [rng.uniform(1, 2, shape).astype(np.float32) for shape in ((35, 400), (400, 37))]
    pairs = [(lhs, np.eye(40, dtype=np.float32)), (np.eye(40, dtype=np.float32), rhs), (ones[0], ones[1])]
    trials = [Trial(Case(Shape(x.shape[0], y.shape[1], x.shape[1]), "NN"), precision=precision) for x, y in pairs]
    results = [trial.run(emulated, info.name, dtypes, *pair) for trial, pair in zip(trials, pairs, strict=True)]
    assert tf32_neighbours(results[0].out, lhs).all()
    assert tf32_neighbours(results[1].out, rhs).all()
    errors = results[2].out / trials[2].case.product(*ones) - 1
    assert np.abs(errors).max() < 0.3 * 2.0**-10  # truncation: 1.4 of these units
    assert abs(errors.mean()) < 0.1 * 2.0**-10


@over_modes(float32_highest)
def test_extremes(emulated: Emulator, info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """At HIGHEST the range of float32 is that of float32, however the products are made."""
    pairs = float32_extremes(rng)

    def compute(numbered: tuple[int, tuple[np.ndarray, np.ndarray]]) -> tuple[Trial, Result, Any]:
        i, (lhs, rhs) = numbered
        layout = LAYOUTS[i % len(LAYOUTS)]
        case = Case(Shape(lhs.shape[0], rhs.shape[1], lhs.shape[1]), layout)
        trial = Trial(case, PLACEMENTS[i % len(PLACEMENTS)], Schedule(i), precision=precision)
        operands = stored(layout, lhs, rhs)
        return trial, trial.run(emulated, info.name, dtypes, *operands), operands

    for name, (trial, result, operands) in zip(pairs, in_parallel(compute, enumerate(pairs.values())), strict=True):
        assert result.run.clean, f"{name}: {result.run}"
        ratio = product_error_ratio(trial.case, result.out, operands, dtypes)
        assert ratio <= 1, f"{name}: error {ratio:.3g} times its bound"
        if name.startswith("integers"):
            lhs, rhs = operands
            assert not (found := faults(result, exact(trial.case, lhs, rhs, dtypes[2]))), f"{name}: {found}"
