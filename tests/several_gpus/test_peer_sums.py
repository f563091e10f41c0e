"""cuda/peers: sums over all GPUs by our own kernel."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from jaxgemm import _peer_sums
from jaxgemm._native import PEER_SUM_TARGET, _core
from jaxgemm._partition import Sums, add_up
from tests.several_gpus.checks import assert_equal_bits
from tests.several_gpus.program import compiled

pytestmark = pytest.mark.several_gpus

AXIS = "model"
BY_PEERS = Sums(over=(AXIS,), peers=8)


def mesh_of(devices: Sequence[jax.Device]) -> Mesh:
    return Mesh(np.array(devices), (AXIS,))


def on_each(mesh: Mesh, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of one device's part, of arrays whose first dimension is the device."""

    def local(*parts: Any) -> Any:
        return function(*(part[0] for part in parts))[None]

    return jax.shard_map(local, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)


def put(mesh: Mesh, parts: np.ndarray) -> jax.Array:
    return jax.device_put(parts, NamedSharding(mesh, P(AXIS)))


def most_numbers(devices: Sequence[jax.Device], dtype: Any) -> int:
    """That one sum may have: found by asking."""
    low, high = 1, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        fits = not _core.why_no_peer_sum(list(range(len(devices))), np.dtype(dtype).name, middle)
        low, high = (middle, high) if fits else (low, middle)
    return low


def sums(devices: Sequence[jax.Device], parts: np.ndarray) -> list[np.ndarray]:
    """What each device gets."""
    mesh = mesh_of(devices)
    run, program = compiled(on_each(mesh, lambda x: add_up(x, BY_PEERS)), put(mesh, parts))
    assert set(program.collectives()) == {PEER_SUM_TARGET}
    found = run(put(mesh, parts))
    return [np.asarray(shard.data)[0] for shard in found.addressable_shards]


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32], ids=lambda dtype: dtype.__name__)
@pytest.mark.parametrize("numbers", [1, 3, 255, 1024, 8192, 65537, "most"])
def test_numbers(devices: list[jax.Device], dtype: Any, numbers: Any) -> None:
    """Against float64: parts are added in float32, in the same order everywhere, and rounded once."""
    numbers = most_numbers(devices, dtype) if numbers == "most" else numbers
    parts = np.random.default_rng(1).standard_normal((len(devices), numbers)).astype(dtype)
    exact, all_of_it = parts.astype(np.float64).sum(0), np.abs(parts.astype(np.float64)).sum(0)
    first, *others = sums(devices, parts)
    bound = 2.0**-24 * len(devices) * all_of_it + jnp.finfo(dtype).eps / 2 * np.abs(exact) * 1.001
    assert (np.abs(first.astype(np.float64) - exact) <= bound + float(jnp.finfo(dtype).smallest_subnormal)).all()
    for other in others:
        assert_equal_bits(other, first, "devices differ")


def test_integers_wrap_around(devices: list[jax.Device]) -> None:
    parts = np.random.default_rng(2).integers(-(2**31), 2**31 - 1, (len(devices), 4099), np.int32)
    for found in sums(devices, parts):
        assert_equal_bits(found, parts.astype(np.int64).sum(0).astype(np.int32), "integers")


def test_what_is_no_number(devices: list[jax.Device]) -> None:
    """NaN, infinities and the sign of zero."""
    parts = np.zeros((len(devices), 6), np.float32)
    parts[:, 0] = -0.0
    parts[-1, 1] = np.nan
    parts[0, 2], parts[-1, 3] = np.inf, -np.inf
    parts[0, 4], parts[-1, 4] = np.inf, -np.inf
    parts[0, 5] = -0.0
    with np.errstate(invalid="ignore"):
        exact = parts.sum(0)
    for found in sums(devices, parts):
        np.testing.assert_array_equal(found, exact)
        np.testing.assert_array_equal(np.signbit(found[[0, 5]]), [True, False])


