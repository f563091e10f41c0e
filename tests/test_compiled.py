"""What XLA makes of our programs for an H200 (which need not be there): nothing but our kernels is launched.

These tests need JAX's CUDA plugin, not CUDA: tests/compiled.py says how.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import compute_on

import jaxgemm
from jaxgemm._native import GEMM_TARGET, MIXED_TARGET
from tests.compiled import (
    LAYERS,
    LAYOUTS,
    OPTIONS,
    Program,
    bf16,
    block,
    compiled,
    copies,
    dot,
    layers,
    mesh_of,
    needs_compiler,
    on_mesh,
    quantized,
    with_gradients,
)
from tests.helpers import struct

pytestmark = [needs_compiler, pytest.mark.usefixtures("for_h200")]


def operands(layout: str, m: int, n: int, k: int, dtype: Any = jnp.bfloat16) -> tuple[Any, Any]:
    lc, rc = LAYOUTS[layout]
    return struct((m, k) if lc == (1,) else (k, m), dtype), struct((k, n) if rc == (0,) else (n, k), dtype)


# --- one device -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(256, 384, 512), (100, 52, 72), (16, 512, 8192)], ids=str)
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize(
    ("dtype", "out"),
    [("bfloat16", None), ("float16", "float32"), ("float32", None), ("int8", "int32"), ("float8_e4m3fn", "bfloat16")],
)
def test_a_product_is_one_call(layout: str, dtype: str, out: str | None, sizes: tuple[int, int, int]) -> None:
    program = compiled(dot(layout, preferred_element_type=out), *operands(layout, *sizes, dtype))
    assert program.launches == {GEMM_TARGET: 1}


MATMULS: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "vector": (jaxgemm.matmul, (512,), (512, 384)),
    "vector on the right": (jaxgemm.matmul, (256, 512), (512,)),
    "tokens": (jaxgemm.matmul, (4, 64, 512), (512, 384)),
    "batch": (jaxgemm.matmul, (4, 64, 512), (4, 512, 384)),
    "two batch dimensions": (jaxgemm.matmul, (2, 4, 64, 512), (2, 4, 512, 384)),
    "vmap of x": (jax.vmap(jaxgemm.matmul, (0, None)), (4, 64, 512), (512, 384)),
    "vmap of vectors": (jax.vmap(jaxgemm.matmul, (0, None)), (64, 512), (512, 384)),
    "vmap of both": (jax.vmap(jaxgemm.matmul), (4, 64, 512), (4, 512, 384)),
    "heads": (functools.partial(jaxgemm.einsum, "bsd,dhk->bshk"), (4, 64, 256), (256, 8, 32)),
    "of heads": (functools.partial(jaxgemm.einsum, "bshk,hkd->bsd"), (4, 64, 8, 32), (8, 32, 256)),
    "scores, heads first": (functools.partial(jaxgemm.einsum, "bhqd,bhkd->bhqk"), (2, 8, 64, 32), (2, 8, 48, 32)),
    "values, heads first": (functools.partial(jaxgemm.einsum, "bhqk,bhkd->bhqd"), (2, 8, 64, 48), (2, 8, 48, 32)),
    "experts": (functools.partial(jaxgemm.einsum, "ecd,edf->ecf"), (4, 64, 128), (4, 128, 96)),
    "tied embedding": (functools.partial(jaxgemm.einsum, "bsd,vd->bsv"), (4, 64, 256), (1000, 256)),
    "transposed result": (functools.partial(jaxgemm.einsum, "ij,jk->ki"), (64, 32), (32, 48)),
}
every_matmul = pytest.mark.parametrize("name", list(MATMULS))


@every_matmul
def test_a_product_of_many_dimensions_is_one_call(name: str) -> None:
    function, lhs, rhs = MATMULS[name]
    assert compiled(function, bf16(lhs), bf16(rhs)).launches == {GEMM_TARGET: 1}


@every_matmul
def test_gradients_are_two_calls_more(name: str) -> None:
    function, lhs, rhs = MATMULS[name]
    out = jax.eval_shape(function, bf16(lhs), bf16(rhs))
    assert compiled(with_gradients(function), out, bf16(lhs), bf16(rhs)).launches == {GEMM_TARGET: 3}


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_gradients_of_every_layout_are_two_calls_more(layout: str) -> None:
    program = compiled(with_gradients(dot(layout)), bf16((256, 384)), *operands(layout, 256, 384, 512))
    assert program.launches == {GEMM_TARGET: 3}


# Not adjacent batch dimensions, and what a caller transposes himself: (function, lhs, rhs, transposes).
MOVED: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...], int]] = {
    "x.T": (lambda x, y: jaxgemm.matmul(x.T, y), (512, 256), (512, 384), 1),
    "scores, tokens first": (functools.partial(jaxgemm.einsum, "bqhd,bkhd->bhqk"), (2, 64, 8, 32), (2, 48, 8, 32), 2),
    "values, tokens first": (functools.partial(jaxgemm.einsum, "bhqk,bkhd->bqhd"), (2, 8, 64, 48), (2, 48, 8, 32), 2),
    "vmap of rhs": (jax.vmap(jaxgemm.matmul, (None, 0)), (64, 512), (4, 512, 384), 1),
}


@pytest.mark.parametrize("name", list(MOVED))
def test_what_is_moved(name: str) -> None:
    function, lhs, rhs, transposes = MOVED[name]
    program = compiled(function, bf16(lhs), bf16(rhs))
    assert program.launches == {GEMM_TARGET: 1, "fusion": transposes}


# --- epilogues and quantised weights ----------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [None, "relu", "gelu_tanh", "gelu_erf", "silu"])
@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_an_epilogue_is_in_the_call(kind: str, activation: str | None) -> None:
    def function(x: Any, w: Any, bias: Any, alpha: Any) -> Any:
        return jaxgemm.matmul(x, w, bias=bias, alpha=alpha, activation=activation)

    w = bf16((512, 384)) if kind == "dense" else quantized(512, 384)
    target = GEMM_TARGET if kind == "dense" else MIXED_TARGET
    rest = w, bf16((384,)), struct((), jnp.float32)
    assert compiled(function, bf16((4, 64, 512)), *rest).launches == {target: 1}
    several = jax.vmap(function, (0, None, None, None))
    assert compiled(several, bf16((4, 64, 512)), *rest).launches == {target: 1}


@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_a_bias_for_each_of_the_batch_is_in_the_call(kind: str) -> None:
    """Of one shape for all, of its own for each, by vmap."""

    def function(x: Any, w: Any, bias: Any) -> Any:
        return jaxgemm.matmul(x, w, bias=bias, activation="relu")

    w = bf16((4, 512, 384)) if kind == "dense" else quantized(512, 384, 4)
    target = GEMM_TARGET if kind == "dense" else MIXED_TARGET
    x = bf16((4, 64, 512))
    for bias, run in (((1, 1, 384), function), ((4, 1, 384), function), ((4, 384), jax.vmap(function))):
        assert compiled(run, x, w, bf16(bias)).launches == {target: 1}, bias


@pytest.mark.parametrize(
    ("subscripts", "x", "stack"),
    [
        ("bsd,df->bsf", (4, 64, 512), ()),
        ("ecd,edf->ecf", (4, 64, 512), (4,)),
        ("ebcd,edf->ebcf", (4, 2, 64, 512), (4,)),
    ],
)
def test_einsum_of_quantised_weights_is_one_call(subscripts: str, x: tuple[int, ...], stack: tuple[int, ...]) -> None:
    program = compiled(functools.partial(jaxgemm.einsum, subscripts), bf16(x), quantized(512, 384, *stack))
    assert program.launches == {MIXED_TARGET: 1}


@pytest.mark.parametrize("kind", ["dense", "quantised"])
def test_compute_on_the_host_or_another_stream(kind: str) -> None:
    """JAX lowers what is for the host as for a CPU: there it is XLA's own dot, on a stream of the GPU our kernel."""
    w = bf16((512, 384)) if kind == "dense" else quantized(512, 384)
    target = GEMM_TARGET if kind == "dense" else MIXED_TARGET
    arrays = on_mesh(mesh_of((1,), ("all",)), (bf16((64, 512)), w))
    compute = getattr(compute_on, "compute_on2", compute_on.compute_on)  # as JAX 0.10 has both
    for where, calls in (("device_host", 0), ("gpu_stream:1", 1)):
        run = compute(jaxgemm.matmul, compute_type=where, out_memory_spaces=jax.memory.Space.Device)
        lowered = jax.jit(lambda x, w, run=run: run(2 * x, w) + 1).lower(*arrays)
        text = lowered.compile(compiler_options=OPTIONS).as_text() or ""
        assert text.count(f'custom_call_target="{target}"') == calls, where
        assert ("dot(" in text) == (calls == 0)


