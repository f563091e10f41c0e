"""Every kernel on small ragged shapes: test_sanitizer.py runs this under compute-sanitizer, one tool at a time.

The argument is the tool: initcheck takes what TMA stores for uninitialised, and gets no cases in which it does. Of a
cp.async that reads fewer than 16 bytes it counts all 16, also those past an operand's end: mma_multistage, which reads
so where rows begin anywhere, gets operands that end with whole vectors. memcheck and the emulator know what is read to
the byte.

Operands come straight from the host and go straight into the custom calls: compute-sanitizer watches our kernels only,
and memory that one of XLA's had written would look uninitialised to it.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import Any

import jax
import numpy as np

import jaxgemm
from tests.edge_shapes import LAYOUTS, Case, Shape, deep_shape
from tests.gpu.mixed import MIXED, MixedCase, column_unit, dtypes_of, raw_mixed_call, split_results
from tests.helpers import left_over_shapes
from tests.quantised import WHOLE
from tests.values import EXACT_ALPHA, is_float, modes


def operands(rng: np.random.Generator, case: Case, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Small integers, as they are stored."""
    lhs, rhs = (rng.integers(-4, 5, shape).astype(np.dtype(dtype)) for shape in (case.lhs_shape, case.rhs_shape))
    return lhs, rhs


