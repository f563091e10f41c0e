"""Suite int4: its problems, inputs, peers and judge, and the driver with a fake timer. No GPU needed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import jaxgemm
from benchmarks import bench, mixed, mixed_tables, results, shapes
from benchmarks.shapes import MixedProblem
from jaxgemm import _timing
from tests.benchmark_data import HEADER

SMALL = MixedProblem(16, 64, 256)
VARIANTS = [dataclasses.replace(SMALL, **change) for change in shapes.INT4_VARIANTS.values()]


@pytest.fixture(autouse=True)
def two_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough sets to fill a GPU's cache twice would be hundreds of small ones."""
    monkeypatch.setattr(mixed, "rotating_arg_sets", lambda make_args, nbytes: [make_args(0), make_args(1)])


def test_suite_has_the_agreed_problems() -> None:
    problems = shapes.int4()
    plain = [problem for problem in problems if problem.is_plain]
    assert len(set(problems)) == len(problems) == 7 * 14 + 2 * 3 * 4
    assert {problem.m for problem in plain} == {2**i for i in range(14)} and len(plain) == 7 * 14
    assert MixedProblem(8192, 57344, 8192) in plain
    assert MixedProblem(64, 8192, 28672, zeros=True) in problems
    assert MixedProblem(1, 28672, 4096, dtype="float16") in problems
    matrices = [(problem.n, problem.k) for problem in problems]
    assert len(dict.fromkeys(matrices)) == sum(a != b for a, b in zip(matrices, [None, *matrices], strict=False))
    assert all(problem.k % problem.group_size == 0 for problem in problems)


@pytest.mark.parametrize("problem", [SMALL, *VARIANTS], ids=lambda problem: problem.label)
def test_bytes_are_those_of_the_matrix(problem: MixedProblem) -> None:
    matrix = mixed.Mixed().inputs(problem, ["ours"])["ours"][0][1]
    assert problem.weight_bytes == matrix.nbytes
    assert problem.min_bytes == matrix.nbytes + 2 * (16 * 256 + 16 * 64)
    assert (matrix.group_size, matrix.zeros is not None) == (problem.group_size, problem.zeros)
    assert matrix.scales.dtype == problem.dtype and problem.flops == 2 * 16 * 64 * 256


def test_name_is_that_of_the_calls_in_the_program() -> None:
    call = 'custom_call @jaxgemm_{}(%1) {{backend_config = "", mhlo = {{activation = "x", kernel = "{}"}}}}'
    assert mixed.called_kernels(call.format("mixed_gemm", "int4_mma:8x128")) == "int4_mma:8x128"
    two = f"{call.format('dequantize', 'a:1')}\n{call.format('gemm', 'wgmma:2')}\n{call.format('gemm', 'wgmma:2')}"
    assert mixed.called_kernels(two) == "a:1+wgmma:2"
    assert mixed.called_kernels('custom_call @other(%1) {kernel = "b:1"}') == mixed.COMPOSED
    specs = [jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)] * 2
    traced = jax.jit(lambda x, w: jaxgemm.matmul(x, w, kernel="mma:64x64x32")).trace(*specs)
    assert mixed.called_kernels(traced.lower(lowering_platforms=("cuda",)).as_text()) == "mma:64x64x32"


