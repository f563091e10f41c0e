"""The real kernels, each broken in one place (mutations.py): the emulator must notice."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from jaxgemm._choose import NO_SPLIT
from tests.edge_shapes import LAYOUTS as ALL_LAYOUTS
from tests.edge_shapes import Case, Shape, deep_shape, long_shape
from tests.emulated import mixed
from tests.emulated.conftest import MANY_CASES, SHARES_OF_CASES, SHARES_OF_MUTANTS, share_of_cases, share_of_mutants
from tests.emulated.mutation import LAYOUTS, Mutation
from tests.emulated.mutations import MUTATIONS
from tests.emulated.mutations_peers import all_variants
from tests.emulated.support import (
    BUDGET,
    CLUSTER_SPLIT,
    affordable,
    cluster_shape,
    fault_of_biases,
    fitting,
    has_whole_rows,
    in_parallel,
    tail_trials,
    whole_rows_trials,
)
from tests.emulator.build import CUDA, build_variants
from tests.emulator.conflicts import budget_trials, conflict_ratios, read_budget
from tests.emulator.library import Emulator, KernelInfo, Schedule
from tests.emulator.problem import Placement, Result, Trial, exact, faults
from tests.values import EXACT_ALPHA, DTypes, float32_extremes, integers, is_float, modes, product_error_ratio, rounded

_PLACEMENTS = (
    Placement(),
    Placement(misaligned=("out",)),
    Placement(multiple=4, misaligned=("rhs",)),
    Placement(multiple=8, misaligned=("lhs",)),
    Placement(multiple=4),
    Placement(gap=3, misaligned=("lhs", "rhs", "out")),
)


def layouts_of(info: KernelInfo) -> tuple[str, ...]:
    """Those that mutants have: gemv's are not told apart where the others are left out."""
    return ALL_LAYOUTS if info.family == "gemv" else LAYOUTS


