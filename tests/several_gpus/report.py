"""``tests/several_gpus_report.json``: what a whole, clean run of this folder on several GPUs showed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPORT = HERE.parent / "several_gpus_report.json"
PREFIX = "tests/several_gpus/"
HEADER = "jaxgemm_several_gpus_header"


def files_of_tests() -> set[str]:
    """Every test file of this folder, as the report names it."""
    return {PREFIX + path.name for path in HERE.glob("test_*.py")}


class SeveralGpusReport:
    """The plugin behind ``--several-gpus-report``, for runs in one process; without the option it only counts."""

    def __init__(self, config: pytest.Config, wanted: bool) -> None:
        self.config, self.wanted = config, wanted
        self.collected: Counter[str] = Counter()
        self.deselected = 0
        self.outcomes: dict[str, str] = {}  # node id -> passed, failed or skipped
        self.header: dict[str, Any] = {}

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self.deselected += sum(item.nodeid.startswith(PREFIX) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        files = (item.nodeid.split("::")[0] for item in session.items)
        self.collected = Counter(file for file in files if file.startswith(PREFIX))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith(PREFIX):
            return
        if report.failed or (report.skipped and self.outcomes.get(report.nodeid) != "failed"):
            self.outcomes[report.nodeid] = report.outcome
        elif report.when == "call":
            self.outcomes.setdefault(report.nodeid, report.outcome)
        for name, value in report.user_properties:
            if name == HEADER:
                self.header = dict(value)

    def counts(self) -> dict[str, dict[str, int]]:
        counts = {file: {"passed": 0, "failed": 0, "skipped": 0} for file in sorted(self.collected)}
        for node, outcome in self.outcomes.items():
            counts.setdefault(node.split("::")[0], {"passed": 0, "failed": 0, "skipped": 0})[outcome] += 1
        return counts

    def why_no_report(self) -> list[str]:
        """What keeps this run from being a report; empty if nothing does."""
        counts, reasons = self.counts(), []
        if self.deselected or any("::" in arg for arg in self.config.args):
            reasons.append(f"not all tests were selected ({self.deselected} deselected)")
        if missing := sorted(files_of_tests() - set(counts)):
            reasons.append(f"no test ran of {', '.join(missing)}")
        if unfinished := [file for file, count in counts.items() if sum(count.values()) != self.collected[file]]:
            reasons.append(f"not every collected test was run of {', '.join(unfinished)}")
        totals = {outcome: sum(count[outcome] for count in counts.values()) for outcome in ("failed", "skipped")}
        reasons += [f"{total} tests {outcome}" for outcome, total in totals.items() if total]
        if not self.header:
            reasons.append("no test ran on several GPUs")
        return reasons

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.wanted:
            return
        if reasons := self.why_no_report():
            terminalreporter.write_line(f"no {REPORT.name} written: {'; '.join(reasons)}", red=True)
            return
        REPORT.write_text(json.dumps({**self.header, "files": self.counts()}, indent=1) + "\n")
        terminalreporter.write_line(f"wrote {REPORT}", green=True)
