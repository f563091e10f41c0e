"""Hardware counters: what is profiled, reading ncu's table, and the file. No GPU and no ncu needed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import counter_file, counters, peers, results, shapes
from tests.benchmark_data import HEADER

BFLOAT16 = shapes.problem(4096, 4096, 4096)
HIGHEST = shapes.problem(4096, 4096, 4096, "float32", precision="highest")
DEFAULT = shapes.problem(4096, 4096, 4096, "float32")
ROW_HIGHEST, ROW = shapes.LADDER_ROWS

ALL: list[Any] = [
    SimpleNamespace(
        name=name,
        family=name.partition(":")[0],
        dtypes=[(dtype,) * 3 for dtype in dtypes],
        layouts=["NN"],
        tf32=tf32,
        highest=True,
        cta_tile=tile,
    )
    for name, dtypes, tf32, tile in (
        ("simt:1", ["float32"], False, (32, 32, 8)),
        ("mma:64x64x32", ["bfloat16", "float32"], True, (64, 64, 32)),
        ("mma:128x128x32", ["bfloat16", "float32"], True, (128, 128, 32)),
        ("row:a", ["bfloat16", "float32"], False, (1, 4, 8)),
        ("row:b", ["bfloat16", "float32"], False, (1, 8, 8)),
    )
]
REGISTRY = [info for info in ALL if info.family != "row"]
ROWS = [
    results.make_row("ladder", problem, name, (us, us, us), {}, 0.5)
    for problem, name, us in (
        (BFLOAT16, "mma:64x64x32", 300.0),
        (BFLOAT16, "mma:128x128x32", 200.0),
        (HIGHEST, "mma:64x64x32", 900.0),
        (HIGHEST, "simt:1", 2000.0),
        (ROW, "row:a", 20.0),
        (ROW, "row:b", 10.0),
    )
]

NCU = """==PROF== Connected to process 4711 (/usr/bin/python3)
==PROF== Profiling "simt_kernel" - 0: 0%....50%....100% - 9 passes
"ID","Process ID","Process Name","Kernel Name","Block Size","Metric Name","Metric Unit","Metric Value"
"0","4711","python3","void jaxgemm::(anonymous namespace)::simt_kernel<(bool)0>(int, int)","(256, 1, 1)",\
"gpu__time_duration.sum","ns","2,001,504"
"0","4711","python3","void jaxgemm::(anonymous namespace)::simt_kernel<(bool)0>(int, int)","(256, 1, 1)",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum","","0"
"0","4711","python3","void jaxgemm::(anonymous namespace)::simt_kernel<(bool)0>(int, int)","(256, 1, 1)",\
"lts__t_sector_hit_rate.pct","%","n/a"
"1","4711","python3","void jaxgemm::(anonymous namespace)::mma_kernel<(bool)0>(int, int)","(128, 1, 1)",\
"gpu__time_duration.sum","us","201.5"
"1","4711","python3","void jaxgemm::(anonymous namespace)::mma_kernel<(bool)0>(int, int)","(128, 1, 1)",\
"l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum","","1,234,567"
==PROF== Disconnected from process 4711
"""
METRICS = {
    "duration_us": "gpu__time_duration.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct",
    "shared_load_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
}


def plan(**wanted: Any) -> list[tuple[str, str]]:
    arguments = {"size": 4096, "dtype": None, "kernel": None, **wanted}
    calls = counters.make_plan(ALL, ROWS, **arguments)
    return [(call.kernel, call.problem.label) for call in calls]


def test_plan_takes_the_fastest_configurations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "lower", lambda problem, name: SimpleNamespace(kernel=f"{name}:chosen"))
    assert plan() == [("simt:1", HIGHEST.label), ("mma:128x128x32", BFLOAT16.label), ("row:b", ROW.label)]
    assert plan(size=1024)[1:] == [("mma:128x128x32", "bfloat16 1024x1024x1024 NN"), ("row:b", ROW.label)]
    # No row says which is the fastest at DEFAULT.
    assert plan(dtype="float32") == [
        ("simt:1", HIGHEST.label),
        ("mma:64x64x32", HIGHEST.label),
        ("mma:chosen", DEFAULT.label),
        ("row:chosen", ROW_HIGHEST.label),
    ]
    assert plan(kernel="mma:64x64x32") == [("mma:64x64x32", BFLOAT16.label)]
    assert plan(kernel="mma") == [("mma:128x128x32", BFLOAT16.label)]
    assert plan(kernel="other") == []


def test_metrics_that_the_gpu_lacks_are_left_out() -> None:
    known = {"gpu__time_duration", "sm__inst_executed_pipe_tensor", "sm__pipe_tensor_op_hmma_cycles_active"}
    metrics, missing = counter_file.available_metrics(known)
    assert metrics == {
        "duration_us": "gpu__time_duration.sum",
        "tensor_pipe_pct": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
        "registers_per_thread": "launch__registers_per_thread",
    }
    assert len(metrics) + len(missing) == len(counter_file.COUNTERS)


def test_counters_have_names_and_metrics_of_their_own() -> None:
    keys = [counter.key for counter in counter_file.COUNTERS]
    metrics = [metric for counter in counter_file.COUNTERS for metric in counter.metrics]
    assert len(set(keys)) == len(keys) and len(set(metrics)) == len(metrics)


def test_ncus_table_is_read() -> None:
    simt, mma = counter_file.launches_of(NCU)
    assert "simt_kernel<" in simt.kernel and "mma_kernel<" in mma.kernel
    row = counter_file.make_counter_row(HIGHEST, "simt:1", simt, METRICS)
    assert row["counters"] == {"duration_us": 2001.5, "shared_load_conflicts": 0.0}
    row = counter_file.make_counter_row(BFLOAT16, "mma:1", mma, METRICS)
    assert row["counters"] == {"duration_us": 201.5, "shared_load_conflicts": 1234600.0}
    assert (results.full_name(row), results.problem_of(row)) == ("mma:1", BFLOAT16)
    with pytest.raises(ValueError, match="ERR_NVGPUCTRPERM"):
        counter_file.launches_of("==ERROR== ERR_NVGPUCTRPERM\n")


def fake_ncu(monkeypatch: pytest.MonkeyPatch, log: str, status: int = 0) -> list[list[str]]:
    commands: list[list[str]] = []

    def run(command: list[str], **kwargs: Any) -> SimpleNamespace:
        commands.append(command)
        if "--query-metrics" in command:
            bases = "\n".join(f"{metric.split('.')[0]}   What it counts." for metric in METRICS.values())
            return SimpleNamespace(stdout=f"Device NVIDIA H200 (GH100)\n{bases}\n")
        Path(command[command.index("--log-file") + 1]).write_text(log)
        assert len(json.loads(Path(command[-1]).read_text())) == 2
        return SimpleNamespace(returncode=status, stdout="said", stderr="cried")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.fixture
def two_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Arguments for a run over REGISTRY with a results file of ROWS."""
    (tmp_path / "nvidia-h200.json").write_text(results.dumps({**HEADER, "rows": ROWS}))
    monkeypatch.setattr(counters, "RESULTS", tmp_path)
    monkeypatch.setattr(counters, "current_header", lambda: HEADER)
    monkeypatch.setattr(peers, "registry", lambda: REGISTRY)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    return []


