"""cuda/registry.cc: what the registry says about its kernels."""

from __future__ import annotations

import collections
import re
from typing import Any

import pytest

import jaxgemm
from jaxgemm._native import GEMM_TARGET, MIXED_TARGET, PEER_SUM_TARGET, _core, _ffi_of_runtime
from tests.gpu_limits import MAX_SMEM_BYTES
from tests.helpers import FAMILIES, KERNEL_NAMES, ROOT, problem
from tests.values import is_float


def test_ladder_is_complete_and_in_order() -> None:
    assert FAMILIES[:5] == ["naive", "smem_tiled", "register_tiled", "wmma_naive", "wmma_tiled"]
    assert len(set(KERNEL_NAMES)) == len(KERNEL_NAMES)
    families = [info.family for info in jaxgemm.kernels()]
    assert families == sorted(families, key=FAMILIES.index), "configurations of one family lie together"


def test_every_source_is_a_family() -> None:
    sources = {path.stem for path in (ROOT / "cuda" / "kernels").glob("*.cu")}
    assert sources == set(FAMILIES) | {info.family for info in _core.mixed_kernels()}


def able_gpus(info: Any) -> list[int]:
    """Compute capabilities, times ten, that the kernel has code for."""
    return [sm for sm in MAX_SMEM_BYTES if info.min_sm <= sm and (info.max_sm == 0 or sm <= info.max_sm)]


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_facts_fit_together(name: str) -> None:
    info = next(info for info in jaxgemm.kernels() if info.name == name)
    assert info.name == f"{info.family}:{info.config}"
    assert re.fullmatch(r"[a-z][a-z0-9_]*:[a-z0-9_]+", info.name)
    assert info.min_sm in MAX_SMEM_BYTES
    assert info.max_sm == 0 or info.max_sm >= info.min_sm
    for size, warp_size in zip(info.cta_tile, info.warp_tile, strict=True):
        assert 0 < warp_size <= size
        assert size % warp_size == 0
    assert info.threads % 32 == 0
    assert 32 <= info.threads <= 1024
    warps_of_tile = (info.cta_tile[0] // info.warp_tile[0]) * (info.cta_tile[1] // info.warp_tile[1])
    loaders = 4 if info.tma else 0  # warps that multiply nothing
    assert (info.threads // 32 - loaders) % warps_of_tile == 0, "every warp tile has a warp; more warps share along k"
    assert 0 <= info.smem_bytes <= max(MAX_SMEM_BYTES[sm] for sm in able_gpus(info))
    assert info.stages >= 1
    assert info.layouts == [layout for layout in ("NN", "NT", "TN", "TT") if layout in info.layouts] != []
    assert info.max_ctas == 2**31 - 1
    assert len(set(info.dtypes)) == len(info.dtypes) > 0
    assert {dtype for row in info.dtypes for dtype in row} <= set(_core.dtypes())
    assert repr(info) == f"KernelInfo('{name}')"


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_facts_agree_with_why_not(name: str) -> None:
    info = next(info for info in jaxgemm.kernels() if info.name == name)
    for lhs in _core.dtypes():
        for rhs in _core.dtypes():
            for out in _core.dtypes():
                asked = problem(8, 8, 8, lhs_dtype=lhs, rhs_dtype=rhs, out_dtype=out)
                sentence = _core.why_not(name, asked)
                assert (not sentence) == ((lhs, rhs, out) in info.dtypes), sentence
    lhs, rhs, out = info.dtypes[0]
    dtypes = {"lhs_dtype": lhs, "rhs_dtype": rhs, "out_dtype": out}
    for layout in ("NN", "NT", "TN", "TT"):
        asked = problem(3, 5, 7, layout=layout, **dtypes)
        assert asked.layout == layout
        assert (not _core.why_not(name, asked)) == (layout in info.layouts)
    assert "sm_" in _core.why_not(name, problem(8, 8, 8, sm=info.min_sm - 1, **dtypes))
    for sm in able_gpus(info):
        enough = info.smem_bytes <= MAX_SMEM_BYTES[sm]
        assert (not _core.why_not(name, problem(8, 8, 8, sm=sm, **dtypes))) == enough
    for asked in (
        {"activation": "relu"},
        {"has_bias": True},
        {"has_alpha": True},
        {"activation": "silu", "has_bias": True},
    ):
        sentence = _core.why_not(name, problem(8, 8, 8, **asked, **dtypes))
        if not info.fused_epilogue:
            assert sentence == "does not fuse alpha, bias and activation"
        else:
            unfit = "fuses alpha, bias and activation with floating-point results only"
            assert sentence == ("" if is_float(out) else unfit)


def test_what_highest_forbids() -> None:
    for info in jaxgemm.kernels():
        for dtypes in (dtypes for dtypes in info.dtypes if dtypes[0] in ("float32", "float8_e4m3fn", "float8_e5m2")):
            kinds = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), dtypes, strict=True))
            assert not _core.why_not(info.name, problem(8, 8, 8, precision="default", **kinds))
            sentence = _core.why_not(info.name, problem(8, 8, 8, precision="highest", **kinds))
            assert (not sentence) == info.highest
            assert info.highest or "which precision highest forbids" in sentence
    for dtype in ("float32", "float8_e4m3fn"):
        assert {info.highest for info in jaxgemm.kernels() if any(row[0] == dtype for row in info.dtypes)} == {
            True,
            False,
        }


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_a_gpu_has_the_shared_memory_that_a_kernel_needs(name: str) -> None:
    """Bites on kernels that need much; tests/emulated/test_shared_memory.py asks about all sizes."""
    info = next(info for info in jaxgemm.kernels() if info.name == name)
    dtypes = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), info.dtypes[0], strict=True))
    for sm, limit in MAX_SMEM_BYTES.items():
        if sm not in able_gpus(info):
            continue
        lacking = f"needs {info.smem_bytes} bytes of shared memory per CTA, sm_{sm} has {limit}"
        expected = lacking if info.smem_bytes > limit else ""
        assert _core.why_not(name, problem(8, 8, 8, sm=sm, **dtypes)) == expected


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_any_size_is_taken_up_to_the_grid(name: str) -> None:
    info = next(info for info in jaxgemm.kernels() if info.name == name)
    dtypes = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), info.dtypes[0], strict=True))
    for m, n, k in [(0, 0, 0), (1, 1, 1), (1, 1, 0), (0, 3, 5), (17, 1, 129), (4095, 4097, 4093)]:
        assert not _core.why_not(name, problem(m, n, k, batch=3, **dtypes))
    tile_m, tile_n, _ = info.cta_tile
    most = info.max_ctas - (255 if info.tma else 0)  # TMA counts in 32 bits, from the edge of the last tile on
    assert not _core.why_not(name, problem(tile_m, tile_n, 1, batch=most, **dtypes))
    sentence = _core.why_not(name, problem(tile_m, tile_n, 1, batch=most + 1, **dtypes))
    assert str(most) in sentence
    assert (f"not {most + 1}" if info.tma else f"batch={most + 1}") in sentence
    for sizes in [(2**20 * tile_m, 2**20 * tile_n, 1), (2**58, 1, 1), (1, 2**58, 1)]:
        assert _core.why_not(name, problem(*sizes, **dtypes))


