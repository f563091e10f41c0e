"""The committed report of the tests on several GPUs is clean and whole.

That it is of older sources is told, not refused, since no GPUs are here to make another.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.trees import evidence_trees
from jaxgemm._native import _core
from tests.report import files_of_tests
from tests.several_gpus import FOLDERS, REPORT


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    if not REPORT.exists():
        command = "python -m pytest tests/several_gpus --several-gpus-report"
        pytest.fail(f"{REPORT.name} is missing: on a machine with two GPUs, `{command}`")
    return json.loads(REPORT.read_text())


def test_says_where_it_comes_from(report: dict[str, Any]) -> None:
    for name in ("device", "driver", "cuda", "jax", "date", "source_hash"):
        assert isinstance(report[name], str), name
        assert report[name] not in ("", "unknown"), name
    assert report["device"].startswith("NVIDIA")
    assert type(report["devices"]) is int and report["devices"] >= 2, f"{report['devices']} devices"
    assert report["trees"].keys() == evidence_trees().keys()
    assert all(len(sha) == 40 for sha in report["trees"].values())


def test_every_file_passed_without_a_skip(report: dict[str, Any]) -> None:
    assert set(report["files"]) == files_of_tests(FOLDERS)
    for file, counts in report["files"].items():
        assert counts.keys() == {"passed", "failed", "skipped"}, file
        assert counts["passed"] > 0, file
        assert counts["failed"] == counts["skipped"] == 0, file


def test_sources_are_compared(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints whether the report is of this tree."""
    here = {**evidence_trees(), "binary": _core.source_hash()}
    there = {**report["trees"], "binary": report["source_hash"]}
    other = [name for name in here if here[name] != there[name]]
    with capsys.disabled():
        verdict = f"differs from this tree in {', '.join(other)}" if other else "is of this very tree"
        print(f"\n{REPORT.name} of {report['date']} ({report['devices']} x {report['device']}) {verdict}")
