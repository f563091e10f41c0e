"""Device time of JAX functions, measured by CUPTI through jaxlib's Mosaic GPU extension.

What a figure means: the durations of all kernels that one call launches, summed (padding, reductions and transposes
included; memory sets and device-to-device copies are not kernels and are not seen). Variants that are compared run
interleaved, so that clocks and temperature drift over all of them alike, and in another order each round, as what runs
before a call leaves it dirty lines in the L2 cache or an idle GPU. Every call reads another set of inputs, so that
nothing is found in the L2 cache that a cold call would not find there.
"""

from __future__ import annotations

import functools
import math
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Args: TypeAlias = tuple[Any, ...]
Function: TypeAlias = Callable[..., Any]
Record: TypeAlias = tuple[str, float]
"""One kernel as CUPTI reports it: (name, milliseconds)."""

L2_BYTES = 60 * 2**20
"""The L2 cache of the largest Hopper part (H200)."""

MAX_ARG_SETS = 256
_WARM_UP_CALLS = 2
_INT_BOUND = 64


class TimingError(RuntimeError):
    """What CUPTI recorded does not fit the calls that were made."""


class Cupti(Protocol):
    """The two functions of jaxlib's extension; a recording lies between them."""

    def _cupti_init(self) -> None: ...

    def _cupti_get_timings(self, finalize: bool, /) -> Sequence[Record]: ...


@dataclass(frozen=True)
class Timing:
    """Time per call in microseconds: median, 10th and 90th percentile over ``samples`` calls.

    ``kernels`` are the names of the kernels of one call, in launch order (empty if source is "wall"). ``source`` is
    "cupti" for device time and "wall" for the host's clock around a blocking call, which includes the launch.
    """

    us: float
    us_p10: float
    us_p90: float
    kernels: tuple[str, ...]
    samples: int
    source: Literal["cupti", "wall"]

    @classmethod
    def of(cls, samples_us: Sequence[float], kernels: tuple[str, ...], source: Literal["cupti", "wall"]) -> Timing:
        """Summarises the microseconds of each call."""
        p10, p90 = np.percentile(samples_us, [10, 90])
        return cls(statistics.median(samples_us), float(p10), float(p90), kernels, len(samples_us), source)


@functools.partial(jax.jit, static_argnames=("shape", "dtype"))
def _random_array(key: jax.Array, shape: tuple[int, ...], dtype: str) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.integer):
        return jax.random.randint(key, shape, -_INT_BOUND, _INT_BOUND, jnp.int32).astype(dtype)
    return jax.random.normal(key, shape, jnp.float32).astype(dtype)


def random_array(seed: int, shape: Sequence[int], dtype: Any) -> jax.Array:
    """Standard normal values rounded to ``dtype``; integers are uniform in [-64, 64)."""
    return _random_array(jax.random.key(seed), tuple(shape), jnp.dtype(dtype).name)


def rotating_arg_sets(
    make_args: Callable[[int], Args], bytes_per_set: int, l2_bytes: int = L2_BYTES, max_sets: int = MAX_ARG_SETS
) -> list[Args]:
    """Calls ``make_args(0)``, ``make_args(1)``, ... until all the sets together are at least twice the L2 cache.

    What counts is the reuse distance: a set is read again only after all the others were, so with 2 x ``l2_bytes`` in
    total none of it is still cached. At least 2 sets, and at most ``max_sets``: problems smaller than
    2 x ``l2_bytes`` / ``max_sets`` (480 KB) are measured partly warm.
    """
    wanted = math.ceil(2 * l2_bytes / max(bytes_per_set, 1))
    sets = [make_args(i) for i in range(min(max(wanted, 2), max_sets))]
    jax.block_until_ready(sets)
    return sets


def compare(
    fns: Mapping[str, Function],
    arg_sets: Sequence[Args] | Mapping[str, Sequence[Args]],
    *,
    rounds: int = 20,
    min_rounds: int = 7,
    budget_s: float = 10.0,
) -> dict[str, Timing]:
    """Times the functions ``fns`` against each other: ``rounds`` interleaved rounds of one call each.

    ``arg_sets`` are the inputs to rotate, common to all functions or given per function. Once ``budget_s`` seconds have
    passed, no further round is begun beyond the first ``min_rounds``. Without a GPU or without CUPTI the host's clock
    is used and the result says so. A function that raises is reported as RuntimeError with its name.
    """
    if not fns:
        return {}
    schedule = _Schedule(fns, arg_sets)
    for name in fns:
        for i in range(_WARM_UP_CALLS):
            schedule.block(name, schedule.call(name, i))
    plan = _Plan(rounds, min(min_rounds, rounds), budget_s)
    cupti = find_cupti()
    if cupti is None:
        return _compare_wall(schedule, plan)
    try:
        return _compare_cupti(cupti, schedule, plan)
    except TimingError:  # a stray kernel of another thread: once more
        return _compare_cupti(cupti, schedule, plan)


def find_cupti() -> Cupti | None:
    """Jaxlib's CUPTI functions, or None where there is no NVIDIA GPU or another profiler holds CUPTI."""
    if jax.default_backend() != "gpu":
        return None
    try:
        from jax.experimental.mosaic.gpu import profiler

        # No public JAX function records several inputs or several functions in one recording.
        cupti: Cupti = getattr(profiler, "mosaic_gpu_lib")._mosaic_gpu_ext  # noqa: B009 (not exported)
        _record(cupti, lambda: None)
    except (ImportError, AttributeError, RuntimeError) as error:
        warnings.warn(f"no device times, the host's clock is used: {error}", stacklevel=3)
        return None
    return cupti