@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_workspace_is_sane(name: str) -> None:
    info = next(info for info in jaxgemm.kernels() if info.name == name)
    dtypes = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), info.dtypes[0], strict=True))
    for m, n, k, batch in [(256, 256, 256, 1), (257, 255, 129, 3), (1, 1, 1, 1), (33, 7, 5, 4)]:
        asked = problem(m, n, k, batch=batch, **dtypes)
        bytes_ = _core.workspace_bytes(name, asked)
        assert bytes_ == 0 or bytes_ > 256, "256 bytes of it are for alignment"
        assert bytes_ == _core.workspace_bytes(name, problem(m, n, k, batch=batch, **dtypes))


def test_names_of_the_contract() -> None:
    assert _core.dtypes()[:3] == ["float32", "float16", "bfloat16"]
    assert _core.bias_dtypes() == ["float32", "float16", "bfloat16"]
    assert _core.precisions() == ["default", "highest"]
    assert _core.activations() == ["none", "relu", "gelu_tanh", "gelu_erf", "silu"]
    for bad in ({"lhs_dtype": "float128"}, {"precision": "medium"}, {"activation": "tanh"}):
        with pytest.raises(ValueError, match=next(iter(bad.values()))):
            problem(8, 8, 8, **bad)
    for function in (_core.why_not, _core.workspace_bytes, _core.estimated_cost):
        with pytest.raises(ValueError, match="no kernel is called 'nothing'"):
            function("nothing", problem(8, 8, 8))


def test_handler_metadata() -> None:
    major, minor, graphs = _core.handler_metadata()
    assert major == 0
    runtime = _ffi_of_runtime()
    assert runtime is not None, "this jaxlib's headers are not understood, so that an older one would not be refused"
    assert runtime[0] == 0 and 1 <= minor <= runtime[1]
    assert graphs, "the handler may be captured into a CUDA graph"
    assert set(_core.handlers()) == {
        *(f"{target}{what}" for target in (GEMM_TARGET, MIXED_TARGET) for what in ("", "_check")),
        f"{PEER_SUM_TARGET}_check",
    }
    stages, kind = _core.peer_sum_handlers()
    assert stages.keys() == {"instantiate", "initialize", "execute"} and kind.keys() == {"type_id", "type_info"}


def test_every_select_within_a_family_minimises_the_model() -> None:
    names = collections.defaultdict(list)
    for info in jaxgemm.kernels():
        names[info.family].append(info)
    for family, taken in [(family, row) for family, infos in names.items() for row in {i.dtypes[0] for i in infos}]:
        infos = [info for info in names[family] if taken in info.dtypes]
        dtypes = dict(zip(("lhs_dtype", "rhs_dtype", "out_dtype"), taken, strict=True))
        for m, n, k in [(64, 64, 64), (4096, 4096, 4096), (1, 8192, 4096), (100, 3000, 77)]:
            asked = problem(m, n, k, **dtypes)
            costs = {info.name: _core.estimated_cost(info.name, asked) for info in infos}
            assert costs[_core.select(asked, family)] == min(costs.values())
            assert all(cost > 0 for cost in costs.values())
