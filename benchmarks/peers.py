"""What is measured: jaxgemm's kernels and their peers, lowered for one problem."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.limits import arithmetic
from benchmarks.shapes import Problem

PEERS: dict[str, dict[str, str | bool]] = {"jnp": {}, "jnp_cublas": {"xla_gpu_enable_triton_gemm": False}}
"""Compiler options of each peer: XLA's dot as it autotunes it, and the same without Triton, which leaves cuBLAS."""


class KernelInfo(Protocol):
    """What the benchmarks read of an entry of ``jaxgemm.kernels()``."""

    @property
    def name(self) -> str: ...
    @property
    def family(self) -> str: ...
    @property
    def dtypes(self) -> Iterable[tuple[str, str, str]]: ...
    @property
    def layouts(self) -> Iterable[str]: ...
    @property
    def cta_tile(self) -> tuple[int, int, int]: ...
    @property
    def tf32(self) -> bool: ...
    @property
    def highest(self) -> bool: ...


def registry() -> Sequence[KernelInfo]:
    """Every kernel, in ladder order."""
    import jaxgemm

    return jaxgemm.kernels()


def on_rung(info: KernelInfo, problem: Problem) -> bool:
    """Whether the ladder measures the kernel on the problem: it takes the problem, and uses the precision it may. Those
    that compute single rows are measured on such.
    """
    if info.cta_tile[0] == 1 and problem.m > 1:
        return False
    if arithmetic(problem) == "tf32" and not info.tf32:
        return False  # what it does at HIGHEST
    if problem.lhs_dtype == "float32" and problem.precision == "highest" and not info.highest:
        return False
    dtypes = (problem.lhs_dtype, problem.rhs_dtype, problem.out_dtype)
    return dtypes in {tuple(entry) for entry in info.dtypes} and problem.layout in info.layouts


def _precision(problem: Problem) -> lax.Precision:
    return lax.Precision.HIGHEST if problem.precision == "highest" else lax.Precision.DEFAULT


def activated(x: jax.Array, activation: str | None) -> jax.Array:
    """What ``jax.nn`` makes of x."""
    functions: dict[str | None, Callable[[jax.Array], jax.Array]] = {
        None: lambda x: x,
        "silu": jax.nn.silu,
        "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
        "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    }
    return functions[activation](x)


def compile_peer(problem: Problem, options: dict[str, str | bool]) -> Callable[..., Any]:
    """``lax.dot_general`` on the stored operands, and what jax.numpy has follow it, compiled and autotuned."""

    def dot(lhs: jax.Array, rhs: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        product = lax.dot_general(
            lhs,
            rhs,
            problem.dimension_numbers,
            precision=_precision(problem),
            preferred_element_type=jnp.dtype(problem.out_dtype),
        )
        return activated(product if bias is None else product + bias, problem.activation)

    compiled: Callable[..., Any] = jax.jit(dot).lower(*problem.operand_specs()).compile(compiler_options=options)
    return compiled


@dataclass(frozen=True)
class Candidate:
    """jaxgemm's product for one problem, traced; ``kernel`` is the full name that it calls, None for XLA's dot."""

    kernel: str | None
    compile: Callable[[], Callable[..., Any]]


def lower(problem: Problem, kernel: str | None) -> Candidate:
    """Traces ``jaxgemm.dot_general``, or ``matmul`` if there is an epilogue; ``kernel=None`` lets the chooser decide.

    The name is read off the lowered program, so that it is what runs. Raises ValueError with the library's sentence
    if a named kernel cannot take the problem.
    """
    import jaxgemm

    def dot(lhs: jax.Array, rhs: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        options = {
            "precision": _precision(problem), "preferred_element_type": jnp.dtype(problem.out_dtype), "kernel": kernel,
        }  # fmt: skip
        if bias is None and problem.activation is None:
            return jaxgemm.dot_general(lhs, rhs, problem.dimension_numbers, **options)
        if problem.layout != "NN":
            raise ValueError(f"{problem.label}: matmul is measured in layout NN only")
        return jaxgemm.matmul(lhs, rhs, bias=bias, activation=problem.activation, **options)

    lowered = jax.jit(dot).lower(*problem.operand_specs())
    return Candidate(called_kernel(lowered.as_text(), [info.name for info in registry()]), lowered.compile)


def called_kernel(program: str, names: Iterable[str]) -> str | None:
    """The one kernel that a lowered program names as a quoted string, None if there is none."""
    quoted = set(re.findall(r'"([^"\s\\]+)\\?"', program))
    called = [name for name in names if name in quoted]
    if len(called) > 1:
        raise RuntimeError(f"expected one kernel in the program, found {', '.join(called)}")
    return called[0] if called else None
