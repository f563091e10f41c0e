"""JAX's own tests of ``dot_general``, and of all that JAX makes of it, with ``jaxgemm.dot_general`` in its place, and
after ``jaxgemm.install()``.

    python -m tests.jax_suite FOLDER [--suite NAME ...] [--level NAME ...] [--cases N] [--report]

FOLDER is ``tests/`` of a checkout of JAX about as old as the installed one: neither its wheel nor its sdist has them.
They need absl-py and hypothesis. They run on the first GPU, if there is one; those about several devices, and where
there is no GPU all, on eight devices of the CPU. What fails and is not among DIFFERENCES, or is and passes, is an
error. The default precision is HIGHEST. ``--report`` writes tests/jax_suite_report.json.

Two levels: "function" has our function called, and our primitive in the jaxpr. "install" leaves JAX's primitive there,
and lowers it to a kernel wherever one can, as if a table said of each that it is faster: so it needs a GPU.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
REPORT = Path(__file__).parent / "jax_suite_report.json"
OUTCOMES = ("passed", "different", "skipped", "failed")
LEVELS = ("function", "install")
_RESULT, _LEVEL = "JAXGEMM_JAX_SUITE_RESULT", "JAXGEMM_JAX_SUITE_LEVEL"


@dataclasses.dataclass(frozen=True)
class Suite:
    """Files of JAX's tests, pytest's ``-k``, and whether they are about several devices."""

    files: tuple[str, ...]
    which: str
    devices: bool = False


SUITES = {
    "lax": Suite(("lax_test.py",), "LaxTest and (testDot or dot_general or test_mixed_fp8)"),
    "gradients": Suite(("lax_autodiff_test.py",), "testDot"),
    "vmap": Suite(("lax_vmap_test.py", "batching_test.py"), "testDot"),
    "numpy": Suite(
        ("lax_numpy_test.py", "lax_numpy_einsum_test.py", "linalg_test.py"),
        "testDot or Matmul or testVecdot or testTensordot or testInner or testOuter or insum or MultiDot "
        "or testMixedPrecisionDot or contraction",
    ),
    "sharding": Suite(
        ("pjit_test.py", "shard_map_test.py"),
        "dot_general or einsum or matmul or jnp_dot or tensordot or shard_map_dot",
        devices=True,
    ),
}
_OTHER_NAME = "looks for the name dot_general in the jaxpr, where ours is jaxgemm_gemm"
DIFFERENCES = {
    "testMatmulBothSize1BatchDimsSqueezedJaxpr": _OTHER_NAME,
    "testMixedPrecisionDot": _OTHER_NAME,
    "test_einsum_mixed_precision": _OTHER_NAME,
}
"""Tests, without the number of their case, that fail by design -> why."""
GPU_DIFFERENCES = {
    "testDotAlgorithmConfig": "looks for the algorithm that a dot_general's text has; a kernel's call has a precision",
}
"""Those that do so where kernels run."""


@contextlib.contextmanager
def in_place() -> Iterator[collections.Counter[str]]:
    """``jaxgemm.dot_general`` in the place of JAX's, for all that is not compiled yet; counts its ``calls``.

    ``jax.lax.dot_general``, which jax.numpy calls and einsum keeps, calls the function ``dot`` of its module.
    """
    import jax
    import numpy as np
    from jax._src.lax import lax

    import jaxgemm

    calls: collections.Counter[str] = collections.Counter()
    own = lax.dot

    def dot(lhs: Any, rhs: Any, *, dimension_numbers: Any = None, **kwargs: Any) -> Any:
        if dimension_numbers is None:
            if not {np.ndim(lhs), np.ndim(rhs)} <= {1, 2}:
                return own(lhs, rhs, **kwargs)  # raises
            dimension_numbers = ((np.ndim(lhs) - 1,), (0,)), ((), ())
        calls["calls"] += 1
        return jaxgemm.dot_general(lhs, rhs, dimension_numbers, **kwargs)

    lax.dot = jax.lax.dot = dot
    jax.clear_caches()
    try:
        yield calls
    finally:
        lax.dot = jax.lax.dot = own
        jax.clear_caches()


@contextlib.contextmanager
def installed() -> Iterator[collections.Counter[str]]:
    """``jaxgemm.install()`` with tables that say of every kernel that it is faster; counts its ``calls``."""
    import jaxgemm
    from jaxgemm import _install
    from jaxgemm._choose import Request, choose

    calls: collections.Counter[str] = collections.Counter()
    own = _install.measured_faster

    def faster(request: Request, sm: int) -> str | None:
        kernel = choose(request, None, sm).kernel
        calls["calls"] += kernel is not None
        return kernel

    _install.measured_faster = faster
    jaxgemm.install()
    try:
        yield calls
    finally:
        jaxgemm.uninstall()
        _install.measured_faster = own


def difference(test: str, platform: str, level: str = LEVELS[0]) -> str | None:
    """Why a test fails by design on a platform of JAX, None if it should pass."""
    known = (DIFFERENCES if level == "function" else {}) | (GPU_DIFFERENCES if platform == "gpu" else {})
    return known.get(re.sub(r"\d+$", "", test.rpartition("::")[2]))


class Outcomes:
    """The plugin of pytest that puts ours in place, and counts."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(OUTCOMES, 0)
        self.surprises: list[str] = []
        self._stack = contextlib.ExitStack()
        self._calls: collections.Counter[str] = collections.Counter()
        self._platform = ""
        self._level = os.environ[_LEVEL]

    def pytest_sessionstart(self) -> None:
        import jax

        self._platform = jax.default_backend()
        self._calls = self._stack.enter_context(in_place() if self._level == "function" else installed())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return  # of setting up and of tearing down, only what went wrong counts
        known = difference(report.nodeid, self._platform, self._level)
        outcome = "different" if known and report.failed else report.outcome
        self.counts[outcome] += 1
        if report.failed if known is None else report.passed:
            self.surprises.append(f"{report.nodeid.rpartition('/')[2]} {report.outcome}")

    def pytest_sessionfinish(self) -> None:
        self._stack.close()
        calls = {"calls": self._calls["calls"]}
        result = {"platform": self._platform, **self.counts, **calls, "surprises": self.surprises}
        Path(os.environ[_RESULT]).write_text(json.dumps(result))


