"""The real kernels, each broken in one place: the emulator must notice. Every barrier is one such place."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.edge_shapes import Case, Shape
from tests.emulator.build import ROOT, build
from tests.emulator.library import Emulator, KernelInfo, Schedule
from tests.emulator.problem import Placement, Trial, exact, faults
from tests.values import integers, modes

KERNELS = ROOT / "cuda" / "kernels"
BARRIER = "__syncthreads();"


@dataclass(frozen=True)
class Mutation:
    """``old``, which the family's file contains once (or its ``occurrence``-th), becomes ``new``."""

    family: str
    what: str
    old: str
    new: str
    occurrence: int | None = None

    def apply(self, text: str) -> str:
        places = [match.start() for match in re.finditer(re.escape(self.old), text)]
        if self.occurrence is None:
            assert len(places) == 1, f"{self.family}.cu has {self.old!r} {len(places)} times"
        at = places[self.occurrence or 0]
        return text[:at] + self.new + text[at + len(self.old) :]


def _without_barriers() -> list[Mutation]:
    return [
        Mutation(path.stem, f"no barrier {i}", BARRIER, "", i)
        for path in sorted(KERNELS.glob("*.cu"))
        for i in range(path.read_text().count(BARRIER))
    ]


MUTATIONS = [
    *_without_barriers(),
    Mutation("naive", "a row too many", "m >= M ||", "m > M ||"),
    Mutation("naive", "a step of K too many", "k < K;", "k <= K;"),
    Mutation("smem_tiled", "a column too many", "row < M && col < N", "row < M && col <= N"),
    Mutation("smem_tiled", "K tail of rhs read", "rhs_inside && k_tile + rhs_k < K ?", "rhs_inside ?"),
    Mutation("register_tiled", "stage overwritten that is read", "store(stage ^ 1);", "store(stage);"),
    Mutation("register_tiled", "128-bit loads of misaligned rows", "&& is_aligned(g_tile) && ld % kVector == 0", ""),
    Mutation("register_tiled", "K tail loaded whole", "interior && k_left >= kTileK", "interior && k_left > 0"),
    Mutation("wmma_naive", "a row too many", "tile.row + row < M", "tile.row + row <= M"),
    Mutation("wmma_naive", "misaligned fragments", "% wmma::kAlignmentBytes == 0 &&", "% 2 == 0 &&"),
    Mutation("wmma_naive", "operands not padded", "return view.rows % kTile == 0 &&", "return"),
    Mutation("wmma_tiled", "every slice of K twice", "(slice * Config::kWarpsK + warp_k) * kTile", "slice * kTile"),
    Mutation("wmma_tiled", "stage read before it is stored", "    multiply(stage);", "    multiply(stage ^ 1);"),
    Mutation("wmma_tiled", "rhs tail not zeroed", "valid > 0 ? *reinterpret_cast", "true ? *reinterpret_cast"),
    Mutation("wmma_tiled", "a partial sum left out", "part < Config::kWarpsK", "part < 1"),
    Mutation("wmma_tiled", "rows swapped within a vector", "return low | high << 16;", "return high | low << 16;"),
]


def trials(info: KernelInfo) -> Iterator[Trial]:
    """Where a broken kernel shows: ragged and whole tiles, rests of one kind only, each operand misaligned alone."""
    tile_m, tile_n, tile_k = info.cta_tile
    ragged = Shape(tile_m + 3, tile_n + 5, (info.stages + 1) * tile_k + 3)
    whole = Shape(2 * tile_m, 2 * tile_n, (info.stages + 2) * tile_k)
    half_k_tile = Shape(tile_m, tile_n, (info.stages + 1) * tile_k + tile_k // 2)
    ragged_rows = Shape(tile_m + 3, 2 * tile_n, tile_k)
    for layout in ("NN", "TT", "NT"):
        for shape in (ragged, whole, half_k_tile, ragged_rows):
            for misaligned in ((), ("lhs",), ("rhs",)):
                for seed in (0, 1):
                    yield Trial(Case(shape, layout), Placement(misaligned=misaligned), Schedule(seed))


def caught(emulator: Emulator, family: str) -> str:
    """The first fault of the family's kernels, "" if there is none."""
    for info in emulator.kernels.values():
        if info.family != family:
            continue
        rows = [mode for mode in modes(info) if mode[0] == info.dtypes[-1]]
        for i, trial in enumerate(trials(info)):
            dtypes, precision = rows[i // 2 % len(rows)]
            trial = dataclasses.replace(trial, precision=precision)
            lhs, rhs = trial.operands(dtypes, integers)
            result = trial.run(emulator, info.name, dtypes, lhs, rhs)
            assert not result.run.refused
            if found := faults(result, exact(trial.case, lhs, rhs, dtypes[2])):
                return f"{trial.command(info.name, dtypes)}\n{found}"
    return ""


@pytest.fixture(scope="module")
def mutant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mutation | None], Emulator]:
    """Builds the emulator from a copy of the kernels with one of them broken."""
    folder = tmp_path_factory.mktemp("mutants")
    sources = folder / "cuda"
    shutil.copytree(ROOT / "cuda", sources)

    def make(mutation: Mutation | None) -> Emulator:
        path = sources / "kernels" / f"{mutation.family}.cu" if mutation else None
        original = path.read_text() if path else ""
        if path and mutation:
            path.write_text(mutation.apply(original))
        try:
            built = build(cuda=sources, folder=folder / "build")
        finally:
            if path:
                path.write_text(original)
        # A library that is loaded stays: each has a name of its own.
        library = folder / f"{len(list(folder.glob('*.so')))}.so"
        shutil.copy(built, library)
        return Emulator(library)

    return make


def test_kernels_are_unbroken_without_a_mutation(mutant: Callable[[Mutation | None], Emulator]) -> None:
    emulator = mutant(None)
    for family in {mutation.family for mutation in MUTATIONS}:
        assert caught(emulator, family) == "", family


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.family}-{m.what.replace(' ', '_')}")
def test_broken_kernel_is_caught(mutation: Mutation, mutant: Callable[[Mutation | None], Emulator]) -> None:
    found = caught(mutant(mutation), mutation.family)
    print(found)
    assert found, f"{mutation.family}: {mutation.what}"


def test_every_kernel_is_mutated() -> None:
    assert {mutation.family for mutation in MUTATIONS} == {path.stem for path in Path(KERNELS).glob("*.cu")}
