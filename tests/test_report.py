"""tests/report.py: which runs make a report, with outcomes that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.report import HEADER, Report, files_of_tests

FOLDERS = ("tests/several_gpus/", "tests/works_with/")
FILES = sorted(files_of_tests(FOLDERS))
GOOD = {f"{file}::test": "passed" for file in FILES}
FIRST, *_ = GOOD


def written(path: Path, outcomes: dict[str, str], *, header: bool = True, deselected: int = 0, args: Any = ()) -> Any:
    """The report of a run in which each test had an outcome ("" for one that did not end), or why there is none."""
    config: Any = SimpleNamespace(args=list(args))
    plugin = Report(config, True, path, FOLDERS, "a GPU")
    tests: list[Any] = [SimpleNamespace(nodeid=name) for name in (*outcomes, "tests/test_other.py::test")]
    plugin.pytest_deselected([SimpleNamespace(nodeid=FIRST)] * deselected)  # type: ignore[list-item]
    plugin.pytest_collection_finish(SimpleNamespace(items=tests))  # type: ignore[arg-type]
    properties = [(HEADER, {"device": "GPU"})] if header else []
    for name, outcome in (*outcomes.items(), ("tests/test_other.py::test", "failed")):
        for when in ("setup", "call", "teardown") if outcome else ():
            result = outcome if when == "call" else "passed"
            plugin.pytest_runtest_logreport(
                pytest.TestReport(name, ("", None, ""), {}, result, None, when, user_properties=properties)  # type: ignore[arg-type]
            )
    said: list[str] = []
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lambda text, **_: said.append(text)))  # type: ignore[arg-type]
    assert path.exists() == said[0].startswith("wrote ")
    return json.loads(path.read_text()) if path.exists() else said[0]


def test_a_whole_run(tmp_path: Path) -> None:
    report = written(tmp_path / "report.json", GOOD)
    assert report == {"device": "GPU", "files": {file: {"passed": 1, "failed": 0, "skipped": 0} for file in FILES}}


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a failure": ({"outcomes": GOOD | {FIRST: "failed"}}, "1 tests failed"),
    "a skip": ({"outcomes": GOOD | {FIRST: "skipped"}}, "1 tests were skipped"),
    "a test that did not end": ({"outcomes": GOOD | {f"{FILES[0]}::other": ""}}, "not every collected test was run"),
    "a file less": ({"outcomes": dict.fromkeys(list(GOOD)[1:], "passed")}, f"no test ran of {FILES[0]}"),
    "a selection": ({"outcomes": GOOD, "deselected": 2}, "not all tests were selected (2 deselected)"),
    "one test by name": ({"outcomes": GOOD, "args": [FIRST]}, "not all tests were selected"),
    "no GPU": ({"outcomes": GOOD, "header": False}, "no test ran on a GPU"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_whole_run(name: str, tmp_path: Path) -> None:
    run, why = WRONG[name]
    assert why in written(tmp_path / "report.json", **run)
