"""Fixtures of the GPU tests, and the option that writes their report."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from benchmarks.results import current_header
from jaxgemm._native import _core
from tests.gpu.report import ERROR, GpuReport, RecordError
from tests.report import HEADER

OF_ONE_WORKER = {"test_large.py", "test_emulator.py", "test_sanitizer.py"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu-report",
        action="store_true",
        help="write tests/gpu_report.json if all of tests/gpu and tests/works_with passes on a GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(GpuReport(config, config.getoption("--gpu-report")), "jaxgemm_gpu_report")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all of a file that needs half of the GPU's memory, or most of the CPU; and such files come first,
    before the other workers' pools of memory have grown.
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if file.rpartition("/")[2] in OF_ONE_WORKER else nodeid

    return Scheduling(config, log)


@functools.cache
def _header() -> dict[str, Any]:
    return {**current_header(), "source_hash": _core.source_hash()}


@pytest.fixture(autouse=True)
def describe_machine(request: pytest.FixtureRequest) -> None:
    """Hands the report what it ran on."""
    request.node.user_properties.append((HEADER, _header()))


@pytest.fixture
def record_error(request: pytest.FixtureRequest) -> RecordError:
    """``record_error(kernel name, largest error over its bound)``: for the report."""

    def record(kernel: str, ratio: float) -> None:
        request.node.user_properties.append((ERROR, (kernel, float(ratio))))

    return record
