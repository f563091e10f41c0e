"""What XLA makes of our programs for several H200 (which need not be there): what they exchange, and nothing else.

As tests/test_compiled.py, this needs JAX's CUDA plugin, not CUDA.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import jax
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm._native import GEMM_TARGET, MIXED_TARGET
from tests.compiled import (
    LAYERS,
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
)

pytestmark = [needs_compiler, pytest.mark.usefixtures("for_h200")]


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


@pytest.mark.parametrize("kind", KINDS, ids=["auto", "explicit"])
def test_joined_weights_of_two_devices(kind: AxisType) -> None:
    """Each device takes apart what it has: one all-reduce, as with weights of their own."""
    mesh, parts = mesh_of((2,), ("model",), kind), 4
    gate_up = quantised_shards(mesh, quantized(512, 2048), None, "model")
    down = quantised_shards(mesh, quantized(1024, 512), "model", None)

    def mlp(x: Any, gate_up: Any, down: Any) -> Any:
        gate, up = jaxgemm.split_columns(jaxgemm.matmul(x, gate_up), (1024, 1024), parts)
        hidden = jax.nn.silu(gate) * up
        if kind == AxisType.Explicit:
            return jaxgemm.matmul(hidden, down, out_sharding=P())
        return replicated(mesh, jaxgemm.matmul(hidden, down))

    with jax.set_mesh(mesh):
        program = compiled(mlp, on_mesh(mesh, bf16((16, 512))), gate_up, down)
    assert program.launches == {MIXED_TARGET: 2, "fusion": 1, "all-reduce": 1}
    assert call_shapes(program) == ["bf16[1,16,1024]", "bf16[1,16,512]"]
