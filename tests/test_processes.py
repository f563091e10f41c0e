"""jaxgemm in processes of its own: forked, at their end, many threads at their beginning, with JAX's cache on disk."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import ROOT, run_python

# Programs end with 0, and say nothing that JAX on its own does not say.
LOWER = """
import jax, jax.numpy as jnp, jaxgemm
def lower(n, function=jaxgemm.matmul):
    x = jax.ShapeDtypeStruct((n, 64), jnp.bfloat16), jax.ShapeDtypeStruct((64, 48), jnp.bfloat16)
    return jax.jit(lambda a, b: function(a, b)).trace(*x).lower(lowering_platforms=("cuda",)).as_text()
"""


def run(code: str, **environment: str) -> str:
    """What the program prints; it ends well and leaves nothing on stderr."""
    done = run_python(code, python_path=[ROOT], JAX_PLATFORMS="cpu", **environment)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "jaxgemm has no kernels for" not in line]
    assert not [line for line in said if re.search("leak|Traceback|Error|Fatal|Exception", line)], done.stderr
    return done.stdout


FORK = """
import os, warnings
warnings.simplefilter("ignore")  # JAX's, of threads in the parent
child = os.fork()
if child == 0:
    text = lower(32)
    known = len(jaxgemm.kernels()) > 5 and globals().get("parents", text) == text
    os._exit(0 if known and text.count("custom_call @jaxgemm_gemm") == 1 else 1)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), lower(32).count("custom_call @jaxgemm_gemm"))
"""


@pytest.mark.parametrize("before", ["", "parents = lower(32)"], ids=["imported", "in use"])
def test_a_forked_child_chooses_and_lowers(before: str) -> None:
    assert run(LOWER + before + FORK) == "0 1\n"


ENDS = {
    "objects of the compiled module": "kept = jaxgemm.kernels(), jaxgemm.mixed_kernels()",
    "a jitted function and its arrays": "f = jax.jit(jaxgemm.matmul); y = f(jnp.ones((8, 8)), jnp.ones((8, 8)))",
    "quantised weights": "w = jaxgemm.quantize(jnp.ones((64, 64)), bits=4, group_size=32)",
    "installed": "jaxgemm.install(); text = lower(16, jnp.matmul)",
    "within options": "block = jaxgemm.options(install=True); block.__enter__(); text = lower(16, jnp.matmul)",
    "a call while Python ends": "import atexit; atexit.register(lambda: print(len(lower(24)) > 0))",
    "an exception that is kept": """
try:
    jaxgemm.matmul(jnp.ones((2, 3)), jnp.ones((2, 3)))
except TypeError as error:
    kept = error
""",
    "a thread that still lowers": "import threading; threading.Thread(target=lower, args=(40,)).start()",
}


@pytest.mark.parametrize("name", ENDS)
def test_python_ends_without_a_word(name: str) -> None:
    assert "last line" in run(LOWER + ENDS[name] + "\nprint('last line')")


def test_the_first_calls_of_many_threads(tmp_path: Path) -> None:
    """Registration, caches and tables are made by whoever comes first; all find the same."""
    code = (
        LOWER
        + """
import concurrent.futures, sys, threading
sys.setswitchinterval(1e-5)
gate = threading.Barrier(8)
def work(i):
    gate.wait()
    with jaxgemm.options(install=bool(i % 2)):
        return lower(64), lower(64, jnp.matmul), jaxgemm.matmul(jnp.ones((3, 4)), jnp.ones((4, 5))).sum().item()
with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(work, range(8)))
print(len({text for text, _, _ in found}), len({text for _, text, _ in found}), {total for _, _, total in found})
"""
    )
    assert run(code, XDG_CACHE_HOME=str(tmp_path)) == "1 1 {60.0}\n"


def test_jaxs_compilation_cache(tmp_path: Path) -> None:
    """A second process finds the program on disk, and computes the same with it."""
    code = """
import jax, jax.numpy as jnp, numpy as np, jaxgemm
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event))
f = jax.jit(lambda x, w, b: jaxgemm.matmul(x, w, bias=b, activation="gelu"))
x, w = (np.arange(n * 8, dtype=np.float32).reshape(n, 8) % 5 for n in (4, 8))
print(np.asarray(f(x, w, np.ones(8, np.float32))).tobytes().hex(), hits.count("/jax/compilation_cache/cache_hits"))
"""
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    first, second = (run(code, **settings).split() for _ in range(2))
    assert first[0] == second[0]
    assert int(first[1]) == 0 < int(second[1])