def trials(info: KernelInfo) -> Iterator[tuple[Trial, bool]]:
    """Where a broken kernel shows, and whether with an epilogue: whole tiles and rests of all kinds, deep and long K,
    K that a cluster shares; what most defects show in comes first.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    shapes = [
        Shape(tile_m + 3, tile_n + 5, (info.stages + 1) * tile_k + 3),
        Shape(2 * tile_m, 2 * tile_n, (info.stages + 2) * tile_k),
        Shape(tile_m + 8, tile_n + 8, (info.stages + 1) * tile_k + tile_k // 2),
        Shape(tile_m + 3, 2 * tile_n, tile_k + 2, "both"),
        dataclasses.replace(deep_shape(info), batch="both"),
        long_shape(info),
        Shape(tile_m + 8, tile_n + 16, 2 * tile_k),
    ]
    if info.family == "gemv":  # of a column it computes several elements in one CTA, and loads depend on both operands
        shapes.insert(1, Shape(tile_n + 5, 1, (info.stages + 1) * tile_k + 3, "both"))
        aligned = Shape(2, tile_n + 8, (info.stages + 1) * tile_k + tile_k // 2)
        for layout, misaligned in itertools.product(layouts_of(info), ((), ("lhs",), ("rhs",))):
            yield Trial(Case(aligned, layout), Placement(multiple=8, misaligned=misaligned)), False
    shared = cluster_shape(info)
    if shared:
        shapes.insert(5, shared)
    every = list(dict.fromkeys(precision for dtypes, precision in modes(info) if dtypes == info.dtypes[0]))
    for turn, layout in enumerate(layouts_of(info) * 2):
        for (i, shape), precision in itertools.product(enumerate(shapes), every):
            placement = fitting(info, _PLACEMENTS[(turn + i) % len(_PLACEMENTS)])
            split = CLUSTER_SPLIT if shape is shared else None
            trial = Trial(Case(shape, layout), placement, Schedule(turn + i), precision=precision, split=split)
            yield trial, (turn + i) % 2 == 1


def parts_trials(info: KernelInfo) -> list[Trial]:
    """K in two parts of several k-tiles each, whatever the model would do, where a second kernel adds up the sums."""
    tile_m, tile_n, tile_k = info.cta_tile
    shape = Shape(tile_m, tile_n + 8, 5 * tile_k)
    return [Trial(Case(shape, layout), split=(0, 2)) for layout in LAYOUTS] if info.split_k else []


def run_of_mutant(
    trial: Trial, emulator: Emulator, info: KernelInfo, dtypes: DTypes, lhs: Any, rhs: Any, **epilogue: Any
) -> Result:
    """A trial, of a layout that mutants have: with another one all of them would seem to be caught."""
    assert trial.case.layout in layouts_of(info)
    return trial.run(emulator, info.name, dtypes, lhs, rhs, **epilogue)


def fault_of(emulator: Emulator, info: KernelInfo) -> str:
    """The first fault of a kernel, "" if there is none."""
    if info.bits:
        return next(filter(None, (mixed.fault(emulator, info, i) for i in range(len(mixed.trials(info))))), "")
    if info.tf32 and info.highest and (found := fault_of_float32(emulator, info)):
        return found
    fused_so_far = 0
    taken = affordable(info, trials(info), lambda numbered: numbered[0], 3 * BUDGET)
    for i, (trial, fused) in enumerate(taken):
        dtypes = info.dtypes[i // 2 % 2 * -1]  # the first and the last
        lhs, rhs = trial.operands(dtypes, integers)
        expected, epilogue = exact(trial.case, lhs, rhs, dtypes[2]), {}
        if fused and is_float(dtypes[2]):
            fused_so_far += 1
            epilogue = {"alpha": EXACT_ALPHA}
            scaled = EXACT_ALPHA * (trial.case.product(lhs, rhs) + 0.0)  # sums of zero are +0
            if fused_so_far % 3 != 2:  # alpha alone is a way of its own
                epilogue |= {"bias": np.arange(trial.case.shape.n, dtype=np.float32) % 5, "activation": "relu"}
                scaled = np.maximum(scaled + epilogue["bias"], 0)
            expected = rounded(scaled, dtypes[2])
        result = run_of_mutant(trial, emulator, info, dtypes, lhs, rhs, **epilogue)
        assert not result.run.refused
        if found := faults(result, expected):
            fusing = f" with {', '.join(epilogue)}" if epilogue else ""
            return f"{i + 1} of {len(taken)}: {trial.command(info.name, dtypes)}{fusing}\n{found}"
    others = tail_trials(info, layouts=LAYOUTS) if info.family == "wgmma" else parts_trials(info)
    for trial in [*others, *(whole_rows_trials(info, layouts=LAYOUTS) if has_whole_rows(info) else [])]:
        lhs, rhs = trial.operands(info.dtypes[0], integers)
        expected = exact(trial.case, lhs, rhs, info.dtypes[0][2])
        result = run_of_mutant(trial, emulator, info, info.dtypes[0], lhs, rhs)
        if found := faults(result, expected):
            return f"{trial.command(info.name, info.dtypes[0])}\n{found}"
    if found := fault_of_activation(emulator, info):
        return found
    floating = [dtypes for dtypes in info.dtypes if is_float(dtypes[2])]
    return fault_of_biases(emulator, info, floating[0]) if floating else ""


def fault_of_activation(emulator: Emulator, info: KernelInfo) -> str:
    """The same of an activation whose code is long, so that sums may take turns in it: of integers, it is not exact."""
    dtypes = info.dtypes[0]
    if not is_float(dtypes[2]):
        return ""
    tile_m, tile_n, tile_k = info.cta_tile
    trial = Trial(Case(Shape(tile_m, 2 * tile_n, tile_k), LAYOUTS[0]))
    lhs, rhs = trial.operands(dtypes, integers)
    sums = trial.case.product(lhs, rhs)
    expected = sums / (1 + np.exp(-np.clip(sums, -80, 80)))
    result = run_of_mutant(trial, emulator, info, dtypes, lhs, rhs, activation="silu")
    off = np.abs(result.out.astype(np.float64) - expected)
    if not result.run.clean or not (off <= 2.0**-8 * np.abs(expected) + 1e-6).all():
        return f"{info.name} silu {trial.case}: {result.run} off by {off.max():.3g}"
    return ""


def fault_of_float32(emulator: Emulator, info: KernelInfo) -> str:
    """The same of what needs float32's range or bits: in a few rows and columns, in whole tiles and with deep K."""
    tile_m, tile_n, tile_k = info.cta_tile
    some = ("integers of 16 bits", "infinity", "largest")
    pairs = list(float32_extremes(np.random.default_rng(0)).items())
    sizes_tried = [{"m": tile_m, "n": tile_n}, {"k": 27 * tile_k + 3}]
    shared = cluster_shape(info)
    if shared:
        sizes_tried.append({"m": shared.m, "n": shared.n, "k": shared.k})
    for sizes in sizes_tried:
        pairs += [(name, x) for name, x in float32_extremes(np.random.default_rng(0), **sizes).items() if name in some]
    # What the model splits is finished by a kernel that mutants share.
    whole = (NO_SPLIT,) if info.split_k and info.family != "wgmma" else ()
    for (name, (lhs, rhs)), asked in itertools.product(pairs, (None, *whole)):
        shape = Shape(lhs.shape[0], rhs.shape[1], lhs.shape[1])
        trial = Trial(Case(shape, "NN"), precision="highest", split=CLUSTER_SPLIT if shape == shared else asked)
        result = run_of_mutant(trial, emulator, info, info.dtypes[0], lhs, rhs)
        ratio = product_error_ratio(trial.case, result.out, (lhs, rhs), info.dtypes[0])
        if not result.run.clean or ratio > 1:
            return f"{info.name} {name} {trial.case}: {result.run} error {ratio:.3g} times its bound"
    return fault_of_rounding(emulator, info)


