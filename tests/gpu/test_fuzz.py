"""Random shapes, layouts, batches and kernels, from fixed seeds, against float64: 2,000 of each way of multiplying."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.edge_shapes import BATCH_SIZE, BATCHES, LAYOUTS, Case, Shape
from tests.gpu.support import KERNELS, MODES, Program
from tests.values import DTypes, is_float, judged_at, normals, precisions

pytestmark = pytest.mark.gpu

SHAPES = 2000
PROGRAMS = 16
"""Programs that the shapes of one way of multiplying are dealt to: a compilation each."""

LARGEST = (600, 600, 3000)
LARGEST_WORK = 40_000_000
"""Multiply-adds of a case: what float64 takes a few milliseconds for."""

WAYS = sorted({(dtypes[0], precision) for _, dtypes, precision in MODES})


def kernels_for(dtypes: DTypes, precision: str) -> list[Any]:
    """At the default precision those that multiply as the chooser's kernel does, rounding float32 to TF32."""
    return [info for info in KERNELS if dtypes in info.dtypes and precision in precisions(info, dtypes)]


def random_case(rng: np.random.Generator) -> Case:
    """Sizes are as likely to lie between 1 and 10 as between 50 and 500."""
    while True:
        m, n, k = (int(math.exp(rng.uniform(0, math.log(largest + 1)))) for largest in LARGEST)
        batch = BATCHES[rng.integers(len(BATCHES))]
        if m * n * k * (1 if batch == "none" else BATCH_SIZE) <= LARGEST_WORK:
            return Case(Shape(m, n, k, batch), LAYOUTS[rng.integers(len(LAYOUTS))])


@pytest.mark.parametrize("number", range(PROGRAMS))
@pytest.mark.parametrize(("dtype", "precision"), WAYS, ids=["-".join(way) for way in WAYS])
def test_random_shapes(dtype: str, precision: str, number: int) -> None:
    rng = np.random.default_rng([WAYS.index((dtype, precision)), number])
    rows = sorted({dtypes for _, dtypes, _ in MODES if dtypes[0] == dtype})
    dtypes = rows[number % len(rows)]
    infos = kernels_for(dtypes, precision)
    cases = [random_case(rng) for _ in range(SHAPES // PROGRAMS)]
    # Every third is left to the chooser.
    names = [None if rng.random() < 1 / 3 else infos[rng.integers(len(infos))].name for _ in cases]
    assert len({judged_at(info, dtypes, precision) for info in infos}) == 1, "one bound for all"
    program = Program(infos[-1], dtypes, precision, cases, names)
    operands = program.draw(normals, rng)
    results = program(operands)
    if is_float(dtypes[2]):
        program.worst_error(operands, results)
    else:
        program.check_exact(operands, results)
