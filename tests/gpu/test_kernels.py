"""Every kernel x dtype x layout at the edges of its own tiles: integers exactly, normal values within their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jaxgemm._choose import NO_SPLIT
from jaxgemm._native import _core
from tests.edge_shapes import BATCH_SIZE, LAYOUTS, Case, Shape, cases
from tests.gpu.report import RecordError
from tests.gpu.support import Program, floating, over_modes
from tests.helpers import left_over_shapes, problem
from tests.values import DTypes, integers, modes, normals, rounds_operands

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", LAYOUTS)
@over_modes()
def test_edge_shapes(
    info: Any, dtypes: DTypes, precision: str, layout: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    assert layout in info.layouts
    program = Program(info, dtypes, precision, cases(info, modes(info).index((dtypes, precision)), layout))

    operands = program.draw(integers, rng)
    assert all(x.any() for pair in operands for x in pair if x.size > 16)
    program.check_exact(operands, program(operands))

    operands = program.draw(normals, rng)
    record_error(info.name, program.worst_error(operands, program(operands)))


@over_modes(lambda info, *_: info.family == "mma_multistage")
def test_operands_that_are_copied_where_that_pays(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    """So many multiply-adds (cuda/tile/padding.h) as no edge shape has."""
    odd = [Shape(647, 659, 701), Shape(443, 449, 461, "both"), Shape(1297, 307, 331, "rhs_shared")]
    for shape in odd:
        kinds = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), dtypes, strict=True))
        batch = 1 if shape.batch == "none" else BATCH_SIZE
        asked = problem(shape.m, shape.n, shape.k, batch=batch, split=NO_SPLIT, **kinds)
        assert _core.workspace_bytes(info.name, asked) > 0
    program = Program(info, dtypes, precision, [Case(shape, layout) for shape in odd for layout in LAYOUTS])
    operands = program.draw(integers, rng)
    program.check_exact(operands, program(operands))
    operands = program.draw(normals, rng)
    record_error(info.name, program.worst_error(operands, program(operands)))


@over_modes(lambda info, *_: info.tma)
def test_tiles_that_are_left_over(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    """K of the last tiles split, after each multiprocessor had a whole one."""
    program = Program(info, dtypes, precision, [Case(s, "NN") for s in left_over_shapes(info, dtypes, precision)])
    operands = program.draw(integers, rng)
    program.check_exact(operands, program(operands))
    operands = program.draw(normals, rng)
    record_error(info.name, program.worst_error(operands, program(operands)))


@over_modes(floating)
def test_rounding_errors_are_random(
    info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    """On zero-mean data errors grow like sqrt(K), if the accumulator has the 24 bits that it should have."""
    k = 4096
    case = Case(Shape(256, 320, k), "NN")
    program = Program(info, dtypes, precision, [case])
    operands = program.draw(lambda *args: (normals(*args) - 0.25).astype(args[2]), rng)
    results = program(operands)
    record_error(info.name, program.worst_error(operands, results))
    lhs, rhs = (x.astype(np.float64) for x in operands[0])
    exact, magnitude = lhs @ rhs, np.abs(lhs) @ np.abs(rhs)
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtypes[2]]
    allowed = 2 * np.sqrt(k) * 2.0**-24 * magnitude
    # Six standard deviations of roundings to nearest; truncation has 2.5 times the deviation.
    if rounds_operands(info, dtypes, precision):
        allowed += 4 * 2.0**-11 * np.sqrt(lhs**2 @ rhs**2)
    if (
        np.dtype(dtypes[0]).itemsize == 1
    ):  # 13 bits below a sum of 512 products, for each instruction's 32; longer sums meet it, too
        allowed += 2.0**-13 * np.sqrt(k / 32) * 4 * np.sqrt(512) * np.sqrt(lhs**2 @ rhs**2 / k)
    assert (np.abs(results[0].astype(np.float64) - exact) <= allowed + unit * (np.abs(exact) + allowed)).all()
