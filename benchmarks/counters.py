"""Hardware counters of the ladder's kernels, read by Nsight Compute: ``python -m benchmarks.counters``.

One ``ncu`` process profiles one call of each kernel, after a call that is not profiled. ``ncu`` empties the caches and
replays the kernel as often as the counters need. The counters go to ``benchmarks/results/<device>-counters.json``;
what they are called there is in COUNTERS, by which metric they were read is in the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks import peers
from benchmarks.counter_file import (
    COUNTERS,
    CounterDocument,
    CounterRow,
    available_metrics,
    counter_path,
    launches_of,
    load_counters,
    make_counter_row,
    merged,
)
from benchmarks.results import RESULTS, Row, current_header, full_name, problem_of
from benchmarks.shapes import LADDER_ROWS, LADDER_SIZE, OUT_DTYPES, Problem, ladder
from benchmarks.tables import fastest_of_families
from jaxgemm._files import device_slug, dumps

TARGET = "benchmarks.counters_target"
NCU_LIMIT_S = 300


@dataclasses.dataclass(frozen=True)
class Call:
    """One kernel on one problem."""

    problem: Problem
    kernel: str  # full name


def problems_of(info: peers.KernelInfo, size: int, dtype: str | None) -> list[Problem]:
    """The ladder's problems to count a kernel on: those of a dtype, or else one that stands for the kernel. Squares, of
    the given size, or single rows, which stay as they are, for kernels that compute such.
    """
    able = [problem for problem in ladder() if peers.on_rung(info, problem)]
    found = [problem for problem in able if problem.m == LADDER_SIZE] or [p for p in able if p in LADDER_ROWS]
    if dtype is None:
        found = [problem for problem in found if problem.lhs_dtype == "bfloat16"] or found[:1]
    wanted = [problem for problem in found if dtype in (None, problem.lhs_dtype)]
    return [
        problem if problem in LADDER_ROWS else dataclasses.replace(problem, m=size, n=size, k=size)
        for problem in wanted
    ]


def make_plan(
    registry: Sequence[peers.KernelInfo], rows: Sequence[Row], size: int, dtype: str | None, kernel: str | None
) -> list[Call]:
    """The calls to profile: of each family its fastest configuration, or else the chooser's; or a kernel by name."""
    calls = []
    for info in registry:
        if kernel not in (None, info.name, info.family):
            continue
        for problem in problems_of(info, size, dtype):
            name = info.name
            if kernel != info.name:
                best = fastest_of_families(rows, problem).get(info.family)
                name = full_name(best) if best else peers.lower(problem, info.family).kernel or info.name
            calls.append(Call(problem, name))
    return list(dict.fromkeys(calls))


def ncu_command(calls: Sequence[Call], metrics: Iterable[str], log: Path, plan: Path) -> list[str]:
    """The command that profiles the second launch of every kernel."""
    families = "|".join(dict.fromkeys(call.kernel.partition(":")[0] for call in calls))
    return [
        *("ncu", "--clock-control", "none", "--csv", "--print-units", "base", "--log-file", str(log)),
        *("--kernel-name-base", "demangled", "--print-kernel-base", "demangled"),
        *("--kernel-name", f"regex:({families})_kernel<"),
        *("--launch-skip", str(len(calls)), "--launch-count", str(len(calls))),
        *("--metrics", ",".join(metrics)),
        *(sys.executable, "-m", TARGET, str(plan)),
    ]


def child_environment() -> dict[str, str]:
    """Kernels must be launched one by one, not as a CUDA graph."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_enable_command_buffer="
    return {**os.environ, "XLA_FLAGS": flags.strip()}


def profile(calls: Sequence[Call], metrics: Mapping[str, str]) -> list[CounterRow]:
    """Runs ``ncu``; RuntimeError with what it said if it did not profile every call."""
    with tempfile.TemporaryDirectory() as directory:
        log, plan = Path(directory) / "ncu.csv", Path(directory) / "plan.json"
        plan.write_text(json.dumps([dataclasses.asdict(call) for call in calls]))
        done = subprocess.run(
            ncu_command(calls, metrics.values(), log, plan),
            env=child_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=NCU_LIMIT_S,
        )
        text = log.read_text() if log.exists() else ""
    if done.returncode:
        raise RuntimeError(f"ncu failed with status {done.returncode}:\n{(text + done.stdout + done.stderr)[-3000:]}")
    launches = launches_of(text)
    names = [launch.kernel for launch in launches]
    if len(launches) != len(calls) or not all(
        re.search(rf"\b{call.kernel.partition(':')[0]}_kernel<", name) for call, name in zip(calls, names, strict=True)
    ):
        wanted = ", ".join(call.kernel for call in calls)
        raise RuntimeError(f"ncu profiled {names}, not {wanted}:\n{(text + done.stdout + done.stderr)[-3000:]}")
    return [
        make_counter_row(call.problem, call.kernel, launch, metrics)
        for call, launch in zip(calls, launches, strict=True)
    ]


def known_metrics() -> set[str]:
    """The base names that ``ncu`` lists for this machine's GPU."""
    done = subprocess.run(
        ["ncu", "--query-metrics"], capture_output=True, text=True, check=True, timeout=NCU_LIMIT_S
    ).stdout
    return set(re.findall(r"^\s*(\w+__\w+)", done, re.MULTILINE))


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.counters", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", type=int, default=LADDER_SIZE, help="M = N = K")
    parser.add_argument(
        "--dtype",
        choices=OUT_DTYPES,
        help="of the operands, float32 at each precision; default: bfloat16, and float32 of kernels that know no other",
    )
    parser.add_argument("--kernel", metavar="NAME", help="family or family:config; default: all families")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/results/<device>-counters.json")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = parse_args(argv)
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # this process and the profiled one share the GPU
    header = current_header()
    results = RESULTS / f"{device_slug(header['device'])}.json"
    rows: list[Row] = json.loads(results.read_text())["rows"] if results.exists() else []
    calls = make_plan(peers.registry(), rows, args.size, args.dtype, args.kernel)
    if not calls:
        print("no kernel takes that", file=sys.stderr)
        return 1
    try:
        metrics, missing = available_metrics(known_metrics())
        for counter in missing:
            print(f"no {counter.key}: ncu knows none of {', '.join(counter.metrics)} here")
        found = profile(calls, metrics)
    except (OSError, RuntimeError, ValueError, subprocess.SubprocessError) as error:
        print(f"cannot read counters: {error}", file=sys.stderr)
        return 1
    out = args.out or counter_path(results)
    document: CounterDocument = {**header, "metrics": metrics, "rows": found}
    order = [info.name for info in peers.registry()]
    document = merged(load_counters(out) if out.exists() else None, document, order)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(dumps(document))
    for row in found:
        values = ", ".join(f"{counter.key} {row['counters'].get(counter.key, 'n/a')}" for counter in COUNTERS)
        print(f"{full_name(row)} on {problem_of(row).label}: {values}")
    print(f"{len(found)} kernels profiled, {len(document['rows'])} in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
