"""No memory for a kernel's workspace: an error, and then everything works again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
FRACTION = 0.02
"""Of the GPU's memory, all that the process gets."""

# The product of ones copies lhs, whose rows of an odd number of elements are not where TMA wants them: lhs once more
# is what the workspace takes. Ballast leaves room for anything else, but not for that.
_CODE = """
import json
import jax, jax.numpy as jnp, numpy as np
import jaxgemm

K, N, KERNEL = 1023, 64, "wgmma"
limit = jax.devices()[0].memory_stats()["bytes_limit"]
m = int(limit * 0.2) // (2 * K) // 128 * 128

def step(x, w):
    return jaxgemm.matmul(x, w, kernel=KERNEL)

x, w = jax.block_until_ready((jnp.ones((m, K), jnp.bfloat16), jnp.ones((K, N), jnp.bfloat16)))
run = jax.jit(step).lower(x, w).compile()
workspace = run.memory_analysis().temp_size_in_bytes

def ballast():
    # In pieces: what is left is then less than the workspace, but more than a piece, wherever holes are.
    free = limit - jax.devices()[0].memory_stats()["bytes_in_use"]
    piece = limit // 64
    return [jax.block_until_ready(jnp.zeros(piece, jnp.uint8)) for _ in range((free - workspace // 2) // piece)]

def right(rows):
    out = np.asarray(jax.jit(step)(x[:rows], w), np.float32)
    return out.shape == (rows, N) and bool((out == 1024).all())  # 1023 in bfloat16

seen = {"workspace": workspace, "lhs": x.nbytes, "before": right(300)}
held = ballast()
errors = []
for _ in range(3):
    try:
        jax.block_until_ready(run(x, w))
        errors.append("none")
    except jax.errors.JaxRuntimeError as error:
        errors.append(str(error))
seen |= {"errors": errors, "beside": right(300)}
del held
out = run(x, w)
seen["after"] = bool((out == 1024).all())
print(json.dumps(seen))
"""


def test_no_memory_for_the_workspace() -> None:
    environment = {
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true", "XLA_PYTHON_CLIENT_MEM_FRACTION": str(FRACTION),
        "JAXGEMM_TUNING": "off", "TF_CPP_MIN_LOG_LEVEL": "3",
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", _CODE], env=os.environ | environment,
        cwd=ROOT, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["workspace"] > seen["lhs"], "nothing is copied into a workspace"
    assert seen["before"] and seen["beside"] and seen["after"], seen
    assert len(seen["errors"]) == 3
    for error in seen["errors"]:
        assert "RESOURCE_EXHAUSTED" in error and "memory" in error.lower(), error
