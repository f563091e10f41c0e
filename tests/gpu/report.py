"""``tests/gpu_report.json``: what a whole, clean run of ``tests/gpu`` and ``tests/works_with`` on one GPU showed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from tests.report import Report, files_of_tests

REPORT = Path(__file__).resolve().parent.parent / "gpu_report.json"
FOLDERS = ("tests/gpu/", "tests/works_with/")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
ERROR, SANITIZER = "jaxgemm_error_over_bound", "jaxgemm_sanitizer"

RecordError: TypeAlias = Callable[[str, float], None]


def gpu_test_files() -> set[str]:
    """Every test file of these folders, as the report names it."""
    return files_of_tests(FOLDERS)


def kernel_names() -> list[str]:
    """The kernels that a whole report covers."""
    from jaxgemm._native import _core

    return [info.name for info in [*_core.kernels(), *_core.mixed_kernels()]]


class GpuReport(Report):
    """The plugin behind ``--gpu-report``: of kernels and sanitizers, too."""

    def __init__(self, config: pytest.Config, wanted: bool) -> None:
        super().__init__(config, wanted, REPORT, FOLDERS, "a GPU")
        self.errors: dict[str, float] = {}
        self.sanitizers: dict[str, dict[str, Any]] = {}

    def take(self, name: str, value: Any) -> None:
        if name == ERROR:
            kernel, ratio = value
            self.errors[kernel] = max(self.errors.get(kernel, 0.0), ratio)
        elif name == SANITIZER:
            tool, result = value
            self.sanitizers.setdefault(tool, {}).update(result)
        else:
            super().take(name, value)

    def why_no_report(self) -> list[str]:
        reasons = super().why_no_report()
        if not self.header:
            return reasons
        if missing := [name for name in kernel_names() if name not in self.errors]:
            reasons.append(f"no error was measured of {', '.join(missing)}")
        if missing := [tool for tool in SANITIZERS if tool not in self.sanitizers]:
            reasons.append(f"no result of {', '.join(missing)}")
        return reasons

    def document(self) -> dict[str, Any]:
        return {
            **super().document(),
            "max_err_over_bound": {name: float(f"{self.errors[name]:.4g}") for name in kernel_names()},
            "sanitizers": {tool: self.sanitizers[tool] for tool in SANITIZERS},
        }
