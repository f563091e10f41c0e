"""The benchmark driver and its result file, with fake kernels and a fake timer. No GPU needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from rich.console import Console

from benchmarks import bench, checks, peers, results, shapes
from jaxgemm import _timing
from jaxgemm._files import device_slug
from tests.benchmark_data import HEADER


class FakeKernel(SimpleNamespace):
    """An entry of the registry."""

    layouts = ("NN",)
    tf32 = False
    highest = True
    cta_tile = (64, 64, 64)


DTYPES = [("bfloat16",) * 3, ("float32",) * 3]
REGISTRY: list[Any] = [
    FakeKernel(name="slow:1", family="slow", dtypes=DTYPES),
    FakeKernel(name="fast:1", family="fast", dtypes=DTYPES, layouts=["NN", "NT"]),
    FakeKernel(name="fast:2", family="fast", dtypes=DTYPES[:1]),
    FakeKernel(name="row:1", family="row", dtypes=DTYPES, cta_tile=(1, 64, 64)),
]
FAKE_US = {"slow:1": 80_000.0, "fast:1": 300.0, "fast:2": 200.0, "row:1": 150.0, "jnp": 100.0, "jnp_cublas": 110.0}


class FakeReference:
    """Finds "wrong" outputs wrong."""

    def error_over_bound(self, out: Any) -> float:
        return 7.0 if out == "wrong" else 0.25


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[bench.Bench, list[set[str]]]]:
    """Makes drivers whose kernels and timer are fake; also returns the list of what each comparison timed."""

    def make(wrong: Sequence[str] = (), kernel: str | None = None) -> tuple[bench.Bench, list[set[str]]]:
        timed: list[set[str]] = []

        def lower(problem: shapes.Problem, name: str | None) -> peers.Candidate:
            if problem.lhs_dtype == "int8":
                return peers.Candidate(None, lambda: None)  # type: ignore[arg-type, return-value]
            name = name or "fast:2"
            return peers.Candidate(name, lambda: lambda *args: "wrong" if name in wrong else "right")

        def compare(fns: dict[str, Any], arg_sets: Any, **plan: Any) -> dict[str, _timing.Timing]:
            timed.append(set(fns))
            return {name: _timing.Timing(FAKE_US[name], 1, 2, ("gemm",), 20, "cupti") for name in fns}

        monkeypatch.setattr(peers, "lower", lower)
        monkeypatch.setattr(peers, "compile_peer", lambda problem, options: lambda *args: "right")
        monkeypatch.setattr(checks.Reference, "of", lambda *args: FakeReference())
        monkeypatch.setattr(bench, "rotating_arg_sets", lambda make_args, nbytes: [((), ())])
        monkeypatch.setattr(bench, "compare", compare)
        file = results.ResultFile.open(tmp_path / "gpu.json", HEADER, bench.make_rank(REGISTRY))
        return bench.Bench(file, REGISTRY, bench.Log(Console(quiet=True)), kernel), timed

    return make


def work(*problems: shapes.Problem, name: shapes.Suite = "ladder") -> list[tuple[shapes.Suite, shapes.Problem]]:
    return [(name, problem) for problem in problems]


def test_driver_measures_every_configuration_and_resumes(driver: Any, tmp_path: Path) -> None:
    square = shapes.problem(4096, 4096, 4096)
    first, timed = driver(kernel="fast")
    assert bench.run_all(first, work(square), None) == 0
    assert timed == [{"fast:1", "fast:2", "jnp", "jnp_cublas"}]

    second, timed = driver()
    bench.run_all(second, work(square), None)
    bench.run_all(second, work(square), None)
    assert timed == [{"slow:1", "jnp", "jnp_cublas"}]
    document = json.loads((tmp_path / "gpu.json").read_text())
    results.validate(document)
    assert [results.full_name(row) for row in document["rows"]] == ["slow:1", "fast:1", "fast:2"]
    row = document["rows"][2]
    assert list(row) == list(results.Row.__annotations__)
    assert row["tflops"] == pytest.approx(2 * 4096**3 / 200e-6 / 1e12, rel=1e-4)
    assert row["gbps"] == pytest.approx(3 * 2 * 4096**2 / 200e-6 / 1e9, rel=1e-4)
    assert row["peers_us"] == {"jnp": 100.0, "jnp_cublas": 110.0} and row["max_err_over_bound"] == 0.25


def test_driver_takes_only_the_best_configurations_at_other_sizes(driver: Any) -> None:
    run, timed = driver()
    bench.run_all(run, work(shapes.problem(4096, 4096, 4096), shapes.problem(8192, 8192, 8192)), None)
    assert timed[1] == {"fast:2", "jnp", "jnp_cublas"}  # slow:1 would take 640 ms


def test_driver_takes_kernels_of_single_rows_for_such_only(driver: Any) -> None:
    run, timed = driver()
    bench.run_all(run, work(shapes.problem(1024, 1024, 1024), shapes.LADDER_ROWS[1]), None)
    assert timed == [{"slow:1", "fast:1", "fast:2", "row:1", "jnp", "jnp_cublas"}]


def test_driver_does_not_time_wrong_results_and_goes_on(driver: Any) -> None:
    run, timed = driver(wrong=["fast:2"])
    bench.run_all(run, work(shapes.problem(4096, 4096, 4096)), None)
    assert timed == [{"slow:1", "fast:1", "jnp", "jnp_cublas"}]
    assert run.log.failures == ["bfloat16 4096x4096x4096 NN, fast:2: wrong result, its error is 7 of the bound"]


def test_driver_refuses_the_hosts_clock(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = driver(kernel="slow")
    wall = _timing.Timing(1.0, 1.0, 1.0, (), 20, "wall")
    monkeypatch.setattr(bench, "compare", lambda fns, arg_sets, **plan: dict.fromkeys(fns, wall))
    bench.run_all(run, work(shapes.problem(4096, 4096, 4096)), None)
    assert run.results.document["rows"] == [] and "CUPTI" in run.log.failures[0]


def test_driver_records_the_choosers_kernel_and_skips_xlas_dot(driver: Any) -> None:
    run, timed = driver()
    problems = [shapes.problem(64, 64, 64), shapes.problem(64, 64, 64, "int8")]
    bench.run_all(run, work(*problems, name="dense"), None)
    assert timed == [{"fast:2", "jnp", "jnp_cublas"}]
    assert [(row["kernel"], row["config"]) for row in run.results.document["rows"]] == [("fast", "2")]


def test_driver_survives_a_failing_problem_and_stops_in_time(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = driver()
    problems = work(shapes.problem(4096, 4096, 4096), shapes.problem(1024, 1024, 1024))
    assert bench.run_all(run, problems, limit_s=-1) == 2

    def broken(*args: Any, **plan: Any) -> None:
        raise _timing.TimingError("no match")

    monkeypatch.setattr(bench, "compare", broken)
    assert bench.run_all(run, problems, None) == 0
    assert run.log.failures == ["ladder bfloat16 4096x4096x4096 NN: TimingError: no match"]
    monkeypatch.setattr(bench, "device_usable", lambda: False)
    assert bench.run_all(run, problems, None) == 2


def test_other_sources_start_a_new_file_and_other_drivers_are_named(driver: Any, tmp_path: Path) -> None:
    run, _ = driver()
    bench.run_all(run, work(shapes.problem(4096, 4096, 4096)), None)
    path, rank = tmp_path / "gpu.json", bench.make_rank(REGISTRY)
    newer = results.ResultFile.open(path, {**HEADER, "driver": "580.1"}, rank)
    assert newer.document["driver"] == "580.0, 580.1" and len(newer.document["rows"]) == 3
    changed = results.ResultFile.open(path, {**HEADER, "trees": {"cuda": "c" * 40, "jaxgemm": "b" * 40}}, rank)
    assert changed.document["rows"] == []


def test_schema_violations_are_found(driver: Any) -> None:
    run, _ = driver()
    bench.run_all(run, work(shapes.problem(4096, 4096, 4096)), None)
    document = run.results.document
    for change, message in (
        ({"us": -1.0}, "not positive"),
        ({"max_err_over_bound": float("nan")}, "is wrong"),
        ({"extra": 1}, "has the fields"),
    ):
        with pytest.raises(ValueError, match=message):
            results.validate(cast(Any, {**document, "rows": [{**document["rows"][0], **change}]}))
    with pytest.raises(ValueError, match="header fields"):
        results.validate({"rows": []})  # type: ignore[typeddict-item]


def test_command_line_protects_the_choosers_rows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        bench.parse_args(["--suite", "dense", "--kernel", "naive"])
    assert "--out" in capsys.readouterr().err
    assert bench.parse_args(["--suite", "ladder", "--kernel", "naive"]).suite == ["ladder"]
    assert bench.main(["--list", "--suite", "dense", "--filter", "64x512x512x512"]) == 0
    assert capsys.readouterr().out == "dense bfloat16 64x512x512x512 NN\n"


def test_header_fields() -> None:
    assert device_slug("NVIDIA H200") == "nvidia-h200"
    assert results._cuda("PJRT C API\ncuda 13000") == "13.0"
    assert results._cuda("cuda 12090") == "12.9"
    header = results.current_header()
    assert sorted(header) == sorted(HEADER) and header["jax"] == jax.__version__


@pytest.mark.parametrize("activation", [None, "silu", "gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("bias", [False, True])
def test_epilogues_are_checked_and_compared(bias: bool, activation: shapes.Activation | None) -> None:
    """The peer is right, and neither a forgotten bias nor another activation would pass."""
    problem = shapes.problem(40, 24, 16, "float32", precision="highest", bias=bias, activation=activation)
    args = problem.operands(0)
    assert len(args) == 2 + bias
    reference = checks.Reference.of(problem, *args)
    assert reference.error_over_bound(peers.compile_peer(problem, {})(*args)) <= 1
    lhs, rhs, *_ = args
    product = lax.dot_general(lhs, rhs, problem.dimension_numbers, precision="highest")
    right = not bias and activation is None
    assert (reference.error_over_bound(product) <= 1) == right
    assert reference.error_over_bound(jax.nn.relu(product)) > 1
    ours = peers.lower(problem, None).compile()(*args)
    assert reference.error_over_bound(ours) <= 1


def test_checks_take_random_rows_of_huge_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_WHOLE_CHECK_MACS", 1000)
    monkeypatch.setattr(checks, "CHECKED_ROWS", 8)
    for layout in shapes.LAYOUTS:
        problem = shapes.problem(40, 24, 16, "float32", layout=layout, precision="highest")
        lhs, rhs = problem.operands(0)
        out = peers.compile_peer(problem, {})(lhs, rhs)
        reference = checks.Reference.of(problem, lhs, rhs)
        assert reference.rows is not None and reference.exact.shape == (8, 24)
        assert reference.error_over_bound(out) <= 1
        assert reference.error_over_bound(out.at[int(reference.rows[3]), 5].add(0.01)) > 1
        assert reference.error_over_bound(out.at[int(reference.rows[0]), 0].set(jnp.nan)) > 1