def test_other_devices_and_orders(devices: list[jax.Device]) -> None:
    """The same GPUs meet in any order, and some of them without the others."""
    parts = np.random.default_rng(3).integers(-99, 99, (len(devices), 777)).astype(np.float32)
    for found in sums(devices[::-1], parts):
        assert_equal_bits(found, parts.sum(0), "reversed")
    for found in sums(devices[-2:], parts[:2]):
        assert_equal_bits(found, parts[:2].sum(0), "two of them")


def work(x: Any, rounds: Any) -> Any:
    """Takes long, and changes nothing."""
    square = lax.fori_loop(0, rounds, lambda _, s: s @ s * 0.5, jnp.full((512, 512), 1e-3, jnp.float32))
    return x + 0 * square[0, 0].astype(x.dtype)


def chain(x: Any, add: Callable[[Any], Any]) -> Any:
    """Many sums, of all sizes in turn, where one device works longer than the others, another one every time."""
    here, count = lax.axis_index(AXIS), lax.axis_size(AXIS)

    def step(carry: Any, i: Any) -> tuple[Any, Any]:
        late = work(carry, jnp.where(i % count == here, 1 + i % 5, 0))
        long = add(late * (1 + here).astype(late.dtype)) % 127
        short = add(long[: 8 + 3] + i.astype(late.dtype)) % 127
        middle = add(long[-3000:] - here.astype(late.dtype)) % 127
        mixed = long.at[:11].add(short).at[-3000:].add(middle) % 127
        return mixed, None

    return lax.scan(step, x, jnp.arange(100))[0]


@pytest.mark.parametrize("numbers", [8192, 40_000])
def test_sums_follow_one_another(devices: list[jax.Device], numbers: int) -> None:
    """The bits of XLA's all-reduce, of exact sums, also where the program is a graph that is run again and again."""
    mesh = mesh_of(devices)
    parts = put(mesh, np.random.default_rng(4).integers(0, 99, (len(devices), numbers)).astype(np.float32))
    expected = jax.jit(on_each(mesh, lambda x: chain(x, lambda y: lax.psum(y, AXIS))))(parts)
    ours = jax.jit(
        on_each(mesh, lambda x: chain(x, lambda y: add_up(y, BY_PEERS))), donate_argnums=0,
        compiler_options={"xla_gpu_graph_min_graph_size": 1},
    )  # fmt: skip
    for _ in range(5):
        assert_equal_bits(ours(jnp.copy(parts)), expected, "a chain of sums")


def test_programs_of_several_threads(devices: list[jax.Device]) -> None:
    """Each sees its own sums."""
    mesh = mesh_of(devices)
    wrong = []

    def repeat(number: int) -> None:
        parts = put(mesh, np.full((len(devices), 1000 * 4**number), number + 1, np.float32))
        add = jax.jit(on_each(mesh, lambda x: add_up(add_up(x, BY_PEERS) + number, BY_PEERS)))
        expected = ((number + 1) * len(devices) + number) * len(devices)
        for _ in range(100):
            found = [add(parts) for _ in range(5)][-1]
            wrong.extend(number for shard in found.addressable_shards if not (np.asarray(shard.data) == expected).all())

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_option(devices: list[jax.Device]) -> None:
    """Our kernel adds up, by default over two GPUs, else XLA's all-reduce; also where it is compiled later."""
    mesh = mesh_of(devices)
    x = jax.device_put(jnp.ones((4, 256), jnp.bfloat16), NamedSharding(mesh, P(None, AXIS)))
    w = jax.device_put(jnp.ones((256, 64), jnp.bfloat16), NamedSharding(mesh, P(AXIS, None)))
    whole = NamedSharding(mesh, P())
    quantised = jaxgemm.quantize(jnp.ones((1024, 64), jnp.bfloat16), bits=4, group_size=128)
    q = jax.tree.map(lambda a, s: jax.device_put(a, NamedSharding(mesh, s)), quantised, quantised.specs(P(AXIS, None)))
    y = jax.device_put(jnp.ones((4, 1024), jnp.bfloat16), NamedSharding(mesh, P(None, AXIS)))
    for operands in ((x, w), (y, q)):
        function = jax.jit(jaxgemm.matmul, out_shardings=whole)
        with jaxgemm.options(peer_sums=False):
            lowered = function.lower(*operands)
        assert "all-reduce" in lowered.compile().as_text()
        by_default = function.lower(*operands).compile().as_text()
        assert (PEER_SUM_TARGET in by_default) == (len(devices) <= _peer_sums.RUN_ON)
        with jaxgemm.options(peer_sums=True):
            lowered = function.lower(*operands)
        assert PEER_SUM_TARGET in lowered.compile().as_text()
        with jaxgemm.options(peer_sums=False):
            expected = function(*operands)
        with jaxgemm.options(peer_sums=True):
            assert_equal_bits(function(*operands), expected, "a product")


