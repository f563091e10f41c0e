"""Running kernels on poisoned memory, and judging what they give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from tests.edge_shapes import Case
from tests.values import (
    DTypes,
    assert_equal,
    is_float,
    judged_at,
    modes,
    nan_bytes,
    precisions,
    product_error_ratio,
    rounded,
)

KERNELS = jaxgemm.kernels()
INFO = {info.name: info for info in KERNELS}
CANARY_BYTES = 256  # the granularity of XLA's allocator: a canary is the next thing after what lies before it
_POISON_BYTES = 1 << 25


KERNEL_IDS = [info.name for info in KERNELS]
MODES = [(info, dtypes, precision) for info in KERNELS for dtypes, precision in modes(info)]
"""Everything that kernels do differently: (kernel, dtypes, precision)."""


def mode_id(info: Any, dtypes: DTypes, precision: str) -> str:
    """A test's name for one of :data:`MODES`; the precision is told where a kernel has two."""
    several = len(precisions(info, dtypes)) > 1
    return "-".join([info.name, *dtypes, *([precision] if several else [])])


def over_modes(
    which: Callable[[Any, DTypes, str], bool] = lambda *_: True, rows: Sequence[tuple[Any, DTypes, str]] = tuple(MODES)
) -> pytest.MarkDecorator:
    """Runs a test that takes ``info``, ``dtypes`` and ``precision`` for those of :data:`MODES` that ``which`` takes."""
    taken = [row for row in rows if which(*row)]
    return pytest.mark.parametrize(("info", "dtypes", "precision"), taken, ids=[mode_id(*row) for row in taken])


def floating(info: Any, dtypes: DTypes, precision: str) -> bool:
    return is_float(dtypes[2])


def first_dtypes(info: Any, dtypes: DTypes, precision: str) -> bool:
    """One triple of dtypes for each kernel."""
    return dtypes == info.dtypes[0]


def first_floating(info: Any, dtypes: DTypes, precision: str) -> bool:
    return first_dtypes(info, dtypes, precision) and is_float(dtypes[2])


def float32_highest(info: Any, dtypes: DTypes, precision: str) -> bool:
    return (dtypes[0], precision) == ("float32", "highest")


PRODUCTS = sorted({(dtypes, precision) for _, dtypes, precision in MODES})
"""What some kernel takes, for tests that leave the kernel to the chooser."""
NARROW_PRODUCTS = [
    (dtypes, precision) for dtypes, precision in PRODUCTS if not is_float(dtypes[0]) or len(set(dtypes)) == 1
]
"""Those whose result is as wide as the operands, or of integers."""
PRODUCT_IDS = ["-".join([*dtypes, precision]) for dtypes, precision in PRODUCTS]


