"""benchmarks/chooser_times.py: what is measured for the chooser's model, and that the committed files are whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chooser_times
from benchmarks.chooser_times import FILES, GAP_US, PROBLEMS, Cell, cells, measure, rows
from jaxgemm import _choose, _timing
from jaxgemm._native import _core
from jaxgemm._timing import Timing
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
    monkeypatch.setattr(_timing, "compare", compare)
    monkeypatch.setattr(_timing, "rotating_arg_sets", lambda make_args, nbytes: [(0, 0)])
    sizes = (1, 64, 96, 4096)
    times = measure(sizes, 90)
    assert asked == [(cell.kernel, cell.split) for info in INFOS.values() for cell in cells(info, sizes)]
    assert _choose.BY_MODEL == (0, 0)
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
