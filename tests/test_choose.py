"""jaxgemm/_choose.py and cuda/select.cc: which kernel runs, and the sentences that say why not."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxgemm
from jaxgemm._choose import NO_SPLIT, NOMINAL_SIZE, choose, preference, why_not
from jaxgemm._native import _core
from jaxgemm._target import PORTABLE_SM
from tests.helpers import (
    AT_ONCE,
    AT_ONCE_IN_ANY_LAYOUT,
    FAMILIES,
    KERNEL_NAMES,
    MOST_K_AT_ONCE,
    MULTIPROCESSORS,
    cuda_text,
    problem,
    request,
    struct,
)
from tests.values import is_float

DTYPES = sorted({row for info in _core.kernels() for row in info.dtypes})
SIZES = [0, 1, 2, 7, 15, 16, 17, 31, 64, 100, 127, 128, 129, 1000, 1024, 4095, 4096, 8192]


def random_problem(rng: np.random.Generator) -> _core.Problem:
    lhs, rhs, out = DTYPES[rng.integers(len(DTYPES))]
    m, n, k = (int(s) for s in rng.choice(SIZES, 3))
    epilogue = {"activation": str(rng.choice(_core.activations())), "has_bias": bool(rng.integers(2))}
    return problem(
        m, n, k, batch=int(rng.choice([0, 1, 2, 64])), layout=str(rng.choice(["NN", "NT", "TN", "TT"])),
        lhs_dtype=lhs, rhs_dtype=rhs, out_dtype=out, precision=str(rng.choice(_core.precisions())),
        **(epilogue if is_float(out) else {}),  # integers take none
        sm=int(rng.choice([80, 86, 89, 90, 100, 103, 120])),
    )  # fmt: skip


def test_select_is_total_and_right(rng: np.random.Generator) -> None:
    for _ in range(5000):
        asked = random_problem(rng)
        able = [name for name in KERNEL_NAMES if not _core.why_not(name, asked)]
        name = _core.select(asked)
        if not able:  # 8-bit floating-point numbers are for Hopper only
            assert "float8" in str(asked), f"the first rungs take everything, not {asked}"
            assert name == ""
            continue
        assert name in able
        assert name == _core.select(asked)
        once = [n for n in able if _core.rung(n, asked) >= 0]
        last_family = max((n.split(":")[0] for n in once or able), key=FAMILIES.index)
        fitted = {info.family for info in _core.kernels() if info.stages > 2}  # to measurements: these may compete
        rungs = fitted if last_family in fitted else {last_family}
        short = min(asked.m, asked.n) >= 8 and asked.k <= MOST_K_AT_ONCE and name in AT_ONCE
        assert short or name.split(":")[0] in rungs, "the latest rung that can without computing all sums twice"
        for family in FAMILIES:
            named = _core.select(asked, family)
            assert named in [n for n in able if n.startswith(family + ":")] or (
                not named and not any(n.startswith(family + ":") for n in able)
            )


@pytest.mark.parametrize(
    ("batch", "m", "n", "k", "family"),
    [
        (8, 197, 32, 197, "mma"), (1, 127, 521, 131, "mma"), (16, 197, 64, 197, "mma_multistage"),
        (1, 50, 50257, 768, "mma_multistage"), (1, 100, 50257, 768, "mma_multistage"), (8, 577, 128, 577, "wgmma"),
        (1, 577, 1021, 4093, "wgmma"), (1, 2001, 2003, 2005, "wgmma"),
    ],
)  # fmt: skip
def test_odd_rows_are_copied_where_there_is_much_to_multiply(batch: int, m: int, n: int, k: int, family: str) -> None:
    """mma_multistage reads them where they lie, as does mma where sums are short; wgmma, which multiplies faster,
    cannot.
    """
    kinds = {"lhs_dtype": "bfloat16", "rhs_dtype": "bfloat16", "out_dtype": "bfloat16"}
    assert _core.select(problem(m, n, k, batch=batch, **kinds)).startswith(f"{family}:")


def test_moving_odd_rows_is_estimated() -> None:
    """A row that is one or two elements longer than a multiple of 16 bytes, of an operand that one CTA reads."""
    kinds = {"lhs_dtype": "bfloat16", "rhs_dtype": "bfloat16", "out_dtype": "bfloat16"}
    cost = {k: _core.estimated_cost("mma_multistage:64x64x64", problem(64, 32, k, **kinds)) for k in (248, 249, 250)}
    assert cost[248] + 1 < cost[249] == pytest.approx(cost[250], rel=1e-6)


@pytest.mark.parametrize(
    ("sizes", "family"),
    [((4096, 2048), "register_tiled"), ((300, 300), "register_tiled"), ((1, 17), "gemv"), ((17, 1), "gemv")],
)
def test_few_products_are_left_to_float32s_own_instructions(sizes: tuple[int, int], family: str) -> None:
    for k in (0, 1, _core.FEW_PRODUCTS):
        assert _core.select(problem(*sizes, k, precision="highest")).startswith(f"{family}:")
        assert _core.select(problem(*sizes, k, precision="highest"), "wgmma").startswith("wgmma:"), "if it is named"
    for asked in (problem(*sizes, _core.FEW_PRODUCTS + 1, precision="highest"), problem(*sizes, _core.FEW_PRODUCTS)):
        tf32 = {info.family for info in _core.kernels() if info.tf32}
        assert _core.select(asked).partition(":")[0] in ({"gemv"} if family == "gemv" else tf32)


ATTENTION = [(256, 512, 128, "NT"), (256, 128, 512, "NN"), (512, 577, 80, "NT"), (32, 64, 1024, "NT")]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("batch", "n", "k", "layout"), ATTENTION)
def test_single_rows_and_columns_of_a_batch_go_to_gemv(batch: int, n: int, k: int, layout: str, dtype: str) -> None:
    """And several rows of these never do, which would read the matrix once for each."""
    precision = "highest" if dtype == "float32" else "default"
    kinds = {"lhs_dtype": dtype, "rhs_dtype": dtype, "out_dtype": dtype, "precision": precision}
    kinds |= {"batch": batch, "layout": layout}
    assert _core.select(problem(1, n, k, **kinds)).startswith("gemv:")
    assert _core.select(problem(n, 1, k, **kinds)).startswith("gemv:")
    for rows in (2, 8, 300):
        assert not _core.select(problem(rows, n, k, **kinds)).startswith("gemv:")
    assert _core.select(problem(2, n, k, **kinds), "gemv").startswith("gemv:"), "if it is named"


def test_few_rows_go_to_gemv_where_others_copy_operands_first() -> None:
    kinds = {"lhs_dtype": "bfloat16", "rhs_dtype": "bfloat16", "out_dtype": "bfloat16"}
    assert _core.select(problem(3, 4097, 100, **kinds)).startswith("gemv:")
    assert _core.select(problem(3, 333, 3, layout="TT", **kinds)).startswith("gemv:")
    for m, n, k in ((3, 4096, 96), (300, 4097, 100), (2, 4097, 4097)):
        assert not _core.select(problem(m, n, k, **kinds)).startswith("gemv:")


def test_estimates_of_single_rows() -> None:
    """Elements one by one take longer than vectors, and a long K of few columns more than one CTA can do."""
    kinds = {"lhs_dtype": "bfloat16", "rhs_dtype": "bfloat16", "out_dtype": "bfloat16", "batch": 256}
    for layout in ("NN", "NT"):
        cost = {
            n: _core.estimated_cost("gemv:1x64x32", problem(1, n, n, layout=layout, **kinds)) for n in (504, 505, 512)
        }
        assert cost[504] <= cost[512] < cost[505]
    assert not _core.select(problem(1, 8, 2**20, layout="NT")).startswith("gemv:")


def test_choosing_orders_kernels_as_select_does(rng: np.random.Generator) -> None:
    for _ in range(300):
        asked = random_problem(rng)
        able = [name for name in KERNEL_NAMES if not _core.why_not(name, asked)]
        assert _core.select(asked) == min(able, key=preference(asked), default="")


def test_select_without_any_able_kernel() -> None:
    assert _core.select(problem(8, 8, 8, sm=75)) == ""
    assert _core.select(problem(8, 8, 8, lhs_dtype="float8_e4m3fn")) == ""
    assert _core.select(problem(8, 8, 8), "nothing") == ""
    integers = {"lhs_dtype": "int8", "rhs_dtype": "int8", "out_dtype": "int32"}
    assert _core.select(problem(8, 8, 8, **integers))
    assert _core.select(problem(8, 8, 8, has_bias=True, **integers)) == ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_choose_is_deterministic_and_says_why(dtype: str) -> None:
    asked = request(struct((100, 200), dtype), struct((200, 300), dtype))
    first = choose(asked, None, 90)
    assert first == choose(asked, None, 90)
    assert first.kernel in KERNEL_NAMES
    assert "ladder" in first.reason
    assert choose(asked, first.kernel, 90) == choose(asked, first.kernel, 90)
    assert choose(asked, first.kernel, 90).reason == "named by the caller"
    family = first.kernel.split(":")[0]
    assert choose(asked, family, 90).kernel == first.kernel
    assert choose(asked, family, 90).workspace_bytes == first.workspace_bytes


@pytest.mark.parametrize("name", KERNEL_NAMES + FAMILIES)
def test_a_named_kernel_runs_or_raises(name: str) -> None:
    taken = 0
    for dtype, out in (("float32",) * 2, ("bfloat16",) * 2, ("float16",) * 2, ("int8", "int32")):
        asked = request(struct((24, 40), dtype), struct((40, 8), dtype), preferred_element_type=jnp.dtype(out))
        try:
            choice = choose(asked, name, 90)
        except ValueError as error:
            text = str(error)
            assert f"kernel={name!r} cannot run {dtype} x {dtype} -> {out}, M=24 N=8 K=40" in text
            assert "does not multiply" in text
            assert "kernels that can: " in text
            assert all(can in KERNEL_NAMES for can in text.split("kernels that can: ")[1].rstrip(".").split(", "))
        else:
            taken += 1
            assert choice.kernel == name or choice.kernel.startswith(name + ":")
    assert taken >= 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("navie", "naive"),
        ("wmma_tild", "wmma_tiled"),
        ("register_tiled:128x128x9", "register_tiled:128x128"),
        ("", None),
    ],
)
def test_an_unknown_kernel_is_named_with_a_suggestion(name: str, hint: str | None) -> None:
    x = jnp.ones((2, 2))
    calls = [
        lambda: jaxgemm.matmul(x, x, kernel=name),
        lambda: jaxgemm.dot_general(x, x, (((1,), (0,)), ((), ())), kernel=name),
        lambda: jaxgemm.einsum("ij,jk", x, x, kernel=name),
        lambda: jaxgemm.explain(x, x, kernel=name),
        lambda: jaxgemm.matmul(x, x, kernel=name, activation="relu"),
        lambda: jax.jit(functools.partial(jaxgemm.matmul, kernel=name))(x, x),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="none of this build's kernels") as caught:
            call()
        assert repr(name) in str(caught.value)
        assert all(known in str(caught.value) for known in FAMILIES + KERNEL_NAMES)
        assert ("Did you mean" in str(caught.value)) == (hint is not None)
        assert hint is None or f"Did you mean '{hint}" in str(caught.value)


def test_a_kernel_that_is_no_string() -> None:
    with pytest.raises(ValueError, match="kernel=3 is none of this build's kernels"):
        jaxgemm.matmul(jnp.ones((2, 2)), jnp.ones((2, 2)), kernel=3)  # type: ignore[arg-type]


def test_a_problem_beyond_the_grid() -> None:
    lhs, rhs = struct((2**24, 1)), struct((1, 2**24))
    for name in ("naive", "register_tiled", "register_tiled:128x128x8"):
        with pytest.raises(ValueError, match=r"M=16777216 N=16777216 .* is more than 2147483647 CTA tiles of"):
            jaxgemm.explain(lhs, rhs, kernel=name)
    explanation = jaxgemm.explain(lhs, rhs)
    assert explanation.kernel is None
    assert "no kernel takes" in explanation.reason


@pytest.mark.parametrize("dtype", ["float64", "complex64", "int32", "bool", "uint8"])
def test_dtypes_without_a_kernel(dtype: str) -> None:
    if dtype == "float64":
        asked = request(struct((4, 5), jnp.float16), struct((5, 6), jnp.float32))
        what = "float16 x float32"
    else:
        asked = request(struct((4, 5), dtype), struct((5, 6), dtype))
        what = dtype
    choice = choose(asked, None, 90)
    assert choice.kernel is None
    assert choice.workspace_bytes == 0
    with pytest.raises(ValueError, match="kernel='naive' cannot run") as caught:
        choose(asked, "naive", 90)
    assert what in str(caught.value)


def test_precision() -> None:
    for dtype in ("float32", "bfloat16"):
        asked = functools.partial(request, struct((4, 5), dtype), struct((5, 6), dtype))
        assert choose(asked(), None, 90).precision == "default"
        assert choose(asked(precision=(lax.Precision.DEFAULT,) * 2), None, 90).precision == "default"
        for high in (lax.Precision.HIGH, lax.Precision.HIGHEST):
            assert choose(asked(precision=(lax.Precision.DEFAULT, high)), None, 90).precision == "highest"
        assert choose(asked(precision=lax.DotAlgorithmPreset.DEFAULT), None, 90).precision == "default"
    f32 = functools.partial(request, struct((4, 5)), struct((5, 6)))
    assert choose(f32(precision=lax.DotAlgorithmPreset.F32_F32_F32), None, 90).precision == "highest"
    for preset in (lax.DotAlgorithmPreset.BF16_BF16_F32_X3, lax.DotAlgorithmPreset.F64_F64_F64):
        assert choose(f32(precision=preset), None, 90).kernel is None
        with pytest.raises(ValueError, match="no kernel promises precision="):
            choose(f32(precision=preset), "naive", 90)


def test_an_old_gpu_is_refused_when_a_program_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (75, "Tesla T4"))
    x = jnp.ones((4, 4))
    with pytest.raises(RuntimeError, match=r"jaxgemm needs a GPU of compute capability 8.0 or newer, Tesla T4 has 7.5"):
        cuda_text(jaxgemm.matmul, x, x)
    with pytest.raises(RuntimeError, match=r"use jnp.matmul on this machine"):
        jaxgemm.explain(x, x)


def test_a_kernel_is_named_at_once_where_a_gpu_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_target", "_dot_general"):
        monkeypatch.setattr(f"jaxgemm.{module}.attached_gpu", lambda: (90, "NVIDIA H200"))
    with pytest.raises(ValueError, match="kernel='wmma_naive' cannot run float32 x float32 -> float32"):
        jax.make_jaxpr(functools.partial(jaxgemm.matmul, kernel="wmma_naive"))(jnp.ones((4, 4)), jnp.ones((4, 4)))
    assert "sm_90" in jaxgemm.explain(jnp.ones((4, 4)), jnp.ones((4, 4))).problem


EXPLAINED: list[tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = [
    ("matrices", (3, 4), (4, 5), {}, "M=3 N=5 K=4 batch=1 NN"),
    ("vectors", (4,), (4,), {}, "M=1 N=1 K=4 batch=1"),
    ("vector and matrix", (4,), (4, 5), {}, "M=1 N=5 K=4 batch=1"),
    ("matrix and vector", (3, 4), (4,), {}, "M=3 N=1 K=4 batch=1"),
    ("batch", (7, 3, 4), (7, 4, 5), {}, "M=3 N=5 K=4 batch=7 NN"),
    ("shared rhs", (7, 3, 4), (4, 5), {}, "M=21 N=5 K=4 batch=1 NN"),
    ("shared lhs", (3, 4), (7, 4, 5), {}, "M=3 N=5 K=4 batch=7 NN"),
    ("fused", (3, 4), (4, 5), {"bias": np.ones(5, np.float32), "activation": "gelu"}, "M=3 N=5 K=4 batch=1 NN"),
    ("empty", (0, 4), (4, 5), {}, "M=0 N=5 K=4 batch=1"),
]  # fmt: skip


@pytest.mark.parametrize(("lhs", "rhs", "kwargs", "text"), [e[1:] for e in EXPLAINED], ids=[e[0] for e in EXPLAINED])
def test_explain(lhs: tuple[int, ...], rhs: tuple[int, ...], kwargs: dict[str, Any], text: str) -> None:
    said = jaxgemm.explain(struct(lhs, jnp.bfloat16), jnp.ones(rhs, jnp.bfloat16), **kwargs)
    assert isinstance(said, jaxgemm.Explanation)
    assert text in said.problem
    assert said.problem.endswith(f"on sm_{PORTABLE_SM}")
    assert list(said.candidates) == KERNEL_NAMES
    assert said.candidates[said.kernel] == ""
    assert "does not multiply bfloat16" in said.candidates["naive:32x32x1"]
    lines = str(said).splitlines()
    assert lines[0] == said.problem
    assert lines[1] == f"  runs {said.kernel}: {said.reason}"
    assert len(lines) == 1 + len(KERNEL_NAMES)
    able = [name for name, why in said.candidates.items() if not why]
    assert said.costs.keys() == set(able)
    assert [line.strip().split(": could run, ")[0] for line in lines[2 : len(able) + 1]] == list(said.costs)[1:]
    assert not any("could run" in line for line in lines[len(able) + 1 :])
    assert (next(iter(said.costs)), said.costs[said.kernel]) == (said.kernel, 1.0)


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (64, 64, 64), (1, 8192, 4096), (33, 77, 129)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_explained_costs(sizes: tuple[int, int, int], dtype: str) -> None:
    """Late rungs come first, within a rung the cheap ones, and costs are the model's."""
    m, n, k = sizes
    said = jaxgemm.explain(struct((m, k), dtype), struct((k, n), dtype))
    asked = problem(m, n, k, lhs_dtype=dtype, rhs_dtype=dtype, out_dtype=dtype, sm=PORTABLE_SM)
    chosen = _core.estimated_cost(said.kernel, asked)
    for name, cost in said.costs.items():
        assert cost == pytest.approx(_core.estimated_cost(name, asked) / chosen)
        assert name == said.kernel or f"{name}: could run, in {cost:.3g} times the time by the model" in str(said)
    places = {family: -place for place, family in enumerate(FAMILIES)}
    places["gemv"] = places["mma_multistage"] if m == 1 or k == 129 else 1  # a rival on cost, or behind all
    rivals = AT_ONCE_IN_ANY_LAYOUT if k <= MOST_K_AT_ONCE and m > 1 else ()
    rungs = [
        (places["mma_multistage" if name in rivals else name.split(":")[0]], cost) for name, cost in said.costs.items()
    ]
    assert rungs[1:] == sorted(rungs[1:]), "what is chosen comes first, the rest in order"


