"""jaxgemm/_mixed_choose.py and cuda/select_mixed.cc: which kernel multiplies by quantised weights, and why not."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import jaxgemm
from jaxgemm._choose import NO_SPLIT, Choice
from jaxgemm._mixed_choose import MixedRequest, choose_mixed, mixed_kernels
from jaxgemm._mixed_local import Form
from jaxgemm._native import MIXED_TARGET, _core
from tests.gpu_limits import MAX_SMEM_BYTES
from tests.helpers import cuda_text, struct
from tests.quantised import WHOLE, Weights, streams

INFOS = mixed_kernels()
NAMES = [info.name for info in INFOS]
FAMILIES = list(dict.fromkeys(info.family for info in INFOS))
K, N = 512, 256
SIZES = [0, 1, 2, 7, 8, 16, 17, 40, 64, 100, 128, 129, 1000, 1024, 4096, 8192]


def weights(group: int = 128, kind: str = "middle", dtype: str = "bfloat16", k: int = K, n: int = N) -> Any:
    return Weights.random(np.random.default_rng(0), (k, n), group, kind, dtype).matrix()


def shapes_of(matrix: Any) -> Any:
    return jax.tree.map(lambda x: struct(x.shape, x.dtype), matrix)


def choice_of(
    m: Any, matrix: Any, kernel: str | None = None, sm: int = 90, dtype: str = "bfloat16", out: str = "", **changed: Any
) -> Choice:
    """What is chosen for m tokens."""
    batch = matrix.packed.shape[:-3]
    settings = {
        "k": matrix.k, "n": matrix.n, "bits": matrix.bits, "group_size": matrix.group_size,
        "has_zeros": matrix.zeros is not None, "has_alpha": False, "activation": "none",
        "out_dtype": np.dtype(jnp.dtype(out or dtype)),
    }  # fmt: skip
    x = struct((*batch, m, matrix.k), dtype)
    form = Form(**(settings | changed))
    request = MixedRequest(x, matrix.packed, matrix.scales, matrix.zeros, form, has_bias=False)
    return choose_mixed(request, kernel, sm)


def random_problem(rng: np.random.Generator) -> _core.Problem:
    m, n, k = (int(s) for s in rng.choice(SIZES, 3))
    lhs, out = [("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32"), ("bfloat16", "float16")][
        rng.choice(4, p=[0.5, 0.4, 0.05, 0.05])
    ]
    return _core.mixed_problem(
        batch=int(rng.choice([0, 1, 1, 2, 64])), m=m, n=n, k=k, lhs_dtype=lhs, out_dtype=out,
        activation=str(rng.choice(_core.activations())), has_alpha=bool(rng.integers(2)),
        has_bias=bool(rng.integers(2)), bits=int(rng.choice([4, 4, 4, 8])),
        group_size=int(rng.choice([32, 64, 96, 128, 128, 48, 8192])),
        scale_dtype=str(rng.choice(["bfloat16", "float16", "float32"])),
        zeros=str(rng.choice(["middle", "integer", "integer", "float"])),
        sm=int(rng.choice([75, 80, 86, 89, 90, 90, 100, 120])),
    )  # fmt: skip


def test_select_is_the_cheapest_that_can(rng: np.random.Generator) -> None:
    some = streamed = 0
    for _ in range(3000):
        asked = random_problem(rng)
        able = [name for name in NAMES if not _core.why_not(name, asked)]
        some += bool(able)
        for family in ("", *FAMILIES):
            cheapest = min(
                (name for name in able if name.startswith(family)),
                key=lambda name: _core.estimated_cost(name, asked),
                default="",
            )
            assert _core.select(asked, family) == cheapest, f"{family} {asked}"
        for name in able:
            whole, splits = _core.k_split(name, asked)
            info = next(info for info in INFOS if info.name == name)
            k_tiles = -(-asked.k // info.cta_tile[2])
            if info.stream_k and streams((whole, splits)):  # of all tiles but whole waves
                tiles = asked.batch * -(-asked.m // info.cta_tile[0]) * -(-asked.n // info.cta_tile[1])
                assert whole % splits == 0 and whole < tiles and splits <= (tiles - whole) * k_tiles
                streamed += 1
            else:
                assert whole == 0 and 1 <= splits <= max(1, k_tiles)
            assert _core.estimated_cost(name, asked) >= 0
            assert _core.workspace_bytes(name, asked) >= 0
    assert 1000 < some < 2500
    assert streamed > 0


def test_a_split_that_is_chosen_is_taken(rng: np.random.Generator) -> None:
    """When it is asked for, as the handler does."""
    for _ in range(300):
        matrix = weights(int(rng.choice([32, 64, 128, WHOLE])), k=int(rng.choice([64, 200, 2048])), n=64)
        m, sm = int(rng.choice([1, 16, 100])), int(rng.choice([80, 86, 90]))
        choice = choice_of(m, matrix, sm=sm)
        asked = _core.mixed_problem(
            batch=1, m=m, n=64, k=matrix.k, lhs_dtype="bfloat16", out_dtype="bfloat16", activation="none",
            has_alpha=False, has_bias=False, bits=4, group_size=matrix.group_size, scale_dtype="bfloat16",
            zeros="middle", sm=sm, split=choice.split,
        )  # fmt: skip
        assert choice.kernel is not None
        assert _core.why_not(choice.kernel, asked) == ""
        assert _core.workspace_bytes(choice.kernel, asked) == choice.workspace_bytes


@pytest.mark.parametrize("sm", [80, 86, 89, 90, 100, 120])
def test_choices_by_gpu(sm: int) -> None:
    matrix = weights(n=4096, k=4096)
    for m in (1, 16, 64, 1000):
        choice = choice_of(m, matrix, sm=sm)
        assert choice.kernel is not None
        assert choice.reason == "the fastest by the model"
        info = next(info for info in INFOS if info.name == choice.kernel)
        assert info.min_sm <= sm and info.max_sm in (0, sm)
        assert info.smem_bytes <= MAX_SMEM_BYTES[sm]
        assert choice == choice_of(m, matrix, sm=sm)
        named = choice_of(m, matrix, choice.kernel, sm)
        assert named.reason == "named by the caller"
        assert (named.split, named.workspace_bytes) == (choice.split, choice.workspace_bytes)
        assert choice_of(m, matrix, info.family, sm).kernel == choice.kernel
        if sm != 90:
            assert info.family == "int4_mma"
            with pytest.raises(
                ValueError, match=rf"needs a GPU of sm_90 to sm_90, this one is sm_{sm}; kernels that can"
            ):
                choice_of(m, matrix, "int4_wgmma", sm)
    assert {choice_of(m, matrix, sm=90).kernel.partition(":")[0] for m in (1, 1000)} <= set(FAMILIES)  # type: ignore[union-attr]
    assert choice_of(1000, matrix, sm=90).kernel.startswith("int4_wgmma:")  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES + FAMILIES)
def test_a_named_kernel_runs(name: str) -> None:
    choice = choice_of(24, weights(), name)
    assert choice.kernel == name or choice.kernel.startswith(f"{name}:")  # type: ignore[union-attr]
    assert choice.reason == ("named by the caller" if name in NAMES else "the fastest by the model")


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "group of 48": ({"group": 48}, {}, "takes groups of all rows or of a multiple of 32 rows, not of 48"),
    "floating-point zeros": ({"kind": "float"}, {}, "takes integer zero points, or none"),
    "8 bits": ({}, {"bits": 8}, "takes an rhs of 4-bit codes only, this one has 8-bit codes in groups of 128"),
    "float32 x": ({}, {"dtype": "float32"}, "does not multiply float32 x float32 -> float32; it takes"),
    "another result": ({}, {"out": "float16"}, "does not multiply bfloat16 x bfloat16 -> float16"),
    "an old GPU": ({}, {"sm": 75}, "needs a GPU of sm_80 or newer, this one is sm_75"),
}
"""Of weights, and of the call; the sentence about int4_mma."""


@pytest.mark.parametrize(("of_weights", "of_call", "why"), REFUSED.values(), ids=REFUSED)
def test_what_no_kernel_takes(of_weights: Any, of_call: Any, why: str) -> None:
    matrix = weights(**of_weights)
    choice = choice_of(3, matrix, **of_call)
    assert choice.kernel is None
    assert (choice.split, choice.workspace_bytes) == (NO_SPLIT, 0)
    assert "XLA dequantises the weights and multiplies" in choice.reason
    for name in (NAMES[0], FAMILIES[0]):
        with pytest.raises(ValueError, match=re.escape(f"kernel={name!r} cannot run")) as caught:
            choice_of(3, matrix, name, **of_call)
        assert f": it {why}" in str(caught.value)
        assert "no kernel can; with kernel=None XLA dequantises the weights and multiplies." in str(caught.value)


@pytest.mark.parametrize(
    ("of_weights", "why"),
    [
        ({"dtype": "float32"}, "takes scales of 16 bits"),
        ({"n": 100}, "takes N of a multiple of 8 here, not 100"),
        ({"n": 40, "kind": "integer"}, "takes N of a multiple of 16 here, not 40"),
    ],
)
def test_what_wgmma_leaves_to_mma(of_weights: Any, why: str) -> None:
    matrix = weights(**of_weights)
    assert choice_of(100, matrix).kernel.startswith("int4_mma:")  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=re.escape(f": it {why}; kernels that can: int4_mma:")) as caught:
        choice_of(100, matrix, "int4_wgmma")
    listed = str(caught.value).split("kernels that can: ")[1].rstrip(".").split(", ")
    assert listed == [info.name for info in INFOS if info.family == "int4_mma"]


@pytest.mark.parametrize("what", ["lhs", "result"])
def test_dtypes_that_no_kernel_knows(what: str) -> None:
    change = {"dtype": "float64", "out": "float32"} if what == "lhs" else {"out": "float64"}
    with jax.enable_x64(True):
        assert "float64; kernels exist for some of" in choice_of(3, weights(), **change).reason
        with pytest.raises(ValueError, match=r"kernel='int4_mma' cannot run this: .* is float64"):
            choice_of(3, weights(), "int4_mma", **change)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("int4_mm", "int4_mma"), ("int4_wgma", "int4_wgmma"), ("naive:32x32x1", None), ("", None), (3, None)],
)
def test_an_unknown_kernel_is_named_with_a_suggestion(name: Any, hint: str | None) -> None:
    x, matrix = jnp.ones((2, K), jnp.bfloat16), weights()
    for call in (jaxgemm.matmul, jax.jit(functools.partial(jaxgemm.matmul, kernel=name))):
        with pytest.raises(ValueError, match="is none of this build's kernels for quantised weights") as caught:
            call(x, matrix, **({"kernel": name} if call is jaxgemm.matmul else {}))
        assert repr(name) in str(caught.value)
        assert all(known in str(caught.value) for known in FAMILIES + NAMES)
        assert ("Did you mean" in str(caught.value)) == (hint is not None)
        assert hint is None or f"Did you mean {hint!r}?" in str(caught.value)


@pytest.mark.parametrize("name", ["int4_mma", "int4_wgmma", NAMES[0]])
def test_dense_operands_have_other_kernels(name: str) -> None:
    x = jnp.ones((2, 2), jnp.bfloat16)
    with pytest.raises(ValueError, match="none of this build's kernels"):
        jaxgemm.matmul(x, x, kernel=name)


def on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_target", "_dot_general"):
        monkeypatch.setattr(f"jaxgemm.{module}.attached_gpu", lambda: (90, "NVIDIA H200"))


@pytest.mark.parametrize("name", [None, *FAMILIES, *NAMES])
def test_the_lowered_program_calls_it(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    on_hopper(monkeypatch)
    matrix = weights(64, "integer")
    text = cuda_text(functools.partial(jaxgemm.matmul, kernel=name), struct((24, K), jnp.bfloat16), shapes_of(matrix))
    assert text.count(f"custom_call @{MIXED_TARGET}(") == 1
    chosen = choice_of(24, matrix, name)
    assert f'kernel = "{chosen.kernel}"' in text
    assert f"split = dense<[{', '.join(map(str, chosen.split))}]>" in text
    assert (f"tensor<{chosen.workspace_bytes}xui8>" in text) == (chosen.workspace_bytes > 0)


def test_one_call_for_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    on_hopper(monkeypatch)
    experts = Weights.random(np.random.default_rng(0), (3, K, N), 128, "middle", "bfloat16").matrix()
    x = struct((24, K), jnp.bfloat16)
    for function in (jaxgemm.matmul, jax.vmap(jaxgemm.matmul, in_axes=(None, 0))):
        text = cuda_text(function, x, shapes_of(experts))
        assert text.count(f"custom_call @{MIXED_TARGET}(") == 1
        assert "dot_general" not in text


LEADING = [
    ((1, 24), (3,)), ((5, 1, 24), (3,)), ((5, 3, 24), (3,)), ((5, 24), (1,)), ((4, 3, 7, 24), (4, 1, 7)), ((), (3,)),
]  # fmt: skip
"""Of lhs but for K, and of the weights but for K and N."""


@pytest.mark.parametrize("permuted", [False, True], ids=["", "permuted"])
@pytest.mark.parametrize(("rows", "batch"), LEADING)
def test_one_call_for_leading_dimensions(
    rows: tuple[int, ...], batch: tuple[int, ...], permuted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a named kernel too: nothing is dequantised."""
    on_hopper(monkeypatch)
    matrix = Weights.random(np.random.default_rng(0), (*batch, K, N), 128, "integer", "bfloat16").matrix()
    if permuted:
        matrix = dataclasses.replace(matrix, permutation=jnp.broadcast_to(jnp.arange(K), (*batch, K)))
    function = functools.partial(jaxgemm.matmul, kernel="int4_mma")
    text = cuda_text(function, struct((*rows, K), jnp.bfloat16), shapes_of(matrix))
    assert text.count(f"custom_call @{MIXED_TARGET}(") == 1
    assert "dot_general" not in text