@pytest.mark.parametrize(
    ("x", "w", "group_size"),
    [
        ((256, 512), (512, 384), 128),
        ((256, 512), (512, 384), -1),
        ((1, 512), (512, 384), 32),
        ((512,), (512, 384), 128),
        ((4, 500), (500, 100), 128),  # whose last tiles are not whole
        ((4, 64, 512), (4, 512, 384), 128),
    ],
    ids=str,
)
def test_a_product_with_quantised_weights_is_one_call(x: tuple[int, ...], w: tuple[int, ...], group_size: int) -> None:
    *batch, k, n = w
    weights = quantized(k, n, *batch, group_size=group_size)
    assert compiled(jaxgemm.matmul, bf16(x), weights).launches == {MIXED_TARGET: 1}


# --- loops over layers ------------------------------------------------------------------------------------------------


def stacked(*shape: int) -> Any:
    return bf16((LAYERS, *shape))


def biased_block(x: Any, w: Any) -> Any:
    return jaxgemm.matmul(jaxgemm.matmul(x, w[0], bias=w[2], activation="gelu"), w[1])


def tanh_block(x: Any, w: Any) -> Any:
    return jnp.tanh(jaxgemm.matmul(jnp.tanh(jaxgemm.matmul(x, w[0])), w[1]))


