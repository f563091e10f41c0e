"""What the rows share: numbers that no order of summation rounds, and programs that must hold our calls."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._reference import error_over_bound, reference
from tests.helpers import cuda_text

GEMM, MIXED, XLA = "jaxgemm_gemm", "jaxgemm_mixed", "XLA's own dot"
"""Who multiplies: the kernels, those for quantised weights, and whatever XLA makes of a dot."""

# StableHLO, as it is lowered for CUDA; HLO, as XLA compiled it. An operation's metadata names our primitives in any
# case, so only the target of a custom call counts.
_CALL = re.compile(r'custom_call @(jaxgemm_\w+)|custom_call_target="(jaxgemm_\w+)"')
_DOT = re.compile(r'\bstablehlo\.dot_general\b|= \S+ dot\(|custom_call_target="__(?:cublas|cudnn)[^"]*"')

every_dtype = pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=lambda dtype: dtype.__name__)


def on_gpu() -> bool:
    """Whether programs run on a CUDA GPU unless told otherwise."""
    return jax.default_backend() == "gpu"


def program(function: Callable[..., Any], *args: Any) -> str:
    """What runs: compiled for the GPU that is there, else lowered for one that is not."""
    if not on_gpu():
        return cuda_text(function, *args)
    text = jax.jit(function).lower(*args).compile().as_text()
    assert text is not None
    return text


def products(text: str) -> Counter[str]:
    """How many places of a program multiply by each of :data:`GEMM`, :data:`MIXED` and :data:`XLA`."""
    found = Counter(lowered or compiled for lowered, compiled in _CALL.findall(text))
    found[XLA] = len(_DOT.findall(text))
    return +found


def assert_ours(function: Callable[..., Any], *args: Any, target: str = GEMM) -> None:
    """All products of the program are calls of ``target``, of which it has one at least."""
    found = products(program(function, *args))
    assert set(found) == {target}, f"expected calls of {target} alone, the program has {dict(found)}"


def sparse(rng: np.random.Generator, tree: Any) -> Any:
    """Arrays of the shapes and dtypes of ``tree``, of -1, 0 and 1 with few others than 0: what passes through some
    layers of them stays small.
    """
    return jax.tree.map(lambda x: _sparse(rng, x), tree)


def _sparse(rng: np.random.Generator, like: Any) -> jax.Array:
    values = rng.choice([-1, 0, 1], like.shape, p=[0.1, 0.8, 0.1])
    return jnp.asarray(values, like.dtype)


_LARGEST = {"bfloat16": 2**8, "float16": 2**11, "float32": 2**11}
"""Integers up to this one are exact in a dtype, as an operand of the kernels, which round float32 to TF32."""


def assert_exact(got: Any, wanted: Any, dtype: Any = jnp.float32) -> None:
    """The same structure and numbers, whatever the dtypes of ``got``.

    ``wanted``, of float32, must be of integers that are exact in the ``dtype`` of the computation, and must not be zero
    all over: else equality would say nothing.
    """
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    largest = _LARGEST[jnp.dtype(dtype).name]
    for (path, a), b in zip(jax.tree.leaves_with_path(got), jax.tree.leaves(wanted), strict=True):
        name, a, b = jax.tree_util.keystr(path), np.asarray(a, np.float32), np.asarray(b, np.float32)
        assert b.any(), f"{name} is zero everywhere, which tests nothing"
        assert (b == np.round(b)).all() and np.abs(b).max() <= largest, f"{name} is not of integers up to {largest}"
        np.testing.assert_array_equal(a, b, err_msg=name)


def linear_attention(query: Any, key: Any, value: Any, *, dot_general: Any, **_: Any) -> jax.Array:
    """Attention whose numbers stay integers: scores as they are, if small, in place of softmax's shares."""
    scores = jnp.einsum("...qhd,...khd->...hqk", query, key, _dot_general=dot_general)
    small = jnp.where(abs(scores) < 2, scores, 0)
    return jnp.einsum("...hqk,...khd->...qhd", small, value, _dot_general=dot_general)


def assert_quantised_product(out: Any, x: jax.Array, weight: jaxgemm.QuantizedMatrix, bias: Any, relu: bool) -> None:
    """``out`` is x @ weight + bias, of the dtype of x, within its bound, or relu of that."""
    exact, magnitude = map(np.asarray, reference(x, weight.dequantize(jnp.float32), (((1,), (0,)), ((), ()))))
    add = 0 if bias is None else np.asarray(bias, np.float64)
    exact, magnitude = exact + add, magnitude + abs(add)
    exact = np.maximum(exact, 0) if relu else exact
    assert exact.any()
    # Kernels may round a scale to the dtype of x, and its product with a code again.
    rounding = (1 + float(jnp.finfo(x.dtype).eps) / 2) ** 2 - 1
    ratio = error_over_bound(out, exact, magnitude, weight.k, x.dtype, x.dtype, weight_rounding=rounding)
    assert ratio <= 1, f"the error is {ratio} of its bound"
