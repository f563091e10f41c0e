"""jaxgemm/_tune.py: what is measured and picked, with fake kernels and a fake timer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxgemm import _tune, _tuning, _tuning_table
from jaxgemm._native import _core
from jaxgemm._tuning_table import Entry, Key
from tests.helpers import AT_ONCE_IN_ANY_LAYOUT, MOST_K_AT_ONCE
from tests.tuning_data import CONTENDERS, H200, Gpu, attach_fake, one_off
from tests.tuning_data import TUNED as KEY
from tests.tuning_data import TUNED_MODEL as MODEL

BEST, WRONG, BROKEN = [name for name in CONTENDERS if name != MODEL][:3]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gpu]:
    yield attach_fake(monkeypatch, tmp_path)
    _tuning.forget()


def not_a_number(out: jax.Array) -> jax.Array:
    return out.at[47, 63].set(jnp.nan)


def test_the_fastest_right_kernel_is_picked(gpu: Gpu) -> None:
    gpu.us = {MODEL: 20.0, BEST: 12.345678, WRONG: 1.0, BROKEN: 1.0, _tune.JAX: 11.111111}
    gpu.wrong = {WRONG: one_off, BROKEN: RuntimeError("launch failed\nat line 7")}
    result = _tune.tune(KEY, 90)
    assert result.entry == Entry(BEST, 12.346, MODEL, 20.0, 11.111), "JAX's own product is no kernel to run"
    assert gpu.timed == [[*(name for name in CONTENDERS if name not in (WRONG, BROKEN)), _tune.JAX]]
    assert set(result.times_us) == set(gpu.timed[0])
    assert set(result.rejected) == {WRONG, BROKEN}
    assert result.rejected[BROKEN] == "RuntimeError: launch failed"
    assert result.rejected[WRONG].endswith("error bounds off float64")
    assert not result.failure


@pytest.mark.parametrize("fault", [one_off, not_a_number, lambda out: 1 / out, lambda out: out * 1.02])
def test_wrong_results_are_not_timed(gpu: Gpu, fault: Any) -> None:
    gpu.us = {WRONG: 1.0}
    gpu.wrong = {WRONG: fault}
    result = _tune.tune(KEY, 90)
    assert list(result.rejected) == [WRONG]
    assert result.entry is not None and result.entry.kernel == MODEL


@pytest.mark.parametrize(("us", "kernel"), [(48.2, MODEL), (48.0, BEST), (50.0, MODEL), (51.0, MODEL)])
def test_the_models_choice_stays_within_the_margin(gpu: Gpu, us: float, kernel: str) -> None:
    gpu.us = {BEST: us}
    entry = _tune.tune(KEY, 90).entry
    assert entry == Entry(kernel, 50.0 if kernel == MODEL else us, MODEL, 50.0, 50.0)


def test_a_product_that_jax_cannot_compute_has_no_time(gpu: Gpu) -> None:
    gpu.jax_fault = RuntimeError("unsupported dtype")
    result = _tune.tune(KEY, 90)
    assert result.entry == Entry(MODEL, 50.0, MODEL, 50.0, None)
    assert gpu.timed == [CONTENDERS]
    assert not result.failure and not result.rejected
    assert result.jax_failure == "RuntimeError: unsupported dtype"


@pytest.mark.parametrize("layout", _tuning_table.LAYOUTS)
def test_jaxs_own_product_is_the_same_problem_without_us(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, H200))
    key = Key("bfloat16", "bfloat16", "float32", "highest", layout, 1, 48, 64, 80)
    operands = _tune._operands(key, 0)
    text = _tune.jax_function(key).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()  # type: ignore[attr-defined]
    assert "jaxgemm" not in text
    (line,) = (line for line in text.splitlines() if "stablehlo.dot_general" in line)
    assert "precision = [HIGHEST, HIGHEST]" in line
    assert line.endswith("-> tensor<48x64xf32>")


def test_what_teaches_nothing_makes_no_row(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.source = "wall"
    wall = _tune.tune(KEY, 90)
    assert wall.entry is None
    assert wall.failure == "no device time: CUPTI is not available"
    gpu.source = "cupti"
    for us in (0.0, -1.0, math.nan, math.inf):
        gpu.us = {BEST: us}
        timeless = _tune.tune(KEY, 90)
        assert timeless.entry is None
        assert timeless.failure.startswith("times that are not positive: ")
    gpu.us, gpu.wrong = {}, {MODEL: one_off}
    distrusted = _tune.tune(KEY, 90)
    assert distrusted.entry is None
    assert distrusted.failure.startswith(f"the model's choice, {MODEL}, is not to be trusted: its result is ")

    def out_of_memory(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError("too many bytes")

    gpu.wrong = {}
    for step in ("compare", "rotating_arg_sets", "reference"):
        with monkeypatch.context() as patch:
            patch.setattr(_tune, step, out_of_memory)
            assert _tune.tune(KEY, 90).failure == "MemoryError: too many bytes"
    assert _tune.tune(KEY, 90).entry is not None


def test_contenders_are_what_competes_on_price() -> None:
    families = {info.name: info.family for info in _core.kernels()}
    assert MODEL in CONTENDERS
    assert {families[name] for name in CONTENDERS} == {"mma", "mma_multistage", "wgmma"}
    for sizes in [(1, 4096, 4096, 4096), (1, 1, 14336, 4096), (64, 512, 512, 512), (1, 33, 77, 129)]:
        for dtype, precision in [("bfloat16", "default"), ("float32", "highest"), ("float16", "default")]:
            key = Key(dtype, dtype, dtype, precision, "NN", *sizes)
            model, names = _tune.contenders(key, 90)
            request = _tune.request_of(key)
            native = _tune.native_problem(request, 90)
            assert model == _core.select(native)
            costs = {info.name: _core.estimated_cost(info.name, native) for info in _core.kernels()}
            few_odd_rows = 129 in sizes and precision == "default"  # which gemv computes one by one
            rivals = {"mma_multistage", "wgmma"} | ({"gemv"} if 1 in sizes[1:3] or few_odd_rows else set())
            at_once = AT_ONCE_IN_ANY_LAYOUT if sizes[3] <= MOST_K_AT_ONCE else []
            able = {
                name
                for name, family in families.items()
                if (family in rivals or name in at_once) and not _core.why_not(name, native)
            }
            assert set(names) == {name for name in able if costs[name] <= 3 * costs[model]}
    with pytest.raises(ValueError, match="no kernel takes int8 x int8 -> bfloat16"):
        _tune.contenders(Key("int8", "int8", "bfloat16", "default", "NN", 1, 8, 8, 8), 90)


@pytest.mark.parametrize("layout", _tuning_table.LAYOUTS)
@pytest.mark.parametrize("batch", [1, 3])
def test_every_layout_is_measured_as_the_chooser_sees_it(gpu: Gpu, layout: str, batch: int) -> None:
    key = Key("float32", "float32", "float32", "highest", layout, batch, 5, 6, 7)
    result = _tune.tune(key, 90)
    assert not result.failure and not result.rejected, "the product has the reference's shape and values"
    assert {called for called, _ in gpu.called} == {key}
    assert result.times_us


def test_a_kernel_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed is the custom call of that kernel, on the problem that the row is about."""
    monkeypatch.setattr("jaxgemm._target.attached_gpu", lambda: (90, H200))
    for layout in _tuning_table.LAYOUTS:
        key = Key("bfloat16", "bfloat16", "float32", "highest", layout, 2, 48, 64, 80)
        name = _tune.contenders(key, 90)[1][0]
        operands = _tune._operands(key, 0)
        run = jax.jit(lambda a, b, key=key, name=name: _tune.kernel_function(key, name)(a, b))
        text = run.trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
        assert f'kernel = "{name}"' in text
        assert 'precision = "highest"' in text
        assert "tensor<2x48x64xf32>" in text
