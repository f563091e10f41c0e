"""Host time of a jitted call, of jaxgemm and of ``jnp.dot``: ``python -m benchmarks.host_cost``.

The figures go to ``benchmarks/results/host/<device>.json``; docs/host_cost.md says what they mean. Needs a GPU: without
one both sides would be XLA's dot on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from benchmarks import peers
from benchmarks.host_file import DIRECTORY, FIGURES, MODES, HostDocument, HostRow, validate_host
from benchmarks.results import RESULTS, current_header
from benchmarks.shapes import Problem, problem
from jaxgemm._files import device_slug, dumps

CALLS = 1000
BURST = 20
"""Few enough that no queue fills up, whatever the device takes for a call."""
ROUNDS = 15
WARM_UP_CALLS = 100
CHAIN = 8

Function = Callable[..., Any]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Case:
    """A problem, or ``chain`` of them, each product the next one's lhs; small, so that the host takes the time."""

    label: str
    problem: Problem
    modes: tuple[str, ...] = ("default",)
    chain: int = 1

    def operands(self) -> tuple[jax.Array, ...]:
        """Arrays committed to the device, as those of a user's model are."""
        operands = self.problem.operands(0)
        return jax.block_until_ready(jax.device_put(operands, operands[0].device))

    def jitted(self, variant: str, mode: str) -> jax.stages.Wrapped:
        """The function as a user calls it. Options are given to jit, as a compiled object is called in another way."""
        matmul = _ours if variant == "jaxgemm" else _theirs

        def function(x: jax.Array, w: jax.Array, bias: jax.Array | None = None) -> jax.Array:
            for _ in range(self.chain):
                x = matmul(x, w, bias, self.problem.activation)
            return x

        options = {**peers.PEERS.get(variant, {}), **MODES[mode]}
        return jax.jit(function, compiler_options=options or None)


def _ours(x: jax.Array, w: jax.Array, bias: jax.Array | None, activation: str | None) -> jax.Array:
    return jaxgemm.matmul(x, w, bias=bias, activation=activation)


def _theirs(x: jax.Array, w: jax.Array, bias: jax.Array | None, activation: str | None) -> jax.Array:
    product = jnp.dot(x, w)
    return peers.activated(product if bias is None else product + bias, activation)


def cases() -> list[Case]:
    """What is measured, in the order of the table."""
    small, row, padded = problem(128, 128, 128), problem(1, 4096, 4096), problem(129, 131, 137)
    fused = problem(128, 128, 128, bias=True, activation="gelu_tanh")
    float32 = problem(128, 128, 128, "float32")
    return [
        Case(small.label, small, modes=("default", "on")),
        Case(row.label, row),
        Case(f"{small.label}, bias and gelu", fused),
        Case(float32.label, float32),
        Case(padded.label, padded),
        Case(f"{CHAIN} x {small.label}", small, modes=tuple(MODES), chain=CHAIN),
    ]


def timed(
    fn: Function, args: Sequence[Any], calls: int, clock: Callable[[], float], wait: Callable[[Any], Any]
) -> tuple[float, float]:
    """Seconds until the last of some calls returned, and until its result was there."""
    out = None
    begin = clock()
    for _ in range(calls):
        out = fn(*args)
    returned = clock()
    wait(out)
    return returned - begin, clock() - begin


def measure(
    fns: Mapping[Key, Function],
    args: Sequence[Any],
    *,
    calls: int = CALLS,
    burst: int = BURST,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[Any], Any] = jax.block_until_ready,
) -> dict[Key, dict[str, list[float]]]:
    """By function and figure, [median, p10, p90] of the microseconds per call.

    Every round measures every function, and the next one begins with another: what drifts, and what a function leaves
    behind for the one after it, falls on all alike. Every measurement begins with an idle device.
    """
    for fn in fns.values():
        timed(fn, args, WARM_UP_CALLS, clock, wait)
    samples: dict[Key, dict[str, list[float]]] = {key: {figure: [] for figure in FIGURES} for key in fns}
    keys = list(fns)
    for number in range(rounds):
        first = number % len(keys)
        for key in keys[first:] + keys[:first]:
            dispatch, total = timed(fns[key], args, calls, clock, wait)
            bursts = [timed(fns[key], args, burst, clock, wait)[0] for _ in range(calls // burst)]
            seconds = {
                "dispatch": dispatch / calls,
                "burst": sum(bursts) / (len(bursts) * burst),
                "total": total / calls,
            }
            for figure, value in seconds.items():
                samples[key][figure].append(1e6 * value)
    return {
        key: {
            name: [float(f"{us:.4g}") for us in np.percentile(found, [50, 10, 90])] for name, found in figures.items()
        }
        for key, figures in samples.items()
    }


def run_case(case: Case) -> list[HostRow]:
    """A row for each mode; all modes and variants take turns."""
    args = case.operands()
    fns = {(mode, variant): case.jitted(variant, mode) for mode in case.modes for variant in ("jaxgemm", *peers.PEERS)}
    program = case.jitted("jaxgemm", "default").lower(*args).as_text()
    kernel = peers.called_kernel(program, [info.name for info in peers.registry()])
    if kernel is None:
        raise RuntimeError(f"{case.label}: jaxgemm has no kernel for it and would run XLA's dot")
    found = measure(fns, args)
    return [
        {
            "case": case.label,
            "kernel": kernel,
            "command_buffers": mode,
            "us": {variant: found[mode, variant] for variant in ("jaxgemm", *peers.PEERS)},
        }
        for mode in case.modes
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_cost", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, metavar="FILE", help="default: benchmarks/results/host/<device>.json")
    args = parser.parse_args(argv)
    if jax.default_backend() != "gpu":
        print(f"cannot measure host cost: it needs a GPU, JAX's backend is {jax.default_backend()}", file=sys.stderr)
        return 1
    header = current_header()
    rows: list[HostRow] = []
    for case in cases():
        for row in run_case(case):
            rows.append(row)
            times = {variant: [us[0] for us in figures.values()] for variant, figures in row["us"].items()}
            print(f"{row['case']}, command buffers {row['command_buffers']}, {', '.join(FIGURES)} in us: {times}")
    document: HostDocument = {**header, "calls": CALLS, "burst": BURST, "rounds": ROUNDS, "rows": rows}
    validate_host(document)
    out = args.out or RESULTS / DIRECTORY / f"{device_slug(header['device'])}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(dumps(document))
    print(f"{len(rows)} rows in {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
