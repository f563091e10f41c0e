"""The same products on each of several devices: one after the other, and from several host threads at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from jaxgemm._reference import error_over_bound, reference
from tests.several_gpus.checks import assert_equal_bits
from tests.values import normals

MATRICES = (((1,), (0,)), ((), ()))


@dataclass(frozen=True)
class Case:
    """A product of normally distributed numbers."""

    label: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"
    out_dtype: str = ""
    quantised: bool = False

    def operands(self, rng: np.random.Generator) -> tuple[Any, Any]:
        x, w = normals(rng, (self.m, self.k), self.dtype), normals(rng, (self.k, self.n), self.dtype)
        return jnp.asarray(x), jaxgemm.quantize(jnp.asarray(w)) if self.quantised else jnp.asarray(w)

    def function(self) -> Callable[[Any, Any], Any]:
        """A new one, so that nothing of it is compiled."""
        preferred = self.out_dtype or self.dtype
        return jax.jit(lambda x, w: jaxgemm.matmul(x, w, preferred_element_type=preferred))

    def error_over_bound(self, x: Any, w: Any, out: Any) -> float:
        rounding = 0.0
        if isinstance(w, jaxgemm.QuantizedMatrix):  # some kernels round weights to the dtype of x
            w, rounding = w.dequantize(jnp.float32), float(jnp.finfo(self.dtype).eps) / 2
        exact, magnitude = reference(x, w, MATRICES)
        dtypes = (self.dtype, self.out_dtype or self.dtype, "default")
        return error_over_bound(out, exact, magnitude, self.k, *dtypes, weight_rounding=rounding)


CASES = [
    Case("bfloat16, many tokens", 517, 776, 1024),
    Case("bfloat16, one token", 1, 1024, 2048),
    Case("bfloat16, long sums of few tiles", 16, 256, 8192),
    Case("float16, ragged", 129, 131, 137, "float16"),
    Case("float32", 257, 384, 520, "float32"),
    Case("int8", 128, 256, 512, "int8", "int32"),
    Case("float8", 128, 256, 512, "float8_e4m3fn", "bfloat16"),
    Case("int4, one token", 1, 1024, 2048, quantised=True),
    Case("int4, few tokens", 16, 512, 4096, quantised=True),
    Case("int4, many tokens", 515, 768, 1024, quantised=True),
]


def check_same_bits(devices: Sequence[jax.Device], case: Case, rng: np.random.Generator) -> None:
    """On every device, run after run, and within the bound of float64 on the first."""
    x, w = case.operands(rng)
    function = case.function()
    first = None
    for device in devices:
        operands = jax.device_put((x, w), device)
        outs = [function(*operands) for _ in range(3)]
        assert all(out.devices() == {device} for out in outs)
        if first is None:
            first = np.asarray(outs[0])
            ratio = case.error_over_bound(x, w, first)
            assert ratio <= 1, f"{case.label}: {ratio} of the bound"
        for out in outs:
            assert_equal_bits(out, first, f"{case.label} on {device}")


def check_threads(
    devices: Sequence[jax.Device], cases: Sequence[Case], rng: np.random.Generator, per_device: int = 2, calls: int = 8
) -> None:
    """Every thread calls every product on its device, beginning with another one; the very first calls, which compile,
    come at once. Numbers differ by device, so that a result of another one's would not pass.
    """
    operands = [[jax.device_put(case.operands(rng), device) for case in cases] for device in devices]
    functions = [case.function() for case in cases]
    barrier = Barrier(per_device * len(devices))

    def work(thread: int) -> list[tuple[int, Any]]:
        mine = operands[thread % len(devices)]
        order = [(thread + i) % len(cases) for i in range(len(cases))]
        barrier.wait()
        started = [(i, functions[i](*mine[i])) for _ in range(calls) for i in order]
        return [(i, np.asarray(out)) for i, out in started]

    with ThreadPoolExecutor(barrier.parties) as pool:
        results = list(pool.map(work, range(barrier.parties)))
    for thread, outs in enumerate(results):
        mine = operands[thread % len(devices)]
        alone = [np.asarray(case.function()(*operands)) for case, operands in zip(cases, mine, strict=True)]
        assert len(outs) == calls * len(cases)
        for i, out in outs:
            assert_equal_bits(out, alone[i], f"{cases[i].label}, thread {thread}")