def fault_of_rounding(emulator: Emulator, info: KernelInfo) -> str:
    """The same of how operands become TF32: to nearest, so that the errors of many products have no direction; and of
    sums of few products, which are float32's.
    """
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.standard_normal(shape, np.float32) for shape in ((35, 1), (1, 37)))
    single = Trial(Case(Shape(35, 37, 1), "NN"), precision="highest")
    result = run_of_mutant(single, emulator, info, info.dtypes[0], lhs, rhs)
    if found := faults(result, lhs * rhs):
        return f"{info.name} one product: {found}"
    if info.family == "wgmma":  # rounds both parts of an operand: their sum is one unit in the last place off at most
        lhs, one = rng.uniform(1, 2, (35, 40)).astype(np.float32), np.eye(40, dtype=np.float32)
        parts = Trial(Case(Shape(35, 40, 40), "NN"), precision="highest")
        off = np.abs(run_of_mutant(parts, emulator, info, info.dtypes[0], lhs, one).out - lhs).max()
        if not off <= 2.0**-23:
            return f"{info.name}: parts that are {off * 2**23:.3g} units off"
    lhs, rhs = (rng.uniform(1, 2, shape).astype(np.float32) for shape in ((35, 400), (400, 37)))
    trial = Trial(Case(Shape(35, 37, 400), "NN"))
    out = run_of_mutant(trial, emulator, info, info.dtypes[0], lhs, rhs).out
    error = float((out / trial.case.product(lhs, rhs) - 1).mean()) * 2.0**10
    return "" if abs(error) < 0.1 else f"{info.name}: mean error {error:.3g} units of TF32"


