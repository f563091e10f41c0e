"""cuda/select.cc against the measurements that its model was fitted to (chooser_times.json, which says how)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from jaxgemm._native import _core
from jaxgemm._target import PORTABLE_SM
from tests.gpu_limits import MAX_SMEM_BYTES
from tests.helpers import problem

FILE = Path(__file__).with_name("chooser_times.json")
DOCUMENT: dict[str, Any] = json.loads(FILE.read_text())
FAMILY: str = DOCUMENT["family"]
INFOS = {info.config: info for info in _core.kernels() if info.family == FAMILY}
LAUNCH_US = 3.1  # of a call, in these measurements: no kernel's time, and so none of the model's

WORST_CHOICE = 1.035
WORST_ESTIMATE = 1.08
RMS_ESTIMATE = 0.04

Sizes = tuple[int, int, int]


def fastest_by_problem() -> dict[Sizes, dict[tuple[str, int], float]]:
    """Microseconds by (tile, splits)."""
    found: dict[Sizes, dict[tuple[str, int], float]] = {}
    for row in DOCUMENT["rows"]:
        times = found.setdefault((row["m"], row["n"], row["k"]), {})
        for tile, us in row["us"].items():
            times[tile, row["splits"]] = min(us, times.get((tile, row["splits"]), math.inf))
    return found


TIMES = fastest_by_problem()


def asked(sizes: Sizes) -> _core.Problem:
    dtype = DOCUMENT["dtype"]
    return problem(*sizes, layout=DOCUMENT["layout"], lhs_dtype=dtype, rhs_dtype=dtype, out_dtype=dtype, sm=90)


def splits(tile: str, sizes: Sizes) -> int:
    """Over how many CTAs the model splits K: what the workspace is for, as these operands need no padding."""
    info = INFOS[tile]
    tile_m, tile_n, _ = info.cta_tile
    tiles = -(-sizes[0] // tile_m) * -(-sizes[1] // tile_n)
    return max(1, _core.workspace_bytes(info.name, asked(sizes)) // (4 * tiles * tile_m * tile_n))


@pytest.mark.parametrize("sizes", TIMES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_choice_is_nearly_the_fastest(sizes: Sizes) -> None:
    tile = _core.select(asked(sizes), FAMILY).partition(":")[2]
    chosen = TIMES[sizes].get((tile, splits(tile, sizes)))
    assert chosen is not None, f"{tile} in {splits(tile, sizes)} splits was not measured"
    assert chosen <= WORST_CHOICE * min(TIMES[sizes].values())


def test_estimates_are_near_the_measurements() -> None:
    """Of every tile that was measured with as many splits as the model gives it."""
    errors = [
        math.log((_core.estimated_cost(INFOS[tile].name, asked(sizes)) + LAUNCH_US) / us)
        for sizes, times in TIMES.items()
        for (tile, number), us in times.items()
        if splits(tile, sizes) == number
    ]
    assert len(errors) >= 3 * len(TIMES)
    assert max(map(abs, errors)) < math.log(WORST_ESTIMATE)
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < RMS_ESTIMATE


def test_what_the_portable_gpu_can_run_all_can() -> None:
    for info in _core.kernels():
        lhs, rhs, out = info.dtypes[0]
        can = {
            sm: not _core.why_not(info.name, problem(8, 8, 8, lhs_dtype=lhs, rhs_dtype=rhs, out_dtype=out, sm=sm))
            for sm in MAX_SMEM_BYTES
        }
        assert can[PORTABLE_SM] <= min(can.values()), f"{info.name}: {can}"
