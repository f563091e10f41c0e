"""The GPUs of these tests, and the option that writes their report."""

from __future__ import annotations

import functools
from typing import Any

import jax
import pytest

from benchmarks.results import current_header
from jaxgemm._native import _core
from tests.conftest import cuda_devices
from tests.report import HEADER, Report
from tests.several_gpus import FOLDERS, REPORT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--several-gpus-report",
        action="store_true",
        help="write tests/several_gpus_report.json if all of tests/several_gpus passes on two or more GPUs",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "several_gpus: needs two CUDA GPUs; skipped, and counted, where there are not")
    wanted = bool(config.getoption("--several-gpus-report", default=False))
    report = Report(config, wanted, REPORT, FOLDERS, "several GPUs")
    config.pluginmanager.register(report, "jaxgemm_several_gpus_report")


@functools.cache
def _header() -> dict[str, Any]:
    return {**current_header(), "devices": len(cuda_devices()), "source_hash": _core.source_hash()}


@pytest.fixture
def devices(request: pytest.FixtureRequest) -> list[jax.Device]:
    """All CUDA GPUs; handing them out hands the report what the tests ran on."""
    found = cuda_devices()
    assert len(found) >= 2, "one GPU has nothing to share with"
    assert len({device.device_kind for device in found}) == 1, "GPUs of several kinds"
    request.node.user_properties.append((HEADER, _header()))
    return found
