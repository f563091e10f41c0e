"""cuda/select.cc against the measurements that its model was fitted to (chooser_times*.json, which say how)."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from jaxgemm._native import _core
from jaxgemm._target import PORTABLE_SM
from tests.gpu_limits import MAX_SMEM_BYTES
from tests.helpers import problem

HERE = Path(__file__).parent
Sizes = tuple[int, int, int, int]
Split = tuple[int, bool]
"""CTAs that share K, and whether of those tiles only that are left over."""


@dataclass(frozen=True)
class Measured:
    """A family's measurements, and how near the model comes to them."""

    file: str
    launch_us: float
    """Of a call, whatever the kernel: it decides nothing, and is none of the model's."""
    worst_choice: float
    worst_estimate: float
    rms_estimate: float
    near: float
    """Estimates are asked for of what takes at most so many times as long as the fastest."""
    average_choice: float

    @cached_property
    def document(self) -> dict[str, Any]:
        return json.loads((HERE / self.file).read_text())

    @cached_property
    def infos(self) -> dict[str, _core.KernelInfo]:
        return {info.config: info for info in _core.kernels() if info.family == self.document["family"]}

    @cached_property
    def times(self) -> dict[Sizes, dict[tuple[str, Split], float]]:
        """Microseconds by (tile, split), by (batch, m, n, k)."""
        found: dict[Sizes, dict[tuple[str, Split], float]] = {}
        for row in self.document["rows"]:
            times = found.setdefault((row.get("batch", 1), row["m"], row["n"], row["k"]), {})
            split = (row["splits"], row.get("tail", False))
            times |= {(tile, split): us for tile, us in row["us"].items()}
        return found

    def asked(self, sizes: Sizes) -> _core.Problem:
        dtype, (batch, *mnk) = self.document["dtype"], sizes
        layout = self.document["layout"]
        return problem(*mnk, batch=batch, layout=layout, lhs_dtype=dtype, rhs_dtype=dtype, out_dtype=dtype, sm=90)

    def split(self, tile: str, sizes: Sizes) -> Split:
        """How the model splits K."""
        whole, splits = _core.k_split(self.infos[tile].name, self.asked(sizes))
        return splits, splits > 1 and whole > 0

    def estimate(self, tile: str, sizes: Sizes) -> float:
        return _core.estimated_cost(self.infos[tile].name, self.asked(sizes))

    def chosen_us(self, tile: str, sizes: Sizes) -> float:
        """What a tile took in the splits that the model gives it; or, as K was split in some ways only, the longer of
        the nearest two."""
        (splits, tail), times = self.split(tile, sizes), self.times[sizes]
        found = [number for name, (number, of_tail) in times if name == tile and of_tail == tail]
        fewer = max((number for number in found if number <= splits), default=None)
        more = min((number for number in found if number >= splits), default=None)
        near = [number for number in (fewer, more) if number]
        assert near, f"{tile} in about {splits} splits was not measured"
        return max(times[tile, (number, tail)] for number in near)

    def choice(self, sizes: Sizes) -> float:
        """What the model chooses takes so many times as long as the fastest."""
        tile = _core.select(self.asked(sizes), self.document["family"]).partition(":")[2]
        return self.chosen_us(tile, sizes) / min(self.times[sizes].values())


MEASURED = [
    Measured("chooser_times.json", 0.8, 1.04, 1.5, 0.1, 1.6, 1.002),
    Measured("chooser_times_wgmma.json", 0.8, 1.10, 1.6, 0.125, 1.6, 1.006),
]


@pytest.mark.parametrize(
    ("measured", "sizes"),
    [pytest.param(m, s, id=f"{m.document['family']}-{'x'.join(map(str, s))}") for m in MEASURED for s in m.times],
)
def test_choice_is_nearly_the_fastest(measured: Measured, sizes: Sizes) -> None:
    assert measured.choice(sizes) <= measured.worst_choice


@pytest.mark.parametrize("measured", MEASURED, ids=lambda measured: measured.document["family"])
def test_choices_are_nearly_the_fastest_on_average(measured: Measured) -> None:
    assert sum(map(measured.choice, measured.times)) / len(measured.times) <= measured.average_choice


@pytest.mark.parametrize("measured", MEASURED, ids=lambda measured: measured.document["family"])
def test_estimates_are_near_the_measurements(measured: Measured) -> None:
    """Of every tile that was measured with as many splits as the model gives it."""
    errors = [
        math.log((measured.estimate(tile, sizes) + measured.launch_us) / us)
        for sizes, times in measured.times.items()
        for (tile, split), us in times.items()
        if measured.split(tile, sizes) == split and us <= measured.near * min(times.values())
    ]
    assert len(errors) >= 2 * len(measured.times)
    assert max(map(abs, errors)) < math.log(measured.worst_estimate)
    assert math.sqrt(sum(error**2 for error in errors) / len(errors)) < measured.rms_estimate


GEMV_TAKES = {(1, 1, 4096, 4096), (1, 1, 1024, 4096)}


def test_choices_between_families_are_nearly_the_fastest_on_average() -> None:
    """Both were measured in one run, gemv in another (test_gemv_chooser_model.py): what it takes is asked of them."""
    families = {measured.document["family"]: measured for measured in MEASURED}
    losses = []
    for sizes in MEASURED[0].times:
        asked = MEASURED[0].asked(sizes)
        chosen = _core.select(asked)
        if chosen.startswith("gemv:"):
            assert sizes in GEMV_TAKES
            others = (_core.select(asked, family) for family in families)
            chosen = min(others, key=lambda name: _core.estimated_cost(name, asked))
        family, _, tile = chosen.partition(":")
        fastest = min(us for measured in MEASURED for us in measured.times[sizes].values())
        losses.append(families[family].chosen_us(tile, sizes) / fastest)
    assert len(losses) == len(MEASURED[1].times)
    assert max(losses) < 1.10
    assert sum(losses) / len(losses) < 1.006


def test_what_the_portable_gpu_can_run_all_can() -> None:
    for info in _core.kernels():
        lhs, rhs, out = info.dtypes[0]
        can = {
            sm: not _core.why_not(info.name, problem(8, 8, 8, lhs_dtype=lhs, rhs_dtype=rhs, out_dtype=out, sm=sm))
            for sm in MAX_SMEM_BYTES
        }
        assert can[PORTABLE_SM] <= min(can.values()), f"{info.name}: {can}"