def test_peers_multiply_the_same_matrix_and_no_function_finds_anothers_inputs() -> None:
    method = mixed.Mixed()
    inputs = method.inputs(SMALL, ["ours"])
    assert list(inputs) == ["ours", "jnp", mixed.XLA_INT4]
    compiled = {name: compile_peer() for name, compile_peer in method.peer_compilers(SMALL, None).items()}
    assert list(compiled) == ["jnp", mixed.XLA_INT4]
    for i in range(2):
        x, matrix = inputs["ours"][i]
        _, codes, scales = inputs[mixed.XLA_INT4][i]
        assert codes.dtype == jnp.int4 and inputs["jnp"][i][1].shape == (256, 64)
        reference = mixed.MixedReference.of(SMALL, x, matrix.dequantize(jnp.float32))
        assert reference.error_over_bound(compiled[mixed.XLA_INT4](x, codes, scales)) <= 1
        dense = inputs["jnp"][i][1]
        largest = abs(dense.astype(jnp.float32)).reshape(2, 128, 64).max(1)
        error = abs(matrix.dequantize(jnp.float32) - dense.astype(jnp.float32)).reshape(2, 128, 64).max(1)
        assert (error <= largest / 15 * 1.1).all()  # half a step, and up to 8 roundings of a scale by 2^-8
    buffers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(inputs)]
    assert len(buffers) == len(set(buffers))


def test_dense_peer_is_autotuned_where_it_matters() -> None:
    names = {m: mixed.peer_names(dataclasses.replace(SMALL, m=m)) for m in (1, 2, 1024, 2048)}
    assert names == {
        1: ["jnp", "xla_int4"],
        2: ["jnp"],
        1024: ["jnp_cublas"],
        2048: ["jnp_cublas", "xla_int4"],
    }


def test_inputs_of_a_matrix_are_made_once_and_dropped_with_it() -> None:
    method = mixed.Mixed()
    first = method.inputs(SMALL, ["ours"])["ours"][0][1]
    assert method.inputs(dataclasses.replace(SMALL, m=1), ["ours"])["ours"][0][1] is first
    assert method.inputs(VARIANTS[0], ["ours"])[mixed.PLAIN][0][1] is first
    method.inputs(dataclasses.replace(SMALL, n=32), ["ours"])
    assert len(method.weights) == 1


@pytest.mark.parametrize("m", [3, 600])
@pytest.mark.parametrize("zeros", [False, True])
def test_judge_finds_what_kernels_get_wrong(m: int, zeros: bool) -> None:
    problem = MixedProblem(m, 64, 256, group_size=64, zeros=zeros)
    method = mixed.Mixed()
    x, matrix = method.inputs(problem, ["ours"])["ours"][0]
    reference = method.reference(problem, (x, matrix))
    ours = method.lower(problem, None).compile()(x, matrix)
    assert ours.shape == (m, 64) and reference.error_over_bound(ours) <= 1

    def of(weights: Any, dtype: Any) -> jax.Array:
        return jnp.dot(x, weights.dequantize(dtype), preferred_element_type=jnp.float32).astype(jnp.bfloat16)

    exact = x.astype(jnp.float32) @ matrix.dequantize(jnp.float32)
    assert reference.error_over_bound(exact.astype(jnp.bfloat16)) <= 1  # unrounded weights are right as well
    swapped = dataclasses.replace(matrix, scales=matrix.scales[::-1])
    nibble = dataclasses.replace(matrix, packed=matrix.packed.at[2, 1, 7].set(matrix.packed[2, 1, 7] ^ 8))
    for wrong in (swapped, nibble):
        assert reference.error_over_bound(of(wrong, jnp.bfloat16)) > 1
    if zeros:
        assert reference.error_over_bound(of(dataclasses.replace(matrix, zeros=None), jnp.bfloat16)) > 1
    last = int(np.asarray(reference.exact.rows)[-1])
    assert reference.error_over_bound(ours.at[last, 5].set(jnp.nan)) == np.inf
    assert (m > 3) == (len(set(np.asarray(reference.exact.rows).tolist())) == 512)


