"""What every test shares: eight host devices, fixed seeds, and the rule for tests that need a GPU."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterator

_EIGHT_DEVICES = "--xla_force_host_platform_device_count=8"
if _EIGHT_DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_EIGHT_DEVICES}".strip()
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several workers share the GPU
# What the developer has measured on this machine is nothing that a test may depend on.
os.environ["JAXGEMM_TUNING"] = "shipped"

import jax  # noqa: E402  (the flag above is read when JAX starts its backend)
import numpy as np  # noqa: E402
import pytest  # noqa: E402

GPU_SKIP_REASON = "needs a CUDA GPU"
SEVERAL_GPUS_SKIP_REASON = f"{GPU_SKIP_REASON}, and a second one"


def cuda_devices() -> list[jax.Device]:
    """The CUDA GPUs of this machine that JAX can use."""
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Of ``-n auto``: as many as a GPU of 80 GB has room for, at most."""
    return min(8, len(os.sched_getaffinity(0)))


def pytest_configure(config: pytest.Config) -> None:
    # Workers share the cores: in each of them NumPy, which computes the references, would else start a thread for every
    # core when it is imported, which a plugin may do before the worker comes here. So they inherit this.
    if getattr(config.option, "numprocesses", None):
        for threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            os.environ.setdefault(threads, "1")
    config.addinivalue_line("filterwarnings", "ignore:jaxgemm has no kernels for")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, count, reason in (("gpu", 1, GPU_SKIP_REASON), ("several_gpus", 2, SEVERAL_GPUS_SKIP_REASON)):
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and len(cuda_devices()) < count:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = [report for report in terminalreporter.getreports("skipped") if GPU_SKIP_REASON in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} gpu tests skipped: too few CUDA GPUs", yellow=True)


@pytest.fixture(autouse=True)
def without_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tests not marked ``gpu`` or ``several_gpus`` compute on the CPU and choose kernels as if no GPU were attached,
    wherever they run.
    """
    if request.node.get_closest_marker("gpu") or request.node.get_closest_marker("several_gpus"):
        yield
        return
    for module in ("_target", "_dot_general"):
        monkeypatch.setattr(f"jaxgemm.{module}.attached_gpu", lambda: None)
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Most of the time of tests on the CPU is XLA's, and many programs are compiled again: to be read after they were
    run, by another test, or as ``few_programs`` emptied JAX's caches. Then they come from a folder of this process. Not
    on a GPU, where compiling the kernels' calls is a part of what is tested; nor where programs are compiled for one
    that is not there, which cannot be loaded.
    """
    from tests.compiled import can_compile  # not above: it imports jaxgemm, and what fails then should be a test

    if not cuda_devices() and not can_compile():
        jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


TESTS_BETWEEN_CLEARS = 32
_tests_run = itertools.count(1)


@pytest.fixture(autouse=True)
def few_programs() -> Iterator[None]:
    """JAX keeps what it lowered. In a process with some thousand programs a profile of the tests of sharding had most
    of its samples in MLIR's StorageUniquer, and few after the caches were emptied.
    """
    yield
    if next(_tests_run) % TESTS_BETWEEN_CLEARS == 0:
        jax.clear_caches()


@pytest.fixture
def for_h200(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen for an H200."""
    for module in ("_lowering", "_mixed_lowering"):
        monkeypatch.setattr(f"jaxgemm.{module}.target_sm", lambda: 90)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers, the same in every run of one test and different between tests."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))