def cuda_program(name: str) -> str | None:
    """A program of the CUDA toolkit, wherever it is."""
    homes = [os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH")]
    places = [Path(home) / folder for home in [*homes, "/usr/local/cuda"] if home for folder in ("bin", name)]
    return shutil.which(name) or next((found for p in places if (found := shutil.which(str(p / name)))), None)


def poison_free_memory() -> None:
    """Fills memory with NaN and gives it back to XLA's pool, from which the next buffers are likely to come."""
    jax.block_until_ready([jnp.full((_POISON_BYTES,), 0xFF, jnp.uint8) for _ in range(2)])


def run_poisoned(
    run: Callable[[Any, Any], Any], operands: Sequence[Any], outs: Sequence[tuple[Sequence[int], Any]],
    names: Sequence[str],
) -> list[np.ndarray]:  # fmt: skip
    """The results of ``run(operands, poison)``, a jitted function that is donated ``poison`` for its results.

    Args:
      operands: of each result, any pytree of NumPy arrays.
      outs: shape and dtype of each result, into whose place go arrays of 0xFF bytes. Canaries lie around them.
      names: of the results, for messages.
    """
    poison_free_memory()
    canary = nan_bytes((CANARY_BYTES,), np.uint8)
    rows = [(xs, canary, nan_bytes(*out), canary) for xs, out in zip(operands, outs, strict=True)]
    placed = jax.block_until_ready(jax.device_put(rows))
    outputs = [row[2] for row in placed]
    addresses = [x.unsafe_buffer_pointer() for x in outputs]
    results = run([row[0] for row in placed], outputs)
    assert [x.unsafe_buffer_pointer() for x in results] == addresses, "the outputs did not go where the NaNs were"
    for name, row, original in zip(names, placed, rows, strict=True):
        for i, what in ((0, "an operand"), (1, "the canary before out"), (3, "the canary after out")):
            for after, before in zip(jax.tree.leaves(row[i]), jax.tree.leaves(original[i]), strict=True):
                assert np.asarray(after).tobytes() == before.tobytes(), f"{name}: {what} was overwritten"
    return [np.asarray(x) for x in results]


class Program:
    """One compiled function that runs a kernel on many cases, each into an output that was filled with NaN before.

    The outputs are written into donated arrays of 0xFF bytes. Canaries lie between all buffers. ``kernels`` names
    another kernel for each case, or None for the chooser's; all must round their operands if ``info`` does.
    """

    def __init__(
        self, info: Any, dtypes: DTypes, precision: str, cases: Sequence[Case],
        kernels: Sequence[str | None] | None = None,
    ) -> None:  # fmt: skip
        self.cases, self.dtypes, self.judged_at = list(cases), dtypes, judged_at(info, dtypes, precision)
        self.names = [info.name] * len(self.cases) if kernels is None else list(kernels)

        def run(operands: Any, poison: Any) -> list[jax.Array]:
            return [
                jaxgemm.dot_general(
                    lhs, rhs, case.dimension_numbers, precision=precision, preferred_element_type=dtypes[2],
                    kernel=name,
                )
                for case, name, (lhs, rhs) in zip(self.cases, self.names, operands, strict=True)
            ]  # fmt: skip

        self.run = jax.jit(run, donate_argnums=1, keep_unused=True)

    def draw(self, make: Callable[..., np.ndarray], rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        """Operands of every case by ``make(rng, shape, dtype)``."""
        return [
            (make(rng, case.lhs_shape, self.dtypes[0]), make(rng, case.rhs_shape, self.dtypes[1]))
            for case in self.cases
        ]

    def __call__(self, operands: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        outs = [(case.out_shape, self.dtypes[2]) for case in self.cases]
        return run_poisoned(self.run, operands, outs, list(map(str, self.cases)))

    def check_exact(
        self, operands: Sequence[tuple[np.ndarray, np.ndarray]], results: Sequence[np.ndarray],
        only: Iterable[int] | None = None,
    ) -> None:  # fmt: skip
        """Every result, or those of ``only`` these cases, is the float64 product, rounded once."""
        for case, name, (lhs, rhs), out in self._judged(operands, results, only):
            assert_equal(out, rounded(case.product(lhs, rhs), self.dtypes[2]), f"{name} {case}")

    def worst_error(
        self, operands: Sequence[tuple[np.ndarray, np.ndarray]], results: Sequence[np.ndarray],
        only: Iterable[int] | None = None,
    ) -> float:  # fmt: skip
        """The largest error over its bound among all cases, or ``only`` these, each of which must be at most 1."""
        worst = 0.0
        for case, name, pair, out in self._judged(operands, results, only):
            ratio = product_error_ratio(case, out, pair, self.dtypes, self.judged_at)
            assert ratio <= 1, f"{name} {case}: error {ratio:.3g} times its bound"
            worst = max(worst, ratio)
        return worst

    def _judged(
        self, operands: Sequence[tuple[np.ndarray, np.ndarray]], results: Sequence[np.ndarray],
        only: Iterable[int] | None,
    ) -> list[tuple[Case, str | None, tuple[np.ndarray, np.ndarray], np.ndarray]]:  # fmt: skip
        rows = list(zip(self.cases, self.names, operands, results, strict=True))
        return rows if only is None else [rows[i] for i in only]