def test_what_is_dequantised_calls_no_kernel() -> None:
    text = cuda_text(jaxgemm.matmul, struct((24, K), jnp.bfloat16), shapes_of(weights(48)))
    assert MIXED_TARGET not in text
    assert "dot_general" in text


def test_without_a_gpu_the_choice_holds_everywhere() -> None:
    x, matrix = struct((1000, K), jnp.bfloat16), shapes_of(weights())
    (name,) = re.findall(r'kernel = "([^"]*)"', cuda_text(jaxgemm.matmul, x, matrix))
    assert name.startswith("int4_mma:")
    with pytest.raises(ValueError, match="needs a GPU of sm_90 to sm_90, this one is sm_86"):
        cuda_text(functools.partial(jaxgemm.matmul, kernel="int4_wgmma"), x, matrix)


def test_symbolic_tokens_take_no_kernel_with_a_workspace() -> None:
    (m,) = export.symbolic_shape("m")
    choice = choice_of(m, weights())
    assert choice.kernel in NAMES
    assert (choice.split, choice.workspace_bytes) == (NO_SPLIT, 0)
    # Rows of x that are no whole vectors have to be copied first.
    odd = weights(k=K + 1)
    assert choice_of(m, odd).kernel is None
    for name in (*NAMES, *FAMILIES):
        with pytest.raises(ValueError, match="needs a workspace, whose size symbolic dimensions do not give"):
            choice_of(m, odd, name)