def test_sums_of_jax(devices: list[jax.Device]) -> None:
    """``lax.psum`` under the option: in a ``shard_map``, with its gradient."""
    mesh = mesh_of(devices)
    x = put(mesh, np.random.default_rng(5).integers(-3, 3, (len(devices), 1000)).astype(np.float32))

    def loss(x: Any) -> Any:
        return (lax.psum(x * x, AXIS) * x).sum()

    function = jax.shard_map(jax.value_and_grad(loss), mesh=mesh, in_specs=P(AXIS), out_specs=(P(), P(AXIS)),
                             check_vma=False)  # fmt: skip
    expected = jax.jit(function)(x)
    with jaxgemm.options(peer_sums=True):
        run, program = compiled(function, x)
        assert set(program.collectives()) == {PEER_SUM_TARGET}
        for found, want in zip(run(x), expected, strict=True):
            assert_equal_bits(found, want, "value and gradient")


FIRST_RUN = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import jaxgemm
mesh = Mesh(np.array(jax.devices()), ("model",))
put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, P(*spec)))
def layers(x, w, v):
    for kernel in ("mma:64x64x32", "wmma_tiled:64x64x64", "wgmma:64x64x64"):
        x = jaxgemm.matmul(x, w, kernel=kernel)
        x = jaxgemm.matmul(x, v) % 7
    return x
x = put(np.ones((8, 512), np.float16))
w, v = put(np.ones((512, 1024), np.float16) / 512, None, "model"), put(np.ones((1024, 512), np.float16), "model", None)
with jaxgemm.options(peer_sums=True):
    print("RESULT", float(jax.jit(layers, out_shardings=NamedSharding(mesh, P()))(x, w, v).sum()))
"""


@pytest.mark.parametrize("graphs", [True, False])
def test_the_first_run_of_a_process(devices: list[jax.Device], graphs: bool) -> None:
    """Kernels are loaded when they are first used, which may have to wait for what runs: not for another GPU."""
    env = os.environ if graphs else {**os.environ, "XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
    done = subprocess.run([sys.executable, "-c", FIRST_RUN], capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"RESULT {float(8 * 512 * (4096 % 7))}" in done.stdout


MISMATCH = f"""
import jax, jax.numpy as jnp, numpy as np
import jaxgemm
devices = jax.devices()[:2]
call = jax.ffi.ffi_call({PEER_SUM_TARGET!r}, jax.ShapeDtypeStruct((64,), jnp.float32))
programs = [jax.jit(lambda x, i=i: call(x + i, devices=np.array([0, 1]))) for i in range(2)]
parts = [jax.device_put(jnp.ones(64), device) for device in devices]
found = [program(part) for program, part in zip(programs, parts)]
print("SUMS", [np.asarray(x) for x in found])
"""


def test_sums_of_other_programs_are_an_error(devices: list[jax.Device]) -> None:
    """Two programs whose sums meet: the process is told, and gets no numbers."""
    done = subprocess.run([sys.executable, "-c", MISMATCH], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "SUMS" not in done.stdout
    assert "CUDA" in done.stderr or "launch" in done.stderr, done.stderr[-2000:]


def test_too_much_is_left_to_xla(devices: list[jax.Device]) -> None:
    mesh = mesh_of(devices)
    parts = put(mesh, np.ones((len(devices), most_numbers(devices, np.float32) + 1), np.float32))
    _, program = compiled(on_each(mesh, functools.partial(add_up, sums=BY_PEERS)), parts)
    assert set(program.collectives()) == {"all-reduce"}
