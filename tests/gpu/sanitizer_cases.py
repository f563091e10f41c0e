"""Every kernel on small ragged shapes: test_sanitizer.py runs this under compute-sanitizer, one tool at a time.

Operands come straight from the host and go straight into the custom calls: compute-sanitizer watches our kernels only,
and memory that one of XLA's had written would look uninitialised to it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm

_LAYOUTS = ("NN", "NT", "TN", "TT")


def operands(rng: np.random.Generator, shape: tuple[int, int, int], layout: str, dtype: Any) -> Any:
    """Stored operands and the exact product."""
    m, n, k = shape
    lhs, rhs = rng.integers(-4, 5, (m, k)), rng.integers(-4, 5, (k, n))
    stored = (lhs if layout[0] == "N" else lhs.T), (rhs if layout[1] == "N" else rhs.T)
    return tuple(np.ascontiguousarray(x).astype(jnp.dtype(dtype)) for x in stored), lhs @ rhs


def run_kernel(info: Any, rng: np.random.Generator) -> int:
    """One product per layout, over all dtypes, ragged, and one of whole tiles with a bias; returns how many."""
    tile_m, tile_n, tile_k = info.cta_tile
    ragged = (tile_m + 3, tile_n + 5, (info.stages + 1) * tile_k + 3)
    whole = (tile_m, tile_n, 2 * max(tile_k, 8))
    dtypes = list(info.dtypes)
    plain = [(ragged, layout, dtypes[i % len(dtypes)]) for i, layout in enumerate(_LAYOUTS)]
    fused = [(shape, "NN", dtypes[-1]) for shape in (ragged, whole)]
    data = [operands(rng, shape, layout, dtype[0]) for shape, layout, dtype in plain + fused]
    biases = [rng.integers(-4, 5, shape[1]).astype(np.float32) for shape, _, _ in fused]

    def run(pairs: Any, biases: Any) -> list[jax.Array]:
        outs = []
        for (lhs, rhs), (_, layout, dtype) in zip(pairs, plain, strict=False):
            numbers = (((1 if layout[0] == "N" else 0,), (0 if layout[1] == "N" else 1,)), ((), ()))
            outs.append(jaxgemm.dot_general(lhs, rhs, numbers, preferred_element_type=dtype[2], kernel=info.name))
        for (lhs, rhs), bias, (_, _, dtype) in zip(pairs[len(plain) :], biases, fused, strict=True):
            outs.append(
                jaxgemm.matmul(
                    lhs, rhs, bias=bias, activation="relu", preferred_element_type=dtype[2], kernel=info.name
                )
            )
        return outs

    outs = jax.jit(run)(*jax.device_put(([pair for pair, _ in data], biases)))
    exact = [product for _, product in data]
    for i, bias in enumerate(biases):
        exact[len(plain) + i] = np.maximum(exact[len(plain) + i] + bias, 0)
    for out, product in zip(outs, exact, strict=True):
        expected = product.astype(np.float32).astype(out.dtype)
        assert np.array_equal(np.asarray(out).astype(np.float32), expected.astype(np.float32)), info.name
    return len(outs)


def main() -> None:
    rng = np.random.default_rng(0)
    assert jax.default_backend() == "gpu"
    print("right products:", sum(run_kernel(info, rng) for info in jaxgemm.kernels()), flush=True)


if __name__ == "__main__":
    main()
