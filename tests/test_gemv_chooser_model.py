"""cuda/select.cc on products of one row or column, against what was measured of them (chooser_times_gemv.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chooser_times import JNP, ROWS_FAMILY, ROWS_FILE
from benchmarks.results import geomean
from jaxgemm._native import _core
from tests.helpers import problem

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / ROWS_FILE).read_text())["rows"]


def asked(row: dict[str, Any]) -> _core.Problem:
    dtypes = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), row["dtype"])
    settings = {"batch": row["batch"], "layout": row["layout"], "precision": row["precision"], "sm": 90}
    return problem(row["m"], row["n"], row["k"], **dtypes, **settings)


def loss(row: dict[str, Any], family: str = "") -> float:
    """What the model chooses, of all or of a family, takes so many times as long as the fastest of them."""
    times = {name: us for name, us in row["us"].items() if name != JNP and name.startswith(family)}
    chosen = _core.select(asked(row), family)
    assert chosen in times, f"{chosen} was not measured: python -m benchmarks.chooser_times --rows measures again"
    return times[chosen] / min(times.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(row[name]) for name in row if name != "us"))
def test_choice_is_nearly_the_fastest(row: dict[str, Any]) -> None:
    assert loss(row) < 1.35


def test_choices_are_nearly_the_fastest_on_average() -> None:
    """Among all families, and of gemv's own tiles where there are some to choose from."""
    assert geomean(loss(row) for row in ROWS) < 1.02
    assert geomean(loss(row, ROWS_FAMILY) for row in ROWS) < 1.02