PAIR = stacked(512, 1024), stacked(1024, 512)
EXPERTS = functools.partial(jaxgemm.einsum, "ecd,edf->ecf")
LOOPS: dict[str, tuple[Callable[..., Any], Any, tuple[int, ...], int]] = {
    "one": (layers(jaxgemm.matmul), stacked(512, 512), (16, 512), 1),
    "tokens": (layers(jaxgemm.matmul), stacked(512, 512), (2, 64, 512), 1),
    "transposed": (layers(functools.partial(jaxgemm.einsum, "md,nd->mn")), stacked(512, 512), (16, 512), 1),
    "experts": (layers(EXPERTS), stacked(4, 512, 512), (4, 16, 512), 1),
    "two": (layers(block), PAIR, (16, 512), 2),
    "two with bias": (layers(biased_block), (*PAIR, stacked(1024)), (16, 512), 2),
    "backwards": (layers(block, reverse=True), PAIR, (16, 512), 2),
    "unrolled": (layers(block, unroll=True), PAIR, (16, 512), 2 * LAYERS),
    "in a loop": (
        lambda weights, x: lax.fori_loop(0, 3, lambda _, x: layers(block)(weights, x), x),
        PAIR,
        (16, 512),
        2,
    ),
}
QUANTISED_LOOPS: dict[str, tuple[Callable[..., Any], Any, tuple[int, ...], int]] = {
    "one": (layers(jaxgemm.matmul), quantized(512, 512, LAYERS), (16, 512), 1),
    "one token": (layers(jaxgemm.matmul), quantized(512, 512, LAYERS), (1, 512), 1),
    "whole columns": (layers(jaxgemm.matmul), quantized(512, 512, LAYERS, group_size=-1), (16, 512), 1),
    "experts": (layers(jaxgemm.matmul), quantized(512, 512, LAYERS, 4), (4, 16, 512), 1),
    "two with bias": (
        layers(biased_block),
        (quantized(512, 1024, LAYERS), quantized(1024, 512, LAYERS), stacked(1024)),
        (16, 512),
        2,
    ),
}


@pytest.mark.parametrize("name", list(LOOPS))
def test_weights_of_layers_are_not_copied(name: str) -> None:
    function, weights, x, calls = LOOPS[name]
    program = compiled(function, weights, bf16(x))
    assert copies(program) == []
    assert program.launches.get(f"sliced {GEMM_TARGET}") == len(program.calls) == calls


