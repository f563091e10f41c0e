"""Sizes past 32 bits: tests that need half of a GPU's memory, which one worker runs (see conftest.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from tests.gpu.support import KERNELS, MODES, NARROW_PRODUCTS, over_modes, poison_free_memory
from tests.helpers import run_python
from tests.values import DTypes, assert_equal, rounded

pytestmark = pytest.mark.gpu

_LAST = {
    (info.family, *dtypes, precision): (info, dtypes, precision)
    for info, dtypes, precision in MODES
    if (dtypes, precision) in NARROW_PRODUCTS and dtypes[0] != "float16"
}
"""The last configuration of each family for each product, float16 and bfloat16 being alike."""


def _pattern(rows: np.ndarray | jax.Array, cols: np.ndarray | jax.Array) -> Any:
    """Small integers that no two neighbouring rows or columns share, from indices."""
    return (rows[:, None] % 251 * 7 + cols[None, :] % 241 * 3 + rows[:, None] // 4093) % 5 - 2


def _generated(shape: tuple[int, int], dtype: str) -> Callable[[], jax.Array]:
    return jax.jit(
        lambda: _pattern(jnp.arange(shape[0], dtype=jnp.int32), jnp.arange(shape[1], dtype=jnp.int32)).astype(dtype)
    )


def test_one_row_of_more_than_2_to_34_columns() -> None:
    """So many tiles in a row that eight rows of them, a band of the scheduler, would not fit 32 bits. In a process of
    its own, which gives the memory back: XLA's pool would keep 64 GiB, which other tests need.
    """
    code = f"from {__name__} import check_one_long_row; check_one_long_row()"
    done = run_python(code, JAX_PLATFORMS="cuda")
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize(("m", "n", "k"), [(65536, 32776, 8), (1050000, 8, 2056)], ids=["out", "lhs"])
@over_modes(rows=list(_LAST.values()))
def test_more_than_2_to_31_elements(info: Any, dtypes: DTypes, precision: str, m: int, n: int, k: int) -> None:
    lhs, rhs = _generated((m, k), dtypes[0])(), _generated((k, n), dtypes[1])()
    assert max(lhs.size, m * n) > 2**31
    chosen = np.array([0, 1, m // 2 + 1, 2**31 // max(n, k) - 1, 2**31 // max(n, k) + 1, m - 2, m - 1])
    columns = np.unique(np.linspace(0, n - 1, 4001).astype(np.int64))

    def run(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jaxgemm.matmul(x, y, precision=precision, preferred_element_type=dtypes[2], kernel=info.name)
        return out[chosen][:, columns], jnp.isnan(out).any()

    poison_free_memory()
    out, any_nan = jax.jit(run)(lhs, rhs)
    expected = _pattern(chosen, np.arange(k)).astype(np.float64) @ _pattern(np.arange(k), columns)
    assert_equal(np.asarray(out), rounded(expected, dtypes[2]), info.name)
    assert not any_nan


def check_one_long_row() -> None:
    info = min((info for info in KERNELS if info.family == "wmma_tiled"), key=lambda info: info.cta_tile[1])
    n = 2**34 + 8
    assert n // info.cta_tile[1] >= 2**29
    lhs, rhs = jnp.zeros((1, 0), jnp.bfloat16), jnp.zeros((0, n), jnp.bfloat16)  # 32 GiB are enough: those of out
    run = jax.jit(lambda poison: jaxgemm.matmul(lhs, rhs, kernel=info.name), donate_argnums=0, keep_unused=True)
    poison = jax.jit(lambda: jnp.full((1, n), jnp.nan, jnp.bfloat16))()
    address = poison.unsafe_buffer_pointer()
    out = run(poison)
    assert out.unsafe_buffer_pointer() == address
    assert jax.jit(lambda x: (x == 0).all())(out)
