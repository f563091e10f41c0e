"""cuda/select.cc on operands whose rows begin anywhere, against what was measured of them (chooser_times_odd.json)."""

from __future__ import annotations

import pytest

from benchmarks.chooser_times import JNP, ODD_FILE, odd_keys, row_of
from benchmarks.results import geomean
from tests.chooser_rows import Row, loss, row_id, rows_of

ROWS = rows_of(ODD_FILE)


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_choice_is_nearly_the_fastest(row: Row) -> None:
    assert loss(row, "--odd") < 1.25


def test_choices_are_nearly_the_fastest_on_average() -> None:
    assert geomean(loss(row, "--odd") for row in ROWS) < 1.05


def test_the_committed_file_is_of_all_problems() -> None:
    assert [{**row, "us": {}} for row in ROWS] == [row_of(key, {}) for key in odd_keys()]
    assert all(JNP in row["us"] and len(row["us"]) > 1 for row in ROWS)
