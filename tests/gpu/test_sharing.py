"""A GPU and its memory shared: by two processes at the same time, and by results that take the place of operands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
SIZE, STEPS = 256, 40

# Each of two processes multiplies permutation matrices, whose products are exact, until both have been at it.
_CODE = f"""
import sys
import jax, jax.numpy as jnp, numpy as np
import jaxgemm
rng = np.random.default_rng(int(sys.argv[1]))
order = rng.permutation({SIZE})
matrix = jnp.asarray(np.eye({SIZE})[order], jnp.bfloat16)
step = jax.jit(jaxgemm.matmul)
jax.block_until_ready(step(matrix, matrix))
print("ready", flush=True)
sys.stdin.readline()
out = matrix
for _ in range({STEPS}):
    out = step(out, matrix)
expected = np.eye({SIZE})
for _ in range({STEPS} + 1):
    expected = expected @ np.eye({SIZE})[order]
assert np.array_equal(np.asarray(out, np.float64), expected)
print("right", flush=True)
"""


def test_two_processes_on_one_gpu() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _CODE, str(seed)],
            cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for seed in range(2)
    ]  # fmt: skip
    try:
        for process in processes:  # both have a context on the GPU and a compiled kernel
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outs = [process.communicate(timeout=120) for process in processes]
        for process, (out, errors) in zip(processes, outs, strict=True):
            assert process.returncode == 0 and "right" in out, errors
    finally:
        for process in processes:
            process.kill()


def test_donated_operands() -> None:
    """XLA may put results where donated operands lie, once nothing reads them any more: never those of a product in
    the place of its own operands.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(SIZE)
    matrix = np.eye(SIZE)[order]

    def program(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        def step(carry: jax.Array, _: None) -> tuple[jax.Array, None]:
            return jaxgemm.matmul(carry, w, alpha=jnp.float32(1.0), bias=jnp.zeros(SIZE)), None

        out = jax.lax.scan(step, x, None, length=STEPS)[0]
        return out, jaxgemm.matmul(w, out)

    run = jax.jit(program, donate_argnums=(0, 1))
    x, w = jnp.asarray(matrix, jnp.bfloat16), jnp.asarray(matrix, jnp.bfloat16) + 0
    outs = jax.block_until_ready(run(x, w))
    assert x.is_deleted() and w.is_deleted(), "both were donated"
    expected = np.linalg.matrix_power(matrix, STEPS + 1)
    assert np.array_equal(np.asarray(outs[0], np.float64), expected)
    assert np.array_equal(np.asarray(outs[1], np.float64), matrix @ expected)
