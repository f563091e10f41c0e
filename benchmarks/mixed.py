"""What is measured of products with 4-bit weights: ``jaxgemm.matmul(x, qw)`` and its peers, and their inputs."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jaxgemm
from benchmarks import peers
from benchmarks.checks import CHECKED_ROWS, Reference
from benchmarks.shapes import INT4_BITS, INT4_M, INT4_XLA_M, MixedProblem
from jaxgemm._quant import codes_of, middle
from jaxgemm._timing import Args, random_array, rotating_arg_sets

COMPOSED = "composed:xla"
"""The kernel's name where jaxgemm leaves the product to XLA: dequantised, then multiplied."""
XLA_INT4 = "xla_int4"
PLAIN = "plain"
"""The peer of a variant: jaxgemm on the plain problem of the same shape."""
FIRST_M_OF_CUBLAS = 1024
"""From here on the dense peer is compiled without Triton, whose autotuning takes most of the time of a row: both are
within 2 % of each other there (suite dense)."""

_CALL = re.compile(r'@jaxgemm_\w+\(.*?\bkernel = "([^"]+)"')


def called_kernels(program: str) -> str:
    """The full name of what a lowered program calls; several are joined by "+"."""
    return "+".join(dict.fromkeys(_CALL.findall(program))) or COMPOSED


def xla_int4(x: jax.Array, codes: jax.Array, scales: jax.Array) -> jax.Array:
    """The product as one writes it in jax.numpy, with ``jnp.int4`` codes (k, n) and scales (groups, n)."""
    groups, n = scales.shape
    matrix = codes.astype(x.dtype).reshape(groups, -1, n) * scales[:, None, :]
    return jnp.dot(x, matrix.reshape(-1, n))


def peer_names(problem: MixedProblem) -> list[str]:
    """What is measured beside jaxgemm."""
    if not problem.is_plain:
        return [PLAIN]
    dense = "jnp" if problem.m < FIRST_M_OF_CUBLAS else "jnp_cublas"
    return [dense, XLA_INT4] if problem.m in INT4_XLA_M else [dense]


@functools.partial(jax.jit, static_argnames=("group_size", "zeros"))
def _quantized(dense: jax.Array, group_size: int, zeros: bool) -> jaxgemm.QuantizedMatrix:
    return jaxgemm.quantize(dense, bits=INT4_BITS, group_size=group_size, symmetric=not zeros)


@jax.jit
def _for_xla(matrix: jaxgemm.QuantizedMatrix) -> tuple[jax.Array, jax.Array]:
    codes = codes_of(matrix).astype(jnp.int8) - middle(INT4_BITS)
    return codes.astype(jnp.int4), jnp.copy(matrix.scales)  # a copy: the cache must not hold it for the other function


@jax.jit
def _in_float32(matrix: jaxgemm.QuantizedMatrix) -> jax.Array:
    return matrix.dequantize(jnp.float32)


@dataclass(frozen=True)
class MixedReference:
    """Weights may be rounded to the dtype of x before they are multiplied, or sums be scaled that are exact: right is
    what all is within the bound of one of the two.
    """

    rounded: Reference
    exact: Reference

    @classmethod
    def of(cls, problem: MixedProblem, x: jax.Array, matrix: jax.Array, *, seed: int = 0) -> MixedReference:
        """Of the matrix in float32, on CHECKED_ROWS rows of x: all and its last one again, or drawn at random.

        Always the same number, as each other one is another program to compile.
        """
        from jaxgemm._reference import reference

        rows = np.minimum(np.arange(CHECKED_ROWS), problem.m - 1)
        if problem.m > CHECKED_ROWS:
            rows = np.sort(np.random.default_rng(seed).choice(problem.m, CHECKED_ROWS, replace=False))
        lhs = jnp.take(x, rows, axis=0)
        dimension_numbers = problem.dense.dimension_numbers
        rounded, exact = (
            Reference(problem.dense, jnp.asarray(rows), *reference(lhs, weights, dimension_numbers))
            for weights in (matrix.astype(problem.dtype), matrix)
        )
        return cls(rounded, exact)

    def error_over_bound(self, out: jax.Array) -> float:
        """Largest elementwise error of ``out`` in units of its bound: above 1 is wrong."""
        return min(self.rounded.error_over_bound(out), self.exact.error_over_bound(out))


@dataclass(frozen=True)
class Weights:
    """Sets of one matrix: quantised, and of the plain problem also what its peers multiply."""

    quantized: Sequence[jaxgemm.QuantizedMatrix]
    dense: Sequence[jax.Array] = ()
    for_xla: Sequence[tuple[jax.Array, jax.Array]] = ()

    @functools.cached_property
    def exact(self) -> jax.Array:
        """What the codes of the first set mean, in float32."""
        return _in_float32(self.quantized[0])


