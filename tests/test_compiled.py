"""What XLA makes of our programs for an H200 (which need not be there): nothing but our kernels is launched.

These tests need JAX's CUDA plugin, not CUDA: tests/compiled.py says how.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import compute_on
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm._native import GEMM_TARGET, MIXED_TARGET
from tests.compiled import OPTIONS, Program, bf16, can_compile, compiled, mesh_of, on_mesh, quantized, with_gradients
from tests.helpers import struct

pytestmark = pytest.mark.skipif(
    not can_compile(), reason="needs a CUDA GPU, or JAX's plugin for it and JAX_PLATFORMS=cpu"
)

LAYOUTS = {"NN": ((1,), (0,)), "NT": ((1,), (1,)), "TN": ((0,), (0,)), "TT": ((0,), (1,))}
LAYERS = 8


@pytest.fixture(autouse=True)
def for_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("_lowering", "_mixed_lowering"):
        monkeypatch.setattr(f"jaxgemm.{module}.target_sm", lambda: 90)


def dot(layout: str, **params: Any) -> Callable[..., Any]:
    return functools.partial(jaxgemm.dot_general, dimension_numbers=(LAYOUTS[layout], ((), ())), **params)


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


def layers(function: Callable[..., Any], **params: Any) -> Callable[..., Any]:
    """A scan over stacked weights: function(x, weights of a layer) is x of the next one."""
    return lambda weights, x: lax.scan(lambda x, w: (function(x, w), None), x, weights, **params)[0]


def stacked(*shape: int) -> Any:
    return bf16((LAYERS, *shape))


def block(x: Any, w: Any) -> Any:
    return jaxgemm.matmul(jaxgemm.matmul(x, w[0], activation="gelu"), w[1])


def biased_block(x: Any, w: Any) -> Any:
    return jaxgemm.matmul(jaxgemm.matmul(x, w[0], bias=w[2], activation="gelu"), w[1])


def tanh_block(x: Any, w: Any) -> Any:
    return jnp.tanh(jaxgemm.matmul(jnp.tanh(jaxgemm.matmul(x, w[0])), w[1]))


SQUARE = 512 * 512
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


def copies(program: Program) -> list[str]:
    """What moves the weights of a layer, packed ones as well; not the zeros into which gradients are written."""
    return [line for line in program.others(SQUARE // 2) if " fusion()" not in line]


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


# --- several devices --------------------------------------------------------------------------------------------------


def call_shapes(program: Program) -> list[str]:
    """The first result of every call."""
    return [re.findall(r" = \(?(\w+\[[\d,]*\])", line)[0] for line in program.calls]


def replicated(mesh: Mesh, x: Any) -> Any:
    return lax.with_sharding_constraint(x, NamedSharding(mesh, P()))


KINDS = [AxisType.Auto, AxisType.Explicit]
SUMMED = {"all-reduce": 1}
# (spec of lhs, of rhs, of the result, shape of the call, collectives) of (64, 512) times (512, 1024) on two devices.
SHARDED = {
    "rows": (P("x"), P(), P("x"), "bf16[32,1024]", {}),
    "columns": (P(), P(None, "x"), P(None, "x"), "bf16[64,512]", {}),
    "contracted": (P(None, "x"), P("x"), P(), "bf16[64,1024]", SUMMED),
    "contracted, rows wanted": (P(None, "x"), P("x"), P("x"), "bf16[64,1024]", {"reduce-scatter": 1}),
    # XLA scatters rows: columns become rows before, and columns again.
    "contracted, columns wanted": (
        P(None, "x"),
        P("x"),
        P(None, "x"),
        "bf16[64,1024]",
        {"reduce-scatter": 1, "fusion": 2},
    ),
}


@pytest.mark.parametrize("kind", KINDS, ids=["auto", "explicit"])
@pytest.mark.parametrize("name", list(SHARDED))
def test_two_devices_exchange_what_they_must(name: str, kind: AxisType) -> None:
    lhs, rhs, out, shape, collectives = SHARDED[name]
    mesh = mesh_of((2,), ("x",), kind)

    def function(x: Any, w: Any) -> Any:
        if kind == AxisType.Explicit:
            return dot("NN", out_sharding=NamedSharding(mesh, out))(x, w)
        return lax.with_sharding_constraint(dot("NN")(x, w), NamedSharding(mesh, out))

    with jax.set_mesh(mesh):
        program = compiled(function, on_mesh(mesh, bf16((64, 512)), lhs), on_mesh(mesh, bf16((512, 1024)), rhs))
    assert program.launches == {GEMM_TARGET: 1} | collectives
    assert call_shapes(program) == [shape]


def two_by_two(mesh: Mesh) -> tuple[Any, Any, Any]:
    return (
        on_mesh(mesh, bf16((64, 512)), P("data")),
        on_mesh(mesh, bf16((512, 1024)), P(None, "model")),
        on_mesh(mesh, bf16((1024, 512)), P("model")),
    )


def test_a_block_on_four_devices() -> None:
    mesh = mesh_of((2, 2), ("data", "model"))

    def function(x: Any, up: Any, down: Any) -> Any:
        out = jaxgemm.matmul(jaxgemm.matmul(x, up), down)
        return lax.with_sharding_constraint(out, NamedSharding(mesh, P("data")))

    with jax.set_mesh(mesh):
        program = compiled(function, *two_by_two(mesh))
    assert program.launches == {GEMM_TARGET: 2, "all-reduce": 1}
    assert sorted(call_shapes(program)) == ["bf16[32,512]", "bf16[32,512]"]


@pytest.mark.parametrize("kind", KINDS, ids=["auto", "explicit"])
@pytest.mark.parametrize("form", ["bfloat16", "int4"])
def test_tokens_that_are_split_between_blocks(form: str, kind: AxisType) -> None:
    mesh = mesh_of((2,), ("model",), kind)
    x, up, down = bf16((64, 512)), bf16((512, 1024)), bf16((1024, 512))
    if form == "int4":
        up, down = quantized(512, 1024), quantized(1024, 512)

    def function(x: Any, up: Any, down: Any) -> Any:
        if kind == AxisType.Explicit:
            return jaxgemm.matmul(jaxgemm.matmul(jax.reshard(x, P()), up), down, out_sharding=P("model"))
        out = jaxgemm.matmul(jaxgemm.matmul(replicated(mesh, x), up), down)
        return lax.with_sharding_constraint(out, NamedSharding(mesh, P("model")))

    def placed(tree: Any, spec: P) -> Any:
        if not isinstance(tree, jaxgemm.QuantizedMatrix):
            return on_mesh(mesh, tree, spec)
        return jax.tree.map(functools.partial(on_mesh, mesh), tree, tree.specs(spec))

    with jax.set_mesh(mesh):
        program = compiled(
            function, on_mesh(mesh, x, P("model")), placed(up, P(None, "model")), placed(down, P("model", None))
        )
    target = MIXED_TARGET if form == "int4" else GEMM_TARGET
    assert program.launches == {target: 2, "all-gather": 1, "reduce-scatter": 1}


def test_shard_map_keeps_the_epilogue() -> None:
    mesh = mesh_of((2, 2), ("data", "model"))
    specs = P("data"), P(None, "model"), P("model")

    @functools.partial(jax.shard_map, mesh=mesh, in_specs=specs, out_specs=P("data"))
    def function(x: Any, up: Any, down: Any) -> Any:
        return lax.psum(block(x, (up, down)), "model")

    program = compiled(function, *two_by_two(mesh))
    assert program.launches == {GEMM_TARGET: 2, "all-reduce": 1}
    assert sorted(call_shapes(program)) == ["bf16[32,512]", "bf16[32,512]"]
    assert sum('activation = "gelu_tanh"' in line for line in program.calls) == 1


def test_automatic_axes_leave_the_epilogue_to_xla() -> None:
    mesh = mesh_of((2,), ("model",))
    weights = on_mesh(mesh, bf16((512, 1024)), P(None, "model")), on_mesh(mesh, bf16((1024, 512)), P("model"))
    with jax.set_mesh(mesh):
        program = compiled(lambda x, *w: replicated(mesh, block(x, w)), on_mesh(mesh, bf16((64, 512))), *weights)
    assert program.launches == {GEMM_TARGET: 2, "fusion": 1, "all-reduce": 1}
    assert sorted(call_shapes(program)) == ["bf16[64,512]", "f32[64,512]"], "the activation is that of the accumulator"


@pytest.mark.parametrize(
    ("x", "w", "g", "shapes", "collectives"),
    [
        (P("x"), P(), P("x"), ["bf16[32,512]", "bf16[512,1024]"], SUMMED),  # of dw
        (P(), P(None, "x"), P(None, "x"), ["bf16[512,512]", "bf16[64,512]"], SUMMED),  # of dx
        (P(None, "x"), P("x"), P(), ["bf16[256,1024]", "bf16[64,256]"], {}),
    ],
    ids=["rows", "columns", "contracted"],
)
def test_gradients_on_two_devices(x: P, w: P, g: P, shapes: list[str], collectives: dict[str, int]) -> None:
    mesh = mesh_of((2,), ("x",))
    arrays = [on_mesh(mesh, bf16(shape), spec) for shape, spec in (((64, 512), x), ((512, 1024), w), ((64, 1024), g))]

    def function(x: Any, w: Any, g: Any) -> Any:
        return jax.vjp(jaxgemm.matmul, x, w)[1](g)

    with jax.set_mesh(mesh):
        program = compiled(function, *arrays)
    assert program.launches == {GEMM_TARGET: 2} | collectives
    assert sorted(call_shapes(program)) == shapes


def quantised_shards(mesh: Mesh, w: Any, k: str | None, n: str | None) -> Any:
    """With the rows and columns of the matrix on those axes."""
    stack = (None,) * (w.packed.ndim - 3)
    packed, scales = (on_mesh(mesh, x, P(*stack, *spec)) for x, spec in ((w.packed, (n, k)), (w.scales, (k, n))))
    return dataclasses.replace(w, packed=packed, scales=scales)


@pytest.mark.parametrize("depth", [0, LAYERS], ids=["a block", "layers"])
def test_quantised_weights_stay_on_their_device(depth: int) -> None:
    mesh = mesh_of((2,), ("model",))
    stack = (depth,) * (depth > 0)
    up = quantised_shards(mesh, quantized(512, 1024, *stack), None, "model")
    down = quantised_shards(mesh, quantized(1024, 512, *stack), "model", None)

    def one(x: Any, w: Any) -> Any:
        return replicated(mesh, block(x, w))

    with jax.set_mesh(mesh):
        program = compiled(layers(one) if depth else lambda w, x: one(x, w), (up, down), on_mesh(mesh, bf16((64, 512))))
    target = f"sliced {MIXED_TARGET}" if depth else MIXED_TARGET
    moving = {name: count for name, count in program.launches.items() if name not in ("copy", "fusion")}
    assert moving == {target: 2, "all-reduce": 1}
    assert copies(program) == []
    assert call_shapes(program) == ["bf16[1,64,512]", "bf16[1,64,512]"]
    assert sum('activation = "gelu_tanh"' in line for line in program.calls) == 1
