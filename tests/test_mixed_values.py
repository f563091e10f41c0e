"""tests/quantised.py and tests/gpu/mixed.py: the GPU tests' weights, cases and bound, without a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

import jaxgemm
from jaxgemm import _packing
from jaxgemm._native import _core
from tests.gpu.mixed import FAMILIES, MIXED, MIXED_IDS, RANDOM_PROGRAMS, MixedCase, dtypes_of, edge_cases, random_cases
from tests.quantised import MIDDLE, WHOLE, Weights, mixed_error_ratio, pack, rounding_of, unit_roundoff
from tests.values import EPILOGUES, rounded

DTYPES = ("bfloat16", "float16")


@pytest.mark.parametrize("shape", [(64, 16), (65, 17), (3, 37, 5), (0, 5), (5, 0)])
def test_codes_are_packed_as_by_the_library(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    codes = rng.integers(0, 16, shape).astype(np.uint8)
    np.testing.assert_array_equal(pack(codes), _packing.pack(codes, 4, MIDDLE))


@pytest.mark.parametrize("kind", ["middle", "integer", "float"])
@pytest.mark.parametrize("group", [32, 48, WHOLE])
def test_weights_are_those_that_the_library_dequantises(group: int, kind: str, rng: np.random.Generator) -> None:
    weights = Weights.random(rng, (2, 100, 40), group, kind, "bfloat16", exact=True)
    if kind == "integer":
        assert weights.zeros is not None
        weights.zeros[0, 0] = np.arange(0, 240, 6)
    np.testing.assert_array_equal(weights.matrix().dequantize(np.float32), weights.dense())
    np.testing.assert_array_equal(weights.layer(1).matrix().dequantize(np.float32), weights.dense()[1])


CASES = [
    MixedCase(5, 40, 200, 64, "integer", "float16"),
    MixedCase(1, 17, 37, 32, "float", "float32"),
    MixedCase(3, 16, 300, WHOLE, "middle", "bfloat16", experts=True),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_bound(case: MixedCase, dtype: str, rng: np.random.Generator) -> None:
    """What the library computes without a kernel meets it; what is wrong in one element does not."""
    for out_dtype in (dtype, "float32"):
        x, weights = dataclasses.replace(case, out=out_dtype).draw(rng, dtype)
        out = np.asarray(jax.jit(jaxgemm.matmul, static_argnames="preferred_element_type")(
            x, weights.matrix(), preferred_element_type=out_dtype
        ))  # fmt: skip
        rounding = rounding_of(None, dtype, weights)
        assert 0 < mixed_error_ratio(out, x, weights, rounding) <= 1
        for wrong in (np.nan, np.inf, 0):
            changed = out.copy()
            changed.flat[-1] = wrong
            assert mixed_error_ratio(changed, x, weights, rounding) > 1
        other = dataclasses.replace(weights, codes=weights.codes.copy())
        other.codes[..., -1, :] ^= 8
        assert mixed_error_ratio(out, x, other, rounding) > 1
        if weights.scales.shape[-2] > 1:
            assert mixed_error_ratio(out, x, dataclasses.replace(weights, scales=weights.scales[..., ::-1, :]), 0) > 1


@pytest.mark.parametrize("epilogue", EPILOGUES, ids=str)
def test_the_bound_with_an_epilogue(epilogue: Any, rng: np.random.Generator) -> None:
    x, weights = CASES[0].draw(rng, "bfloat16")
    bias = rng.standard_normal(weights.n).astype(np.float32)
    out = jaxgemm.matmul(
        x, weights.matrix(), alpha=epilogue.alpha, bias=bias if epilogue.has_bias else None,
        activation=None if epilogue.activation == "none" else epilogue.activation, preferred_element_type=np.float32,
    )  # fmt: skip
    rounding = rounding_of(None, "bfloat16", weights)
    assert mixed_error_ratio(np.asarray(out), x, weights, rounding, epilogue, bias) <= 1
    assert mixed_error_ratio(np.asarray(out) + 1, x, weights, rounding, epilogue, bias) > 1


def test_roundings_of_weights(rng: np.random.Generator) -> None:
    assert [unit_roundoff(dtype) for dtype in DTYPES] == [2.0**-8, 2.0**-11]
    for info in MIXED:
        tile_m = info.cta_tile[0]
        of_few, blocks = int(tile_m > 16), info.warp_tile[1] // 16
        for group, scales, dtype, roundings in [
            (64, "bfloat16", "bfloat16", of_few), (64, "float16", "bfloat16", 2 * of_few),
            (32, "bfloat16", "float16", of_few if blocks == 2 else 1),
            (128, "float16", "bfloat16", 0 if tile_m <= 32 else 2), (WHOLE, "float16", "float16", int(tile_m > 32)),
        ]:  # fmt: skip
            weights = Weights.random(rng, (300, 16), group, "middle", scales)
            expected = roundings if info.family == "int4_wgmma" else 0
            assert rounding_of(info, dtype, weights) == (1 + unit_roundoff(dtype)) ** expected - 1, info.name


@pytest.mark.parametrize("info", MIXED, ids=MIXED_IDS)
def test_edge_cases(info: Any) -> None:
    """Are all taken, and each of the values is among them."""
    tile_m, tile_n, tile_k = info.cta_tile
    for dtype in dtypes_of(info):
        cases = edge_cases(info, dtype)
        assert {_core.why_not(info.name, case.problem(dtype, sm=info.min_sm)) for case in cases} == {""}
        assert {case.m for case in cases} >= {1, tile_m - 1, tile_m, tile_m + 1}
        assert {case.n - tile_n for case in cases if case.zeros == "integer"} >= (
            {-16, 0, 16} if info.tma else {-1, 0, 1}
        )
        assert {case.group for case in cases} >= {64, 128, WHOLE} | ({32} if info.group_multiple == 32 else set())
        assert {case.zeros for case in cases} == {"middle", "integer"}
        assert {case.scales for case in cases} == {"bfloat16", "float16"} | (set() if info.tma else {"float32"})
        assert {case.out for case in cases} == {out for lhs, _, out in info.dtypes if lhs == dtype}
        assert {case.experts for case in cases} == {False, True}
        ks = {case.k for case in cases}
        assert any(k % 2 for k in ks) and any(k % 128 == 64 for k in ks) and any(k % 64 for k in ks)
        assert max(ks) > info.stages * tile_k
        assert any(case.group and 0 < case.k % case.group < case.k for case in cases)


def test_random_cases_reach_every_family() -> None:
    """And what no kernel takes."""
    chosen = set()
    for number in range(RANDOM_PROGRAMS):
        dtype, cases = random_cases(number)
        chosen |= {_core.select(case.problem(dtype, sm=90)).partition(":")[0] for case in cases}
    assert chosen == {"", *FAMILIES}


@pytest.mark.parametrize("exact", [False, True])
def test_draws_are_what_they_are_called(exact: bool, rng: np.random.Generator) -> None:
    x, weights = MixedCase(9, 50, 100, 32, "integer").draw(rng, "float16", exact=exact)
    assert weights.zeros is not None
    assert (weights.zeros.min(), weights.zeros.max()) == (0, 16)
    assert set(np.unique(weights.codes)) == set(range(16))
    product = x.astype(np.float64) @ weights.dense()
    assert (rounded(product, "float32") == product).all() == exact