@pytest.mark.parametrize("k", [K, K + 1])
def test_export_with_symbolic_tokens(k: int, rng: np.random.Generator) -> None:
    (m,) = export.symbolic_shape("m")
    matrix = weights(64, "integer", k=k)
    exported = export.export(
        jax.jit(jaxgemm.matmul), platforms=["cuda", "cpu"],
        disabled_checks=jaxgemm.export_checks(),
    )(struct((m, k), jnp.bfloat16), shapes_of(matrix))  # fmt: skip
    assert str(exported.out_avals[0].shape) == f"(m, {N})"
    assert (f"@{MIXED_TARGET}" in exported.mlir_module()) == (k == K)
    x = jnp.asarray(rng.standard_normal((5, k)), jnp.bfloat16)
    np.testing.assert_array_equal(exported.call(x, matrix), jax.jit(jaxgemm.matmul)(x, matrix))


# --- jaxgemm.explain --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 300])
def test_explain(m: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands may be arrays or described; candidates are the kernels for quantised weights, costs the model's."""
    on_hopper(monkeypatch)
    matrix = weights(64, "integer")
    x = struct((m, K), jnp.bfloat16)
    said = jaxgemm.explain(x, matrix)
    assert said == jaxgemm.explain(jnp.zeros(x.shape, x.dtype), shapes_of(matrix))
    chosen = choice_of(m, matrix)
    assert (said.kernel, said.reason) == (chosen.kernel, chosen.reason)
    assert said.problem == (
        f"bfloat16 x bfloat16 -> bfloat16, M={m} N={N} K={K} batch=1 "
        "4-bit codes in groups of 64 with integer zero points and bfloat16 scales on sm_90"
    )
    assert said.candidates == dict.fromkeys(NAMES, "")
    assert set(said.costs) == set(NAMES)
    assert next(iter(said.costs.items())) == (said.kernel, 1.0)
    assert min(said.costs.values()) == 1
    assert f"  runs {said.kernel}: the fastest by the model" in str(said).splitlines()
    other = NAMES[0] if said.kernel != NAMES[0] else NAMES[1]
    assert f"  {other}: could run, in {said.costs[other]:.3g} times the time by the model" in str(said).splitlines()
    named = jaxgemm.explain(x, matrix, kernel=other)
    assert (named.kernel, named.reason) == (other, "named by the caller")
    assert next(iter(named.costs.items())) == (other, 1.0)


def test_explain_of_what_some_kernels_refuse() -> None:
    x = struct((3, 5, K), jnp.float16)
    said = jaxgemm.explain(
        x, shapes_of(weights(32)), alpha=2.0, bias=struct((N,), jnp.float16), activation="relu"
    )  # without a GPU: portable
    assert said.problem.endswith("on sm_86")
    assert "M=15 " in said.problem
    assert "needs a GPU of sm_90 to sm_90, this one is sm_86" in said.candidates["int4_wgmma:64x64x128"]
    able = [name for name, why in said.candidates.items() if not why]
    assert said.kernel in able
    assert set(said.costs) == set(able) < set(NAMES)
    with pytest.raises(ValueError, match="needs a GPU of sm_90"):
        jaxgemm.explain(x, shapes_of(weights()), kernel="int4_wgmma")


@pytest.mark.parametrize(("group", "dtype"), [(48, "bfloat16"), (128, "float32")])
def test_explain_of_what_no_kernel_takes(group: int, dtype: str) -> None:
    said = jaxgemm.explain(struct((3, K), dtype), weights(group))
    assert said.kernel is None
    assert "XLA dequantises the weights" in said.reason
    assert list(said.candidates) == NAMES
    assert all(said.candidates.values())
    assert said.costs == {}


def test_explain_other_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    on_hopper(monkeypatch)
    matrix, x = weights(), struct((3, K), jnp.bfloat16)
    inside = jaxgemm.explain(x, matrix, function=jax.jit(lambda a, b: jax.nn.relu(jaxgemm.matmul(a, b))))
    assert inside == jaxgemm.explain(x, matrix)
    experts = Weights.random(np.random.default_rng(0), (5, K, N), WHOLE, "middle", "float16").matrix()
    said = jaxgemm.explain(x, experts)
    assert "M=3 N=256 K=512 batch=5" in said.problem
    with pytest.raises(TypeError, match="cannot contract"):
        jaxgemm.explain(struct((3, K + 1)), matrix)
