"""jaxgemm/_lowering.py: what programs become for a CUDA GPU (which need not be there), and elsewhere."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import jaxgemm
from jaxgemm._native import GEMM_TARGET, _core
from tests.helpers import FAMILIES, KERNEL_NAMES, count_ops, cuda_text, custom_calls, problem, run_python, struct

LAYOUTS = {"NN": ((1,), (0,)), "NT": ((1,), (1,)), "TN": ((0,), (0,)), "TT": ((0,), (1,))}


def attribute(line: str, name: str) -> list[int]:
    """A dictionary entry such as ``lhs.rows`` of a lowered call."""
    operand, key = name.split(".")
    (body,) = re.findall(rf"\b{operand} = {{(.*?)}}", line)
    (value,) = re.findall(rf"\b{key} = dense<(.*?)> : tensor<(\d+)xi64>", body)
    return [] if value[1] == "0" else [int(d) for d in value[0].strip("[]").split(",")]


@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("name", KERNEL_NAMES)
def test_every_kernel_and_layout(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgemm._lowering.target_sm", lambda: 90)  # some take more shared memory than all GPUs have
    info = next(info for info in jaxgemm.kernels() if info.name == name)
    lc, rc = LAYOUTS[layout]
    for lhs, rhs, out in info.dtypes:
        x, y = struct((48, 64) if lc == (1,) else (64, 48), lhs), struct((64, 80) if rc == (0,) else (80, 64), rhs)
        function = functools.partial(
            jaxgemm.dot_general, dimension_numbers=((lc, rc), ((), ())), preferred_element_type=out, kernel=name
        )
        text = cuda_text(function, x, y)
        (line,) = custom_calls(text)
        assert f"custom_call @{GEMM_TARGET}(%arg0, %arg1)" in line
        assert f'kernel = "{name}"' in line
        assert 'activation = "none"' in line
        assert 'precision = "default"' in line
        # Memory order is that of the program: no operand moves, the roles of its dimensions say how it lies.
        assert "operand_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<[1, 0]> : tensor<2xindex>]" in line
        for operand, contracted in (("lhs", lc[0]), ("rhs", rc[0])):
            kept = 1 - contracted
            rows, cols = (kept, contracted) if operand == "lhs" else (contracted, kept)
            assert attribute(line, f"{operand}.order") == [0, 1]
            assert attribute(line, f"{operand}.rows") == [rows]
            assert attribute(line, f"{operand}.cols") == [cols]
            assert attribute(line, f"{operand}.batch") == []
        assert [attribute(line, f"out.{key}") for key in ("order", "batch", "rows", "cols")] == [[0, 1], [], [0], [1]]
        element = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int32": "i32"}
        assert f"tensor<48x80x{element[out]}>" in line
        assert "has_side_effect = true" not in line
        for op in ("transpose", "dot_general", "convert"):
            assert count_ops(text, op) == 0
        # One call is the whole program.
        assert count_ops(text, "custom_call") == 1


def test_workspace_is_a_result_that_nobody_sees() -> None:
    x, y = struct((33, 17), "bfloat16"), struct((17, 5), "bfloat16")
    text = cuda_text(functools.partial(jaxgemm.matmul, kernel="wmma_naive"), x, y)
    (line,) = custom_calls(text)
    asked = problem(33, 5, 17, lhs_dtype="bfloat16", rhs_dtype="bfloat16", out_dtype="bfloat16", sm=80)
    bytes_ = _core.workspace_bytes("wmma_naive:16x16x16", asked)
    # Both operands padded to multiples of 16, and the slack for alignment.
    assert bytes_ >= 2 * (48 * 32 + 32 * 16) + 256
    assert f"-> (tensor<33x5xbf16>, tensor<{bytes_}xui8>)" in line
    assert "result_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<0> : tensor<1xindex>]" in line
    assert "main(%arg0: tensor<33x17xbf16>, %arg1: tensor<17x5xbf16>) -> (tensor<33x5xbf16>" in text
    whole = cuda_text(
        functools.partial(jaxgemm.matmul, kernel="wmma_naive"),
        struct((32, 16), "bfloat16"),
        struct((16, 48), "bfloat16"),
    )
    assert "ui8" not in whole


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "gelu_erf", "silu"])
@pytest.mark.parametrize("bias", [True, False])
def test_bias_and_activation_are_in_the_call(activation: str | None, bias: bool) -> None:
    def function(x: Any, y: Any, *rest: Any) -> Any:
        return jaxgemm.matmul(x, y, bias=rest[0] if rest else None, activation=activation)

    operands = [struct((48, 64), "bfloat16"), struct((64, 80), "bfloat16")] + [struct((80,), "bfloat16")] * bias
    text = cuda_text(function, *operands)
    (line,) = custom_calls(text)
    name = {None: "none", "gelu": "gelu_tanh"}.get(activation, activation)
    assert f'activation = "{name}"' in line
    assert line.count("dense<0> : tensor<1xindex>") == bias, "the layout of the bias"
    assert ("tensor<80xbf16>)" in line) == bias
    for op in ("convert", "add", "maximum", "tanh", "logistic", "exponential", "multiply"):
        assert count_ops(text, op) == 0


def test_an_epilogue_that_no_kernel_fuses_is_composed() -> None:
    x, y = struct((48, 64), "bfloat16"), struct((64, 80), "bfloat16")
    text = cuda_text(lambda a, b, c: jaxgemm.matmul(a, b, bias=c, activation="relu"), x, y, struct((48, 1), "bfloat16"))
    (line,) = custom_calls(text)
    assert 'activation = "none"' in line
    assert "-> tensor<48x80xf32>" in line, "the accumulator, rounded after the epilogue"
    assert count_ops(text, "add") == count_ops(text, "maximum") == 1


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128", "int32", "int8", "bool", "uint8"])
def test_dtypes_without_a_kernel_run_on_xla(dtype: str) -> None:
    with jax.enable_x64(True):
        text = cuda_text(jaxgemm.matmul, struct((4, 5), dtype), struct((5, 6), dtype))
        assert not custom_calls(text)
        assert count_ops(text, "dot_general") == 1
        with pytest.raises(ValueError, match="kernel='naive' cannot run"):
            cuda_text(functools.partial(jaxgemm.matmul, kernel="naive"), struct((4, 5), dtype), struct((5, 6), dtype))


def test_mixed_dtypes_run_on_xla() -> None:
    numbers = (((1,), (0,)), ((), ()))
    text = cuda_text(lambda x, y: jaxgemm.dot_general(x, y, numbers), struct((4, 5)), struct((5, 6), "bfloat16"))
    assert not custom_calls(text)
    assert count_ops(text, "dot_general") == 1
    promoted = cuda_text(jaxgemm.matmul, struct((4, 5)), struct((5, 6), "bfloat16"))
    assert len(custom_calls(promoted)) == 1


def test_precisions_reach_the_call() -> None:
    for precision, name in [
        (None, "default"),
        ("default", "default"),
        ("highest", "highest"),
        ("F32_F32_F32", "highest"),
    ]:
        text = cuda_text(functools.partial(jaxgemm.matmul, precision=precision), struct((4, 5)), struct((5, 6)))
        assert f'precision = "{name}"' in custom_calls(text)[0]
    text = cuda_text(functools.partial(jaxgemm.matmul, precision="BF16_BF16_F32_X3"), struct((4, 5)), struct((5, 6)))
    assert not custom_calls(text)
    assert "algorithm" in text


def test_precision_of_low_precision_operands_means_nothing() -> None:
    numbers = (((1,), (0,)), ((), ()))
    for preset in (lax.DotAlgorithmPreset.BF16_BF16_F32, lax.DotAlgorithmPreset.DEFAULT):
        text = cuda_text(
            lambda x, y: jaxgemm.dot_general(x, y, numbers, preset, np.float32),  # noqa: B023
            struct((4, 5), "bfloat16"), struct((5, 6), "bfloat16"),
        )  # fmt: skip
        assert len(custom_calls(text)) == 1


def test_an_operand_in_another_order_is_asked_of_xla() -> None:
    numbers = (((2,), (1,)), ((0,), (2,)))  # the batch is rhs's fastest dimension
    text = cuda_text(lambda x, y: jaxgemm.dot_general(x, y, numbers), struct((2, 3, 4)), struct((5, 4, 2)))
    (line,) = custom_calls(text)
    assert "operand_layouts = [dense<[2, 1, 0]> : tensor<3xindex>, dense<[0, 1, 2]> : tensor<3xindex>]" in line
    assert attribute(line, "rhs.order") == [2, 1, 0]
    assert attribute(line, "rhs.batch") == [2]
    assert count_ops(text, "transpose") == 0


def test_empty_problems_lower() -> None:
    for x, y in [((0, 3), (3, 4)), ((2, 0), (0, 4)), ((0, 2, 3), (0, 3, 4)), ((0,), (0,))]:
        assert len(custom_calls(cuda_text(jaxgemm.matmul, struct(x), struct(y)))) == 1


@pytest.mark.parametrize("name", [*FAMILIES, KERNEL_NAMES[0]])
def test_a_named_kernel_needs_a_gpu(name: str) -> None:
    info = next(info for info in jaxgemm.kernels() if info.name.startswith(name))
    x = jnp.ones((4, 4), info.dtypes[0][0])
    sentence = f"kernel='{name}' is a CUDA kernel and this program is compiled for cpu: leave kernel=None"
    for function in (
        functools.partial(jaxgemm.matmul, kernel=name),
        jax.jit(functools.partial(jaxgemm.matmul, kernel=name)),
    ):
        with pytest.raises(ValueError, match=re.escape(sentence)):
            function(x, x)


def test_a_program_for_several_platforms() -> None:
    traced = jax.jit(lambda x, y: jaxgemm.matmul(x, y, activation="relu")).trace(struct((4, 5)), struct((5, 6)))
    text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert count_ops(text, "case"), "one program, which asks for its platform"
    assert len(custom_calls(text)) == 1
    assert count_ops(text, "dot_general") == 1
    for platform in ("rocm", "tpu", "cpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert not custom_calls(text)
        assert count_ops(text, "dot_general") == 1


def test_the_fallback_is_said_once() -> None:
    done = run_python(
        "import warnings, jax.numpy as jnp, jaxgemm\n"
        "x = jnp.ones((2, 2))\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(3): jaxgemm.matmul(x, x); jaxgemm.matmul(x[:1], x)\n"
        "    jaxgemm.matmul(x, x, activation='relu')\n"
        "said = [w for w in said if w.category is jaxgemm.CpuFallbackWarning]\n"
        "assert issubclass(jaxgemm.CpuFallbackWarning, UserWarning)\n"
        "print(len(said), said[0].message)\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 jaxgemm has no kernels for cpu: XLA's own dot runs instead")


CHECKS = jaxgemm.export_checks()


def test_export_is_refused_without_the_check_disabled() -> None:
    with pytest.raises(ValueError, match=GEMM_TARGET):
        export.export(jax.jit(jaxgemm.matmul), platforms=["cuda"])(struct((4, 5)), struct((5, 6)))


@pytest.mark.parametrize("symbolic", [False, True])
def test_export_round_trip(symbolic: bool) -> None:
    m = export.symbolic_shape("m")[0] if symbolic else 48
    x, y = struct((m, 64), "bfloat16"), struct((64, 80), "bfloat16")
    exported = export.export(jax.jit(jaxgemm.matmul), platforms=["cuda"], disabled_checks=CHECKS)(x, y)
    again = export.deserialize(exported.serialize())
    assert again.platforms == ("cuda",)
    assert again.out_avals[0].dtype == jnp.bfloat16
    assert str(again.out_avals[0].shape) == f"({m}, 80)"
    text = again.mlir_module()
    assert f"@{GEMM_TARGET}" in text
    (name,) = set(re.findall(r'kernel = "([^"]*)"', text))
    assert name in KERNEL_NAMES
    nominal = problem(127, 80, 64, lhs_dtype="bfloat16", rhs_dtype="bfloat16", out_dtype="bfloat16")
    assert not symbolic or _core.workspace_bytes(name, nominal) == 0
    # Into a larger program of another size.
    larger = jax.jit(lambda a, b: again.call(a, b) * 2).trace(struct((48, 64), "bfloat16"), y)
    assert f"@{GEMM_TARGET}" in larger.lower(lowering_platforms=("cuda",)).as_text()


def test_export_with_a_symbolic_batch_and_gradient() -> None:
    (b,) = export.symbolic_shape("b")
    x, y = struct((b, 4, 5)), struct((b, 5, 6))
    function = jax.jit(jax.grad(lambda p, q: jaxgemm.matmul(p, q, activation="silu").sum(), (0, 1)))
    exported = export.export(function, platforms=["cuda", "cpu"], disabled_checks=CHECKS)(x, y)
    assert [str(aval.shape) for aval in exported.out_avals] == ["(b, 4, 5)", "(b, 5, 6)"]
    p, q = jnp.arange(60.0).reshape(3, 4, 5) / 60, jnp.ones((3, 5, 6))
    want = jax.grad(lambda p, q: jax.nn.silu(p @ q).sum(), (0, 1))(p, q)
    for got, expected in zip(exported.call(p, q), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_gradients_of_the_fused_form_run_on_kernels(dtype: str) -> None:
    def loss(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        return jaxgemm.matmul(x, w, bias=b, activation="gelu").astype(np.float32).sum()

    text = cuda_text(
        jax.grad(loss, argnums=(0, 1, 2)), struct((32, 64), dtype), struct((64, 48), dtype), struct((48,), dtype)
    )
    assert len(custom_calls(text)) == 3
    for op in ("dot_general", "transpose"):
        assert count_ops(text, op) == 0


def test_bias_with_symbolic_dimensions() -> None:
    (m,) = export.symbolic_shape("m")
    checks = jaxgemm.export_checks()
    exported = export.export(
        jax.jit(lambda x, w, b: jaxgemm.matmul(x, w, bias=b)), platforms=["cuda"], disabled_checks=checks
    )(struct((m, 4), "float32"), struct((4, 5), "float32"), struct((5,), "float32"))
    assert exported.out_avals[0].shape == (m, 5)


@pytest.mark.parametrize(("activation", "varies"), [(None, (0, 1, 2)), ("relu", (0, 1, 2)), ("relu", (1,))])
def test_forward_calls_of_gradients_keep_their_epilogue(activation: str | None, varies: tuple[int, ...]) -> None:
    """Of what is linear, and of relu, whose result says what its gradient is: no accumulator is stored."""

    def loss(x: Any, y: Any, bias: Any) -> Any:
        out = jaxgemm.matmul(x, y, bias=bias, alpha=2.0, activation=activation)
        return jnp.square(out.astype(jnp.float32)).sum()

    operands = struct((32, 64), jnp.bfloat16), struct((64, 48), jnp.bfloat16), struct((48,), jnp.bfloat16)
    text = cuda_text(jax.grad(loss, varies), *operands)
    forward, *backward = custom_calls(text)
    assert len(backward) == len([i for i in varies if i < 2])
    assert f'activation = "{activation or "none"}"' in forward
    assert "has_alpha = true" in forward
    assert "-> tensor<32x48xbf16>" in forward
    assert all("xbf16>, tensor" in line and line.rstrip().endswith("xbf16>") for line in backward)
