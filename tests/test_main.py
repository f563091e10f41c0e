"""``python -m jaxgemm`` on a machine without kernels: what it measures, prints and refuses."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jaxgemm import __main__ as main_module
from jaxgemm import _main_job
from jaxgemm._native import _core

ARGUMENTS = ["--size", "48", "--rounds", "2", "--tokens", "1", "3"]


@pytest.fixture(autouse=True)
def small_layer_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_main_job, "attached_gpu", lambda: None)
    monkeypatch.setattr("jaxgemm._timing.find_cupti", lambda: None)  # what runs here runs on the CPU
    monkeypatch.setattr(_main_job, "LLAMA_8B_HIDDEN", 64)
    monkeypatch.setattr(_main_job, "LLAMA_8B_FEED_FORWARD", 160)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main([*ARGUMENTS, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["kernels"] == [info.name for info in _core.kernels()]
    assert [(row["kernel"], row["dtype"], row["precision"]) for row in result["kernel_rows"]] == [
        ("XLA dot", "float32", "highest"),
        ("XLA dot", "bfloat16", "default"),
    ]
    for row in result["kernel_rows"]:
        assert (row["m"], row["n"], row["k"]) == (48, 48, 48)
        assert 0 < row["max_err_over_bound"] <= 1
        assert row["us"] > 0
        assert row["tflops"] == pytest.approx(2 * 48**3 / row["us"] * 1e-6)
        assert row["ratio_to_jnp"] == pytest.approx(row["jnp_us"] / row["us"])
    assert [row["tokens"] for row in result["layer_rows"]] == [1, 3]
    for row in result["layer_rows"]:
        assert 0 < row["error"] < 0.02
        assert 0 < row["jnp_error"] < 0.02


def test_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main_module.main(ARGUMENTS) == 0
    text = capsys.readouterr().out
    assert "No CUDA GPU here" in text
    assert "jax[cuda13]" in text
    assert "Kernels at M = N = K = 48" in text
    assert "Llama-3-8B feed-forward block" in text
    assert "at most 2 times jnp's + 0.001" in " ".join(text.split())


def test_groups_hold_every_kernel_once_and_one_of_each_family_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def info(name: str, *dtypes: str, tf32: bool = False) -> SimpleNamespace:
        outs = {"int8": "int32"}
        family = name.partition(":")[0]
        return SimpleNamespace(
            name=name, family=family, dtypes=[(d, d, outs.get(d, d)) for d in dtypes], tf32=tf32, highest=True
        )

    infos = [
        info("simt:1", "float32"),
        info("wmma:1", "float16", "bfloat16"),
        info("mma:1", "float16", "bfloat16", "float32", "int8", tf32=True),
        info("mma:2", "float16", "bfloat16", "float32", "int8", tf32=True),
    ]
    asked = []

    def explain(lhs: jax.ShapeDtypeStruct, rhs: jax.ShapeDtypeStruct, **kwargs: Any) -> SimpleNamespace:
        asked.append((lhs.shape, lhs.dtype.name, rhs.dtype.name, kwargs["preferred_element_type"].name))
        return SimpleNamespace(kernel=f"{kwargs['kernel']}:2")

    monkeypatch.setattr(_main_job, "on_gpu", lambda: True)
    monkeypatch.setattr(_main_job, "kernels", lambda: infos)
    monkeypatch.setattr(_main_job, "explain", explain)
    groups = _main_job.kernel_groups(64)
    assert [(group.dtype, group.precision, group.names) for group in groups] == [
        ("float32", "highest", ["simt:1", "mma:2"]),
        ("bfloat16", "default", ["wmma:1", "mma:1", "mma:2"]),
        ("float32", "default", ["mma:2"]),
        ("int8", "default", ["mma:2"]),
    ]
    assert ((64, 64), "int8", "int8", "int32") in asked


@pytest.mark.parametrize(("dtype", "precision"), [("float32", "default"), ("int8", "default")])
def test_other_groups_run(dtype: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_main_job, "kernel_groups", lambda size: [_main_job.KernelGroup(dtype, precision, [None])])
    (row,) = _main_job.measure_kernels(32, 2)
    assert (row.dtype, row.precision) == (dtype, precision)
    assert row.max_err_over_bound <= 1


@pytest.mark.parametrize("wrong", ["one element", "nan"])
def test_a_wrong_result_is_an_exit_status(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    right = _main_job.matmul

    def matmul(lhs: jax.Array, rhs: jax.Array, **kwargs: Any) -> jax.Array:
        out = right(lhs, rhs, **kwargs)
        return out.at[7, 5].add(1.0) if wrong == "one element" else out.at[7, 5].set(float("nan"))

    monkeypatch.setattr(_main_job, "matmul", matmul)
    assert main_module.main(ARGUMENTS) == 1
    assert "error bounds off float64" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("option", ["--size", "--rounds", "--tokens"])
def test_refuses_what_is_not_positive(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        main_module.main([option, "0"])
    assert refused.value.code == 2
    assert f"{option} 0 is not a positive number" in capsys.readouterr().err