def test_reasons_say_what_decided() -> None:
    bf16 = functools.partial(struct, dtype=jnp.bfloat16)
    choice = choose(request(bf16((512, 512)), bf16((512, 512))), None, 90)
    family, config = choice.kernel.split(":")
    assert f"{family} is the " in choice.reason
    assert f", {config} " in choice.reason
    for asked in FAMILIES:
        try:
            said = jaxgemm.explain(bf16((512, 512)), bf16((512, 512)), kernel=asked)
        except ValueError:
            continue
        configs = sum(name.startswith(asked + ":") for name in said.costs)
        config = said.kernel.split(":")[1]
        assert said.reason == "of the family that the caller named, " + (
            f"{config} its only configuration that can"
            if configs == 1
            else f"{config} the fastest by the model of its {configs} configurations that can"
        )
        named = jaxgemm.explain(bf16((512, 512)), bf16((512, 512)), kernel=said.kernel)
        assert named.reason == "named by the caller"
        assert next(iter(named.costs.items())) == (said.kernel, 1.0)


def test_explain_other_functions_and_fallback() -> None:
    x, y = struct((3, 4)), struct((5, 4))
    dot = jaxgemm.explain(x, y, function=jaxgemm.dot_general, dimension_numbers=(((1,), (1,)), ((), ())))
    assert "M=3 N=5 K=4 batch=1 NT" in dot.problem
    einsum = jaxgemm.explain(x, y, function=functools.partial(jaxgemm.einsum, "mk,nk->mn"))
    assert "M=3 N=5 K=4 batch=1 NT" in einsum.problem
    inside = jaxgemm.explain(x, y, function=jax.jit(lambda a, b: jaxgemm.matmul(a, b.T)))
    assert "M=3 N=5 K=4 batch=1 NN" in inside.problem
    integers = jaxgemm.explain(struct((3, 4), np.int32), struct((4, 5), np.int32))
    assert integers.kernel is None
    assert "runs XLA dot: lhs is int32" not in integers.reason
    assert set(integers.candidates) == set(KERNEL_NAMES)
    assert all(integers.candidates.values())
    with pytest.raises(ValueError, match="binds no GEMM of jaxgemm"):
        jaxgemm.explain(x, y, function=lambda a, b: a.sum() + b.sum())
    with pytest.raises(TypeError, match="cannot contract"):
        jaxgemm.explain(x, y)


