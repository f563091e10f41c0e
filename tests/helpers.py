"""Data, references and lowered programs for the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm._choose import Request
from jaxgemm._native import _core
from tests.edge_shapes import Shape

ROOT = Path(__file__).resolve().parent.parent
KERNEL_NAMES = [info.name for info in _core.kernels()]
AT_ONCE = [info.name for info in _core.kernels() if info.tiles_at_once > 1]
"""Rivals of the pipelined families where sums are short, though they belong to an earlier rung."""
AT_ONCE_IN_ANY_LAYOUT = [info.name for info in _core.kernels() if info.name in AT_ONCE and info.cta_tile[0] <= 32]
"""Of these, those that are rivals whether or not both operands lie along K."""
MOST_K_AT_ONCE = 200
MULTIPROCESSORS = _core.planned_multiprocessors(90)
"""For which the model plans on compute capability 9.0 (cuda/select.cc)."""
FAMILIES = list(dict.fromkeys(info.family for info in _core.kernels()))

# Arrays of these sizes and dtypes can only be multiplied in one way, and no result looks like its transpose.
MATMUL_SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3,), (3,)),
    ((2, 3), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3, 4)),
    ((5, 2, 3), (3,)),
    ((3,), (5, 3, 4)),
    ((5, 2, 3), (3, 4)),
    ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)),
    ((1, 2, 3), (5, 3, 4)),
    ((5, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (1, 3, 4)),
    ((1, 2, 3), (3, 4)),
    ((5, 1, 2, 3), (6, 3, 4)),
    ((7, 1, 2, 3), (7, 6, 3, 4)),
    ((1, 6, 2, 3), (7, 1, 3, 4)),
    ((7, 6, 2, 3), (6, 3, 4)),
    ((1, 1, 2, 3), (5, 1, 3, 4)),
    ((2, 1, 5, 2, 3), (1, 6, 5, 3, 4)),
    ((2, 1, 1, 2, 3), (2, 6, 5, 3, 4)),
    ((6, 5, 2, 3), (2, 6, 1, 3, 4)),
    ((2, 1, 5, 2, 3), (4,) * 0 + (5, 3, 1)),
    ((0, 3), (3, 4)),
    ((2, 0), (0, 4)),
    ((2, 3), (3, 0)),
    ((0,), (0,)),
    ((0,), (0, 4)),
    ((0, 2, 3), (3, 4)),
    ((0, 2, 3), (0, 3, 4)),
    ((0, 2, 3), (1, 3, 4)),
    ((5, 2, 0), (5, 0, 4)),
    ((5, 2, 0), (0, 4)),
]


def integers(rng: np.random.Generator, shape: Sequence[int], dtype: Any = np.float32, bound: int = 8) -> jax.Array:
    """Random integers in (-bound, bound): their products and sums are exact in every dtype that the tests use."""
    boolean = jnp.issubdtype(dtype, jnp.bool_)
    low = 0 if boolean or jnp.issubdtype(dtype, jnp.unsignedinteger) else 1 - bound
    values = rng.integers(low, 2 if boolean else bound, tuple(shape))
    if jnp.issubdtype(dtype, jnp.complexfloating):
        values = values + 1j * rng.integers(low, bound, tuple(shape))
    return jnp.asarray(values, dtype)


def normal(rng: np.random.Generator, shape: Sequence[int], dtype: Any = np.float32) -> jax.Array:
    """Standard normal values rounded to ``dtype``."""
    return jnp.asarray(rng.standard_normal(tuple(shape)), dtype)


def struct(shape: Sequence[Any], dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    """The abstract array of a shape."""
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def assert_same(actual: Any, expected: Any) -> None:
    """Equality of shape, dtype and every value."""
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def cuda_text(function: Callable[..., Any], *operands: Any) -> str:
    """The program that ``function`` is for a CUDA GPU, which need not be there."""
    traced = jax.jit(lambda *xs: function(*xs)).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


def custom_calls(text: str) -> list[str]:
    """The lines of a lowered program that call our kernels."""
    return [line for line in text.splitlines() if "custom_call @jaxgemm_gemm" in line]


def count_ops(text: str, op: str) -> int:
    """How often a lowered program has the StableHLO operation ``op``."""
    return len(re.findall(rf"\bstablehlo\.{op}\b", text))


def request(
    lhs: jax.ShapeDtypeStruct,
    rhs: jax.ShapeDtypeStruct,
    dimension_numbers: Any = (((1,), (0,)), ((), ())),
    **kwargs: Any,
) -> Request:
    """What the chooser is asked about a dot_general."""
    preferred = kwargs.pop("preferred_element_type", None)
    out = jax.eval_shape(
        lambda x, y: jax.lax.dot_general(x, y, dimension_numbers, preferred_element_type=preferred), lhs, rhs
    )
    return Request(lhs, rhs, struct(out.shape, out.dtype), dimension_numbers=dimension_numbers, **kwargs)


def dims(order: Sequence[int], batch: Sequence[int], rows: Sequence[int], cols: Sequence[int]) -> _core.OperandDims:
    """The native description of one operand."""
    return _core.OperandDims(list(order), list(batch), list(rows), list(cols))


def problem(m: int, n: int, k: int, **kwargs: Any) -> _core.Problem:
    """A GEMM for the native functions; keywords are those of ``_core.Problem`` plus ``batch`` and ``layout``."""
    batch, layout = kwargs.pop("batch", 1), kwargs.pop("layout", "NN")
    lhs_sizes = [batch, m, k] if layout[0] == "N" else [batch, k, m]
    rhs_sizes = [batch, k, n] if layout[1] == "N" else [batch, n, k]
    plain, flipped = dims((0, 1, 2), (0,), (1,), (2,)), dims((0, 1, 2), (0,), (2,), (1,))
    settings = {
        "lhs_sizes": lhs_sizes, "lhs_dims": plain if layout[0] == "N" else flipped,
        "rhs_sizes": rhs_sizes, "rhs_dims": plain if layout[1] == "N" else flipped,
        "out_sizes": [batch, m, n], "out_dims": plain,
        "lhs_dtype": "float32", "rhs_dtype": "float32", "out_dtype": "float32",
        "precision": "default", "activation": "none", "has_alpha": False, "has_bias": False, "sm": 90,
    }  # fmt: skip
    return _core.Problem(**(settings | kwargs))


def left_over_shapes(info: Any, dtypes: Sequence[str], precision: str) -> list[Shape]:
    """Of few and of more tiles that are left over when all multiprocessors have had one, with K just so long that the
    model has it split, if the kernel does so; for one whose CTAs stay. Ragged, and whole.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    rows, clusters = 4, MULTIPROCESSORS // info.cluster_ctas
    lhs, rhs, out = dtypes
    kinds = {"lhs_dtype": lhs, "rhs_dtype": rhs, "out_dtype": out, "precision": precision, "sm": 90}
    shapes = []
    for more_cols, rest in ((1, 3), (4, 0)):
        m, n = rows * tile_m * info.cluster_ctas - rest, (clusters // rows + more_cols) * tile_n - rest
        depths = range(8 * tile_k, 400 * tile_k, 4 * tile_k)
        split = [
            k + 16
            for k in depths
            if not info.split_k or _core.k_split(info.name, problem(m, n, k + 16, **kinds))[1] > 1
        ]
        assert split, f"{info.name} never splits K of the tiles that {m} x {n} leaves over"
        shapes.append(Shape(m, n, split[0]))
    return shapes


def run_python(
    code: str, *, python_path: Sequence[Path | str] | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a fresh interpreter on the CPU, which sees this process's modules unless told otherwise."""
    path = os.pathsep.join(map(str, python_path if python_path is not None else [ROOT, *filter(None, sys.path)]))
    environment = os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | env
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
