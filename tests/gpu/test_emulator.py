"""The emulator tells the truth: what it computes is what the GPU computes from the same sources, bit by bit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import jaxgemm
from jaxgemm._native import _core
from tests.edge_shapes import LAYOUTS, Case, Shape
from tests.emulated.support import CLEAN, SEEDS
from tests.emulator.build import ROOT
from tests.emulator.library import Emulator, KernelInfo, Schedule, emulator
from tests.emulator.problem import Placement, Trial, exact, faults
from tests.emulator.words import digest, probe_input, read_digests
from tests.gpu.support import cuda_program
from tests.values import integers

pytestmark = pytest.mark.gpu

EMULATOR = ROOT / "tests" / "emulator"
_TIMEOUT_S = 420
_OPTIONS = [
    "-std=c++20", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-Xcompiler=-fPIC,-fvisibility=hidden",
    f"-I{ROOT / 'cuda'}", f"-I{EMULATOR}",
]  # fmt: skip
_DRAWS = 4
_SPECIAL_WORDS = (0, 0xFFFFFFFF, 0x80000000, 0x7F800000, 0x3F800000, 0x00000001)


_FIRST = jaxgemm.kernels()[0].family
"""The family of ours that the twin has too: tests/emulator/core/request.cc asks for the first of all kernels."""


def _sources() -> Iterator[Path]:
    for folder in (ROOT / "cuda" / "tile", EMULATOR / "reference", EMULATOR / "probes"):
        yield from (path for path in folder.glob("*.cu") if not path.stem.endswith("_defects"))
    yield ROOT / "cuda" / "kernels" / f"{_FIRST}.cu"
    yield from (ROOT / "cuda" / name for name in ("registry.cc", "select.cc", "select_mixed.cc"))
    yield EMULATOR / "core" / "request.cc"
    yield Path(__file__).with_name("emulator_twin.cu")


def _no_kernels() -> str:
    """C++ for the families that are not compiled, which takes minutes: other tests run them."""
    ours = [*jaxgemm.kernels(), *_core.mixed_kernels()]
    families = dict.fromkeys(info.family for info in ours if info.family != _FIRST)
    rows = [
        f"extern const std::span<const Kernel* const> {family}_kernels, {family}_kernels{{}};" for family in families
    ]
    return "\n".join(['#include "gemm.h"', "namespace jaxgemm {", *rows, "}", ""])


def _nvcc(*arguments: object) -> None:
    nvcc = cuda_program("nvcc")
    if nvcc is None:
        pytest.fail("nvcc is not here: it comes with the CUDA toolkit, or set CUDA_HOME")
    # PyPI's toolkit keeps its libraries where nvcc does not look.
    command = [nvcc, f"-L{Path(nvcc).resolve().parents[1] / 'lib'}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """The emulator's functions on the GPU."""
    folder = tmp_path_factory.mktemp("twin")
    none = folder / "no_kernels.cc"
    none.write_text(_no_kernels())
    sources = [*_sources(), none]
    objects = [folder / f"{i}.{path.stem}.o" for i, path in enumerate(sources)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: _nvcc(*_OPTIONS, "-c", "-o", *pair), zip(objects, sources, strict=True)))
    library = folder / "twin.so"
    _nvcc("-shared", "-cudart=static", "-o", library, *objects)
    return Emulator(library)


@pytest.fixture(scope="module")
def emulated() -> Emulator:
    return emulator()


def test_probes_give_the_same_words(twin: Emulator, emulated: Emulator, rng: np.random.Generator) -> None:
    assert twin.probes == emulated.probes
    different = []
    for name, (in_words, _) in emulated.probes.items():
        draws = [rng.integers(0, 2**32, in_words, np.uint32) for _ in range(_DRAWS)]
        draws += [rng.choice(np.array(_SPECIAL_WORDS, np.uint32), in_words)]
        for words in draws:
            (real, real_run), (ours, our_run) = twin.run_probe(name, words), emulated.run_probe(name, words)
            assert real_run.clean, f"{name}: {real_run}"
            assert our_run.clean, f"{name}: {our_run}"
            if wrong := np.flatnonzero(real != ours).tolist():
                at = wrong[0]
                different.append(f"{name}: {len(wrong)} words, the first is {at}: {ours[at]:#x}, not {real[at]:#x}")
    assert not different, "the emulator gives other words than the GPU:\n" + "\n".join(different)


def test_probes_give_the_committed_words(twin: Emulator) -> None:
    """What the emulator is held to on machines without a GPU."""
    digests = {name: digest(twin.run_probe(name, probe_input(twin, name))[0]) for name in twin.probes}
    assert digests == read_digests()


def _trials(info: KernelInfo) -> list[Trial]:
    """Few k-tiles, none, and many; ragged and whole; batches with a shared operand. Rows that TMA can address."""
    tile_m, tile_n, tile_k = info.cta_tile
    shapes = [
        Shape(tile_m + 1, 2 * tile_n + 3, (info.stages + 2) * tile_k + 3),
        Shape(2 * tile_m, tile_n, 4 * info.stages * tile_k, "both"),
        Shape(tile_m + 1, 2 * tile_n + 8, (info.stages + 2) * tile_k + 3),
        Shape(tile_m - 1, tile_n + 1, tile_k - 1, "rhs_shared"),
        Shape(tile_m + 1, tile_n + 1, tile_k + 1, "lhs_shared"),
        Shape(tile_m + 1, tile_n - 1, 0),
        Shape(1, 1, 1),
    ]
    places = (Placement(multiple=8), Placement(multiple=8, gap=8))
    return [
        Trial(Case(shape, layout), places[i % 2], Schedule(SEEDS[i % len(SEEDS)]), i)
        for i, shape in enumerate(shapes)
        for layout in LAYOUTS
    ]


@pytest.mark.parametrize("family", [family for families in CLEAN.values() for family in families])
def test_reference_kernels_are_right(family: str, twin: Emulator, emulated: Emulator) -> None:
    infos = [info for info in twin.kernels.values() if info.family == family]
    assert infos
    for info in infos:
        for dtypes in info.dtypes:
            taken = 0
            for trial in _trials(info):
                lhs, rhs = trial.operands(dtypes, integers)
                expected = exact(trial.case, lhs, rhs, dtypes[2])
                ours, real = (trial.run(where, info.name, dtypes, lhs, rhs) for where in (emulated, twin))
                if ours.run.declined:
                    assert real.run.error == ours.run.error, trial.command(info.name, dtypes)
                    continue
                taken += 1
                for who, result in (("the emulator", ours), ("the GPU", real)):
                    found = faults(result, expected)
                    assert not found, f"{who}: {trial.command(info.name, dtypes)}\n{found}"
            assert taken >= len(LAYOUTS)
