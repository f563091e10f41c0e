"""``tests/gpu_report.json``: what a whole, clean run of ``tests/gpu`` and ``tests/works_with`` on one GPU showed.

Tests hand over what they measured as pytest user properties, which reach the main process from every xdist worker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent / "gpu_report.json"
FOLDERS = ("tests/gpu/", "tests/works_with/")
SANITIZERS = ("memcheck", "racecheck", "initcheck", "synccheck")
ERROR, SANITIZER, HEADER = "jaxgemm_error_over_bound", "jaxgemm_sanitizer", "jaxgemm_header"
_COLLECTED = "jaxgemm_collected"

RecordError: TypeAlias = Callable[[str, float], None]


def gpu_test_files() -> set[str]:
    """Every test file of these folders, as the report names it."""
    root = HERE.parent.parent
    return {folder + path.name for folder in FOLDERS for path in (root / folder).glob("test_*.py")}


def kernel_names() -> list[str]:
    """The kernels that a whole report covers."""
    from jaxgemm._native import _core

    return [info.name for info in [*_core.kernels(), *_core.mixed_kernels()]]


class GpuReport:
    """The plugin behind ``--gpu-report``; without the option it only counts."""

    def __init__(self, config: pytest.Config, wanted: bool) -> None:
        self.config, self.wanted = config, wanted
        self.collected: Counter[str] = Counter()
        self.deselected = 0
        self.outcomes: dict[str, str] = {}  # node id -> passed, failed or skipped
        self.errors: dict[str, float] = {}
        self.sanitizers: dict[str, dict[str, Any]] = {}
        self.header: dict[str, Any] = {}

    # Where tests are collected: here, or in each xdist worker.

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self.deselected += sum(item.nodeid.startswith(FOLDERS) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = Counter(
            file for item in session.items if (file := item.nodeid.split("::")[0]).startswith(FOLDERS)
        )

    def pytest_sessionfinish(self) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[_COLLECTED] = [dict(self.collected), self.deselected]

    # Where results arrive: here, or in the main process.

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        collected = getattr(node, "workeroutput", {}).get(_COLLECTED)
        if collected is not None:
            self.collected, self.deselected = Counter(collected[0]), collected[1]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith(FOLDERS):
            return
        if report.failed or (report.outcome == "skipped" and self.outcomes.get(report.nodeid) != "failed"):
            self.outcomes[report.nodeid] = report.outcome
        elif report.when == "call":
            self.outcomes.setdefault(report.nodeid, report.outcome)
        if report.when != "teardown":
            return
        for name, value in report.user_properties:
            if name == ERROR:
                kernel, ratio = value
                self.errors[kernel] = max(self.errors.get(kernel, 0.0), ratio)
            elif name == SANITIZER:
                tool, result = value
                self.sanitizers.setdefault(tool, {}).update(result)
            elif name == HEADER and not self.header:
                self.header = dict(value)

    # The end.

    def counts(self) -> dict[str, dict[str, int]]:
        counts = {file: {"passed": 0, "failed": 0, "skipped": 0} for file in sorted(self.collected)}
        for node, outcome in self.outcomes.items():
            counts.setdefault(node.split("::")[0], {"passed": 0, "failed": 0, "skipped": 0})[outcome] += 1
        return counts

    def why_no_report(self) -> list[str]:
        """What keeps this run from being a report; empty if nothing does."""
        counts = self.counts()
        total = Counter[str]()
        for count in counts.values():
            total.update(count)
        reasons = []
        if self.deselected or any("::" in arg for arg in self.config.args):
            reasons.append(f"not all tests were selected ({self.deselected} deselected)")
        if missing := sorted(gpu_test_files() - set(counts)):
            reasons.append(f"no test ran of {', '.join(missing)}")
        if unfinished := [file for file, count in counts.items() if sum(count.values()) != self.collected[file]]:
            reasons.append(f"not every collected test was run of {', '.join(unfinished)}")
        if total["failed"]:
            reasons.append(f"{total['failed']} tests failed")
        if total["skipped"]:
            reasons.append(f"{total['skipped']} tests were skipped")
        if not self.header:
            reasons.append("no test ran on a GPU")
            return reasons
        if missing := [name for name in kernel_names() if name not in self.errors]:
            reasons.append(f"no error was measured of {', '.join(missing)}")
        if missing := [tool for tool in SANITIZERS if tool not in self.sanitizers]:
            reasons.append(f"no result of {', '.join(missing)}")
        return reasons

    def document(self) -> dict[str, Any]:
        return {
            **self.header,
            "files": self.counts(),
            "max_err_over_bound": {name: float(f"{self.errors[name]:.4g}") for name in kernel_names()},
            "sanitizers": {tool: self.sanitizers[tool] for tool in SANITIZERS},
        }

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.wanted:
            return
        reasons = self.why_no_report()
        if reasons:
            terminalreporter.write_line(f"no {REPORT.name} written: {'; '.join(reasons)}", red=True)
            return
        REPORT.write_text(json.dumps(self.document(), indent=1) + "\n")
        terminalreporter.write_line(f"wrote {REPORT}", green=True)
