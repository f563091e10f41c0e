"""Layers split over all GPUs, with ``jaxgemm.matmul`` and with ``jnp.matmul``: ``python -m benchmarks.sharded``.

The blocks of Llama-3-70B, tensor-parallel: prefill with bfloat16 weights, and decoding with 4-bit weights against
bfloat16 weights; the MLP also sequence-parallel; and a data-parallel training step. The figures go to
``benchmarks/results/sharded/<device>-x<count>.json`` and from there to docs/sharding.md.

Method. One jitted program is a chain of layers, written out, each with the next of several sets of weights, which are
together at least twice the L2 cache. It is given x to write its result to (``donate_argnums``), with which the next
call goes on; but a training step is called with the same arguments. A measurement starts some calls, waits for the
last, and divides the host's time by calls and layers: the host starts work while the devices do other work, so that
its part is hidden where a device takes longer than the host. Programs with jaxgemm are compiled under
``options(peer_sums=True)``, which also counts for ``lax.psum`` in a ``shard_map``. Functions take turns, another one
first in each round; the median of the rounds counts. A chain of all-reduces of the same size is measured beside them.
After all of that, the durations of the kernels without collectives, which wait for other devices, are recorded by
CUPTI: the sum over all devices, over their number. Results are compared first. ``jnp.matmul`` multiplies the numbers
that the 4-bit weights mean, in bfloat16.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import jaxgemm
from benchmarks import sharded_layers as sl
from benchmarks.results import RESULTS, current_header
from benchmarks.sharded_file import (
    ALL_REDUCE,
    BARS,
    DIRECTORY,
    FORMATS,
    MAX_DIFFERENCE,
    SEQUENCE,
    TRAINING,
    ShardedDocument,
    ShardedRow,
    below_bar,
    speed,
    validate_sharded,
)
from benchmarks.sharded_layers import ALL_BLOCKS, BLOCKS, DATA, GROUP_SIZE, LLAMA_70B, MODEL, Dims
from benchmarks.sharded_timing import Program, compiled, going_on, kernel_times, measure, rounded
from jaxgemm._files import device_slug, dumps, replace_text
from jaxgemm._timing import L2_BYTES, Cupti, find_cupti

MEASURED_PARTITIONS = ("auto", "shard_map")
PRODUCTS = {"jaxgemm": jaxgemm.matmul, "jnp": jnp.matmul}
GAIN = 0.5
"""Of the weights: results are smaller than x, so that numbers stay in range over any number of layers; a call's are at
most twice as large as its x.
"""
RATE, RATE_OF_CHECK = 1e-6, 1e3
SPLIT_TOKENS = 8
"""Sequence-parallel: multiples of this, so that up to as many devices have equal parts."""
RECORDING_S = 30
"""For the kernels' times, after the limit for everything else."""
SMOKE_DIMS = Dims(hidden=1024, intermediate=2048, heads=8, kv_heads=8)


@dataclass(frozen=True)
class Case:
    """A chain of layers; m tokens, of training those of all devices."""

    block: str
    weights: str
    m: int
    partition: str
    layers: int
    calls: int

    @property
    def label(self) -> str:
        return f"{self.block} {self.weights} M={self.m} {self.partition}"


