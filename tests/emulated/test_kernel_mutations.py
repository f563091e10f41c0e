"""The real kernels, each broken in one place: the emulator must notice. Every barrier is one such place."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from tests.edge_shapes import Case, Shape, deep_shape
from tests.emulated.support import BUDGET, affordable, in_parallel
from tests.emulator.build import ROOT, build
from tests.emulator.library import Emulator, KernelInfo, Schedule
from tests.emulator.problem import Placement, Trial, exact, faults
from tests.values import float32_extremes, integers, modes, product_error_ratio

CUDA = ROOT / "cuda"
BARRIER = "__syncthreads();"
MAINLOOP = "mainloop/sm80_cp_async.cuh"  # mma_multistage's
OPERAND_TILE, FRAGMENT, MMA_OP = "tile/operand_tile.cuh", "tile/fragment.cuh", "tile/mma_op.cuh"


@dataclass(frozen=True)
class Mutation:
    """``old``, which the file contains once (or its ``occurrence``-th), becomes ``new``, and the family breaks."""

    family: str
    what: str
    old: str
    new: str
    occurrence: int | None = None
    file: str = ""
    """Below cuda/; by default the family's kernels."""

    @property
    def path(self) -> str:
        return self.file or f"kernels/{self.family}.cu"

    def apply(self, text: str) -> str:
        places = [match.start() for match in re.finditer(re.escape(self.old), text)]
        if self.occurrence is None:
            assert len(places) == 1, f"{self.path} has {self.old!r} {len(places)} times"
        at = places[self.occurrence or 0]
        return text[:at] + self.new + text[at + len(self.old) :]


def _without_barriers() -> list[Mutation]:
    files = [(path.stem, path) for path in sorted(CUDA.glob("kernels/*.cu"))] + [("mma_multistage", CUDA / MAINLOOP)]
    return [
        Mutation(family, f"no barrier {i} in {path.name}", BARRIER, "", i, str(path.relative_to(CUDA)))
        for family, path in files
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
    Mutation(
        "mma", "rows and halves of K swapped", "[2 * i + r % 2][2 * step + r / 2]", "[2 * i + r / 2][2 * step + r % 2]"
    ),
    Mutation("mma", "another order of K in rhs", "rhs.words[j][2 * step + r]", "rhs.words[j][2 * step + 1 - r]"),
    Mutation("mma", "K tail in vectors", "k + kWarp.k <= K;", "k < K;"),
    Mutation("mma", "K tail not zeroed", "static_cast<int>(k_left) - k_ : kElems", "kElems : kElems"),
    Mutation("mma", "rows beyond the edge read", "if (mn(slot, 0) < mn_left_)", "if (true)"),
    Mutation(
        "mma", "vectors of misaligned rows", "(operand.data) % kVectorBytes == 0 &&", "(operand.data) % 1 == 0 &&"
    ),
    Mutation("mma", "elements of int8 swapped", "? 0x5140 : 0x7362", "? 0x5041 : 0x7362"),
    Mutation("mma", "columns of out swapped", "g * kGroup + slot % kGroup", "slot % kGroup * 8 + g", file=FRAGMENT),
    Mutation("mma_ldmatrix", "no wait", "ptx::cp_async_wait_all();", ""),
    Mutation(
        "mma_ldmatrix",
        "k-tile read elsewhere",
        "lane_offset_ ^ vectors % 8",
        "lane_offset_ + vectors % 8",
        file=OPERAND_TILE,
    ),
    Mutation(
        "mma_ldmatrix",
        "k-tile written elsewhere",
        "Tile::offset(run_, vector_)",
        "run_ * Tile::kRunBytes + vector_ * kVectorBytes",
        0,
        OPERAND_TILE,
    ),
    Mutation(
        "mma_ldmatrix", "matrices of a swapped", "kIsLhs ? matrix % 2 :", "kIsLhs ? matrix / 2 :", 0, OPERAND_TILE
    ),
    Mutation(
        "mma_ldmatrix", "tail not zeroed", "left < Tile::kVectorElems ? left :", "false ? left :", file=OPERAND_TILE
    ),
    Mutation(
        "mma_ldmatrix",
        "16-byte copies of narrower rows",
        "begins_at_multiples_of(16)",
        "begins_at_multiples_of(8)",
        file=OPERAND_TILE,
    ),
    Mutation("mma_ldmatrix", "bytes swapped", "0x6420", "0x6240", file=OPERAND_TILE),
    Mutation("mma_ldmatrix", "columns of out swapped", "lane % 4 * 2 + i % 2}", "lane % 4 + i % 2 * 4}", file=FRAGMENT),
    Mutation(
        "mma_multistage", "a wait too short", "cp_async_wait<kStages - 2>", "cp_async_wait<kStages - 1>", file=MAINLOOP
    ),
    Mutation("mma_multistage", "stage overwritten that is read", "i < kStages - 1;", "i < kStages;", file=MAINLOOP),
    Mutation(
        "mma_multistage",
        "the first stage read always",
        "stage = stage + 1 == kStages ?",
        "stage = stage + 1 != kStages ?",
        file=MAINLOOP,
    ),
    Mutation("mma_multistage", "K of the next split too", "K - k < split.depth ? K - k : split.depth", "K - k"),
    Mutation(
        "mma_multistage", "a partial sum left out", "int64_t split = 0;", "int64_t split = 1;", file="tile/split_k.cu"
    ),
    Mutation("mma_multistage", "2xTF32", "ptx::mma_m16n8k8_tf32(d[j], small, b.big[j]);", ";", file=MMA_OP),
    Mutation(
        "mma_multistage",
        "infinities not recomputed",
        "if (rest == 0.0f) return;",
        "return;",
        file="epilogue/recompute.cuh",
    ),
]


