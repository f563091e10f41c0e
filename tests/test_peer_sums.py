"""jaxgemm/_peer_sums.py and cuda/ffi/peer_sum_ffi.cc without a GPU: which sums are left to the kernel."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm import _mixed_partition, _partition, _peer_sums
from jaxgemm._native import PEER_SUM_TARGET, _core
from jaxgemm._partition import Sums, add_up

CHECK = f"{PEER_SUM_TARGET}_check"
jax.ffi.register_ffi_target(CHECK, _core.handlers()[CHECK], platform="cpu")


def lowered(x: Any, mesh: Mesh, sums: Sums) -> str:
    """The program for GPUs of a sum of what each device has."""
    add = jax.shard_map(lambda x: add_up(x, sums), mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
    return jax.jit(add).trace(x).lower(lowering_platforms=("cuda",)).as_text()


def mesh_of(count: int, *sizes: int) -> Mesh:
    devices = np.array(jax.devices("cpu")[:count])
    return Mesh(devices.reshape(sizes or (count,)), ("x", "y")[: len(sizes) or 1])


@pytest.fixture
def reaching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_peer_sums, "_reach", lambda ordinals: True)


FEW = jax.ShapeDtypeStruct((2, 64), jnp.bfloat16)


@pytest.mark.usefixtures("reaching")
@pytest.mark.parametrize(
    ("x", "mesh", "axes", "ours"),
    [
        (FEW, (2,), ("x",), True),
        (FEW, (8,), ("x",), True),
        (FEW, (8, 4, 2), ("x", "y"), True),
        (FEW, (4, 4, 1), ("x",), True),
        (FEW, (8, 4, 2), ("x",), False),  # not over all devices
        (jax.ShapeDtypeStruct((1 << 18,), jnp.float32), (2,), ("x",), True),
        (jax.ShapeDtypeStruct(((1 << 18) + 1,), jnp.float32), (2,), ("x",), False),
        (jax.ShapeDtypeStruct((1 << 18,), jnp.float32), (4,), ("x",), False),
        (jax.ShapeDtypeStruct((8,), jnp.int8), (2,), ("x",), False),
        (jax.ShapeDtypeStruct((8,), jnp.complex64), (2,), ("x",), False),
    ],
    ids=str,
)
def test_which_sums_are_ours(x: Any, mesh: tuple[int, ...], axes: tuple[str, ...], ours: bool) -> None:
    text = lowered(x, mesh_of(*mesh), Sums(over=axes, peers=8))
    assert (PEER_SUM_TARGET in text, "all_reduce" in text) == (ours, not ours)


@pytest.mark.usefixtures("reaching")
def test_all_devices_are_named_in_one_order() -> None:
    devices = jax.devices("cpu")[:4]
    for order in (devices, devices[::-1]):
        text = lowered(FEW, Mesh(np.array(order), ("x",)), Sums(over=("x",), peers=8))
        assert "devices = dense<[0, 1, 2, 3]> : tensor<4xi64>" in text


@pytest.mark.usefixtures("reaching")
def test_sums_that_are_scattered_are_left_to_xla() -> None:
    text = lowered(FEW, mesh_of(2), Sums(over=(), scattered=((0, ("x",), 2),), peers=8))
    assert PEER_SUM_TARGET not in text


@pytest.mark.usefixtures("reaching")
@pytest.mark.parametrize("check_vma", [False, True])
def test_sums_of_jax_are_ours_where_they_are_asked_for(check_vma: bool) -> None:
    """Of ``lax.psum`` and its gradient, in a ``shard_map``, under the option alone."""
    mesh = mesh_of(4)

    def loss(x: Any) -> Any:
        return (jax.lax.psum(x * x, "x") ** 2).sum()

    def gradient(x: Any) -> Any:
        return jax.lax.psum(jax.grad(loss)(x), "x")

    function = jax.shard_map(gradient, mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=check_vma)
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32)

    def text() -> str:
        return jax.jit(function).trace(x).lower(lowering_platforms=("cuda",)).as_text()

    assert PEER_SUM_TARGET not in text()
    with jaxgemm.options(peer_sums=True):
        ours = text()
    assert ours.count(PEER_SUM_TARGET) >= 2 and "all_reduce" not in ours
    with jaxgemm.options(peer_sums=False):
        assert PEER_SUM_TARGET not in text()
    assert PEER_SUM_TARGET not in text()


@pytest.mark.usefixtures("reaching")
def test_other_sums_of_jax_stay() -> None:
    """Of groups, of large arrays, and over axes of vmap."""
    mesh = mesh_of(4)
    groups = [[0, 1], [2, 3]]
    for add, size in (
        (lambda x: jax.lax.psum(x, "x", axis_index_groups=groups), 8),
        (lambda x: jax.lax.psum(x, "x"), 1 << 20),
        (lambda x: jax.vmap(lambda y: jax.lax.psum(y, "v"), axis_name="v")(x), 8),
    ):
        function = jax.shard_map(add, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        with jaxgemm.options(peer_sums=True):
            x = jax.ShapeDtypeStruct((size,), jnp.float32)
            text = jax.jit(function).trace(x).lower(lowering_platforms=("cuda",)).as_text()
        assert PEER_SUM_TARGET not in text


def test_gpus_that_do_not_reach_each_other() -> None:
    """Here there are none."""
    assert not _core.peers_reach([0, 1])
    assert PEER_SUM_TARGET not in lowered(FEW, mesh_of(2), Sums(over=("x",), peers=8))


@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(("count", "setting", "ours"), [
    (2, None, True), (2, False, False), (2, True, True), (4, None, False), (4, False, False), (4, True, True),
])  # fmt: skip
def test_of_how_many_gpus_products_are_ours(
    monkeypatch: pytest.MonkeyPatch, count: int, setting: bool | None, ours: bool, kind: Any, quantised: bool
) -> None:
    """By default those over as many as the kernel was run on; as the options say where a program is lowered, though XLA
    splits it later where axes are automatic.
    """
    mesh = Mesh(np.array(jax.devices("cpu")[:count]), ("x",), axis_types=(kind,))
    weights = jnp.ones((512, 32), jnp.bfloat16)
    rhs = jaxgemm.quantize(weights, bits=4, group_size=128) if quantised else weights
    specs = rhs.specs(P("x", None)) if isinstance(rhs, jaxgemm.QuantizedMatrix) else P("x", None)

    def put(array: Any, spec: P) -> Any:
        return jax.device_put(array, NamedSharding(mesh, spec))

    lhs, rhs = put(jnp.ones((2, 512), jnp.bfloat16), P(None, "x")), jax.tree.map(put, rhs, specs)
    explicit = kind == AxisType.Explicit
    product = functools.partial(jaxgemm.matmul, out_sharding=P(None, None) if explicit else None)
    asked: list[int] = []

    def recorded(x: Any, sums: Sums) -> Any:
        asked.append(sums.peers)
        return add_up(x, sums)

    for module in (_partition, _mixed_partition):
        monkeypatch.setattr(module, "add_up", recorded)
    with jax.set_mesh(mesh):
        with jaxgemm.options(peer_sums=setting):
            lowered = jax.jit(product).lower(lhs, rhs)
        assert "all-reduce" in lowered.compile().as_text()
    assert asked and all((most >= count) == ours for most in asked)


def test_the_option() -> None:
    assert _peer_sums.most_gpus() == 2
    with jaxgemm.options(peer_sums=False):
        assert _peer_sums.most_gpus() == 0
        with jaxgemm.options(peer_sums=True):
            assert _peer_sums.most_gpus() >= 8
    with pytest.raises(TypeError, match="peer_sums='no' is not True, False or None"), jaxgemm.options(peer_sums="no"):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("devices", "device", "dtype", "sizes", "message"),
    [
        ([0, 1], 1, jnp.bfloat16, (3, 3), ""),
        ([5, 2, 7], 7, jnp.int32, (1000, 1000), ""),
        ([0, 1], 2, jnp.float32, (8, 8), "compiled for other GPUs than number 2"),
        ([0], 0, jnp.float32, (8, 8), "sums are over 2 to 8 different GPUs, not over 1"),
        ([], 0, jnp.float32, (8, 8), "sums are over 2 to 8 different GPUs, not over 0"),
        ([0, 1, 1], 0, jnp.float32, (8, 8), "different GPUs, not over 3"),
        (list(range(9)), 0, jnp.float32, (8, 8), "different GPUs, not over 9"),
        ([0, 1], 0, jnp.int8, (8, 8), "sums are not of int8"),
        ([0, 1], 0, jnp.uint8, (8, 8), "not one of its own"),
        ([0, 1], 0, jnp.float32, (8, 9), "a sum has the dtype and the size of its parts"),
        ([0, 1], 0, jnp.float32, (1 << 19, 1 << 19), "have 1048576 bytes at most, not 2097152"),
    ],
    ids=str,
)
def test_what_the_handler_refuses(
    devices: list[int], device: int, dtype: Any, sizes: tuple[int, int], message: str
) -> None:
    call = jax.ffi.ffi_call(CHECK, jax.ShapeDtypeStruct(sizes[1:], dtype))
    run = jax.jit(lambda x: call(x, devices=np.array(devices, np.int64), device=np.int64(device)))
    x = jnp.zeros(sizes[:1], dtype)
    if not message:
        run(x).block_until_ready()
        return
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        run(x).block_until_ready()
