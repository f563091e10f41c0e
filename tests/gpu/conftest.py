"""Fixtures of the GPU tests, and the option that writes their report."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from benchmarks.results import current_header
from jaxgemm._native import _core
from tests.gpu.report import ERROR, GpuReport, RecordError
from tests.report import HEADER


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--gpu-report",
        action="store_true",
        help="write tests/gpu_report.json if all of tests/gpu and tests/works_with passes on a GPU",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "xdist_group(name): tests that one worker runs (--dist loadgroup)")
    config.pluginmanager.register(GpuReport(config, config.getoption("--gpu-report")), "jaxgemm_gpu_report")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs half of a GPU's memory comes first, before the pools of the other workers have grown."""
    items.sort(key=lambda item: not any(mark.args == ("large",) for mark in item.iter_markers("xdist_group")))


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