@functools.partial(jax.jit, static_argnames="shape")
def _normal(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.normal(key, shape, jnp.float32).astype(jnp.bfloat16)


def _weight(key: jax.Array, shape: tuple[int, int]) -> jaxgemm.QuantizedMatrix:
    dense = (jax.random.normal(key, shape, jnp.float32) * (GAIN / math.sqrt(shape[0]))).astype(jnp.bfloat16)
    return jaxgemm.quantize(dense, bits=4, group_size=GROUP_SIZE)


@dataclass
class Inputs:
    """Weights and tokens on the devices, made when they are first wanted and kept, as many cases share them."""

    devices: Sequence[Any]
    dims: Dims
    made: dict[tuple[str, str], list[dict[str, Any]]] = field(default_factory=dict)

    def mesh(self, case: Case) -> jax.sharding.Mesh:
        return sl.make_mesh(self.devices, DATA if case.block == TRAINING else MODEL, case.partition)

    def sets_of(self, block: str) -> int:
        """So many that the 4-bit weights of one device are twice the L2 cache."""
        numbers = sum(k * n for k, n in self.dims.shapes(block).values())
        return max(2, math.ceil(2 * L2_BYTES / (numbers / 2 / len(self.devices))))

    def sets(self, block: str, weights: str, layers: int) -> list[dict[str, Any]]:
        """As many sets of tensor-parallel weights as there are layers, and no more than :meth:`sets_of`."""
        if (block, weights) not in self.made:
            self._make(block)
        return self.made[block, weights][:layers]

    def _make(self, block: str) -> None:
        mesh = sl.make_mesh(self.devices, MODEL, "auto")
        quantised, dense = [], []
        wanted = min(self.sets_of(block), 16)
        makers: dict[Any, Any] = {}
        for number in range(wanted):
            quantised.append({})
            dense.append({})
            for i, (name, shape) in enumerate(self.dims.shapes(block).items()):
                spec = sl.spec_of(name)
                if (shape, spec) not in makers:
                    make = functools.partial(_weight, shape=shape)
                    form = jax.eval_shape(make, jax.random.key(0))
                    makers[shape, spec] = (
                        jax.jit(make, out_shardings=sl.shardings(mesh, form, spec)),
                        jax.jit(lambda w: w.dequantize(jnp.bfloat16), out_shardings=NamedSharding(mesh, spec)),
                    )
                quantise, dequantise = makers[shape, spec]
                quantised[-1][name] = quantise(jax.random.fold_in(jax.random.key(number), i))
                dense[-1][name] = dequantise(quantised[-1][name])
        jax.block_until_ready((quantised, dense))
        self.made[block, "int4"], self.made[block, "bfloat16"] = quantised, dense

    def normal(self, mesh: jax.sharding.Mesh, seed: int, shape: tuple[int, ...], spec: P) -> jax.Array:
        return jax.device_put(_normal(jax.random.key(seed), shape), NamedSharding(mesh, spec))


def layer_programs(case: Case, inputs: Inputs) -> dict[str, Program]:
    """The chain with each product, and the all-reduces of as many layers where every device has all tokens."""
    mesh = inputs.mesh(case)
    if case.block == SEQUENCE:
        block, tokens, split = "mlp", P(MODEL, None), sl.sequence_parallel
    else:
        block, tokens, split = case.block, P(None, None), sl.tensor_parallel
    x = inputs.normal(mesh, 1, (case.m, inputs.dims.hidden), tokens)
    programs = {}
    for name, product in PRODUCTS.items():
        weights = case.weights if name == "jaxgemm" else "bfloat16"
        layer = split(block, inputs.dims, product, mesh, case.partition)
        with jaxgemm.options(peer_sums=name == "jaxgemm"):
            programs[name] = going_on(sl.chain(layer, case.layers), x, inputs.sets(block, weights, case.layers))
    if case.block == SEQUENCE:
        return programs
    parts = inputs.normal(mesh, 2, (mesh.size, case.m, inputs.dims.hidden), P(MODEL, None, None))
    programs[ALL_REDUCE] = going_on(sl.all_reduces(mesh, case.layers), parts)
    return programs


def training_programs(case: Case, inputs: Inputs) -> dict[str, Program]:
    """The step with each product, with weights on every device."""
    mesh = inputs.mesh(case)
    shape = (case.m, inputs.dims.hidden)
    x, factor = (inputs.normal(mesh, seed, shape, P(DATA, None)) for seed in (3, 4))
    whole = NamedSharding(mesh, P())
    weights = jax.device_put(inputs.sets("mlp", "bfloat16", case.layers), whole)
    rate = jax.device_put(jnp.float32(RATE), whole)
    programs = {}
    for name, product in PRODUCTS.items():
        layers = sl.chain(sl.whole_layer("mlp", inputs.dims, product), case.layers)
        step = sl.sgd_step(sl.data_parallel_loss(layers, mesh, case.partition))
        programs[name] = compiled(step, weights, x, factor, rate)
    return programs


@jax.jit
def _difference(ours: Any, theirs: Any, origin: Any) -> jax.Array:
    def norm(values: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(jnp.square(value)) for value in jax.tree.leaves(values)))

    ours, theirs, origin = jax.tree.map(lambda value: value.astype(jnp.float32), (ours, theirs, origin))
    return norm(jax.tree.map(jnp.subtract, ours, theirs)) / norm(jax.tree.map(jnp.subtract, theirs, origin))


