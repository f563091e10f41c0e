"""Runs every kernel in one jitted function several times; test_determinism.py starts it with CUDA graphs turned on.

``python command_buffer_cases.py DIRECTORY`` prints a line of JSON; XLA's dump is looked for in DIRECTORY/dump.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from jaxgemm._native import _core
from jaxgemm.formats import from_codes

MIXED_SIZE = 208
RUNS, TRACED_FROM = 8, 5


@jax.jit
def every_kernel(operands: dict[str, tuple[jax.Array, jax.Array]]) -> list[jax.Array]:
    """Two products by each kernel, the second of the first one's result, with a fusion in between."""
    outs = []
    for info in jaxgemm.kernels():
        dtype, _, out_dtype = info.dtypes[0]
        lhs, rhs = operands[dtype]
        gemm = functools.partial(jaxgemm.matmul, preferred_element_type=out_dtype, kernel=info.name)
        signs = jnp.sign(gemm(lhs, rhs)).astype(dtype)
        if jnp.issubdtype(out_dtype, jnp.floating):
            outs.append(gemm(signs, rhs, activation="relu"))
        else:
            outs.append(jnp.maximum(gemm(signs, rhs), 0))
    return outs


@jax.jit
def every_mixed_kernel(x: jax.Array, matrix: jaxgemm.QuantizedMatrix) -> list[jax.Array]:
    """The same with quantised weights."""
    outs = []
    for info in _core.mixed_kernels():
        gemm = functools.partial(jaxgemm.matmul, preferred_element_type=np.float32, kernel=info.name)
        outs.append(gemm(jnp.sign(gemm(x, matrix)).astype(x.dtype), matrix, activation="relu"))
    return outs


def mentioned(directory: Path, *texts: bytes) -> bool:
    """Whether any file below ``directory`` contains one of the texts, regardless of case."""
    files = [path for path in directory.rglob("*") if path.is_file() and "debug_options" not in path.name]
    return any(text in path.read_bytes().lower() for path in files for text in texts)


def all_equal(outs: list[jax.Array], expected: np.ndarray) -> bool:
    return all(np.array_equal(np.asarray(out, np.float64), expected) for out in outs)


def main(directory: Path) -> None:
    rng = np.random.default_rng(0)
    kept, exact_runs = [], 0  # what is kept alive forces the next inputs to other addresses
    for run in range(RUNS):
        lhs, rhs = rng.integers(-4, 5, (131, 75)), rng.integers(-3, 4, (75, 75))
        operands = {
            dtype: (jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype))
            for dtype in {info.dtypes[0][0] for info in jaxgemm.kernels()}
        }
        codes = rng.integers(0, 16, (MIXED_SIZE, MIXED_SIZE)).astype(np.uint8)
        matrix = from_codes(codes, jnp.ones((1, MIXED_SIZE), jnp.bfloat16), group_size=-1)
        x = jnp.asarray(rng.integers(-4, 5, (131, MIXED_SIZE)), jnp.bfloat16)
        kept.append((operands, x, matrix))
        if run == TRACED_FROM:
            jax.profiler.start_trace(str(directory / "trace"))
        outs, mixed_outs = jax.block_until_ready((every_kernel(operands), every_mixed_kernel(x, matrix)))
        weights, tokens = codes.astype(np.int64) - 8, np.asarray(x).astype(np.int64)
        exact_runs += all_equal(outs, np.maximum(np.sign(lhs @ rhs) @ rhs, 0)) and all_equal(
            mixed_outs, np.maximum(np.sign(tokens @ weights) @ weights, 0)
        )
    jax.profiler.stop_trace()
    result = {
        "runs": RUNS,
        "exact_runs": exact_runs,
        "graph_launch_traced": mentioned(directory / "trace", b"graphlaunch"),
        "command_buffer_dumped": mentioned(directory / "dump", b"commandbuffer", b"command_buffer"),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
