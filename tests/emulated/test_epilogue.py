"""The fused epilogue of every kernel, in the emulator, against float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from tests.edge_shapes import Case, Shape, deep_shape
from tests.emulated.support import in_parallel, placements
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Result, Trial, run
from tests.gpu.support import first_floating, floating, over_modes
from tests.values import ACTIVATIONS, EPILOGUES, DTypes, epilogue_error_ratio, epilogue_operands, rounds_operands


def _shapes(info: Any) -> list[tuple[int, int, int]]:
    """A rest in every dimension; whole vectors; nothing but the bias."""
    tile_m, tile_n, tile_k = info.cta_tile
    return [(3, tile_n + 5, tile_k + 3), (tile_m + 1, 16, 2 * max(tile_k, 8)), (5, 7, 0)]


@over_modes(floating)
def test_epilogue(emulated: Emulator, info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """Bias and activation in float32, rounded once: the error of the accumulator times the slope of the function."""
    deep = dataclasses.astuple(deep_shape(info))[:3]
    operands = {shape: epilogue_operands(rng, shape, dtypes) for shape in [*_shapes(info), deep]}
    places = placements(info)
    variants = [(shape, name, bias) for shape in _shapes(info) for name, bias in EPILOGUES]
    variants += [(deep, "none", True), (deep, "silu", True)]

    def compute(numbered: tuple[int, tuple[Any, str, bool]]) -> Result:
        i, (shape, activation, has_bias) = numbered
        lhs, rhs, bias = operands[shape]
        return run(
            emulated, info.name, Case(Shape(*shape), "NN"), lhs, rhs, dtypes[2], places[i % len(places)],
            bias=bias if has_bias else None, activation=activation, precision=precision, schedule=Schedule(i),
        )  # fmt: skip

    results = in_parallel(compute, enumerate(variants))
    tf32 = rounds_operands(info, dtypes, precision)
    for (shape, activation, has_bias), result in zip(variants, results, strict=True):
        *pair, bias = operands[shape]
        what = f"{shape} {activation} bias={has_bias}"
        assert result.run.clean, f"{what}: {result.run}"
        assert not result.stray, what
        epilogue = activation, bias if has_bias else None
        ratio = epilogue_error_ratio(Case(Shape(*shape), "NN"), result.out, pair, epilogue, dtypes, tf32)
        assert ratio <= 1, f"{what}: error {ratio:.3g} times its bound"


@over_modes(first_floating)
def test_epilogue_keeps_nan(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    lhs, rhs = np.ones((5, 8), dtypes[0]), np.ones((8, 6), dtypes[1])
    lhs[3, 2] = np.nan
    trial = Trial(Case(Shape(5, 6, 8), "NN"), precision=precision)
    for activation in ACTIVATIONS:
        result = trial.run(emulated, info.name, dtypes, lhs, rhs, activation=activation)
        assert result.run.clean, f"{activation}: {result.run}"
        nan_rows = np.isnan(result.out.astype(np.float32)).all(1)
        assert nan_rows.tolist() == [False, False, False, True, False], activation
