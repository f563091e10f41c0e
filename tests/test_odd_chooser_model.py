"""cuda/select.cc on operands whose rows begin anywhere, against what was measured of them (chooser_times_odd.json)."""

from __future__ import annotations

import pytest

from benchmarks.chooser_times import FILES, JNP, ODD_FILE, ODD_WHAT, odd_cells, odd_keys, row_of
from benchmarks.results import geomean
from tests.chooser_rows import Row, document_of, loss, row_id

DOCUMENT = document_of(ODD_FILE)
ROWS: list[Row] = DOCUMENT["rows"]


def family_of(kernel: str) -> str:
    return kernel.partition(":")[0]


@pytest.mark.parametrize("row", ROWS, ids=row_id)
def test_choice_is_nearly_the_fastest(row: Row) -> None:
    assert loss(row, "--odd") < 1.15


def test_choices_are_nearly_the_fastest_on_average() -> None:
    assert geomean(loss(row, "--odd") for row in ROWS) < 1.02


def test_the_committed_file_is_of_all_problems_and_tiles() -> None:
    assert DOCUMENT["what"] == ODD_WHAT
    for key, row in zip(odd_keys(), ROWS, strict=True):
        assert {**row, "us": {}} == row_of(key, {})
        tiles = [cell.kernel for cell in odd_cells(key, 90) if family_of(cell.kernel) in FILES]
        measured = [name for name in row["us"] if family_of(name) in FILES]
        assert measured == tiles, "python -m benchmarks.chooser_times --odd measures again"
        assert JNP in row["us"]