FAKE_US = {mixed.COMPOSED: 20.0, "jnp": 50.0, mixed.XLA_INT4: 100.0, mixed.PLAIN: 10.0, "jnp_cublas": 60.0}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[bench.Bench, list[set[str]]]]:
    """Makes drivers with a fake timer; also returns the list of what each comparison timed."""

    def make(kernel: str | None = None) -> tuple[bench.Bench, list[set[str]]]:
        timed: list[set[str]] = []

        def compare(fns: dict[str, Any], arg_sets: Any, **plan: Any) -> dict[str, _timing.Timing]:
            timed.append(set(fns))
            for name, fn in fns.items():
                fn(*arg_sets[name][1])
            return {name: _timing.Timing(FAKE_US[name], 1, 2, ("gemm",), 20, "cupti") for name in fns}

        monkeypatch.setattr(bench, "compare", compare)
        file = results.ResultFile.open(tmp_path / "gpu.json", HEADER, bench.make_rank([]))
        return bench.Bench(file, [], bench.Log(Console(quiet=True)), kernel, mixed.Mixed()), timed

    return make


def test_driver_saves_rows_and_goes_on_where_it_stopped(driver: Any, tmp_path: Path) -> None:
    big = dataclasses.replace(SMALL, m=2048)
    run, timed = driver()
    assert bench.run_all(run, [("int4", SMALL), ("int4", VARIANTS[0])], None) == 0
    assert timed == [{mixed.COMPOSED, "jnp", "xla_int4"}, {mixed.COMPOSED, "plain"}] and not run.log.failures
    run, timed = driver()
    assert bench.run_all(run, [("int4", problem) for problem in (SMALL, VARIANTS[0], big)], None) == 0
    assert timed == [{mixed.COMPOSED, "jnp_cublas", "xla_int4"}]
    document = json.loads((tmp_path / "gpu.json").read_text())
    results.validate(document)
    row = document["rows"][0]
    assert list(row) == list(results.MixedRow.__annotations__)
    assert results.any_problem_of(row) == SMALL and results.full_name(row) == mixed.COMPOSED
    assert row["peers_us"] == {"jnp": 50.0, "xla_int4": 100.0} and row["max_err_over_bound"] <= 1
    assert row["gbps"] == pytest.approx(SMALL.min_bytes / 20e-6 / 1e9, rel=1e-4)
    del row["group_size"]
    with pytest.raises(ValueError, match="has the fields"):
        results.validate(document)