@dataclass
class Mixed:
    """How mixed problems are measured. Inputs of the last (n, k) are kept, as many problems share them."""

    nk: tuple[int, int] | None = None
    weights: dict[MixedProblem, Weights] = field(default_factory=dict)
    rows: dict[tuple[int, str], list[jax.Array]] = field(default_factory=dict)

    def lower(self, problem: MixedProblem, kernel: str | None) -> peers.Candidate:
        """Traces ``jaxgemm.matmul``; the name is read off the lowered program, so that it is what runs."""
        x, dense = problem.dense.operand_specs()
        matrix = jax.eval_shape(lambda w: _quantized(w, problem.group_size, problem.zeros), dense)
        lowered = jax.jit(functools.partial(jaxgemm.matmul, kernel=kernel)).lower(x, matrix)
        return peers.Candidate(called_kernels(lowered.as_text()), lowered.compile)

    def inputs(self, problem: MixedProblem, names: Sequence[str]) -> Mapping[str, Sequence[Args]]:
        """Sets to rotate, by peer and by name of what is compared with them; no two functions share an array."""
        if self.nk != (problem.n, problem.k):
            self.nk = problem.n, problem.k
            self.weights.clear()
            self.rows.clear()
            jax.clear_caches()  # executables hold device memory
        ours = self._weights(problem)
        matrices: dict[str, Sequence[Args]] = {name: [(matrix,) for matrix in ours.quantized] for name in names}
        for name in peer_names(problem):
            if name == PLAIN:
                matrices[name] = [(matrix,) for matrix in self._weights(problem.plain).quantized]
            else:
                matrices[name] = ours.for_xla if name == XLA_INT4 else [(matrix,) for matrix in ours.dense]
        sets = {}
        number = 0
        for name, found in matrices.items():
            dtype = problem.plain.dtype if name == PLAIN else problem.dtype
            xs = [self._x(problem.m, problem.k, dtype, number + i) for i in range(len(found))]
            sets[name] = [(x, *matrix) for x, matrix in zip(xs, found, strict=True)]
            number += len(found)
        return jax.block_until_ready(sets)

    def reference(self, problem: MixedProblem, args: Args) -> MixedReference:
        """What the result for the first set of ``jaxgemm`` should be."""
        return MixedReference.of(problem, args[0], self._weights(problem).exact)

    def peer_compilers(self, problem: MixedProblem, kernel: str | None) -> dict[str, Callable[[], Callable[..., Any]]]:
        """What compiles each peer of a problem."""

        def compile_of(name: str) -> Callable[[], Callable[..., Any]]:
            if name == PLAIN:
                return self.lower(problem.plain, kernel).compile
            if name == XLA_INT4:
                return functools.partial(_compile_xla_int4, problem)
            return functools.partial(peers.compile_peer, problem.dense, peers.PEERS[name])

        return {name: compile_of(name) for name in peer_names(problem)}

    def done(self, problem: MixedProblem) -> None:
        """Nothing: the next problem may need the same matrices."""

    def _weights(self, problem: MixedProblem) -> Weights:
        key = replace(problem, m=0)
        if key not in self.weights:
            self.weights[key] = self._make(problem)
        return self.weights[key]

    def _make(self, problem: MixedProblem) -> Weights:
        def one(seed: int) -> Args:
            dense = random_array(2 * seed, (problem.k, problem.n), problem.dtype)
            return _quantized(dense, problem.group_size, problem.zeros), dense if seed < dense_sets else None

        dense_bytes = problem.k * problem.n * jnp.dtype(problem.dtype).itemsize
        dense_sets = len(rotating_arg_sets(lambda i: (), dense_bytes)) if problem.is_plain else 0
        sets = rotating_arg_sets(one, problem.weight_bytes)
        quantized = [matrix for matrix, _ in sets]
        if not problem.is_plain:
            return Weights(quantized)
        return Weights(quantized, [dense for _, dense in sets[:dense_sets]], [_for_xla(each) for each in quantized])

    def _x(self, m: int, k: int, dtype: str, number: int) -> jax.Array:
        """Each problem takes the first of the rows for all: drawing other ones would be another program to compile."""
        made = self.rows.setdefault((k, dtype), [])
        while len(made) <= number:
            made.append(random_array(2 * len(made) + 1, (max(INT4_M), k), dtype))
        return lax.slice_in_dim(made[number], 0, m)


def _compile_xla_int4(problem: MixedProblem) -> Callable[..., Any]:
    x, dense = problem.dense.operand_specs()
    codes, scales = jax.eval_shape(lambda w: _for_xla(_quantized(w, problem.group_size, problem.zeros)), dense)
    compiled: Callable[..., Any] = jax.jit(xla_int4).lower(x, codes, scales).compile()
    return compiled