def more_conflicts(emulator: Emulator, info: KernelInfo) -> str:
    """Accesses with more bank conflicts than the kernel may have, "" if there are none or it has no budget."""
    if info.bits:
        return ""
    for trial in budget_trials(info):
        if trial.case.layout not in LAYOUTS:
            continue
        allowed = read_budget()[info.name][trial.case.layout]
        for what, ratio in conflict_ratios(emulator, info.name, info.dtypes[0], trial).items():
            if ratio > allowed[what]:
                return f"{trial.case} {what}: {ratio} and not {allowed[what]}"
    return ""


@pytest.fixture(scope="module")
def taken(request: pytest.FixtureRequest) -> list[Mutation]:
    """Those that the tests of this run want, in whichever of its processes; all of them if it wants none."""
    callspecs: list[Any] = [getattr(item, "callspec", None) for item in request.session.items]
    found = [callspec.params["mutation"] for callspec in callspecs if callspec and "mutation" in callspec.params]
    return found or list(MUTATIONS)


@pytest.fixture(scope="module")
def mutants(taken: list[Mutation]) -> dict[str, Emulator]:
    """The emulators of what is taken, by the name of the mutation: built together, on all cores."""
    libraries = build_variants(all_variants(), [mutation.name for mutation in taken])
    return {name: Emulator(path) for name, path in libraries.items()}


def kernel_of(emulator: Emulator, mutation: Mutation) -> KernelInfo:
    """The one that is broken: the only one of its family that a mutant has, the same of another emulator."""
    every = [*emulator.kernels.values(), *emulator.mixed_kernels.values()]
    of_family = [info for info in every if info.family == mutation.family]
    config = f":{mutation.tile.removesuffix('>')}"  # of mixed kernels' tiles the first sizes may be given
    return next(info for info in of_family if info.name.endswith(mutation.tile) or (info.bits and config in info.name))


def test_kernels_are_unbroken_without_a_mutation(emulated: Emulator, taken: list[Mutation]) -> None:
    infos = {kernel_of(emulated, mutation).name: kernel_of(emulated, mutation) for mutation in taken}
    found = in_parallel(lambda info: fault_of(emulated, info) or more_conflicts(emulated, info), infos.values())
    assert not any(found), "\n\n".join(filter(None, found))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_broken_kernel_is_caught(mutation: Mutation, mutants: dict[str, Emulator]) -> None:
    emulator = mutants[mutation.name]
    check: Callable[[Emulator, KernelInfo], str] = more_conflicts if mutation.conflicts else fault_of
    found = check(emulator, kernel_of(emulator, mutation))
    print(found)
    assert found, f"{mutation.family}: {mutation.what}"


def test_every_kernel_is_mutated() -> None:
    assert {mutation.family for mutation in MUTATIONS} == {path.stem for path in CUDA.glob("kernels/*.cu")}


def test_shares_of_mutants_are_all_mutants_and_of_every_family() -> None:
    shares = [share_of_mutants(MUTATIONS, f"{number:08x}" + 32 * "0") for number in range(SHARES_OF_MUTANTS)]
    assert {name for share in shares for name in share} == {mutation.name for mutation in MUTATIONS}
    sizes = [len(share) for share in shares]
    assert max(sizes) <= len(MUTATIONS) / SHARES_OF_MUTANTS + len({m.family for m in MUTATIONS})
    for share in shares:
        assert {m.family for m in MUTATIONS if m.name in share} == {m.family for m in MUTATIONS}


def test_shares_of_cases_are_all_cases() -> None:
    cases = [str(number) for number in range(MANY_CASES + 1)]
    shares = [share_of_cases(cases, f"{number:08x}" + 32 * "0") for number in range(SHARES_OF_CASES)]
    assert sorted(case for share in shares for case in share) == sorted(cases)
    assert max(map(len, shares)) <= len(cases) // SHARES_OF_CASES + 1
    assert share_of_cases(cases[:-2], 40 * "1") == set(cases[:-2]), "few are all run"
