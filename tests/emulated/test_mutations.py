"""The mutation check: kernels with one planted defect each (tests/emulator/reference), every one of which must show.

A sweep that the kernels without a defect pass cleanly is run on each of the others until something is caught: a finding
of the emulator, a wrong value, an error, or more bank conflicts than without the defect.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.edge_shapes import BATCHES, LAYOUTS, Case, Shape, pairwise
from tests.emulated.support import CLEAN, PLACEMENTS, SEEDS, in_parallel, try_integers
from tests.emulator.conflicts import ratios
from tests.emulator.library import Emulator, Finding, KernelInfo, Schedule
from tests.emulator.problem import Placement, Trial, describe_wrong, faults
from tests.values import DTypes

_PLACEMENTS = {
    "simt": PLACEMENTS,
    "sm80": PLACEMENTS,
    "sm90": (Placement(multiple=8), Placement(multiple=8, gap=8)),  # TMA needs rows that begin at 16-byte boundaries
}
_MIN_DEFECTS = 20
_SLOW_ONLY = {"simt.bank_conflicts", "sm80.poor_swizzle"}  # families whose results and order are right


def _rows(emulated: Emulator, group: str) -> tuple[list[KernelInfo], list[KernelInfo]]:
    """Kernels without and with a defect."""
    rows = [info for info in emulated.kernels.values() if info.family.startswith(f"{group}.")]
    clean = [info for info in rows if info.family in CLEAN[group]]
    return clean, [info for info in rows if info not in clean]


def _sweep(info: KernelInfo, group: str) -> Iterator[Trial]:
    """Every two of the sizes, layouts, placements and seeds; first what most defects show in."""
    tile_m, tile_n, tile_k = info.cta_tile
    depths = sorted({
        0, 1, tile_k // 2, tile_k - 1, tile_k, tile_k + 1,
        *((stages * tile_k + rest) for stages in range(2, info.stages + 3) for rest in (0, 3)),
    })  # fmt: skip
    layouts = [layout for layout in LAYOUTS if layout in info.layouts]
    strong = [
        (Shape(tile_m + 1, tile_n + 1, depths[-1]), layouts[0], 0),
        (Shape(2 * tile_m, 2 * tile_n, depths[-2]), layouts[-1], 1),
        (Shape(2 * tile_m + 3, tile_n - 1, depths[-1], "both"), layouts[len(layouts) // 2], 0),
        (Shape(tile_m + 3, tile_n + 8, depths[-1]), layouts[0], 2),
    ]
    places = _PLACEMENTS[group]
    for seed in SEEDS[:3]:
        for shape, layout, place in strong:
            yield Trial(Case(shape, layout), places[place % len(places)], Schedule(seed, conflicts=True), seed)
    sizes = [[1, tile - 1, tile, tile + 1, 2 * tile + 3] for tile in (tile_m, tile_n)]
    if group == "sm90":  # rows that TMA can store
        sizes[1] += [8, tile_n - 8, tile_n + 8, 2 * tile_n + 16]
    for m, n, k, batch, layout, place, seed in pairwise([*sizes, depths, BATCHES, layouts, range(len(places)), SEEDS]):
        yield Trial(Case(Shape(m, n, k, batch), layout), places[place], Schedule(seed, conflicts=True), seed)


def _kind(finding: Finding) -> str:
    """Races are of three kinds: RAW, WAR and WAW."""
    return finding.text.partition(":")[0] if finding.kind == "race" else finding.kind


def _catch(emulated: Emulator, info: KernelInfo, group: str, clean: list[KernelInfo]) -> str:
    """What catches the defect, "" if nothing does."""
    for trial in _sweep(info, group):
        for dtypes in info.dtypes:
            result, expected = try_integers(emulated, info.name, dtypes, trial)
            ran = result.run
            if ran.declined:  # which catches nothing
                continue
            if ran.findings:
                return ", ".join(sorted({_kind(finding) for finding in ran.findings}))
            if ran.error:
                return f"error: {ran.error}"
            if describe_wrong(result, expected):
                return "wrong values"
            allowed: Counter[str] = Counter()
            for twin in clean:
                allowed |= Counter(ratios(try_integers(emulated, twin.name, dtypes, trial)[0].run))
            more = [f"{what} {ratio}" for what, ratio in ratios(ran).items() if ratio > allowed[what]]
            if more:
                return f"bank conflicts: {', '.join(more)}"
    return ""


def _outcomes(emulated: Emulator, info: KernelInfo, dtypes: DTypes, trials: list[Trial]) -> tuple[int, int]:
    """How many problems come out right, and how many a kernel says that it does not take; all others are failures."""

    def outcome(trial: Trial) -> str:
        result, expected = try_integers(emulated, info.name, dtypes, trial)
        if result.run.declined:
            return "declined"
        found = faults(result, expected)
        return f"{trial.command(info.name, dtypes)}\n{found}" if found else "right"

    outcomes = Counter(in_parallel(outcome, trials))
    right, declined = outcomes.pop("right", 0), outcomes.pop("declined", 0)
    assert not outcomes, f"{len(outcomes)} trials failed:\n" + "\n\n".join(list(outcomes)[:3])
    return right, declined


@pytest.mark.parametrize("group", CLEAN)
def test_kernels_without_a_defect_are_right(emulated: Emulator, group: str) -> None:
    clean, _ = _rows(emulated, group)
    assert {info.family for info in clean} == set(CLEAN[group])
    for info in clean:
        trials = list(_sweep(info, group))
        for i, dtypes in enumerate(info.dtypes):
            taken = trials if i == 0 else trials[i :: len(info.dtypes)]
            right, declined = _outcomes(emulated, info, dtypes, taken)
            assert 3 * right >= declined, f"{info.name} takes only {right} of {right + declined} problems"


_Catches = Callable[[str], dict[str, str]]


@pytest.fixture(scope="module")
def catches(emulated: Emulator) -> _Catches:
    """By group: what caught each kernel with a defect."""

    @functools.cache
    def of_group(group: str) -> dict[str, str]:
        clean, broken = _rows(emulated, group)
        caught = in_parallel(lambda info: _catch(emulated, info, group, clean), broken)
        return {info.name: by for info, by in zip(broken, caught, strict=True)}

    return of_group


@pytest.mark.parametrize("group", CLEAN)
def test_every_defect_is_caught(catches: _Catches, group: str, record_property: Callable[[str, object], None]) -> None:
    caught = catches(group)
    for name, by in caught.items():
        print(f"{name:<50} {by or 'NOT CAUGHT'}")
        record_property(name, by)
    assert caught
    slow = {name.partition(":")[0] for name, by in caught.items() if by.startswith("bank conflicts")}
    assert slow <= _SLOW_ONLY, "a wrong kernel is caught by its speed alone"
    assert not (missed := [name for name, by in caught.items() if not by]), f"{len(missed)} not caught: {missed}"


def test_every_check_catches_something(catches: _Catches) -> None:
    """At least 20 defects, and none of the emulator's checks is there for nothing."""
    caught = [by for group in CLEAN for by in catches(group).values() if by]
    assert len(caught) >= _MIN_DEFECTS
    seen = {kind for by in caught for kind in by.partition(":")[0].split(", ")}
    assert seen >= {
        "out of bounds", "misaligned", "read-only", "RAW", "WAR", "WAW", "uninitialised", "deadlock", "divergence",
        "protocol", "wrong values", "bank conflicts",
    }  # fmt: skip
