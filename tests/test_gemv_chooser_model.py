"""cuda/select.cc on products of one row or column, against what was measured of them (chooser_times_gemv.json)."""

from __future__ import annotations

import pytest

from benchmarks.chooser_times import ROWS_FAMILY, ROWS_FILE
from benchmarks.results import geomean
from tests.chooser_rows import Row, document_of, loss, row_id

ROWS: list[Row] = document_of(ROWS_FILE)["rows"]


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_choice_is_nearly_the_fastest(row: Row) -> None:
    assert loss(row, "--rows") < 1.25


def test_choices_are_nearly_the_fastest_on_average() -> None:
    """Among all families, and of gemv's own tiles where there are some to choose from."""
    assert geomean(loss(row, "--rows") for row in ROWS) < 1.015
    assert geomean(loss(row, "--rows", ROWS_FAMILY) for row in ROWS) < 1.02
