"""Running kernels on poisoned memory, and judging what they give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from tests.edge_shapes import Case
from tests.values import DTypes, assert_equal, error_ratio, nan_bytes, rounded

KERNELS = jaxgemm.kernels()
KERNEL_DTYPES = [(info, dtypes) for info in KERNELS for dtypes in info.dtypes]
CANARY_BYTES = 256  # the granularity of XLA's allocator: a canary is the next thing after what lies before it
_POISON_BYTES = 1 << 25


def kernel_id(value: Any) -> str:
    """A test's name for a kernel or a triple of dtypes."""
    return value.name if hasattr(value, "name") else "-".join(value) if isinstance(value, tuple) else str(value)


KERNEL_IDS = [info.name for info in KERNELS]
KERNEL_DTYPE_IDS = [f"{info.name}-{'-'.join(dtypes)}" for info, dtypes in KERNEL_DTYPES]


def cuda_program(name: str) -> str | None:
    """A program of the CUDA toolkit, wherever it is."""
    homes = [os.environ.get(variable) for variable in ("CUDA_HOME", "CUDA_PATH")]
    places = [Path(home) / folder for home in [*homes, "/usr/local/cuda"] if home for folder in ("bin", name)]
    return shutil.which(name) or next((found for p in places if (found := shutil.which(str(p / name)))), None)


def precision_of(dtype: str) -> str | None:
    """What these tests ask for: no kernel of this build rounds float32 operands, so they are held to HIGHEST."""
    return "highest" if dtype == "float32" else None


def poison_free_memory() -> None:
    """Fills memory with NaN and gives it back to XLA's pool, from which the next buffers are likely to come."""
    jax.block_until_ready([jnp.full((_POISON_BYTES,), 0xFF, jnp.uint8) for _ in range(2)])


class Program:
    """One compiled function that runs a kernel on many cases, each into an output that was filled with NaN before.

    The outputs are written into donated arrays of 0xFF bytes. Canaries lie between all buffers.
    """

    def __init__(self, kernel: str | None, dtypes: DTypes, cases: Sequence[Case]) -> None:
        self.cases, self.dtypes = list(cases), dtypes

        def run(operands: Any, poison: Any) -> list[jax.Array]:
            return [
                jaxgemm.dot_general(
                    lhs, rhs, case.dimension_numbers, precision=precision_of(dtypes[0]),
                    preferred_element_type=dtypes[2], kernel=kernel,
                )
                for case, (lhs, rhs) in zip(self.cases, operands, strict=True)
            ]  # fmt: skip

        self.run = jax.jit(run, donate_argnums=1, keep_unused=True)

    def draw(self, make: Callable[..., np.ndarray], rng: np.random.Generator) -> list[tuple[np.ndarray, np.ndarray]]:
        """Operands of every case by ``make(rng, shape, dtype)``."""
        return [
            (make(rng, case.lhs_shape, self.dtypes[0]), make(rng, case.rhs_shape, self.dtypes[1]))
            for case in self.cases
        ]

    def __call__(self, operands: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
        poison_free_memory()
        poison = [nan_bytes(case.out_shape, self.dtypes[2]) for case in self.cases]
        canary = nan_bytes((CANARY_BYTES,), np.uint8)
        rows = [(lhs, rhs, canary, p, canary) for (lhs, rhs), p in zip(operands, poison, strict=True)]
        placed = jax.block_until_ready(jax.device_put(rows))
        outputs = [row[3] for row in placed]
        addresses = [x.unsafe_buffer_pointer() for x in outputs]
        results = self.run([(row[0], row[1]) for row in placed], outputs)
        assert [x.unsafe_buffer_pointer() for x in results] == addresses, "the outputs did not go where the NaNs were"
        for case, row, original in zip(self.cases, placed, rows, strict=True):
            for i, what in ((0, "lhs"), (1, "rhs"), (2, "the canary before out"), (4, "the canary after out")):
                assert np.asarray(row[i]).tobytes() == original[i].tobytes(), f"{case}: {what} was overwritten"
        return [np.asarray(x) for x in results]

    def check_exact(self, operands: Sequence[tuple[np.ndarray, np.ndarray]], results: Sequence[np.ndarray]) -> None:
        """Every result is the float64 product, rounded once."""
        for case, (lhs, rhs), out in zip(self.cases, operands, results, strict=True):
            assert_equal(out, rounded(case.product(lhs, rhs), self.dtypes[2]), str(case))

    def worst_error(self, operands: Sequence[tuple[np.ndarray, np.ndarray]], results: Sequence[np.ndarray]) -> float:
        """The largest error over its bound among all cases, each of which must be at most 1."""
        worst = 0.0
        for case, (lhs, rhs), out in zip(self.cases, operands, results, strict=True):
            magnitude = case.product(np.abs(np.asarray(lhs, np.float64)), np.abs(np.asarray(rhs, np.float64)))
            ratio = error_ratio(out, case.product(lhs, rhs), magnitude, case.shape.k, self.dtypes)
            assert ratio <= 1, f"{case}: error {ratio:.3g} times its bound"
            worst = max(worst, ratio)
        return worst
