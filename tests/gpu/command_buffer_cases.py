"""Runs every kernel in one jitted function several times; test_determinism.py starts it with CUDA graphs turned on.

``python command_buffer_cases.py DIRECTORY`` prints a line of JSON; XLA's dump is looked for in DIRECTORY/dump.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxgemm
from jaxgemm._native import _core
from jaxgemm.formats import from_codes

MIXED_SIZE, CODE_OF_ZERO = 208, 8
LAYERS, MOST_STEPS = 3, 4
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


@jax.jit
def looped(x: jax.Array, stack: jax.Array, matrices: jaxgemm.QuantizedMatrix, steps: jax.Array) -> jax.Array:
    """Layers in a scan, which slices their weights, and then a loop whose length only the GPU knows."""

    def step(y: jax.Array, layer: tuple[jax.Array, jaxgemm.QuantizedMatrix]) -> tuple[jax.Array, None]:
        for weights in layer:
            y = jnp.sign(jaxgemm.matmul(y, weights))
        return y, None

    out, _ = jax.lax.scan(step, x, (stack, matrices))
    return jax.lax.fori_loop(0, steps, lambda _, y: jnp.sign(jaxgemm.matmul(y, stack[0])), out)


def looped_in_int64(x: np.ndarray, stack: np.ndarray, codes: np.ndarray, steps: int) -> np.ndarray:
    """The same, exactly."""
    for layer in zip(stack, codes - CODE_OF_ZERO, strict=True):
        for weights in layer:
            x = np.sign(x @ weights)
    for _ in range(steps):
        x = np.sign(x @ stack[0])
    return x


def mentioned(directory: Path, text: bytes) -> bool:
    """Whether any file below ``directory`` contains the text, regardless of case."""
    return any(text in path.read_bytes().lower() for path in directory.rglob("*") if path.is_file())


def captured(directory: Path, function: str) -> dict[str, int]:
    """How often the program of a jitted function, as XLA runs it, has each operation inside a command buffer.

    A line of the dumped sequence is "NUMBER: OPERATION ...", and what belongs to it is indented further.
    """
    (sequence,) = directory.glob(f"*jit_{function}.*thunk_sequence_after_thunk_passes.txt")
    counts: dict[str, int] = {}
    inside = -1  # the indentation of the command buffer that the line belongs to
    for line in sequence.read_text().splitlines():
        found = re.match(r"( *)\d+: (k\w+)", line)
        if not found:
            continue
        depth, operation = len(found[1]), found[2]
        if inside >= 0 and depth <= inside:
            inside = -1
        if inside >= 0:
            counts[operation] = counts.get(operation, 0) + 1
        elif operation == "kCommandBuffer":
            inside = depth
    return counts


def all_equal(outs: list[jax.Array], expected: np.ndarray) -> bool:
    return all(np.array_equal(np.asarray(out, np.float64), expected) for out in outs)


def main(directory: Path) -> None:
    rng = np.random.default_rng(0)
    exact_runs = exact_mixed_runs = exact_loops = 0
    kept = []  # what is kept alive forces the next inputs to other addresses
    for run in range(RUNS):
        lhs, rhs = rng.integers(-4, 5, (131, 75)), rng.integers(-3, 4, (75, 75))
        operands = {
            dtype: (jnp.asarray(lhs, dtype), jnp.asarray(rhs, dtype))
            for dtype in {info.dtypes[0][0] for info in jaxgemm.kernels()}
        }
        codes = rng.integers(0, 16, (MIXED_SIZE, MIXED_SIZE)).astype(np.uint8)
        matrix = from_codes(codes, jnp.ones((1, MIXED_SIZE), jnp.bfloat16), group_size=-1)
        x = jnp.asarray(rng.integers(-4, 5, (131, MIXED_SIZE)), jnp.bfloat16)
        stack = rng.integers(-2, 3, (LAYERS, MIXED_SIZE, MIXED_SIZE))
        stack_codes = rng.integers(0, 16, stack.shape).astype(np.uint8)
        matrices = from_codes(stack_codes, jnp.ones((LAYERS, 1, MIXED_SIZE), jnp.bfloat16), group_size=-1)
        layers = (jnp.asarray(stack, jnp.bfloat16), matrices)
        kept.append((operands, x, matrix, layers))
        if run == TRACED_FROM:
            jax.profiler.start_trace(str(directory / "trace"))
        steps = run % (MOST_STEPS + 1)
        outs, mixed_outs, last = jax.block_until_ready(
            (every_kernel(operands), every_mixed_kernel(x, matrix), looped(x, *layers, jnp.int32(steps)))
        )
        weights, tokens = codes.astype(np.int64) - CODE_OF_ZERO, np.asarray(x).astype(np.int64)
        exact_runs += all_equal(outs, np.maximum(np.sign(lhs @ rhs) @ rhs, 0))
        exact_mixed_runs += all_equal(mixed_outs, np.maximum(np.sign(tokens @ weights) @ weights, 0))
        exact_loops += all_equal([last], looped_in_int64(tokens, stack, stack_codes.astype(np.int64), steps))
    jax.profiler.stop_trace()
    result = {
        "runs": RUNS,
        "exact_runs": [exact_runs, exact_mixed_runs, exact_loops],
        "graph_launch_traced": mentioned(directory / "trace", b"graphlaunch"),
        "captured": {f: captured(directory / "dump", f) for f in ("every_kernel", "every_mixed_kernel", "looped")},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
