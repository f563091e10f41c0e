"""jaxgemm/_install.py and _options.py: which of JAX's own products take our kernels, on a GPU that is not there."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxgemm
from jaxgemm import _install, _tune, _tune_program, _tuning
from jaxgemm._choose import Request, choose
from jaxgemm._native import _core
from jaxgemm._tuning_table import Key
from tests.helpers import assert_same, count_ops, custom_calls, integers, request, struct
from tests.tuning_data import BF16, FIRST, MODEL, SECOND, SIZE, Machine, attach, document, row

M, N, K = 512, 128, 384


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    attach(monkeypatch, tmp_path)
    monkeypatch.setattr(_tuning, "_SHIPPED", tmp_path / "shipped")
    yield Machine(tmp_path)
    jaxgemm.uninstall()
    _tuning.forget()


def rows_of(keys: list[Key]) -> Any:
    """A table that says of every problem that our kernel takes half the time of JAX's."""
    times = {"us": 10.0, "model_us": 10.0, "jax_us": 20.0}
    models = [_tune.contenders(key, 90)[0] for key in keys]
    rows = [dict.fromkeys(("kernel", "model_kernel"), model) | times for model in models]
    return document([row | dataclasses.asdict(key) for row, key in zip(rows, keys, strict=True)])


def text_of(function: Callable[..., Any], *operands: Any) -> str:
    """The program as it is lowered now: JAX does not know that a table has changed."""
    jax.clear_caches()
    return jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def installed_text(machine: Machine, function: Callable[..., Any], *operands: Any) -> str:
    """The program, all whose problems have a row."""
    machine.give(rows_of(_tune_program.problems(function, *operands, sm=90)))
    with jaxgemm.options(install=True):
        return text_of(function, *operands)


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return struct(shape, jnp.bfloat16)


SQUARES = bf16(SIZE, SIZE), bf16(SIZE, SIZE)


def calls(text: str) -> int:
    assert len(custom_calls(text)) + count_ops(text, "dot_general") >= 1
    return len(custom_calls(text))


def test_only_while_installed(machine: Machine) -> None:
    machine.give(document([row(FIRST, jax_us=20.0)]))
    function = jax.jit(jnp.matmul)

    def now() -> int:
        return calls(function.trace(*SQUARES).lower(lowering_platforms=("cuda",)).as_text())

    assert now() == 0
    jaxgemm.install()
    jaxgemm.install()
    assert now() == 1
    with jaxgemm.options(install=False):
        assert now() == 0
        with jaxgemm.options(install=True):
            assert now() == 1
        with jaxgemm.options(tuning="shipped"):
            assert now() == 0
    jaxgemm.uninstall()
    assert now() == 0
    jaxgemm.uninstall()
    with jaxgemm.options(install=True):
        assert now() == 1
        assert calls(function.trace(*SQUARES).lower(lowering_platforms=("cpu",)).as_text()) == 0
    assert now() == 0


def test_the_kernel_is_that_of_the_table(machine: Machine) -> None:
    for user, shipped, expected in ((FIRST, SECOND, FIRST), (None, SECOND, SECOND)):
        machine.user.unlink(missing_ok=True)
        machine.give(*(name and document([row(name, jax_us=20.0)]) for name in (user, shipped)))
        with jaxgemm.options(install=True):
            (line,) = custom_calls(text_of(jnp.matmul, *SQUARES))
            assert f'kernel = "{expected}"' in line
            assert calls(text_of(jnp.matmul, *SQUARES)) == 1


@pytest.mark.parametrize(("jax_us", "taken"), [(10.5, True), (10.4, False), (9.0, False), (None, False)])
def test_only_what_was_measured_to_be_faster(machine: Machine, jax_us: float | None, taken: bool) -> None:
    machine.give(document([row(FIRST, us=10.0, jax_us=jax_us)]))
    with jaxgemm.options(install=True):
        assert calls(text_of(jnp.matmul, *SQUARES)) == taken
        assert calls(text_of(jnp.matmul, bf16(SIZE, SIZE), bf16(SIZE, SIZE + 8))) == 0, "another problem"
    assert calls(text_of(jaxgemm.matmul, *SQUARES)) == 1, "our own function takes our kernel in any case"


def test_a_table_without_jaxs_time_leaves_the_word_to_the_next(machine: Machine) -> None:
    machine.give(document([row(FIRST, jax_us=None)]), document([row(SECOND, jax_us=20.0)]))
    with jaxgemm.options(install=True):
        assert calls(text_of(jnp.matmul, *SQUARES)) == 1