@dataclass(frozen=True)
class _Plan:
    rounds: int
    min_rounds: int
    budget_s: float

    def rounds_in_budget(self) -> Iterable[int]:
        """Yields round numbers until the rounds or the seconds are used up."""
        begin = time.perf_counter()
        for i in range(self.rounds):
            if i >= self.min_rounds and time.perf_counter() - begin > self.budget_s:
                return
            yield i


class _Schedule:
    """Which function gets which inputs when, with errors that name the function."""

    def __init__(self, fns: Mapping[str, Function], arg_sets: Sequence[Args] | Mapping[str, Sequence[Args]]) -> None:
        self.names = tuple(fns)
        self._fns = fns
        self._shared = not isinstance(arg_sets, Mapping)
        self._sets = arg_sets if isinstance(arg_sets, Mapping) else dict.fromkeys(fns, arg_sets)
        missing = [name for name in fns if not self._sets.get(name)]
        if missing:
            raise ValueError(f"no inputs for {', '.join(missing)}")

    def call(self, name: str, index: int) -> Any:
        """Starts ``name`` on its inputs number ``index``, counted around."""
        sets = self._sets[name]
        try:
            return self._fns[name](*sets[index % len(sets)])
        except Exception as error:
            raise RuntimeError(f"{name} failed: {error}") from error

    def block(self, name: str, out: Any) -> None:
        """Waits until the output of ``name`` is ready."""
        try:
            jax.block_until_ready(out)
        except Exception as error:
            raise RuntimeError(f"{name} failed: {error}") from error

    def input_index(self, round_index: int, position: int) -> int:
        """Inputs for the function at ``position`` of a round.

        Shared inputs advance with every call, else the second function would find those of the first in the cache.
        """
        return round_index * len(self.names) + position if self._shared else round_index

    def order(self, round_index: int) -> list[str]:
        """The functions as the round calls them: any order is as likely as another, and the same each time."""
        return random.Random(round_index).sample(self.names, len(self.names))

    def run_round(self, round_index: int) -> None:
        """Calls every function once, then waits; outputs are dropped."""
        order = self.order(round_index)
        outs = [(name, self.call(name, self.input_index(round_index, i))) for i, name in enumerate(order)]
        for name, out in outs:
            self.block(name, out)


def _record(cupti: Cupti, body: Callable[[], None]) -> list[Record]:
    """The kernels that ran on the device during ``body``, which must wait for its own work."""
    cupti._cupti_init()
    try:
        body()
    finally:
        records = cupti._cupti_get_timings(False)  # False: CUPTI stays attached, as more recordings follow
    return list(records)


def kernels_of_call(cupti: Cupti, name: str, call: Callable[[int], None]) -> tuple[str, ...]:
    """Names of the kernels that one ``call(i)`` launches, from a recording of two calls, which must agree."""

    def twice() -> None:
        call(0)
        call(1)

    names = [kernel for kernel, _ in _record(cupti, twice)]
    first, second = names[: len(names) // 2], names[len(names) // 2 :]
    if sorted(first) != sorted(second):
        raise TimingError(f"{name}: two equal calls launched different kernels: {names}")
    return tuple(first)


def split_records(
    records: Sequence[Record], calls: Sequence[str], kernels: Mapping[str, tuple[str, ...]]
) -> dict[str, list[float]]:
    """Microseconds of every call, by function, from the flat list of recorded kernels.

    ``calls`` are the functions in the order they were called and ``kernels`` what one call of each launches. Within one
    call the order is free, since XLA may run independent kernels on several streams.
    """
    expected = sum(len(kernels[name]) for name in calls)
    if len(records) != expected:
        raise TimingError(f"CUPTI recorded {len(records)} kernels where {len(calls)} calls launch {expected}")
    samples_us: dict[str, list[float]] = {name: [] for name in calls}
    begin = 0
    for number, name in enumerate(calls):
        chunk = records[begin : begin + len(kernels[name])]
        begin += len(chunk)
        found = [kernel for kernel, _ in chunk]
        if sorted(found) != sorted(kernels[name]):
            raise TimingError(f"call {number} ({name}) should launch {list(kernels[name])}, CUPTI recorded {found}")
        samples_us[name].append(1e3 * sum(ms for _, ms in chunk))
    return samples_us


def _compare_cupti(cupti: Cupti, schedule: _Schedule, plan: _Plan) -> dict[str, Timing]:
    kernels = {
        name: kernels_of_call(cupti, name, lambda i, name=name: schedule.block(name, schedule.call(name, i)))
        for name in schedule.names
    }
    if not any(kernels.values()):
        raise TimingError("CUPTI recorded no kernel at all")
    calls: list[str] = []

    def body() -> None:
        schedule.run_round(0)  # not counted: brings the clocks up
        for i in plan.rounds_in_budget():
            schedule.run_round(i + 1)
            calls.extend(schedule.order(i + 1))

    records = _record(cupti, body)
    samples_us = split_records(records, [*schedule.order(0), *calls], kernels)
    return {name: Timing.of(samples_us[name][1:], kernels[name], "cupti") for name in schedule.names}


def _compare_wall(schedule: _Schedule, plan: _Plan) -> dict[str, Timing]:
    samples_us: dict[str, list[float]] = {name: [] for name in schedule.names}
    for round_index in plan.rounds_in_budget():
        for position, name in enumerate(schedule.order(round_index)):
            begin = time.perf_counter()
            schedule.block(name, schedule.call(name, schedule.input_index(round_index, position)))
            samples_us[name].append(1e6 * (time.perf_counter() - begin))
    return {name: Timing.of(samples, (), "wall") for name, samples in samples_us.items()}