@pytest.mark.parametrize("name", list(QUANTISED_LOOPS))
def test_quantised_weights_of_layers_are_not_copied(name: str) -> None:
    function, weights, x, calls = QUANTISED_LOOPS[name]
    program = compiled(function, weights, bf16(x))
    # Nor are scales: what else is launched is x, and the number of the layer.
    assert [i.text for i in program.instructions if i.launch == "fusion" and i.elements > 1] == []
    assert copies(program) == []
    assert program.launches.get(f"sliced {MIXED_TARGET}") == len(program.calls) == calls


@pytest.mark.parametrize("tokens", [16, 512])
def test_xla_copies_the_weights_of_layers_for_its_own_dot(tokens: int) -> None:
    # Unless it chooses cuBLAS, which is a custom call as ours is.
    assert copies(compiled(layers(jnp.matmul), stacked(512, 512), bf16((tokens, 512))))


def test_gradients_of_a_loop_are_written_in_place() -> None:
    program = compiled(with_gradients(layers(tanh_block)), bf16((4, 512)), PAIR, bf16((4, 512)))
    assert copies(program) == []
    assert program.launches[f"sliced {GEMM_TARGET}"] == len(program.calls) == 6


def test_rematerialised_layers() -> None:
    """The barrier that jax.checkpoint puts around what it computes anew keeps the slices from the calls."""

    def program(**params: Any) -> Program:
        function = with_gradients(layers(jax.checkpoint(tanh_block, **params)))
        return compiled(function, bf16((4, 512)), PAIR, bf16((4, 512)))

    assert len(copies(program())) == 2
    unhindered = program(prevent_cse=False)  # which a loop does not need
    assert copies(unhindered) == []
    assert unhindered.launches[f"sliced {GEMM_TARGET}"] == len(unhindered.calls) == 8


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (layers(jaxgemm.matmul, unroll=2), ()),  # slices two layers at once
        (lambda w, x, n: lax.fori_loop(0, n, lambda i, x: jaxgemm.matmul(x, w[i]), x), (struct((), jnp.int32),)),
        (lambda w, x, i: jaxgemm.matmul(x, w[i]), (struct((), jnp.int32),)),  # no loop
        (layers(lambda x, w: jaxgemm.matmul(x, w.T)), ()),
        (layers(lambda x, w: jaxgemm.matmul(x.astype(jnp.float16), w.astype(jnp.float16)).astype(x.dtype)), ()),
    ],
    ids=[
        "two at once",
        "unknown number of layers",
        "layer of an index",
        "transposed by the caller",
        "cast by the caller",
    ],
)
def test_what_of_layers_is_copied(function: Callable[..., Any], more: tuple[Any, ...]) -> None:
    assert copies(compiled(function, stacked(512, 512), bf16((16, 512)), *more))


# --- one product for several of the same x ----------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 16])
def test_results_that_are_taken_apart_are_not_copied(m: int) -> None:
    """A fusion between two products reads queries, keys and values where the first one left them."""
    heads, kv_heads, size, parts = 8, 2, 64, 2
    widths = (heads * size, kv_heads * size, kv_heads * size)

    def attention(x: Any, qkv: Any, out: Any) -> Any:
        query, key, value = jaxgemm.split_columns(jaxgemm.matmul(x, qkv), widths, parts)
        grouped = query.reshape(m, kv_heads, -1, size)
        mixed = grouped + (key + value).reshape(m, kv_heads, 1, size)
        return jaxgemm.matmul(mixed.reshape(m, -1), out)

    def mlp(x: Any, gate_up: Any, down: Any) -> Any:
        gate, up = jaxgemm.split_columns(jaxgemm.matmul(x, gate_up), (1024, 1024), parts)
        return jaxgemm.matmul(jax.nn.silu(gate) * up, down)

    for function, first, second in (
        (attention, quantized(512, sum(widths)), quantized(512, 512)),
        (mlp, quantized(512, 2048), quantized(1024, 512)),
    ):
        assert compiled(function, bf16((m, 512)), first, second).launches == {MIXED_TARGET: 2, "fusion": 1}
