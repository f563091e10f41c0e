"""The same bits: run after run, from many threads, and from CUDA graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxgemm
from jaxgemm._native import _core
from tests.gpu.support import first_dtypes, over_modes, poison_free_memory
from tests.values import DTypes, normals

pytestmark = pytest.mark.gpu

_RUNS, _THREADS, _CALLS = 20, 8, 10


def _gemm(info: Any, dtypes: DTypes, precision: str) -> Any:
    options = {"precision": precision, "preferred_element_type": dtypes[2], "kernel": info.name}
    return jax.jit(lambda x, y: jaxgemm.matmul(x, y, **options))


@over_modes(first_dtypes)
def test_same_bits_run_after_run(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    gemm = _gemm(info, dtypes, precision)
    lhs, rhs = jax.device_put((normals(rng, (515, 1031), dtypes[0]), normals(rng, (1031, 517), dtypes[1])))
    noise = jnp.ones((2048, 2048), jnp.float32)
    poison_free_memory()
    first = np.asarray(gemm(lhs, rhs)).tobytes()
    outs = []
    for i in range(_RUNS):
        noise = noise * 0.5 + i  # other work on the same stream, and other memory for the next result
        outs.append(gemm(lhs, rhs))
    assert all(np.asarray(out).tobytes() == first for out in outs)


@over_modes(first_dtypes)
def test_same_bits_from_many_threads(info: Any, dtypes: DTypes, precision: str, rng: np.random.Generator) -> None:
    """The very first call comes from all threads at once."""
    gemm = _gemm(info, dtypes, precision)
    shapes = (165, 333), (333, 127)
    operands = [tuple(jax.device_put(normals(rng, shape, dtypes[0])) for shape in shapes) for _ in range(_THREADS)]
    barrier = Barrier(_THREADS)

    def work(index: int) -> list[bytes]:
        barrier.wait()
        return [np.asarray(gemm(*operands[index])).tobytes() for _ in range(_CALLS)]

    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(work, range(_THREADS)))
    for index, outs in enumerate(results):
        alone = np.asarray(gemm(*operands[index])).tobytes()
        assert all(out == alone for out in outs)


@pytest.mark.parametrize("loops", [False, True], ids=["bodies of loops", "loops"])
def test_command_buffers(tmp_path: Path, loops: bool) -> None:
    """Every kernel inside CUDA graphs, whose inputs lie at new addresses in each launch; and in loops that run graphs,
    or are part of one.
    """
    commands = "FUSION,CUSTOM_CALL,DYNAMIC_SLICE_FUSION" + (",WHILE,CONDITIONAL" if loops else "")
    flags = (
        f"--xla_gpu_graph_min_graph_size=1 --xla_gpu_enable_command_buffer={commands} "
        f"--xla_dump_to={tmp_path / 'dump'} --xla_dump_hlo_as_text"
    )
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = os.environ | {"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_PREALLOCATE": "false", "PYTHONPATH": path}
    script = Path(__file__).with_name("command_buffer_cases.py")
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])
    assert seen["runs"] > 0
    assert seen["exact_runs"] == [seen["runs"]] * 3, seen
    assert seen["graph_launch_traced"], seen
    captured = seen["captured"]
    assert captured["every_kernel"]["kCustomCall"] == 2 * len(_core.kernels()), captured
    assert captured["every_mixed_kernel"]["kCustomCall"] == 2 * len(_core.mixed_kernels()), captured
    assert captured["looped"]["kCustomCall"] == 3, captured
    # XLA leaves the scan outside, perhaps as its body copies a slice of scales on another stream.
    assert captured["looped"].get("kWhile", 0) == (1 if loops else 0), captured
