"""cuda/select_mixed.cc against the measurements that its model was fitted to (chooser_times_mixed.json)."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jaxgemm._native import _core

_FILE = Path(__file__).parent / "chooser_times_mixed.json"
Sizes = tuple[int, int, int]
FAMILIES = {"int4_wgmma": (2.0, 0.083), "int4_mma": (1.6, 0.0845)}
"""How many times the best one's time a measurement may take to count, and how near the model comes to those (root mean
square of the logarithm)."""
WORST_CHOICE, AVERAGE_CHOICE = 1.17, 1.011
"""Times of the best. The constants are those whose choices are best, not whose estimates are nearest."""
MOST_FOR_BOTH = 64
"""Tokens with which both families were measured, of some numbers up to there; with more int4_wgmma alone."""


@cache
def document() -> dict[str, Any]:
    return json.loads(_FILE.read_text())


@cache
def times() -> dict[Sizes, dict[tuple[str, int], float]]:
    """Microseconds by (kernel, CTAs that share K), by (m, n, k)."""
    return {
        (row["m"], row["n"], row["k"]): {
            (name, int(splits)): us for name, of_splits in row["us"].items() for splits, us in of_splits.items()
        }
        for row in document()["rows"]
    }


def problem(sizes: Sizes, splits: int = 0) -> _core.Problem:
    m, n, k = sizes
    return _core.mixed_problem(
        batch=1, m=m, n=n, k=k, lhs_dtype=document()["dtype"], out_dtype=document()["dtype"], activation="none",
        has_alpha=False, has_bias=False, bits=4, group_size=document()["group_size"], scale_dtype=document()["dtype"],
        zeros="middle", sm=90, split=(0, splits),
    )  # fmt: skip


def test_measured_kernels_are_those_of_the_registry() -> None:
    names = {info.name for info in _core.mixed_kernels()}
    measured = {name for of_sizes in times().values() for name, _ in of_sizes}
    assert measured <= names
    assert {name.partition(":")[0] for name in measured} == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates(family: str) -> None:
    near, allowed = FAMILIES[family]
    errors = []
    for sizes, of_sizes in times().items():
        best = min(of_sizes.values())
        errors += [
            math.log(_core.estimated_cost(name, problem(sizes, splits)) / us)
            for (name, splits), us in of_sizes.items()
            if name.startswith(f"{family}:") and us < near * best
        ]
    assert len(errors) > 400
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < allowed


def test_choices() -> None:
    losses = {}
    for sizes, of_sizes in times().items():
        if {name.partition(":")[0] for name, _ in of_sizes} != set(FAMILIES) and sizes[0] <= MOST_FOR_BOTH:
            continue  # one family was not measured with so few tokens
        name = _core.select(problem(sizes))
        splits = _core.k_split(name, problem(sizes))[1]
        found = {s: us for (kernel, s), us in of_sizes.items() if kernel == name}
        # Where K was not split so, the slower of the nearest two counts.
        nearest = [
            max((s for s in found if s <= splits), default=None),
            min((s for s in found if s >= splits), default=None),
        ]
        assert found and any(nearest), f"{name} in {splits} was not measured for {sizes}"
        losses[sizes] = math.log(max(found[s] for s in nearest if s is not None) / min(of_sizes.values()))
    worst = max(losses, key=lambda sizes: losses[sizes])
    assert losses[worst] < math.log(WORST_CHOICE), (worst, _core.select(problem(worst)), math.exp(losses[worst]))
    assert sum(losses.values()) / len(losses) < math.log(AVERAGE_CHOICE)
