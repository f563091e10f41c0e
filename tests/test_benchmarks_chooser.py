"""benchmarks/chooser_times.py: what is measured for the chooser's model, and that the committed files are whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chooser_times
from benchmarks.chooser_times import (
    FILES,
    GAP_US,
    JNP,
    PROBLEMS,
    ROWS_FILE,
    ROWS_WHAT,
    Cell,
    cells,
    every_cell,
    measure,
    row_cells,
    row_keys,
    row_of,
    rows,
)
from jaxgemm import _choose, _timing
from jaxgemm._native import _core
from jaxgemm._timing import Timing
from jaxgemm._tuning_table import Key
from tests.helpers import problem

DTYPES = {"lhs_dtype": "bfloat16", "rhs_dtype": "bfloat16", "out_dtype": "bfloat16"}
INFOS = {
    info.name: info
    for info in _core.kernels()
    if info.family in FILES and ("bfloat16", "bfloat16", "bfloat16") in info.dtypes
}


@pytest.mark.parametrize("sizes", PROBLEMS, ids=lambda sizes: "x".join(map(str, sizes)))
def test_every_way_can_be_run_and_the_models_own_lies_between(sizes: tuple[int, int, int, int]) -> None:
    batch, m, n, k = sizes
    for info in INFOS.values():
        found = list(cells(info, sizes))
        assert found[0] == Cell(info.name)
        assert len(set(found)) == len(found)
        assert info.split_k or len(found) == 1
        for cell in found:
            assert not _core.why_not(info.name, problem(m, n, k, batch=batch, sm=90, split=cell.split, **DTYPES))
        whole, splits = _core.k_split(info.name, problem(m, n, k, batch=batch, sm=90, **DTYPES))
        alike = [cell.splits for cell in found if cell.tail == (whole > 0)]
        assert splits == 1 or any(number <= splits for number in alike)


@pytest.mark.parametrize(("family", "name"), FILES.items())
def test_the_committed_files_are_of_all_problems_and_tiles(family: str, name: str) -> None:
    document = json.loads((Path(__file__).parent / name).read_text())
    assert document["what"] == chooser_times.WHAT
    whole = {
        (row["batch"], row["m"], row["n"], row["k"]): set(row["us"]) for row in document["rows"] if row["splits"] == 1
    }
    assert list(whole) == PROBLEMS
    tiles = {info.config for info in INFOS.values() if info.family == family}
    assert all(measured == tiles for measured in whole.values()), "python -m benchmarks.chooser_times measures again"


def test_the_committed_file_of_single_rows_is_of_all_problems_and_tiles() -> None:
    document = json.loads((Path(__file__).parent / ROWS_FILE).read_text())
    assert document["what"] == ROWS_WHAT
    for key, row in zip(row_keys(), document["rows"], strict=True):
        assert {**row, "us": {}} == row_of(key, {})
        tiles = [cell.kernel for cell in row_cells(key, 90) if cell.kernel.startswith("gemv:")]
        measured = [name for name in row["us"] if name.startswith("gemv:")]
        assert measured == tiles, "python -m benchmarks.chooser_times --rows measures again"
        assert JNP in row["us"]


def test_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of splitting K is asked for while its program is traced, and a second kernel costs its gap."""
    asked: list[tuple[str, tuple[int, int]]] = []

    class Program:
        def lower(self, *operands: Any) -> Program:
            asked.append((self.name, _choose.BY_MODEL))
            return self

        def compile(self) -> str:
            return self.name

        def __init__(self, key: Any, name: str) -> None:
            self.name = name

    def compare(functions: dict[str, str], operands: Any, **plan: Any) -> dict[str, Timing]:
        kernels = {name: ("gemm", "reduce") if name.endswith(", 8))") else ("gemm",) for name in functions}
        return {name: Timing(5.0, 5.0, 5.0, kernels[name], 9, "cupti") for name in functions}

    monkeypatch.setattr("jaxgemm._tune.kernel_function", Program)
    monkeypatch.setattr("jaxgemm._tune.jax_function", lambda key: Program(key, JNP))
    monkeypatch.setattr(_timing, "compare", compare)
    monkeypatch.setattr(_timing, "rotating_arg_sets", lambda make_args, nbytes: [(0, 0)])
    sizes = (1, 64, 96, 4096)
    key = Key("bfloat16", "bfloat16", "bfloat16", "default", "NN", *sizes)
    times = measure(key, every_cell(key, 90))
    assert asked == [(cell.kernel, cell.split) for info in INFOS.values() for cell in cells(info, sizes)]
    assert _choose.BY_MODEL == (0, 0)
    asked.clear()
    measure(key, row_cells(key, 90)[-2:])
    assert [name for name, _ in asked] == [_core.select(problem(64, 96, 4096, sm=90, **DTYPES), "wgmma"), JNP]
    assert {times[cell] for cell in times if cell.splits == 8} == {5.0 + GAP_US}
    assert {times[cell] for cell in times if cell.splits != 8} == {5.0}


def test_rows_have_the_tiles_that_were_split_alike() -> None:
    found = {
        (1, 8, 16, 24): {
            Cell("wgmma:a"): 1.23456,
            Cell("wgmma:b"): 2.0,
            Cell("wgmma:b", (132, 2)): 3.0,
            Cell("mma_multistage:a"): 4.0,
        }
    }
    sizes = {"batch": 1, "m": 8, "n": 16, "k": 24}
    assert list(rows("wgmma", found)) == [
        sizes | {"splits": 1, "tail": False, "us": {"a": 1.235, "b": 2.0}},
        sizes | {"splits": 2, "tail": True, "us": {"b": 3.0}},
    ]


def test_of_single_rows_every_tile_of_gemv_is_measured_and_one_of_each_other_family() -> None:
    keys = row_keys()
    assert len(set(keys)) == len(keys)
    assert {(key.lhs_dtype, key.layout) for key in keys if key.m == 1} >= {("bfloat16", "NT"), ("float32", "NN")}
    for key in keys:
        assert 1 in (key.m, key.n)
        *tried, last = row_cells(key, 90)
        assert last == Cell(JNP)
        own = [info for info in _core.kernels() if info.family == "gemv"]
        dtypes = (key.lhs_dtype, key.rhs_dtype, key.out_dtype)
        tiles = [cell.kernel for cell in tried if cell.kernel.startswith("gemv:")]
        assert tiles == [info.name for info in own if dtypes in info.dtypes]
        others = [cell.kernel.partition(":")[0] for cell in tried if cell.kernel not in tiles]
        assert others == list(FILES) if key.lhs_dtype == "bfloat16" else set(others) <= set(FILES)
        assert all(cell.split == ((0, 0) if cell.kernel not in tiles else (0, 1)) for cell in tried)


def test_a_row_of_what_gemv_is_judged_by() -> None:
    key = Key("float32", "float32", "float32", "highest", "NT", 2, 1, 8, 16)
    times = {Cell("gemv:a"): 1.23456, Cell("wgmma:b", (0, 0)): 20.0}
    assert row_of(key, times) == {
        "dtype": "float32", "precision": "highest", "layout": "NT", "batch": 2, "m": 1, "n": 8, "k": 16,
        "us": {"gemv:a": 1.235, "wgmma:b": 20.0},
    }  # fmt: skip
