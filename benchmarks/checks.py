"""Correctness before speed: the error of an output over its derived bound, against a float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import activated
from benchmarks.shapes import Problem

MAX_WHOLE_CHECK_MACS = 8192**3
"""Larger products are checked on CHECKED_ROWS rows only, drawn at random, each over all of N and K."""
CHECKED_ROWS = 512
STEEPEST = 1.13
"""No activation's derivative is larger."""


@dataclass(frozen=True)
class Reference:
    """The exact product |A@B| is compared with, and |A|@|B| that its error is bounded by, both float64.

    ``rows`` are the rows of the product that were computed; None means all.
    """

    problem: Problem
    rows: jax.Array | None
    exact: Any
    magnitude: Any

    @classmethod
    def of(
        cls, problem: Problem, lhs: jax.Array, rhs: jax.Array, bias: jax.Array | None = None, *, seed: int = 0
    ) -> Reference:
        """Computes the reference for stored operands, on all rows if the problem is small enough."""
        from jaxgemm._reference import reference

        rows = None
        if problem.flops // 2 > MAX_WHOLE_CHECK_MACS and problem.m > CHECKED_ROWS:
            drawn = np.random.default_rng(seed).choice(problem.m, CHECKED_ROWS, replace=False)
            rows = jnp.asarray(np.sort(drawn))
            lhs = jnp.take(lhs, rows, axis=problem.lhs_m_axis)
        exact, magnitude = reference(lhs, rhs, problem.dimension_numbers)
        with jax.enable_x64(True):
            if bias is not None:
                exact, magnitude = exact + bias.astype(jnp.float64), magnitude + abs(bias.astype(jnp.float64))
            if problem.activation is not None:
                exact, magnitude = activated(exact, problem.activation), STEEPEST * magnitude
        return cls(problem, rows, exact, magnitude)

    def error_over_bound(self, out: jax.Array) -> float:
        """Largest elementwise error of ``out`` in units of its bound: above 1 is wrong, NaN counts as infinite."""
        from jaxgemm._reference import error_over_bound

        problem = self.problem
        if out.dtype != jnp.dtype(problem.out_dtype):
            raise TypeError(f"the output is {out.dtype}, expected {problem.out_dtype}")
        if self.rows is not None:
            out = jnp.take(out, self.rows, axis=-2)
        return float(
            error_over_bound(
                out, self.exact, self.magnitude, problem.k, problem.lhs_dtype, problem.out_dtype, problem.precision
            )
        )