def pytest_configure(config: pytest.Config) -> None:
    """Of a run that names this module as a plugin (-p)."""
    config.pluginmanager.register(Outcomes(), "jaxgemm_jax_suite")


def run(name: str, level: str, folder: Path, cases: int) -> dict[str, Any]:
    """The ``platform`` that a suite ran on, its counts by outcome, ``calls`` of ``jaxgemm.dot_general``, or of kernels
    by installed products, ``surprises``.

    Raises:
      RuntimeError: pytest did not come to its end, or found no test.
    """
    suite = SUITES[name]
    with tempfile.TemporaryDirectory() as work:
        result = Path(work) / "result.json"
        environment = os.environ | {
            "JAX_NUM_GENERATED_CASES": str(cases),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]),
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip(),
            # Some tests allow errors of float32's size only: XLA does not round small operands to TF32 by default.
            "JAX_DEFAULT_MATMUL_PRECISION": "highest",
            _RESULT: str(result),
            _LEVEL: level,
        }
        if suite.devices:
            environment["JAX_PLATFORMS"] = "cpu"
        options = ["-q", "--tb=short", "-p", "no:cacheprovider", "-p", "tests.jax_suite", "-c", os.devnull]
        files = [str(folder / file) for file in suite.files]
        command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(folder), "-k", suite.which, *files]
        done = subprocess.run(command, env=environment, cwd=work, check=False)
        if done.returncode not in (0, 1) or not result.is_file():
            raise RuntimeError(f"pytest ended with {done.returncode} in the suite {name!r} of {folder}")
        counts = json.loads(result.read_text())
    if counts["passed"] == 0 or counts["calls"] == 0:
        raise RuntimeError(f"the suite {name!r} of {folder} multiplied nothing: {counts}")
    return counts


def _device() -> str:
    import jax

    return jax.devices()[0].device_kind


def runs(suites: Sequence[str], levels: Sequence[str] | None, *, gpu: bool) -> list[tuple[str, str]]:
    """(level, suite) to run, of the levels that were asked for or else of all that can: installed products are those of
    suites that run on a GPU.

    Raises:
      ValueError: a level was asked for of which nothing can run.
    """
    able = {"function": suites, "install": [name for name in suites if gpu and not SUITES[name].devices]}
    if empty := [level for level in levels or () if not able[level]]:
        raise ValueError(f"no suite of {', '.join(suites)} runs at level {', '.join(empty)} on this machine")
    return [(level, name) for level in levels or LEVELS for name in able[level]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--level", nargs="+", choices=LEVELS, help="default: all that this machine can run")
    parser.add_argument("--cases", type=int, default=10, help="of each parametrised test, drawn by JAX (default 10)")
    parser.add_argument("--report", action="store_true")
    args = parser.parse_args()
    import jax

    try:
        chosen = runs(args.suite, args.level, gpu=jax.default_backend() == "gpu")
    except ValueError as error:
        parser.error(str(error))
    results = {(level, name): run(name, level, args.folder.resolve(), args.cases) for level, name in chosen}
    surprises = [f"{level}: {test}" for (level, _), counts in results.items() for test in counts.pop("surprises")]
    for (level, name), counts in results.items():
        numbers = ", ".join(f"{count} {what}" for what, count in counts.items() if what != "platform")
        print(f"{level}: {name} on {counts['platform']}: {numbers}")
    for test in surprises:
        print(f"SURPRISE {test}")
    if args.report and not surprises:
        from benchmarks.trees import evidence_trees
        from jaxgemm._files import dumps, replace_text

        header = {"device": _device(), "jax": jax.__version__, "cases": args.cases, "trees": evidence_trees()}
        rows = [{"level": level, "suite": name, **counts} for (level, name), counts in results.items()]
        replace_text(REPORT, dumps({**header, "rows": rows}))
        print(f"wrote {REPORT}")
    return 1 if surprises else 0


if __name__ == "__main__":
    sys.exit(main())