def trials(info: KernelInfo) -> Iterator[Trial]:
    """Where a broken kernel shows: ragged and whole tiles, rests of one kind only, each operand misaligned alone."""
    tile_m, tile_n, tile_k = info.cta_tile
    ragged = Shape(tile_m + 3, tile_n + 5, (info.stages + 1) * tile_k + 3)
    whole = Shape(2 * tile_m, 2 * tile_n, (info.stages + 2) * tile_k)
    half_k_tile = Shape(tile_m, tile_n, (info.stages + 1) * tile_k + tile_k // 2)
    ragged_rows = Shape(tile_m + 3, 2 * tile_n, tile_k)
    deep = dataclasses.replace(deep_shape(info), batch="both")
    every = list(dict.fromkeys(precision for dtypes, precision in modes(info) if dtypes == info.dtypes[-1]))
    for seed, misaligned in itertools.product((0, 1), ((), ("lhs",), ("rhs",))):
        shapes = [ragged, whole, half_k_tile, ragged_rows] + [deep] * (seed == 0 and not misaligned)
        for layout, shape, precision in itertools.product(("NN", "TT", "NT"), shapes, every):
            yield Trial(Case(shape, layout), Placement(misaligned=misaligned), Schedule(seed), precision=precision)


def fault_of(emulator: Emulator, info: KernelInfo) -> str:
    """The first fault of a kernel, "" if there is none."""
    dtypes = info.dtypes[-1]
    for trial in affordable(info, trials(info), lambda trial: trial, 5 * BUDGET):
        lhs, rhs = trial.operands(dtypes, integers)
        result = trial.run(emulator, info.name, dtypes, lhs, rhs)
        assert not result.run.refused
        if found := faults(result, exact(trial.case, lhs, rhs, dtypes[2])):
            return f"{trial.command(info.name, dtypes)}\n{found}"
    if not info.tf32:
        return ""
    for name, (lhs, rhs) in float32_extremes(np.random.default_rng(0)).items():
        trial = Trial(Case(Shape(lhs.shape[0], rhs.shape[1], lhs.shape[1]), "NN"), precision="highest")
        result = trial.run(emulator, info.name, dtypes, lhs, rhs)
        ratio = product_error_ratio(trial.case, result.out, (lhs, rhs), dtypes)
        if not result.run.clean or ratio > 1:
            return f"{info.name} {name}: {result.run} error {ratio:.3g} times its bound"
    return ""


def caught(emulator: Emulator, family: str) -> str:
    """The first fault of the family's kernels, "" if there is none."""
    infos = [info for info in emulator.kernels.values() if info.family == family]
    return next(filter(None, (fault_of(emulator, info) for info in infos)), "")


@pytest.fixture(scope="module")
def mutant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mutation | None], Emulator]:
    """Builds the emulator from a copy of the kernels with one of them broken."""
    folder = tmp_path_factory.mktemp("mutants")
    sources = folder / "cuda"
    shutil.copytree(CUDA, sources)

    def make(mutation: Mutation | None) -> Emulator:
        path = sources / mutation.path if mutation else None
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
    families = {mutation.family for mutation in MUTATIONS}
    infos = [info for info in emulator.kernels.values() if info.family in families]
    found = in_parallel(lambda info: fault_of(emulator, info), infos)
    assert not any(found), "\n\n".join(filter(None, found))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.family}-{m.what.replace(' ', '_')}")
def test_broken_kernel_is_caught(mutation: Mutation, mutant: Callable[[Mutation | None], Emulator]) -> None:
    found = caught(mutant(mutation), mutation.family)
    print(found)
    assert found, f"{mutation.family}: {mutation.what}"


def test_every_kernel_is_mutated() -> None:
    assert {mutation.family for mutation in MUTATIONS} == {path.stem for path in CUDA.glob("kernels/*.cu")}
