"""What :mod:`benchmarks.sharded` measures and how: compiled programs, the host's time for them and their kernels'."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.host_cost import timed
from jaxgemm._timing import Cupti, TimingError

WARM_UP_CALLS = 2
RECORDED_CALLS = 2
GRAPHS: dict[str, Any] = {"xla_gpu_graph_min_graph_size": 1}
"""As compiler options. XLA makes CUDA graphs of five operations or more: where products are joined a layer has less."""

_KERNEL = re.compile(r'custom_call_target="jaxgemm_\w+".*?\bkernel = \\?"([^"\\]+)')
_COLLECTIVE = re.compile(r"nccl|all_?reduce|all_?gather|reduce_?scatter|peer_?sum", re.I)
_ALL_REDUCE = re.compile(r"%?([\w.-]+?)(?:\.\d+)? = \S.*? all-reduce(?:-start)?\(")


@dataclass(frozen=True)
class Program:
    """A compiled function and what it is called with. One that ``goes_on`` is given x, its first argument, to write its
    result to, which is the next call's x: as states are in decoding.

    Otherwise results would take turns in two places, and before every call XLA would rewrite each CUDA graph that
    reads or writes one of them.
    """

    run: Any
    args: tuple[Any, ...]
    goes_on: bool = False

    def fresh(self) -> tuple[Any, ...]:
        """Arguments of one call, after which :attr:`args` are still there."""
        return (jnp.copy(self.args[0]), *self.args[1:]) if self.goes_on else self.args

    @property
    def kernels(self) -> list[str]:
        """Full names of the kernels that jaxgemm calls."""
        return list(dict.fromkeys(_KERNEL.findall(self.run.as_text() or "")))

    @functools.cached_property
    def all_reduces(self) -> tuple[str, ...]:
        """How the names of the kernels begin that XLA itself makes of small all-reduces: as the instruction's does."""
        names = _ALL_REDUCE.findall(self.run.as_text() or "")
        return tuple({re.sub(r"\W", "_", name) + "_" for name in names})

    def is_collective(self, kernel: str) -> bool:
        return bool(_COLLECTIVE.search(kernel)) or kernel.startswith(self.all_reduces)


def compiled(function: Callable[..., Any], *args: Any) -> Program:
    return Program(jax.jit(function).lower(*args).compile(), args)


def going_on(function: Callable[..., Any], *args: Any) -> Program:
    """A program of a function of x, and more, whose result is as x is."""
    jitted = jax.jit(function, donate_argnums=0, out_shardings=args[0].sharding)
    return Program(jitted.lower(*args).compile(compiler_options=GRAPHS), args, goes_on=True)


def seconds_of(program: Program, calls: int, clock: Callable[[], float], wait: Callable[[Any], Any]) -> float:
    """Until the last of some calls is done."""
    args = program.fresh()
    if not program.goes_on:
        return timed(program.run, args, calls, clock, wait)[1]
    x, *rest = args
    wait(x)
    begin = clock()
    for _ in range(calls):
        x = program.run(x, *rest)
    wait(x)
    return clock() - begin


def measure(
    programs: Mapping[str, Program],
    layers: int,
    calls: int,
    rounds: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
    wait: Callable[[Any], Any] = jax.block_until_ready,
) -> dict[str, list[float]]:
    """By program, [median, p10, p90] of the microseconds per layer."""
    for program in programs.values():
        seconds_of(program, WARM_UP_CALLS, clock, wait)
    samples: dict[str, list[float]] = {name: [] for name in programs}
    names = list(programs)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            samples[name].append(1e6 * seconds_of(programs[name], calls, clock, wait) / (calls * layers))
    return {name: [rounded(us) for us in np.percentile(found, [50, 10, 90])] for name, found in samples.items()}


def rounded(value: Any) -> float:
    return float(f"{float(value):.4g}")


def kernel_times(cupti: Cupti, programs: Mapping[str, Program], layers: int, devices: int) -> dict[str, float]:
    """By program, microseconds per layer and device of all kernels but collectives."""
    found = {}
    for name, program in programs.items():
        wanted = [jax.block_until_ready(program.fresh()) for _ in range(RECORDED_CALLS)]
        cupti._cupti_init()
        try:
            for args in wanted:
                jax.block_until_ready(program.run(*args))
        finally:
            records = list(cupti._cupti_get_timings(False))
        ms = sum(ms for kernel, ms in records if not program.is_collective(kernel))
        if not ms > 0:
            raise TimingError(f"CUPTI recorded no kernel of {name}")
        found[name] = rounded(1e3 * ms / (RECORDED_CALLS * layers * devices))
    return found