def difference(case: Case, programs: Mapping[str, Program]) -> float:
    """Of both results, by the norm of what is added to x, or of what a step with a large rate changes."""
    ours, theirs = programs["jaxgemm"], programs["jnp"]
    if case.block != TRAINING:
        return float(_difference(ours.run(*ours.fresh()), theirs.run(*theirs.fresh()), theirs.args[0]))
    *args, rate = theirs.args
    large = jax.device_put(jnp.float32(RATE_OF_CHECK), rate.sharding)
    return float(_difference(ours.run(*args, large)[1], theirs.run(*args, large)[1], args[0]))


@dataclass
class Run:
    """Measures cases, and writes the file after each."""

    document: ShardedDocument
    out: Path | None
    inputs: Inputs
    limit_s: float
    measure: Callable[..., dict[str, list[float]]] = measure
    clock: Callable[[], float] = time.monotonic
    programs: dict[str, tuple[Case, dict[str, Program]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.begin = self.clock()

    def attempt(self, label: str, function: Callable[[], None], limit_s: float) -> None:
        """Does it, or records why it could not be done."""
        seconds = self.clock() - self.begin
        if seconds > limit_s:
            self.document["errors"][label] = f"not begun: {seconds:.0f} s had passed"
        else:
            try:
                function()
            except Exception as error:
                traceback.print_exc()
                self.document["errors"][label] = f"{type(error).__name__}: {error}"[:2000]
        if label in self.document["errors"]:
            print(f"[{self.clock() - self.begin:.0f} s] FAILED {label}: {self.document['errors'][label]}", flush=True)
        if self.out:
            replace_text(self.out, dumps(self.document))

    def one(self, case: Case) -> None:
        """A row, without the times of kernels."""
        make = training_programs if case.block == TRAINING else layer_programs
        programs = make(case, self.inputs)
        apart = difference(case, programs)
        if not apart <= MAX_DIFFERENCE:
            raise ValueError(f"the results differ by {apart}: one of them is wrong")
        us = self.measure(programs, case.layers, case.calls, self.document["rounds"])
        fields = {name: value for name, value in dataclasses.asdict(case).items() if name != "calls"}
        row = ShardedRow(**fields, kernels=programs["jaxgemm"].kernels, us=us, kernel_us={}, difference=rounded(apart))
        self.document["rows"].append(row)
        self.programs[case.label] = case, programs
        times = ", ".join(f"{name} {found[0]}" for name, found in us.items())
        seconds = self.clock() - self.begin
        print(f"[{seconds:.0f} s] {case.label}: us per layer {times}; speed {speed(row):.2f}", flush=True)

    def kernels(self, cupti: Cupti, row: ShardedRow, case: Case, programs: Mapping[str, Program]) -> None:
        """Adds the times of kernels to a row."""
        products = {name: programs[name] for name in PRODUCTS}
        row["kernel_us"] = kernel_times(cupti, products, case.layers, len(self.inputs.devices))
        print(f"{case.label}: us of kernels per layer and device {row['kernel_us']}", flush=True)

    def all(self, cases: Sequence[Case], find: Callable[[], Cupti | None] = find_cupti) -> int:
        """Everything; the exit status."""
        for case in cases:
            self.attempt(case.label, functools.partial(self.one, case), self.limit_s)
        if cupti := find():  # last, so that no recorder is attached before, and its failures cost nothing
            for row, (case, programs) in zip(self.document["rows"], self.programs.values(), strict=True):
                record = functools.partial(self.kernels, cupti, row, case, programs)
                self.attempt(f"kernels of {case.label}", record, self.limit_s + RECORDING_S)
        for row in self.document["rows"]:
            if below_bar(row):
                name = f"{row['block']} {row['weights']} M={row['m']} {row['partition']}"
                print(f"below the bar of {BARS[row['weights']]:g}: {name}, {speed(row):.2f}", flush=True)
        return 1 if self.document["errors"] or not self.document["rows"] else 0


def cases(prefill: Sequence[int], decode: Sequence[int], training: Sequence[int], *, small: bool = False) -> list[Case]:
    """Each with all partitions, of which another one comes first every time: a host may be slow in a process' first
    minute. Few layers where one takes long.
    """
    long, short = ((2, 2), (2, 2)) if small else ((4, 4), (16, 16))
    layers = []
    for weights, counts, plan in zip(FORMATS, (prefill, decode), (long, short), strict=True):
        blocks = ALL_BLOCKS if weights == "int4" else BLOCKS
        layers += [(block, weights, m, plan) for block in blocks for m in counts]
        layers += [(SEQUENCE, weights, m, plan) for m in counts if m % SPLIT_TOKENS == 0]
    layers += [(TRAINING, "bfloat16", m, (2, 2)) for m in training]
    return [
        Case(block, weights, m, partition, *plan)
        for number, (block, weights, m, plan) in enumerate(layers)
        for partition in MEASURED_PARTITIONS[:: -1 if number % 2 else 1]
    ]


def main(argv: Sequence[str] | None = None, **injected: Any) -> int:
    """Entry point; returns the exit status: 1 if anything could not be measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharded", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prefill", type=int, nargs="*", default=None, metavar="M", help="default: 2048 4096")
    parser.add_argument("--decode", type=int, nargs="*", default=None, metavar="M", help="default: 1 16 64")
    parser.add_argument("--training", type=int, nargs="*", default=None, metavar="M", help="default: 4096, of all GPUs")
    parser.add_argument("--devices", type=int, help="the first so many; default: all")
    parser.add_argument("--rounds", type=int, help="default: 15")
    parser.add_argument("--limit-s", type=float, default=185, help="begin no case after so many seconds; default: 185")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only cases whose label has it")
    parser.add_argument(
        "--smoke", action="store_true", help="small layers, on any device; writes nothing without --out"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="default: benchmarks/results/sharded/<device>-x<n>.json"
    )
    args = parser.parse_args(argv)
    devices = jax.devices()[: args.devices]
    if not args.smoke and (jax.default_backend() != "gpu" or len(devices) < 2):
        print(f"cannot measure: it needs two GPUs, JAX has {len(devices)} x {devices[0].device_kind}", file=sys.stderr)
        return 1
    defaults = ([32], [1, 4], [64]) if args.smoke else ([2048, 4096], [1, 16, 64], [4096])
    counts = [
        default if given is None else given
        for given, default in zip((args.prefill, args.decode, args.training), defaults, strict=True)
    ]
    work = [case for case in cases(*counts, small=args.smoke) if args.filter in case.label]
    dims = SMOKE_DIMS if args.smoke else LLAMA_70B
    header = current_header()
    document: ShardedDocument = {
        **header,
        "devices": len(devices),
        "dims": dataclasses.asdict(dims),
        "rounds": args.rounds or (3 if args.smoke else 15),
        "errors": {},
        "rows": [],
    }
    default_out = RESULTS / DIRECTORY / f"{device_slug(header['device'])}-x{len(devices)}.json"
    out = args.out or (None if args.smoke else default_out)
    find = injected.pop("find_cupti", find_cupti)
    run = Run(document, out, Inputs(devices, dims), args.limit_s, **injected)
    status = run.all(work, find)
    validate_sharded(document)
    print(f"{len(document['rows'])} rows and {len(document['errors'])} errors in {out or 'no file'}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
