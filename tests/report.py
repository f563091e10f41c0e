"""The committed report of tests that only GPUs can run: what a whole, clean run of their folders showed.

Tests hand over what they measured as pytest user properties, which reach the main process from every xdist worker.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
HEADER = "jaxgemm_header"


def files_of_tests(folders: Iterable[str]) -> set[str]:
    """Every test file of folders such as "tests/gpu/", as a report names it."""
    return {folder + path.name for folder in folders for path in (HERE.parent / folder).glob("test_*.py")}


class Report:
    """The plugin behind an option that asks for a report; without the option it only counts.

    Args:
      path: of the report.
      folders: the folders of tests that it is about.
      place: where they must have run, in words.
    """

    def __init__(self, config: pytest.Config, wanted: bool, path: Path, folders: tuple[str, ...], place: str) -> None:
        self.config, self.wanted, self.path, self.folders, self.place = config, wanted, path, folders, place
        self.collected: Counter[str] = Counter()
        self.deselected = 0
        self.outcomes: dict[str, str] = {}  # node id -> passed, failed or skipped
        self.header: dict[str, Any] = {}
        self._key = f"jaxgemm_collected_{path.stem}"

    # Where tests are collected: here, or in each xdist worker.

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self.deselected += sum(item.nodeid.startswith(self.folders) for item in items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        files = (item.nodeid.split("::")[0] for item in session.items)
        self.collected = Counter(file for file in files if file.startswith(self.folders))

    def pytest_sessionfinish(self) -> None:
        output = getattr(self.config, "workeroutput", None)
        if output is not None:
            output[self._key] = [dict(self.collected), self.deselected]

    # Where results arrive: here, or in the main process.

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        collected = getattr(node, "workeroutput", {}).get(self._key)
        if collected is not None:
            self.collected, self.deselected = Counter(collected[0]), collected[1]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith(self.folders):
            return
        if report.failed or (report.outcome == "skipped" and self.outcomes.get(report.nodeid) != "failed"):
            self.outcomes[report.nodeid] = report.outcome
        elif report.when == "call":
            self.outcomes.setdefault(report.nodeid, report.outcome)
        if report.when == "teardown":
            for name, value in report.user_properties:
                self.take(name, value)

    def take(self, name: str, value: Any) -> None:
        """Keeps a property of a test."""
        if name == HEADER and not self.header:
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
        if missing := sorted(files_of_tests(self.folders) - set(counts)):
            reasons.append(f"no test ran of {', '.join(missing)}")
        if unfinished := [file for file, count in counts.items() if sum(count.values()) != self.collected[file]]:
            reasons.append(f"not every collected test was run of {', '.join(unfinished)}")
        if total["failed"]:
            reasons.append(f"{total['failed']} tests failed")
        if total["skipped"]:
            reasons.append(f"{total['skipped']} tests were skipped")
        if not self.header:
            reasons.append(f"no test ran on {self.place}")
        return reasons

    def document(self) -> dict[str, Any]:
        """The report."""
        return {**self.header, "files": self.counts()}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.wanted:
            return
        if reasons := self.why_no_report():
            terminalreporter.write_line(f"no {self.path.name} written: {'; '.join(reasons)}", red=True)
            return
        self.path.write_text(json.dumps(self.document(), indent=1) + "\n")
        terminalreporter.write_line(f"wrote {self.path}", green=True)