def test_explain_and_the_lowered_program_agree() -> None:
    for m, n, k, dtype in [(4, 4, 4, "float32"), (4096, 4096, 4096, "bfloat16"), (33, 77, 129, "float16")]:
        x, y = struct((m, k), dtype), struct((k, n), dtype)
        assert f'kernel = "{jaxgemm.explain(x, y).kernel}"' in cuda_text(jaxgemm.matmul, x, y)


def test_symbolic_shapes_take_no_kernel_with_a_workspace() -> None:
    (m,) = jax.export.symbolic_shape("m")
    asked = request(struct((m, 64), jnp.bfloat16), struct((64, 48), jnp.bfloat16))
    assert asked.symbolic
    choice = choose(asked, None, 90)
    assert choice.workspace_bytes == 0
    nominal = problem(127, 48, 64, lhs_dtype="bfloat16", rhs_dtype="bfloat16", out_dtype="bfloat16")
    needy = [n for n in KERNEL_NAMES if not _core.why_not(n, nominal) and _core.workspace_bytes(n, nominal)]
    assert choice.kernel not in needy
    for name in needy:
        with pytest.raises(ValueError, match="needs a workspace, whose size symbolic dimensions do not give"):
            choose(asked, name, 90)
    assert "wmma_naive:16x16x16" in needy


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("unknown", ["m", "n", "k", "mn", "mk", "nk", "mnk"])
def test_kernels_of_symbolic_shapes_need_no_workspace_whatever_the_sizes(unknown: str, layout: str, dtype: str) -> None:
    """They were chosen for nominal sizes, and there is none at run time."""
    dtypes = {"lhs_dtype": dtype, "rhs_dtype": dtype, "out_dtype": "int32" if dtype == "int8" else dtype}

    def asked(size: int) -> _core.Problem:
        sizes = {"m": 320, "n": 192, "k": 256} | dict.fromkeys(unknown, size)
        return problem(**sizes, layout=layout, split=NO_SPLIT, may_copy=False, **dtypes)

    able = [name for name in KERNEL_NAMES if not why_not(name, asked(NOMINAL_SIZE), symbolic=True)]
    assert {name.partition(":")[0] for name in able} >= {"mma", "mma_ldmatrix", "mma_multistage"}
    for size in (1, 8, 129, 500, 2049, 70001):
        assert not [name for name in able if _core.workspace_bytes(name, asked(size))], size


