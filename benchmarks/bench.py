"""Measures jaxgemm against its peers: ``python -m benchmarks.bench --suite ladder --suite dense``.

Every kernel is checked against float64 before it is timed. Rows are saved as they are measured, and a run with the
same sources, device and jax goes on where the last one stopped. Exit status 1 means that something failed.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import checks, peers
from benchmarks.mixed import Mixed
from benchmarks.results import (
    MIXED_SUITE,
    RESULTS,
    ResultFile,
    Row,
    any_problem_of,
    current_header,
    full_name,
    make_row,
    problem_of,
)
from benchmarks.shapes import SUITES, AnyProblem, Problem, Suite, every_configuration, suite
from benchmarks.tables import fastest_of_families
from jaxgemm._files import device_slug
from jaxgemm._timing import Args, compare, rotating_arg_sets
from jaxgemm._tuning import SETTING as TUNING_SETTING

ROUNDS = 20
MIN_ROUNDS = 7
BUDGET_S = 6.0
MAX_LADDER_US = 60_000.0
"""At sizes other than LADDER_SIZE, kernels that are expected to take longer are left out."""


@dataclass
class Log:
    """What happened besides rows: failures decide the exit status, notes are for the reader."""

    console: Console
    failures: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Prints a remark."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def fail(self, what: str, error: Exception | str) -> None:
        """Records and prints a failure; the run goes on."""
        lines = str(error).strip().splitlines() or [""]
        kind = f"{type(error).__name__}: " if isinstance(error, Exception) else ""
        self.failures.append(f"{what}: {kind}{lines[0][:300]}")
        self.note(f"FAILED {self.failures[-1]}")


Inputs = Sequence[Args] | Mapping[str, Sequence[Args]]


class Judge(Protocol):
    """Knows what a result should be."""

    def error_over_bound(self, out: Any, /) -> float: ...


class Method(Protocol):
    """How the problems of a suite are measured."""

    def lower(self, problem: Any, kernel: str | None, /) -> peers.Candidate: ...
    def inputs(self, problem: Any, names: Sequence[str], /) -> Inputs: ...
    def reference(self, problem: Any, args: Args, /) -> Judge: ...
    def peer_compilers(self, problem: Any, kernel: str | None, /) -> dict[str, Callable[[], Callable[..., Any]]]: ...
    def done(self, problem: Any, /) -> None: ...


class Dense:
    """Products of two arrays, which all functions read."""

    def lower(self, problem: Problem, kernel: str | None) -> peers.Candidate:
        return peers.lower(problem, kernel)

    def inputs(self, problem: Problem, names: Sequence[str]) -> Sequence[Args]:
        return rotating_arg_sets(problem.operands, problem.input_bytes)

    def reference(self, problem: Problem, args: Args) -> Judge:
        return checks.Reference.of(problem, *args)

    def peer_compilers(self, problem: Problem, kernel: str | None) -> dict[str, Callable[[], Callable[..., Any]]]:
        return {name: partial(peers.compile_peer, problem, options) for name, options in peers.PEERS.items()}

    def done(self, problem: Problem) -> None:
        jax.clear_caches()  # executables hold device memory


@dataclass(frozen=True)
class Bench:
    """One run of the driver."""

    results: ResultFile
    registry: Sequence[peers.KernelInfo]
    log: Log
    kernel: str | None = None  # family or full name, if only that one is wanted
    method: Method = field(default_factory=Dense)

    def requested(self, suite_name: Suite, problem: AnyProblem) -> list[str | None]:
        """Kernels to ask jaxgemm for on a problem; None stands for the chooser's."""
        if suite_name != "ladder" or not isinstance(problem, Problem):
            return [self.kernel]
        infos = [info for info in self.registry if peers.on_rung(info, problem) and self.kernel_wanted(info)]
        if every_configuration(problem):
            return [info.name for info in infos]
        best = self._ladder_best(problem)
        return [info.name for info in infos if info.name in best]

    def kernel_wanted(self, info: peers.KernelInfo) -> bool:
        """Whether --kernel admits the kernel."""
        return self.kernel in (None, info.name, info.family)

    def _ladder_best(self, problem: Problem) -> set[str]:
        """The fastest configuration of each family at LADDER_SIZE, unless it would take too long here."""
        best = fastest_of_families(self.results.document["rows"], problem).values()
        return {full_name(row) for row in best if row["us"] * problem.flops / problem_of(row).flops <= MAX_LADDER_US}

    def run(self, suite_name: Suite, problem: AnyProblem) -> None:
        """Checks, times and saves what is missing for one problem."""
        missing = self._lower_missing(suite_name, problem)
        if not missing:
            return
        inputs = self.method.inputs(problem, list(missing))
        ours, errors = self._correct(problem, missing, inputs)
        if not ours:
            return
        others = self._peers(problem)
        timings = compare({**ours, **others}, inputs, rounds=ROUNDS, min_rounds=MIN_ROUNDS, budget_s=BUDGET_S)
        peers_us = {name: timings[name].us for name in others}
        for name in ours:
            timing = timings[name]
            if timing.source != "cupti":
                self.log.fail(f"{problem.label}, {name}", "no device time: CUPTI is not available")
                continue
            us = (timing.us, timing.us_p10, timing.us_p90)
            row = make_row(suite_name, problem, name, us, peers_us, errors[name])
            self.results.add(row)
            self.log.note(_summary(row))

    def _lower_missing(self, suite_name: Suite, problem: AnyProblem) -> dict[str, peers.Candidate]:
        """Traced candidates without a row yet, by full kernel name."""
        missing: dict[str, peers.Candidate] = {}
        for requested in self.requested(suite_name, problem):
            if requested is not None and (suite_name, problem, requested) in self.results.keys:
                continue
            try:
                candidate = self.method.lower(problem, requested)
            except ValueError as error:
                self.log.note(f"skipped {problem.label}, {requested}: {error}")
                continue
            if candidate.kernel is None:
                self.log.note(f"skipped {problem.label}: jaxgemm has no kernel for it and would run XLA's dot")
            elif (suite_name, problem, candidate.kernel) not in self.results.keys:
                missing[candidate.kernel] = candidate
        return missing

    def _correct(
        self, problem: AnyProblem, candidates: dict[str, peers.Candidate], inputs: Inputs
    ) -> tuple[dict[str, Callable[..., Any]], dict[str, float]]:
        """Compiles the candidates and keeps those whose error is within the bound."""
        args = inputs[next(iter(candidates))][0] if isinstance(inputs, Mapping) else inputs[0]
        reference = self.method.reference(problem, args)
        fns: dict[str, Callable[..., Any]] = {}
        errors: dict[str, float] = {}
        for name, candidate in candidates.items():
            try:
                fn = candidate.compile()
                error = reference.error_over_bound(fn(*args))
            except Exception as exception:
                self.log.fail(f"{problem.label}, {name}", exception)
                continue
            if error <= 1:
                fns[name], errors[name] = fn, error
            else:
                self.log.fail(f"{problem.label}, {name}", f"wrong result, its error is {error:.3g} of the bound")
        return fns, errors

    def _peers(self, problem: AnyProblem) -> dict[str, Callable[..., Any]]:
        """Compiled peers; one that cannot be compiled for the problem is left out."""
        compiled: dict[str, Callable[..., Any]] = {}
        for name, compile_peer in self.method.peer_compilers(problem, self.kernel).items():
            try:
                compiled[name] = compile_peer()
            except Exception as error:
                self.log.note(f"no {name} for {problem.label}: {str(error).splitlines()[0][:200]}")
        return compiled


