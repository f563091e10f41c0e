"""``python -m jaxgemm tune`` on the GPU: it measures, writes, and the chooser then does what it wrote."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxgemm import _tuning_table

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
EXPLAIN = """
import jax, jaxgemm
x = jax.ShapeDtypeStruct((512, 512), "bfloat16")
said = jaxgemm.explain(x, x)
print(said.kernel)
print(said.reason)
"""


def test_tune(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "JAXGEMM_TUNING": "on"}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("-m", "jaxgemm", "tune", "512x512x512", "--layout", "NN", "TT", "--dtype", "bfloat16", "float32")
    (path,) = (tmp_path / "jaxgemm" / "tuning").iterdir()
    table = _tuning_table.read(path)
    assert table.faults == ()
    assert table.device == jax.devices("cuda")[0].device_kind
    assert {(key.lhs_dtype, key.layout) for key in table.entries} == {
        (dtype, layout) for dtype in ("bfloat16", "float32") for layout in ("NN", "TT")
    }
    (entry,) = (e for key, e in table.entries.items() if (key.lhs_dtype, key.layout) == ("bfloat16", "NN"))
    kernel, reason = run("-c", EXPLAIN).splitlines()
    assert kernel == entry.kernel
    assert reason.endswith(f"the fastest on {table.device} by `python -m jaxgemm tune`")