def test_k_of_symbolic_shapes_is_not_split() -> None:
    """How it is split depends on the sizes, and the workspace for its sums with it."""
    (m,) = jax.export.symbolic_shape("m")
    x, y = struct((m, 8192), jnp.bfloat16), struct((8192, 1024), jnp.bfloat16)
    choice = choose(request(x, y), None, 90)
    assert choice.kernel is not None
    assert (choice.split, choice.workspace_bytes) == (NO_SPLIT, 0)
    sized = [choose(request(struct((size, 8192), jnp.bfloat16), y), choice.kernel, 90) for size in (1, 64, 1000)]
    assert {one.split for one in sized} != {NO_SPLIT}, "else the model would split none of them anyway"
    assert "split = dense<[0, 1]>" in cuda_text(jaxgemm.matmul, x, y)


@pytest.mark.parametrize(
    ("changed", "takes"),
    [
        ({}, True),
        ({"has_bias": True}, False),
        ({"has_alpha": True}, False),
        ({"activation": "relu"}, False),
        ({"m": 256}, False),  # short
    ],
    ids=str,
)
def test_tiles_are_taken_in_long_plain_products(changed: dict[str, Any], takes: bool) -> None:
    """One to each cluster is dealt; a word of the workspace counts the others."""
    name = "wgmma:128x256x64_pairs"
    kinds = dict.fromkeys(("lhs_dtype", "rhs_dtype", "out_dtype"), "bfloat16")
    asked = problem(**({"m": 8192, "n": 8192, "k": 8192} | kinds | changed))
    clusters = MULTIPROCESSORS // next(info for info in _core.kernels() if info.name == name).cluster_ctas
    assert (_core.k_split(name, asked) == (clusters, 1)) == takes
    assert not takes or _core.workspace_bytes(name, asked) > 0


def test_explain_takes_what_the_call_takes() -> None:
    x = jnp.ones((3, 4))
    described = jaxgemm.explain(x, x.T, bias=jax.ShapeDtypeStruct((3,), np.float32), activation="relu")
    assert described.kernel is not None
    by_einsum = jaxgemm.explain(x, x, function=functools.partial(jaxgemm.einsum, "ik,jk->ij"))
    assert "NT" in by_einsum.problem
