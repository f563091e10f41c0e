"""Every kernel x dtype x layout at the edges of its own tiles: integers exactly, normal values within their bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.edge_shapes import LAYOUTS, Case, Shape, cases
from tests.gpu.report import RecordError
from tests.gpu.support import KERNEL_DTYPE_IDS, KERNEL_DTYPES, Program
from tests.values import DTypes, error_ratio, integers, normals

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_edge_shapes(
    info: Any, dtypes: DTypes, layout: str, rng: np.random.Generator, record_error: RecordError
) -> None:
    assert layout in info.layouts
    program = Program(info.name, dtypes, cases(info, list(info.dtypes).index(dtypes), layout))

    operands = program.draw(integers, rng)
    assert all(x.any() for pair in operands for x in pair if x.size > 16)
    program.check_exact(operands, program(operands))

    operands = program.draw(normals, rng)
    record_error(info.name, program.worst_error(operands, program(operands)))


@pytest.mark.parametrize(("info", "dtypes"), KERNEL_DTYPES, ids=KERNEL_DTYPE_IDS)
def test_rounding_errors_are_random(
    info: Any, dtypes: DTypes, rng: np.random.Generator, record_error: RecordError
) -> None:
    """On zero-mean data errors grow like sqrt(K), if the accumulator has the 24 bits that it should have."""
    k = 4096
    case = Case(Shape(256, 320, k), "NN")
    program = Program(info.name, dtypes, [case])
    operands = program.draw(lambda *args: (normals(*args) - 0.25).astype(args[2]), rng)
    (out,) = program(operands)
    (lhs, rhs) = (np.asarray(x, np.float64) for x in operands[0])
    exact, magnitude = lhs @ rhs, np.abs(lhs) @ np.abs(rhs)
    record_error(info.name, error_ratio(out, exact, magnitude, k, dtypes))
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtypes[2]]
    allowed = 2 * np.sqrt(k) * 2.0**-24 * magnitude
    assert (np.abs(out.astype(np.float64) - exact) <= allowed + unit * (np.abs(exact) + allowed)).all()