def ending_with_vectors(case: Case) -> Case:
    """Nearly the same, but both operands end at multiples of 16 elements: their rows begin anywhere all the same, but
    for those of one operand in two layouts.
    """
    sizes = "k" if case.layout == "TN" else "mn"
    shape = replace(case.shape, **{size: -(-getattr(case.shape, size) // 16) * 16 for size in sizes})
    return replace(case, shape=shape)


def run_kernel(info: Any, rng: np.random.Generator, tool: str) -> int:
    """One product per layout, over all that the kernel does, ragged; whole tiles and a long K with alpha and a bias
    where it fuses them; returns how many.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    ragged = Shape(tile_m + 3, tile_n + 5, (info.stages + 1) * tile_k + 3)
    whole = Shape(tile_m, tile_n, 2 * max(tile_k, 8))
    rows = modes(info)
    plain = [(Case(ragged, layout), *rows[i % len(rows)]) for i, layout in enumerate(LAYOUTS)]
    if info.tma and tool == "memcheck":  # large: the slower tools would take minutes
        plain += [(Case(shape, "NN"), *rows[0]) for shape in left_over_shapes(info, *rows[0])]
    shapes = (ragged, deep_shape(info)) if tool == "initcheck" and info.tma else (ragged, deep_shape(info), whole)
    fused = [(Case(shape, "NN"), *rows[-1 - i % len(rows)]) for i, shape in enumerate(shapes)]
    if tool == "initcheck" and info.family in ("mma_ldmatrix", "mma_multistage"):
        plain, fused = ([(ending_with_vectors(case), *row) for case, *row in part] for part in (plain, fused))
    data = [operands(rng, case, dtypes[0]) for case, dtypes, _ in plain + fused]
    biases = [rng.integers(-4, 5, case.shape.n).astype(np.float32) for case, _, _ in fused]

    def run(pairs: Any, biases: Any) -> list[jax.Array]:
        outs = []
        for (lhs, rhs), (case, dtypes, precision) in zip(pairs, plain, strict=False):
            outs.append(
                jaxgemm.dot_general(
                    lhs, rhs, case.dimension_numbers, precision, preferred_element_type=dtypes[2], kernel=info.name
                )
            )
        for (lhs, rhs), bias, (_, dtypes, precision) in zip(pairs[len(plain) :], biases, fused, strict=True):
            epilogue = {"alpha": EXACT_ALPHA, "bias": bias, "activation": "relu"} if is_float(dtypes[2]) else {}
            outs.append(
                jaxgemm.matmul(
                    lhs, rhs, precision=precision, preferred_element_type=dtypes[2], kernel=info.name, **epilogue
                )
            )
        return outs

    outs = jax.jit(run)(*jax.device_put((data, biases)))
    exact = [case.product(*pair) for (case, _, _), pair in zip(plain + fused, data, strict=True)]
    for i, (bias, (_, dtypes, _)) in enumerate(zip(biases, fused, strict=True)):
        if is_float(dtypes[2]):
            exact[len(plain) + i] = np.maximum(EXACT_ALPHA * exact[len(plain) + i] + bias, 0)
    for out, product in zip(outs, exact, strict=True):
        expected = product.astype(np.float32).astype(out.dtype)
        assert np.array_equal(np.asarray(out).astype(np.float32), expected.astype(np.float32)), info.name
    return len(outs)


def out_of(info: Any, dtype: str, tool: str) -> str:
    """``dtype``, but float32, which TMA does not store, where it stores others (kStoresTiles of int4_wgmma.cu)."""
    return "float32" if tool == "initcheck" and info.stream_k else dtype


def run_mixed_kernel(info: Any, rng: np.random.Generator, tool: str) -> int:
    """Products with quantised weights: ragged, whole tiles, short, and with K split, over all kinds of groups; the
    first and the last with an epilogue. Returns how many.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    scales = "float16" if info.tma else "float32"
    ragged_n = tile_n // 32 * 16 + 16
    rows = [
        (
            MixedCase(tile_m + 3, tile_n + column_unit(info, "integer"), (info.stages + 1) * tile_k + 3, 64, "integer"),
            0,
        ),
        (MixedCase(tile_m, tile_n, 2 * tile_k, out=out_of(info, "float16", tool)), 1),
        (MixedCase(3, 16, 37, WHOLE, scales=scales, experts=True), 0),
        (MixedCase(tile_m // 2 + 1, ragged_n, 27 * tile_k + 8, info.group_multiple, "integer", scales), 1),
    ]
    kinds = dtypes_of(info)
    operands = [case.draw(rng, "float16" if case.out == "float16" else kinds[i], exact=True) for case, i in rows]
    fused = (0, len(rows) - 1)
    biases = {i: rng.integers(-4, 5, rows[i][0].n).astype(np.float32) for i in fused}

    def run(pairs: Any, biases: Any) -> list[jax.Array]:
        outs = []
        for i, ((x, matrix), (case, _)) in enumerate(zip(pairs, rows, strict=True)):
            epilogue = {"alpha": EXACT_ALPHA, "bias": biases[i], "activation": "relu"} if i in fused else {}
            outs.append(jaxgemm.matmul(x, matrix, preferred_element_type=case.out, kernel=info.name, **epilogue))
        return outs

    arrays = [(x, weights.matrix()) for x, weights in operands]
    outs = jax.jit(run)(*jax.device_put((arrays, biases)))
    for i, ((x, weights), out) in enumerate(zip(operands, outs, strict=True)):
        exact = x.astype(np.float64) @ weights.dense()
        expected = (np.maximum(EXACT_ALPHA * exact + biases[i], 0) if i in fused else exact).astype(np.float32)
        assert np.array_equal(np.asarray(out), expected.astype(out.dtype)), f"{info.name} {rows[i]}"
    return len(outs)


def run_stream(info: Any, rng: np.random.Generator, tool: str) -> int:
    """Products whose tiles are shared by many CTAs that are no cluster, and by few, after one that is not shared;
    returns how many.
    """
    tile_m, tile_n, tile_k = info.cta_tile
    out_dtype = out_of(info, "bfloat16", tool)
    rows = [
        (MixedCase(tile_m + 3, tile_n + 16, 6 * tile_k + 8, 64, "integer", out=out_dtype), (0, 23)),
        (MixedCase(tile_m, 4 * tile_n, 4 * tile_k, out=out_dtype), (1, 9)),
    ]
    for case, split in rows:
        x, weights = case.draw(rng, "bfloat16", exact=True)
        results = split_results(info.name, case, "bfloat16", split)
        out, _ = jax.jit(functools.partial(raw_mixed_call, results, kernel=info.name, split=split))(
            *jax.device_put((x[None], weights.alone().matrix()))
        )
        expected = (x.astype(np.float64) @ weights.dense()).astype(np.float32).astype(out.dtype)
        assert np.array_equal(np.asarray(out)[0], expected), f"{info.name} {split}"
    return len(rows)


def main(tool: str) -> None:
    rng = np.random.default_rng(0)
    assert jax.default_backend() == "gpu"
    products = sum(run_kernel(info, rng, tool) for info in jaxgemm.kernels())
    products += sum(run_mixed_kernel(info, rng, tool) for info in MIXED)
    products += sum(run_stream(info, rng, tool) for info in MIXED if info.stream_k)
    print("right products:", products, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
