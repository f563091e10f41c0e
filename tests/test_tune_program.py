"""jaxgemm/_tune_program.py: the products of a program, measured with fake kernels and a fake timer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jaxgemm
from jaxgemm import _tune, _tune_program, _tuning, _tuning_table
from jaxgemm._tuning_table import Entry, Key
from tests.helpers import struct
from tests.tuning_data import CONTENDERS, H200, TUNED, TUNED_MODEL, Gpu, attach_fake, document, put, row

BEST = next(name for name in CONTENDERS if name != TUNED_MODEL)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    fake = attach_fake(monkeypatch, tmp_path)
    monkeypatch.setattr("jaxgemm._tune_program.attached_gpu", lambda: (90, H200))
    monkeypatch.setattr(_tuning, "_SHIPPED", tmp_path / "shipped")
    yield fake
    _tuning.forget()


def bf16(*shape: int) -> jax.ShapeDtypeStruct:
    return struct(shape, jnp.bfloat16)


def key(layout: str, m: int, n: int, k: int, **changes: Any) -> Key:
    return dataclasses.replace(TUNED, layout=layout, m=m, n=n, k=k, **changes)


def loss(w: Any, x: Any) -> Any:
    return jnp.tanh(x @ w).astype(jnp.float32).sum()


def user_table() -> Any:
    path = _tuning.user_path(H200)
    assert path is not None
    return _tuning_table.read(path)


def test_problems_are_those_of_the_program_each_once() -> None:
    def problems(function: Any, *operands: Any) -> list[Key]:
        return _tune_program.problems(function, *operands, sm=90)

    w, x = bf16(80, 64), bf16(48, 80)
    forward, backward = key("NN", 48, 64, 80), key("TN", 80, 64, 48)
    assert problems(loss, w, x) == [forward]
    assert problems(jax.grad(loss), w, x) == [forward, backward]
    assert problems(jax.jit(jax.grad(jax.checkpoint(loss), (0, 1))), w, x) == [
        forward,
        backward,
        key("NT", 48, 80, 64),
    ]
    assert problems(lambda w, x: jaxgemm.matmul(x, w, activation="relu"), w, x) == [forward]
    assert problems(lambda w, x: jax.lax.scan(lambda x, w: (x @ w @ w.mT, None), x, w), bf16(3, 80, 64), x) == [
        forward,
        key("NN", 48, 80, 64),
    ]
    highest = dataclasses.replace(
        forward, lhs_dtype="float32", rhs_dtype="float32", out_dtype="float32", precision="highest"
    )
    assert problems(lambda w, x: jnp.matmul(x, w, precision="highest"), struct((80, 64)), struct((48, 80))) == [highest]


@pytest.mark.parametrize(
    ("function", "operands"),
    [
        (jnp.add, (bf16(8, 8), bf16(8, 8))),
        (jnp.matmul, (bf16(5, 8, 8), bf16(5, 8, 8))),  # a batch is JAX's own after install()
        (jnp.matmul, (bf16(0, 8), bf16(8, 8))),
        (jnp.matmul, (struct((8, 8), jnp.complex64),) * 2),
        (lambda x, w: jnp.matmul(x, w, precision="BF16_BF16_F32_X9"), (struct((8, 8)),) * 2),
    ],
)
def test_what_no_table_speaks_of_is_no_problem(function: Any, operands: Any) -> None:
    assert _tune_program.problems(function, *operands, sm=90) == []


def test_what_was_measured_counts_at_once(gpu: Gpu) -> None:
    gpu.us = {BEST: 25.0, _tune.JAX: 100.0}
    w, x = bf16(80, 64), bf16(48, 80)
    tuned = jaxgemm.tune(loss, w, x)
    assert tuned == jaxgemm.Tuned({TUNED: Entry(BEST, 25.0, TUNED_MODEL, 50.0, 100.0)}, (), {}, ())
    assert user_table().entries == tuned.measured
    assert str(tuned) == f"{TUNED}: {BEST} 25.0 us, JAX's own product 100.0 us"
    assert jaxgemm.explain(x, w).kernel == BEST
    with jaxgemm.options(install=True):
        text = jax.jit(loss).trace(w, x).lower(lowering_platforms=("cuda",)).as_text()
    assert f'kernel = "{BEST}"' in text


def test_what_a_table_has_is_not_measured_again(gpu: Gpu) -> None:
    w, x = bf16(80, 64), bf16(48, 80)
    jaxgemm.tune(loss, w, x)
    timed = len(gpu.timed)
    both = jaxgemm.tune(jax.grad(loss), w, x)
    assert (both.known, list(both.measured)) == ((TUNED,), [key("TN", 80, 64, 48)])
    assert len(gpu.timed) == timed + 1
    assert set(user_table().entries) == {TUNED, key("TN", 80, 64, 48)}
    assert f"{TUNED}: in a table already" in str(both)


def test_a_row_without_jaxs_time_is_measured_again(gpu: Gpu, tmp_path: Path) -> None:
    measured = row(BEST, us=1.0, model_kernel=TUNED_MODEL, model_us=2.0, jax_us=None)
    put(tmp_path / "shipped" / "nvidia-h200.json", document([measured | dataclasses.asdict(TUNED)]))
    _tuning.forget()
    assert list(jaxgemm.tune(loss, bf16(80, 64), bf16(48, 80)).measured) == [TUNED]


def test_failures_and_the_limit_are_told(gpu: Gpu) -> None:
    gpu.wrong = {TUNED_MODEL: RuntimeError("launch failed")}
    tuned = jaxgemm.tune(jax.grad(loss), bf16(80, 64), bf16(48, 80), limit_s=0)
    assert list(tuned.failures) == [TUNED]
    assert tuned.left == (key("TN", 80, 64, 48),)
    assert not tuned.measured
    assert "nothing learned, the model's choice" in str(tuned)
    assert "not begun" in str(tuned)


def test_why_jaxs_own_product_has_no_time_is_told(gpu: Gpu) -> None:
    gpu.jax_fault = RuntimeError("unsupported dtype")
    tuned = jaxgemm.tune(loss, bf16(80, 64), bf16(48, 80))
    assert tuned.not_jax == {TUNED: "RuntimeError: unsupported dtype"}
    assert str(tuned).endswith("JAX's own product not timed, RuntimeError: unsupported dtype")
    assert user_table().entries[TUNED].jax_us is None


def test_a_program_without_products() -> None:
    assert str(jaxgemm.Tuned({}, (), {}, ())) == "no products that kernels could take"


def test_without_a_gpu_or_a_folder(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("jaxgemm._tuning.user_path", lambda device: None)
        with pytest.raises(RuntimeError, match="set XDG_CACHE_HOME or HOME"):
            jaxgemm.tune(loss, bf16(80, 64), bf16(48, 80))
    monkeypatch.setattr("jaxgemm._tune_program.attached_gpu", lambda: None)
    with pytest.raises(RuntimeError, match="measures on a CUDA GPU"):
        jaxgemm.tune(loss, bf16(80, 64), bf16(48, 80))
