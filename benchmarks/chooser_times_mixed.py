"""``python -m benchmarks.chooser_times_mixed``: times that the model in cuda/select_mixed.cc is tested against,
tests/chooser_times_mixed_few_columns.json, measured again on the attached GPU: 4-bit weights of few columns, as those
of keys and values are where several query heads share one, with few tokens.

All that is measured of a problem runs interleaved. It takes half a minute.
"""

from __future__ import annotations

import argparse
import datetime
import functools
from pathlib import Path

import jax
from rich.console import Console

import jaxgemm
from benchmarks.chooser_times import DTYPE, call_times
from benchmarks.trees import REPOSITORY
from jaxgemm import _choose, _timing
from jaxgemm._files import dumps, replace_text
from jaxgemm._native import _core
from jaxgemm._target import target_sm

Sizes = tuple[int, int, int]
"""(m, n, k)"""
Split = tuple[int, int]
"""KSplit"""

FILE = "chooser_times_mixed_few_columns.json"
BITS, GROUP_SIZE = 4, 128
WORST_TRIED = 1.6
"""Times the model's estimate for its choice: kernels that it expects to take longer are left out."""
WHAT = (
    "microseconds of all kernels of a call by CUPTI, median, and one more for each kernel but the first, of the "
    f"kernels that the model took to be at most {WORST_TRIED} times as slow as its choice, K split as it does; "
    "interleaved in random order, operands rotating through twice the L2 cache; groups of 128 rows, zero points in the "
    "middle"
)
TOKENS = {
    (512, 8192): (1, 4, 8, 16, 64),
    (1024, 8192): (1, 4, 8, 16),
    (1024, 4096): (1, 4, 8, 16),
    (512, 4096): (1, 8),
    (2048, 4096): (1, 8),
    (2048, 8192): (1, 8),
    (1024, 14336): (1, 8),
}


def problems() -> list[Sizes]:
    return [(m, n, k) for (n, k), tokens in TOKENS.items() for m in tokens]


def native_problem(
    sizes: Sizes, sm: int, group_size: int = GROUP_SIZE, zeros: str = "middle", split: Split = _choose.BY_MODEL
) -> _core.Problem:
    m, n, k = sizes
    return _core.mixed_problem(
        batch=1, m=m, n=n, k=k, lhs_dtype=DTYPE, out_dtype=DTYPE, activation="none", has_alpha=False, has_bias=False,
        bits=BITS, group_size=group_size, scale_dtype=DTYPE, zeros=zeros, sm=sm, split=split,
    )  # fmt: skip


def tried(sizes: Sizes, sm: int) -> list[str]:
    """Kernels to measure, in the registry's order."""
    problem = native_problem(sizes, sm)
    most = WORST_TRIED * _core.estimated_cost(_core.select(problem, ""), problem)
    able = [info.name for info in _core.mixed_kernels() if not _core.why_not(info.name, problem)]
    return [name for name in able if _core.estimated_cost(name, problem) <= most]


def _operands(sizes: Sizes, number: int) -> tuple[jax.Array, jaxgemm.QuantizedMatrix]:
    m, n, k = sizes
    weights = _timing.random_array(2 * number + 1, (k, n), DTYPE)
    return _timing.random_array(2 * number, (m, k), DTYPE), _quantized(weights)


_quantized = jax.jit(functools.partial(jaxgemm.quantize, bits=BITS, group_size=GROUP_SIZE))


def measure(sizes: Sizes, kernels: list[str]) -> dict[str, float]:
    """Microseconds by kernel."""
    _, n, k = sizes
    operands = _timing.rotating_arg_sets(functools.partial(_operands, sizes), n * k * BITS // 8)
    products = {kernel: jax.jit(functools.partial(jaxgemm.matmul, kernel=kernel)) for kernel in kernels}
    return call_times({kernel: product.lower(*operands[0]) for kernel, product in products.items()}, operands)


def row_of(sizes: Sizes, times: dict[str, float]) -> dict[str, object]:
    us = {name: float(f"{time_us:.4g}") for name, time_us in times.items()}
    return {**dict(zip("mnk", sizes, strict=True)), "us": us}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chooser_times_mixed", description=__doc__)
    parser.add_argument("--out", type=Path, default=REPOSITORY / "tests", help="folder to write to (default: tests)")
    arguments = parser.parse_args()
    console = Console()
    header = {"device": jax.devices()[0].device_kind, "date": datetime.date.today().isoformat(), "what": WHAT}
    rows = []
    for sizes in problems():
        times = measure(sizes, tried(sizes, target_sm()))
        rows.append(row_of(sizes, times))
        best = min(times, key=times.__getitem__)
        console.print(f"{sizes}: {len(times)} kernels, {times[best]:.2f} us {best}")
        jax.clear_caches()
        replace_text(arguments.out / FILE, dumps(header | {"rows": rows}))  # so far: a run may be cut off


if __name__ == "__main__":
    main()
