"""The fused epilogue of every kernel, in the emulator, against float64."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

from tests.edge_shapes import Case, Shape, deep_shape
from tests.emulated.support import fault_of_biases, in_parallel, placements
from tests.emulator.library import Emulator, Schedule
from tests.emulator.problem import Result, Trial, run
from tests.gpu.support import first_floating, floating, over_modes
from tests.values import (
    ACTIVATIONS,
    ALPHA,
    EPILOGUES,
    DTypes,
    Epilogue,
    epilogue_error_ratio,
    epilogue_operands,
    judged_at,
)


def _shapes(info: Any) -> list[tuple[int, int, int]]:
    """A rest in every dimension; whole vectors; nothing but the bias."""
    tile_m, tile_n, tile_k = info.cta_tile
    return [(3, tile_n + 5, tile_k + 3), (tile_m + 1, 16, 2 * max(tile_k, 8)), (5, 7, 0)]


@over_modes(floating)
def test_epilogue(emulated: Emulator, info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """All in float32, rounded once: the error is that of the scaled accumulator times the slope of the function."""
    deep = dataclasses.astuple(deep_shape(info))[:3]
    shapes = [*_shapes(info), deep]
    operands = dict(zip(shapes, epilogue_operands(rng, shapes, dtypes), strict=True))
    places = placements(info)
    variants = [(shape, epilogue) for shape in _shapes(info) for epilogue in EPILOGUES]
    variants += [(deep, Epilogue(has_bias=True)), (deep, Epilogue("silu", True, ALPHA))]

    def compute(numbered: tuple[int, tuple[Any, Epilogue]]) -> Result:
        i, (shape, epilogue) = numbered
        lhs, rhs, bias = operands[shape]
        return run(
            emulated, info.name, Case(Shape(*shape), "NN"), lhs, rhs, dtypes[2], places[i % len(places)],
            alpha=epilogue.alpha, bias=bias if epilogue.has_bias else None, activation=epilogue.activation,
            precision=precision, schedule=Schedule(i),
        )  # fmt: skip

    results = in_parallel(compute, enumerate(variants))
    bound = judged_at(info, dtypes, precision)
    for (shape, epilogue), result in zip(variants, results, strict=True):
        *pair, bias = operands[shape]
        what = f"{shape} {epilogue}"
        assert result.run.clean, f"{what}: {result.run}"
        assert not result.stray, what
        ratio = epilogue_error_ratio(Case(Shape(*shape), "NN"), result.out, pair, bias, epilogue, dtypes, bound)
        assert ratio <= 1, f"{what}: error {ratio:.3g} times its bound"


@over_modes(floating)
def test_a_bias_for_each_of_the_batch(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    assert not fault_of_biases(emulated, info, dtypes, precision)


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


@over_modes(first_floating)
def test_special_alphas(emulated: Emulator, info: Any, dtypes: DTypes, precision: str) -> None:
    """NaN and infinity are factors like any other, of empty sums too: 0 * inf is NaN. Zero hides no NaN."""
    lhs, rhs = np.ones((5, 8), dtypes[0]), np.ones((8, 6), dtypes[1])
    lhs[1], lhs[2, 3], lhs[3] = 0, np.nan, -1
    for k, alpha in itertools.product((8, 0), (np.nan, np.inf, -np.inf, 0.0)):
        trial = Trial(Case(Shape(5, 6, k), "NN"), precision=precision)
        result = trial.run(emulated, info.name, dtypes, lhs[:, :k], rhs[:k], alpha=alpha)
        assert result.run.clean, f"{alpha}: {result.run}"
        with np.errstate(invalid="ignore"):
            expected = np.float32(alpha) * np.array([k, 0, np.nan if k else 0, -k, k], np.float32)
        np.testing.assert_array_equal(result.out.astype(np.float32), np.tile(expected[:, None], 6), f"{k} {alpha}")