def _summary(row: Row) -> str:
    ratios = ", ".join(f"{us / row['us']:.2f} x {name}" for name, us in row["peers_us"].items())
    time_text = f"{row['us']:.1f} us ({row['tflops']:.1f} TFLOP/s, {row['gbps']:.0f} GB/s)"
    return f"{any_problem_of(row).label}, {full_name(row)}: {time_text}; {ratios}; error {row['max_err_over_bound']}"


def make_rank(registry: Sequence[peers.KernelInfo]) -> Callable[[Row], tuple[int, int, int]]:
    """Sort key of rows: suite, problem and kernel in the order of their lists."""
    problems = {(name, problem): i for name in SUITES for i, problem in enumerate(suite(name))}
    kernels = {info.name: i for i, info in enumerate(registry)}

    def rank(row: Row) -> tuple[int, int, int]:
        suites = {name: i for i, name in enumerate(SUITES)}
        problem_rank = problems.get((row["suite"], any_problem_of(row)), len(problems))  # type: ignore[arg-type]
        return suites.get(row["suite"], len(suites)), problem_rank, kernels.get(full_name(row), len(kernels))

    return rank


def device_usable() -> bool:
    """False once a kernel has broken the CUDA context: nothing can be measured in this process any more."""
    try:
        return float(jax.block_until_ready(jax.numpy.ones(8) + 1)[0]) == 2.0
    except Exception:
        return False


