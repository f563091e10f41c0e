"""cuda/select_mixed.cc against the measurements that its model was fitted to (chooser_times_mixed.json)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks import chooser_times_mixed as few_columns
from benchmarks.chooser_times import DTYPE
from benchmarks.chooser_times_mixed import Sizes, Split
from jaxgemm import _choose
from jaxgemm._native import _core
from tests.quantised import streams

_FILE = Path(__file__).parent / "chooser_times_mixed.json"
_TWO_GPUS_FILE = _FILE.with_stem("chooser_times_mixed_two_gpus")
"""Of the products of layers that two GPUs share; each kernel with one way of sharing K."""
Kind = tuple[int, str]  # group size, zero points
USUAL: Kind = (128, "middle")
FAMILIES = {"int4_wgmma": (2.0, 0.085, 5000), "int4_tma": (2.0, 0.043, 250), "int4_mma": (1.6, 0.075, 300)}
"""How many times the best one's time a measurement may take to count, how near the model comes to those (root mean
square of the logarithm), and how many there are at least."""
WORST_CHOICE, AVERAGE_CHOICE = 1.16, 1.0075
"""Times of the best. The constants are those whose choices are best, not whose estimates are nearest."""
RAGGED, AVERAGE_OF_RAGGED = (192, 384), 1.025
"""Tokens that are no whole tiles of 128 or of 256, and the average for them."""
WORST_OF_TWO_GPUS, AVERAGE_OF_TWO_GPUS = 1.05, 1.006
"""The same of layers that two GPUs share."""
WORST_OF_FEW_COLUMNS, AVERAGE_OF_FEW_COLUMNS = 1.18, 1.028
"""The same of few columns."""
WORST_OF_KEYS_AND_VALUES = 1.10
"""The same of those among them that are of layers that two GPUs share."""
WORST_OF_OTHERS, AVERAGE_OF_OTHERS = 1.06, 1.003
"""The same of other groups and of zero points."""
AVERAGE_OF_MMA = 1.016
"""The same of int4_mma alone, which is what GPUs before Hopper have, of all groups and up to 64 tokens."""
MOST_FOR_BOTH = 64
"""Tokens with which both families were measured, of some numbers up to there; with more int4_wgmma alone."""


@cache
def document() -> dict[str, Any]:
    return json.loads(_FILE.read_text())


def split_of(text: str) -> Split:
    """The number of CTAs that share K, after that of tiles that are not shared, if there are any."""
    whole, _, splits = text.rpartition("+")
    return int(whole or 0), int(splits)


@cache
def times() -> dict[Kind, dict[Sizes, dict[tuple[str, Split], float]]]:
    return times_in(document()["rows"])


def times_in(rows: list[dict[str, Any]]) -> dict[Kind, dict[Sizes, dict[tuple[str, Split], float]]]:
    """Microseconds by (kernel, split), by (m, n, k)."""
    found: dict[Kind, dict[Sizes, dict[tuple[str, Split], float]]] = {}
    for row in rows:
        of_kind = found.setdefault((row["group_size"], row["zeros"]), {})
        of_kind[row["m"], row["n"], row["k"]] = {
            (name, split_of(split)): us for name, of_splits in row["us"].items() for split, us in of_splits.items()
        }
    return found


def problem(kind: Kind, sizes: Sizes, split: Split = _choose.BY_MODEL) -> _core.Problem:
    group_size, zeros = kind
    assert document()["dtype"] == DTYPE
    return few_columns.native_problem(sizes, 90, group_size, zeros, split)


def losses(kind: Kind, wanted: Callable[[int], bool] = lambda m: True, family: str = "") -> list[float]:
    """How many times as long as the best what is chosen takes, as logarithms in rising order, with such tokens; of one
    family, or of both.
    """
    found = []
    for sizes, of_both in times()[kind].items():
        if not wanted(sizes[0]):
            continue
        if {name.partition(":")[0] for name, _ in of_both} != set(FAMILIES) and sizes[0] <= MOST_FOR_BOTH:
            continue  # one family was not measured with so few tokens
        of_sizes = {at: us for at, us in of_both.items() if at[0].startswith(family)}
        name = _core.select(problem(kind, sizes), family)
        split = _core.k_split(name, problem(kind, sizes))
        of_kernel = {known: us for (kernel, known), us in of_sizes.items() if kernel == name}
        if streams(split):
            us = of_kernel[split]
        else:  # where K was not split so, the slower of the nearest two counts
            clusters = {known[1]: us for known, us in of_kernel.items() if not streams(known)}
            nearest = [
                max((s for s in clusters if s <= split[1]), default=None),
                min((s for s in clusters if s >= split[1]), default=None),
            ]
            assert any(nearest), f"{name} in {split} was not measured for {sizes}"
            us = max(clusters[s] for s in nearest if s is not None)
        found.append(math.log(us / min(of_sizes.values())))
    return sorted(found)


def test_measured_kernels_are_those_of_the_registry() -> None:
    names = {info.name for info in _core.mixed_kernels()}
    measured = {name for of_kind in times().values() for of_sizes in of_kind.values() for name, _ in of_sizes}
    assert measured <= names
    assert {name.partition(":")[0] for name in measured} == set(FAMILIES)


def test_streams_are_measured_and_chosen() -> None:
    measured = {name for of_sizes in times()[USUAL].values() for name, split in of_sizes if streams(split)}
    assert measured == {info.name for info in _core.mixed_kernels() if info.stream_k}
    splits = [_core.k_split(_core.select(problem(USUAL, sizes)), problem(USUAL, sizes)) for sizes in times()[USUAL]]
    chosen = [split for split in splits if streams(split)]
    assert len(chosen) > 5
    assert any(whole > 0 for whole, _ in chosen) and any(whole == 0 for whole, _ in chosen)


@pytest.mark.parametrize("family", FAMILIES)
def test_estimates(family: str) -> None:
    near, allowed, fewest = FAMILIES[family]
    errors = []
    for sizes, of_sizes in times()[USUAL].items():
        best = min(of_sizes.values())
        errors += [
            math.log(_core.estimated_cost(name, problem(USUAL, sizes, split)) / us)
            for (name, split), us in of_sizes.items()
            if name.startswith(f"{family}:") and us < near * best
        ]
    assert len(errors) > fewest
    assert math.sqrt(sum(e * e for e in errors) / len(errors)) < allowed


def test_choices() -> None:
    usual, ragged = losses(USUAL, lambda m: m not in RAGGED), losses(USUAL, lambda m: m in RAGGED)
    assert len(usual) > 100 and len(ragged) == 14
    assert max(usual[-1], ragged[-1]) < math.log(WORST_CHOICE)
    assert sum(usual) / len(usual) < math.log(AVERAGE_CHOICE)
    assert sum(ragged) / len(ragged) < math.log(AVERAGE_OF_RAGGED)


def test_choices_for_layers_that_two_gpus_share() -> None:
    """What is chosen was measured, in the way that is chosen."""
    (of_kind,) = times_in(json.loads(_TWO_GPUS_FILE.read_text())["rows"]).values()
    found = []
    for sizes, of_sizes in of_kind.items():
        name = _core.select(problem(USUAL, sizes), "")
        split = _core.k_split(name, problem(USUAL, sizes))
        found.append(math.log(of_sizes[name, split] / min(of_sizes.values())))
    assert len(found) == 18
    assert max(found) < math.log(WORST_OF_TWO_GPUS)
    assert sum(found) / len(found) < math.log(AVERAGE_OF_TWO_GPUS)


def test_choices_for_few_columns() -> None:
    document = json.loads((Path(__file__).parent / few_columns.FILE).read_text())
    assert document["what"] == few_columns.WHAT
    found: dict[Sizes, float] = {}
    for sizes, row in zip(few_columns.problems(), document["rows"], strict=True):
        assert {**row, "us": {}} == few_columns.row_of(sizes, {})
        asked = few_columns.native_problem(sizes, 90)
        assert list(row["us"]) == few_columns.tried(sizes, 90), f"python -m {few_columns.__name__} measures again"
        found[sizes] = math.log(row["us"][_core.select(asked, "")] / min(row["us"].values()))
    assert max(found.values()) < math.log(WORST_OF_FEW_COLUMNS)
    assert sum(found.values()) / len(found) < math.log(AVERAGE_OF_FEW_COLUMNS)
    shared = [loss for (_, *nk), loss in found.items() if nk == [512, 8192]]
    assert len(shared) > 3 and max(shared) < math.log(WORST_OF_KEYS_AND_VALUES)


def test_choices_for_other_groups_and_zero_points() -> None:
    kinds = [kind for kind in times() if kind != USUAL]
    assert sorted(kinds) == [(32, "middle"), (64, "middle"), (128, "integer")]
    found = sorted(loss for kind in kinds for loss in losses(kind))
    assert len(found) == 60
    assert found[-1] < math.log(WORST_OF_OTHERS)
    assert sum(found) / len(found) < math.log(AVERAGE_OF_OTHERS)


def test_choices_of_int4_mma_alone() -> None:
    found = [loss for kind in times() for loss in losses(kind, lambda m: m <= MOST_FOR_BOTH, "int4_mma")]
    assert len(found) == 104
    assert sum(found) / len(found) < math.log(AVERAGE_OF_MMA)
