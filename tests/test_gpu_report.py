"""The committed report of the GPU tests is clean and, of the sources that it is of, whole.

A report of older sources is told, not refused, since no GPU is here to make another; so is what it can't know of yet.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.trees import evidence_trees
from jaxgemm._native import _core
from tests.gpu import conftest
from tests.gpu.report import REPORT, SANITIZERS, gpu_test_files, kernel_names
from tests.values import is_float


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    if not REPORT.exists():
        command = "python -m pytest tests/gpu tests/works_with --gpu-report"
        pytest.fail(f"{REPORT.name} is missing: on a machine with a GPU, `{command}`")
    return json.loads(REPORT.read_text())


def test_says_where_it_comes_from(report: dict[str, Any]) -> None:
    for name in ("device", "driver", "cuda", "jax", "date", "source_hash"):
        assert isinstance(report[name], str)
        assert report[name] not in ("", "unknown"), name
    assert "cpu" not in report["device"].lower()
    assert report["trees"].keys() == evidence_trees().keys()


def other_trees(report: dict[str, Any]) -> list[str]:
    """What differs between the sources of the report and those here."""
    here = {**evidence_trees(), "binary": _core.source_hash()}
    there = {**report["trees"], "binary": report["source_hash"]}
    return [name for name in here if here[name] != there[name]]


def lacking(report: dict[str, Any]) -> list[str]:
    """Kernels and test files of this tree that are not in the report."""
    return [
        *(name for name in kernel_names() if name not in report["max_err_over_bound"]),
        *sorted(gpu_test_files() - set(report["files"])),
    ]


def test_a_report_of_this_tree_is_whole(report: dict[str, Any]) -> None:
    if not other_trees(report):
        assert set(report["files"]) == gpu_test_files()
        assert set(report["max_err_over_bound"]) == set(kernel_names())


def test_every_file_passed_without_a_skip(report: dict[str, Any]) -> None:
    assert report["files"]
    for file, counts in report["files"].items():
        assert counts["passed"] > 0, file
        assert counts["failed"] == counts["skipped"] == 0, file


def test_every_kernel_is_within_its_bound(report: dict[str, Any]) -> None:
    infos = {info.name: info for info in [*_core.kernels(), *_core.mixed_kernels()]}
    known = infos.keys() & report["max_err_over_bound"].keys()
    assert known
    for info in (infos[name] for name in known):
        ratio = report["max_err_over_bound"][info.name]
        assert (0 < ratio < 1) if any(is_float(out) for _, _, out in info.dtypes) else ratio == 0, info.name


def test_sanitizers_are_clean(report: dict[str, Any]) -> None:
    assert set(report["sanitizers"]) == set(SANITIZERS)
    for tool, result in report["sanitizers"].items():
        assert result == {"errors": 0, "planted_defect_found": True}, tool


def test_sources_are_compared(report: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints whether the report is of this tree and, if not, what it lacks."""
    other = other_trees(report)
    with capsys.disabled():
        verdict = f"differs from this tree in {', '.join(other)}" if other else "is of this very tree"
        without = f" and says nothing of {', '.join(lacking(report))}" if lacking(report) else ""
        print(f"\n{REPORT.name} of {report['date']} ({report['device']}) {verdict}{without}")


def test_files_of_one_worker_exist() -> None:
    """A renamed one would be dealt to all workers, whose pools do not fit the GPU's memory together."""
    assert {name.rpartition("/")[2] for name in gpu_test_files()} > conftest.OF_ONE_WORKER