def test_without_a_gpu_nothing_is_taken(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.give(document([row(FIRST, jax_us=20.0)]))
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: None)
    with jaxgemm.options(install=True):
        assert calls(text_of(jnp.matmul, *SQUARES)) == 0


def test_a_kernel_that_cannot_run_is_not_taken(machine: Machine) -> None:
    naive = next(info.name for info in _core.kernels() if info.family == "naive")
    machine.give(document([row(naive, jax_us=20.0)]))
    with jaxgemm.options(install=True):
        assert calls(text_of(jnp.matmul, *SQUARES)) == 0


def loss(x: Any, w: Any) -> Any:
    return jnp.square((x @ w).astype(jnp.float32)).sum()


def test_gradients_launch_no_transposes(machine: Machine) -> None:
    """The transposes of the weight's gradient, JAX's and ours, follow one another, so that XLA drops both."""
    text = installed_text(machine, jax.grad(loss, (0, 1)), bf16(M, K), bf16(K, N))
    assert (calls(text), count_ops(text, "dot_general")) == (3, 0)
    lines = [line.strip() for line in text.splitlines() if "stablehlo.transpose" in line]
    assert len(lines) == 2
    value = lines[0].split(" = ")[0]
    assert f"stablehlo.transpose {value}," in lines[1]
    assert f"tensor<{N}x{K}xbf16>) -> tensor<{K}x{N}xbf16>" in lines[1]


def tower(layers: Any, x: Any) -> Any:
    return lax.scan(jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None)), x, layers)[0]


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "vectors": (jnp.dot, (bf16(K), bf16(K, N)), 1),
    "rows in two dimensions": (jnp.matmul, (bf16(2, M, K), bf16(K, N)), 1),
    "einsum": (lambda x, w: jnp.einsum("bsd,dhk->bshk", x, w), (bf16(2, M, K), bf16(K, 4, 32)), 1),
    "its gradient": (
        jax.grad(lambda w, x: jnp.einsum("bsd,dhk->bshk", x, w).astype(jnp.float32).sum()),
        (bf16(K, 4, 32), bf16(2, M, K)),
        1,
    ),
    "vmap over one operand": (lambda x, w: jax.vmap(jnp.dot, (0, None))(x, w), (bf16(3, M, K), bf16(K, N)), 1),
    "vmap over both": (jax.vmap(jnp.dot), (bf16(3, M, K), bf16(3, K, N)), 0),
    "gradient of scan and remat": (
        jax.grad(lambda layers, x: tower(layers, x).astype(jnp.float32).sum()),
        (bf16(3, K, K), bf16(M, K)),
        4,
    ),
    "jvp": (lambda x, w: jax.jvp(lambda w: x @ w, (w,), (w,)), (bf16(M, K), bf16(K, N)), 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(machine: Machine, name: str) -> None:
    function, operands, expected = PROGRAMS[name]
    text = installed_text(machine, function, *operands)
    assert len(custom_calls(text)) == expected


def test_float32_keeps_its_precision(machine: Machine) -> None:
    operands = struct((M, K)), struct((K, N))
    for precision in ("highest", "default"):
        text = installed_text(machine, lambda x, w, p=precision: jnp.matmul(x, w, precision=p), *operands)
        (line,) = custom_calls(text)
        assert f'precision = "{precision}"' in line
        with jaxgemm.options(install=True):
            other = text_of(lambda x, w: jnp.matmul(x, w, precision="BF16_BF16_F32_X3"), *operands)
        assert calls(other) == 0


def test_exported_programs_are_jaxs(machine: Machine) -> None:
    machine.give(document([row(FIRST, jax_us=20.0)]))
    with jaxgemm.options(install=True):
        exported = jax.export.export(jax.jit(jnp.matmul), platforms=("cuda",))(*SQUARES)
    assert "jaxgemm" not in exported.mlir_module()


def test_several_devices(machine: Machine) -> None:
    """Inside shard_map the shapes are a device's own; where XLA is still to split a product, it is XLA's."""
    local = PartitionSpec("x", None)
    operands = bf16(4 * SIZE, SIZE), bf16(SIZE, SIZE)
    machine.give(document([row(FIRST, jax_us=20.0), row(FIRST, jax_us=20.0, m=4 * SIZE)]))
    for axis_type in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((4,), ("x",), axis_types=(axis_type,), devices=jax.devices("cpu")[:4])
        sharded = [
            jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))
            for x, spec in zip(operands, (local, PartitionSpec()), strict=True)
        ]
        mapped = jax.shard_map(jnp.matmul, mesh=mesh, in_specs=(local, PartitionSpec()), out_specs=local)
        with jaxgemm.options(install=True), jax.set_mesh(mesh):
            assert calls(text_of(jnp.matmul, *sharded)) == 0
            text = text_of(mapped, *sharded)
        (line,) = custom_calls(text)
        assert f"(tensor<{SIZE}x{SIZE}xbf16>, tensor<{SIZE}x{SIZE}xbf16>)" in line


