"""cuda/ffi/mixed_ffi.cc: a custom call with corrupted attributes or buffers returns an error, never a crash."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers import run_python
from tests.mixed_handler_calls import listed

CORRUPTIONS = 300
EXPECTED = {name: said for name, _, said in listed()}


@pytest.fixture(scope="module")
def calls() -> dict[Any, dict[str, Any]]:
    """The calls' outcomes, by name or number."""
    done = run_python(f"from tests.mixed_handler_calls import main; main({CORRUPTIONS})")
    assert done.returncode == 0, f"the process died with {done.returncode}: {done.stdout[-500:]} {done.stderr[-3000:]}"
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def test_names_are_different() -> None:
    assert len(EXPECTED) == len(list(listed()))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_listed_call(name: str, calls: dict[Any, dict[str, Any]]) -> None:
    error = calls[name]["error"]
    if not EXPECTED[name]:
        assert error == ""
    else:
        assert error.startswith("INVALID_ARGUMENT: ")
        assert any(text in error for text in EXPECTED[name].split("|")), error


def test_random_corruptions(calls: dict[Any, dict[str, Any]]) -> None:
    outcomes = [calls[number] for number in range(CORRUPTIONS)]
    refused = [line for line in outcomes if line["error"]]
    assert len(refused) > 0.6 * CORRUPTIONS
    assert len({line["error"] for line in refused}) > 50
    for line in outcomes:
        assert not line["error"] or line["error"].startswith("INVALID_ARGUMENT: "), line
        assert line["inside"], f"accepted, though a kernel would leave its buffers: {line['call']}"
        assert line["good"] == "", "a good call works after a refused one"