def test_a_run_writes_the_file_and_keeps_what_it_did_not_measure(
    two_kernels: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commands = fake_ncu(monkeypatch, NCU)
    assert counters.main(two_kernels) == 0
    command = commands[1]
    assert command[command.index("--launch-skip") + 1] == "2"
    assert command[command.index("--kernel-name") + 1] == "regex:(simt|mma)_kernel<"
    path = tmp_path / "nvidia-h200-counters.json"
    first = counter_file.load_counters(path)
    assert [row["kernel"] for row in first["rows"]] == ["simt", "mma"]

    assert counters.main(["--size", "1024"]) == 0
    assert len(counter_file.load_counters(path)["rows"]) == 4
    monkeypatch.setattr(counters, "current_header", lambda: {**HEADER, "trees": {"cuda": "c" * 40, "jaxgemm": ""}})
    assert counters.main([]) == 0
    assert len(counter_file.load_counters(path)["rows"]) == 2


@pytest.mark.parametrize(
    ("log", "status", "message"),
    [
        (NCU, 9, "status 9"),
        (NCU.replace("mma_kernel", "other_kernel"), 0, "not simt:1, mma:128x128x32"),
        ("nothing", 0, "printed no table"),
    ],
)
def test_a_run_that_profiled_something_else_fails(
    log: str,
    status: int,
    message: str,
    two_kernels: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake_ncu(monkeypatch, log, status)
    assert counters.main(two_kernels) == 1
    assert message in capsys.readouterr().err


def test_schema_violations_are_found() -> None:
    simt, _ = counter_file.launches_of(NCU)
    row = counter_file.make_counter_row(HIGHEST, "simt:1", simt, METRICS)
    document: Any = {**HEADER, "metrics": METRICS, "rows": [row]}
    counter_file.validate_counters(document)
    for change, message in (
        ({"rows": [{**row, "counters": {"duration_us": float("nan")}}]}, "no numbers"),
        ({"rows": [{**row, "counters": {"dram_pct": 1.0}}]}, "not given"),
        ({"rows": [{**row, "extra": 1}]}, "has the fields"),
        ({"metrics": {"other": "a"}}, "no counters other"),
        ({"extra": 1}, "header fields"),
    ):
        with pytest.raises(ValueError, match=message):
            counter_file.validate_counters(cast(Any, {**document, **change}))


def test_the_target_runs_every_call_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from benchmarks import counters_target

    ran: list[str] = []

    def lower(problem: shapes.Problem, name: str) -> peers.Candidate:
        return peers.Candidate(name, lambda: lambda lhs, rhs: ran.append(name))

    monkeypatch.setattr(peers, "lower", lower)
    small = [dataclasses.replace(problem, m=4, n=4, k=4) for problem in (HIGHEST, BFLOAT16)]
    calls = [counters.Call(problem, name) for problem, name in zip(small, ("simt:1", "mma:1"), strict=True)]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps([dataclasses.asdict(call) for call in calls]))
    counters_target.main(file)
    assert ran == ["simt:1", "mma:1"] * 2