def test_partly_manual_meshes_are_xlas(machine: Machine) -> None:
    """XLA is still to split over the other axis what is inside, and would gather it for a custom call."""
    machine.give(document([row(FIRST, jax_us=20.0)]))
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices("cpu")[:4])
    local = PartitionSpec("x", None)
    operands = bf16(2 * SIZE, SIZE), bf16(SIZE, SIZE)
    for manual, taken in (({"x"}, 0), ({"x", "y"}, 1)):
        mapped = jax.shard_map(
            jnp.matmul, mesh=mesh, in_specs=(local, PartitionSpec()), out_specs=local, axis_names=manual
        )
        with jaxgemm.options(install=True), jax.set_mesh(mesh):
            assert calls(text_of(mapped, *operands)) == taken


def test_what_is_computed_is_the_same_product(machine: Machine, rng: np.random.Generator) -> None:
    """Of the operands as they are swapped and contracted, on XLA's own dot."""
    for lhs, rhs, numbers in (
        ((5, 3), (5, 4), ((0,), (0,))),
        ((5, 2, 3, 7), (5, 2, 4), ((0, 1), (0, 1))),
        ((5, 2, 3), (5, 2, 4, 6), ((0, 1), (0, 1))),
        ((5, 2, 3), (2, 5, 4), ((0, 1), (1, 0))),
        ((3, 5), (5, 4), ((1,), (0,))),
        ((3, 5), (4, 5), ((1,), (1,))),
        ((5,), (5, 4), ((0,), (0,))),
        ((5,), (5,), ((0,), (0,))),
    ):
        x, y = integers(rng, lhs), integers(rng, rhs)
        expected = lax.dot_general(x, y, (numbers, ((), ())))
        asked = request(struct(lhs), struct(rhs), (numbers, ((), ())))
        out = _install._multiply(_install.as_computed(asked), None, x, y)  # type: ignore[arg-type]
        assert_same(out, expected)
    swapped = _install.as_computed(
        Request(bf16(5, 3), struct((5, 4)), struct((3, 4)), (((0,), (0,)), ((), ())), (lax.Precision.HIGH, None))  # type: ignore[arg-type]
    )
    assert (swapped.lhs, swapped.rhs) == (struct((5, 4)), bf16(5, 3))
    assert swapped.out.shape == (4, 3)
    assert swapped.precision == (None, lax.Precision.HIGH)


def test_a_thread_has_its_own_options(machine: Machine) -> None:
    machine.give(document([row(FIRST, jax_us=20.0)]))
    found: list[int] = []
    with jaxgemm.options(install=True):
        thread = threading.Thread(target=lambda: found.append(calls(text_of(jnp.matmul, *SQUARES))))
        thread.start()
        thread.join()
        found.append(calls(text_of(jnp.matmul, *SQUARES)))
    assert found == [0, 1]


def test_options_are_part_of_what_a_program_is_known_by() -> None:
    traced = []

    @jax.jit
    def function(x: jax.Array) -> jax.Array:
        traced.append(x)
        return x + 1

    for _ in range(2):
        for tuning in ("off", "shipped", None):
            with jaxgemm.options(tuning=tuning):
                function(1.0)
    assert len(traced) == 3


def test_tuning_is_an_option(machine: Machine) -> None:
    asked = request(*SQUARES)
    machine.give(document([row(FIRST)]), document([row(SECOND)]))

    def chosen() -> str | None:
        return choose(asked, None, 90).kernel

    assert chosen() == FIRST
    with jaxgemm.options(tuning="shipped"):
        assert chosen() == SECOND
        with jaxgemm.options(tuning="off"):
            assert chosen() == MODEL
            with jaxgemm.options(install=False):
                assert chosen() == MODEL, "what a block does not name stays"
        assert chosen() == SECOND
    assert chosen() == FIRST


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="tuning='of' is none of 'on', 'shipped', 'off', or None"), \
            jaxgemm.options(tuning="of"):  # fmt: skip
        pass
    with pytest.raises(TypeError, match="install=1 is not True, False or None"), \
            jaxgemm.options(install=1):  # type: ignore[arg-type]  # fmt: skip
        pass


def test_the_rows_of_these_tests_are_of_their_problem() -> None:
    keys = _tune_program.problems(jnp.matmul, *SQUARES, sm=90)
    assert keys == [Key(**BF16, precision="default", layout="NN", batch=1, m=SIZE, n=SIZE, k=SIZE)]