def test_wrong_results_are_not_timed(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, timed = driver()
    monkeypatch.setattr(jaxgemm, "matmul", lambda x, matrix, kernel: 1.01 * (x @ matrix.dequantize(x.dtype)))
    bench.run_all(run, [("int4", SMALL)], None)
    assert not timed and "wrong result" in run.log.failures[0] and not run.results.document["rows"]


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main(["--list", "--suite", "int4", "--m", "1", "16", "--filter", "8192x28672 g128$"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["int4 bfloat16,int4 1x8192x28672 g128", "int4 bfloat16,int4 16x8192x28672 g128"]
    assert lines[2:] == ["int4 float16,int4 1x8192x28672 g128", "int4 float16,int4 16x8192x28672 g128"]
    for wrong in (["--suite", "int4", "--kernel", "a"], ["--out", "file"]):
        with pytest.raises(SystemExit):
            bench.parse_args(wrong)
    assert "--out" in capsys.readouterr().err
    assert bench.result_path("NVIDIA H200", True) == results.RESULTS / "int4" / "nvidia-h200.json"


def mixed_row(problem: MixedProblem, us: float, **peers_us: float) -> Any:
    return results.make_row("int4", problem, "int4_mma:8x128", (us, us - 1, us + 1), peers_us, 0.5)


def write(root: Path, rows: list[Any]) -> Path:
    path = root / "benchmarks" / "results" / "int4" / "nvidia-h200.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(results.dumps({**HEADER, "rows": rows}))
    return path


def test_tables_say_what_was_measured_and_what_was_not(tmp_path: Path) -> None:
    decode = [MixedProblem(1, n, k) for n, k in shapes.INT4_NK]
    rows = [mixed_row(problem, 10.0, jnp=20.0 * 2 ** (i % 2)) for i, problem in enumerate(decode[:6])]
    rows[0]["peers_us"]["xla_int4"] = 30.0
    rows += [mixed_row(MixedProblem(1024, *shapes.INT4_NK[0]), 100.0, jnp_cublas=90.0)]
    rows += [mixed_row(MixedProblem(16, 28672, 4096, zeros=True), 11.0, plain=10.0)]
    write(tmp_path, rows)
    documents = mixed_tables.load_mixed(tmp_path / "benchmarks" / "results")
    page = mixed_tables.int4_page("<!-- begin int4 -->old<!-- end int4 -->", list(documents.values()))
    assert "old" not in page and f"**{122 - 8} of the suite's 122 problems are not measured.**" in page
    assert "| 1 | 6 of 7 | 2.83 | 2.00 | 4.00 | 1 of 7 | 3.00 | 3.00 | 3.00 |" in page
    assert "| 1024 | 1 of 7 | 0.90 | 0.90 | 0.90 | 0 of 7 | n/a | n/a | n/a |" in page
    assert "| 4 | 0 of 7 | n/a | n/a | n/a | 0 of 7 | n/a | n/a | n/a |" in page
    share = 100 * decode[2].min_bytes / 10e-6 / 4296e9
    assert f"| 28672 x 4096 | 10.0 ({share:.0f} %) | n/a | n/a | n/a | n/a |" in page
    assert "| 8192 x 28672 | n/a | n/a | n/a | n/a | n/a |" in page
    assert "| 16 x 28672 x 4096 | 1.10 | n/a | n/a | n/a |" in page
    details = mixed_tables.mixed_device_page(next(iter(documents.values())))
    line = "| bfloat16,int4 1x6144x4096 g128 | `int4_mma:8x128` | 10.0 (9.0 to 11.0) |"
    assert line in details and "| 20.0 | n/a | 30.0 | n/a | 2.00 | n/a | 3.00 | n/a | 0.5 |" in details


def test_files_of_other_suites_are_refused(tmp_path: Path) -> None:
    row = results.make_row("dense", shapes.dense()[0], "fast:2", (1, 1, 1), {}, 0.5)
    path = write(tmp_path, [row])
    with pytest.raises(ValueError, match=f"{path.name}: it has rows of another suite"):
        mixed_tables.load_mixed(tmp_path / "benchmarks" / "results")


def test_nothing_measured_is_said(tmp_path: Path) -> None:
    text = "<!-- begin int4 --><!-- end int4 -->"
    assert "Not measured yet." in mixed_tables.int4_page(text, [])
    write(tmp_path, [])
    documents = mixed_tables.load_mixed(tmp_path / "benchmarks" / "results")
    assert "Not measured yet." in mixed_tables.int4_page(text, list(documents.values()))


def test_the_suite_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs: list[tuple[str, str, set[str], float]] = []

    def run_all(run: bench.Bench, work: Any, limit_s: float) -> int:
        folder = str(run.results.path.relative_to(tmp_path))
        runs.append((folder, type(run.method).__name__, {name for name, _ in work}, limit_s))
        return 0

    monkeypatch.setattr(bench, "RESULTS", tmp_path)
    monkeypatch.setattr(bench, "run_all", run_all)
    monkeypatch.setattr(bench, "current_header", lambda: HEADER)
    monkeypatch.setenv("JAXGEMM_TUNING", "shipped")
    assert bench.main(["--limit-s", "100"]) == 0
    (dense, mixed_run) = runs
    assert dense[:3] == ("nvidia-h200.json", "Dense", {"ladder", "dense", "random"})
    assert mixed_run[:3] == ("int4/nvidia-h200.json", "Mixed", {"int4"})
    assert mixed_run[3] <= dense[3] <= 100
    assert bench.main(["--suite", "int4", "--out", str(tmp_path / "a.json"), "--m", "1"]) == 0
    assert runs[2][:3] == ("a.json", "Mixed", {"int4"})