def run_all(bench: Bench, work: Sequence[tuple[Suite, AnyProblem]], limit_s: float | None) -> int:
    """Runs the work until done or ``limit_s`` seconds have passed; returns how many problems are left."""
    begin = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=bench.log.console) as progress:
        task = progress.add_task("benchmarks", total=len(work))
        for done, (suite_name, problem) in enumerate(work):
            if limit_s is not None and time.perf_counter() - begin > limit_s:
                return len(work) - done
            progress.update(task, description=f"{suite_name} {problem.label}")
            try:
                bench.run(suite_name, problem)
            except Exception as error:
                bench.log.fail(f"{suite_name} {problem.label}", error)
                if not device_usable():
                    bench.log.note("the device does not answer any more, stopping")
                    return len(work) - done
            bench.method.done(problem)
            progress.advance(task)
    return 0


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="repeatable; default: all suites")
    parser.add_argument("--filter", metavar="REGEX", default="", help='of problems, e.g. "bfloat16 4096x"')
    parser.add_argument("--kernel", metavar="NAME", help="family or family:config; with suite dense, needs --out")
    parser.add_argument("--m", metavar="M", type=int, nargs="+", help="only problems with these numbers of rows")
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/results/[int4/]<device>.json")
    parser.add_argument("--limit-s", type=float, metavar="SECONDS", help="begin no further problem after this long")
    parser.add_argument("--list", action="store_true", help="print the problems and stop")
    args = parser.parse_args(argv)
    args.suite = [name for name in SUITES if not args.suite or name in args.suite]
    if args.kernel and args.suite != ["ladder"] and args.out is None:
        parser.error("the rows of the default files are the chooser's, but for the ladder: give --out for a named one")
    if args.out and MIXED_SUITE in args.suite and args.suite != [MIXED_SUITE]:
        parser.error(f"rows of suite {MIXED_SUITE} have a file of their own: give --out and one --suite at a time")
    return args


def result_path(device: str, mixed: bool) -> Path:
    """Where the rows of a device are kept."""
    return (RESULTS / MIXED_SUITE if mixed else RESULTS) / f"{device_slug(device)}.json"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = parse_args(argv)
    begin = time.perf_counter()
    pattern = re.compile(args.filter)
    work = [
        (name, problem)
        for name in args.suite
        for problem in suite(name)
        if pattern.search(problem.label) and (args.m is None or problem.m in args.m)
    ]
    if args.list:
        print("\n".join(f"{name} {problem.label}" for name, problem in work))
        return 0
    os.environ[TUNING_SETTING] = "shipped"  # a cache of this machine's user is no part of the sources
    header = current_header()
    registry = peers.registry()
    log = Log(Console())
    log.note(f"{header['device']}, driver {header['driver']}, CUDA {header['cuda']}, jax {header['jax']}")
    for mixed in (False, True):
        part = [(name, problem) for name, problem in work if (name == MIXED_SUITE) == mixed]
        if not part:
            continue
        out = args.out or result_path(header["device"], mixed)
        results = ResultFile.open(out, header, make_rank(registry))
        log.note(f"{len(part)} problems; {len(results.document['rows'])} rows of these sources in {out}")
        bench = Bench(results, registry, log, args.kernel, Mixed() if mixed else Dense())
        spent = time.perf_counter() - begin
        left = run_all(bench, part, None if args.limit_s is None else args.limit_s - spent)
        rows, seconds = len(results.document["rows"]), time.perf_counter() - begin
        log.note(f"{rows} rows in {out}, {left} problems left, {len(log.failures)} failures, {seconds:.0f} s")
    for failure in log.failures:
        log.note(f"  {failure}")
    return 1 if log.failures else 0


if __name__ == "__main__":
    sys.exit(main())
