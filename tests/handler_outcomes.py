"""What calls of an FFI handler's checks, good and corrupted, came to (handler_calls.py, mixed_handler_calls.py)."""

from __future__ import annotations

import json
from typing import Any

from tests.helpers import run_python

CORRUPTIONS = 300
Outcomes = dict[Any, dict[str, Any]]
"""By the name of a listed call, or the number of a corrupted one."""


def outcomes_of(module: str) -> Outcomes:
    """Of the calls of ``tests.<module>``, in a process of its own."""
    done = run_python(f"from tests.{module} import main; main({CORRUPTIONS})")
    assert done.returncode == 0, f"the process died with {done.returncode}: {done.stdout[-500:]} {done.stderr[-3000:]}"
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def check_listed(error: str, expected: str) -> None:
    """``expected``: texts of which the error has one, with | between them; "" where the call is accepted."""
    if not expected:
        assert error == ""
    else:
        assert error.startswith("INVALID_ARGUMENT: ")
        assert any(text in error for text in expected.split("|")), error


def check_corruptions(calls: Outcomes) -> None:
    """Most are refused, for many reasons; what is accepted stays inside its buffers; and good calls go on to work."""
    outcomes = [calls[number] for number in range(CORRUPTIONS)]
    refused = [line for line in outcomes if line["error"]]
    assert len(refused) > 0.6 * CORRUPTIONS
    assert len({line["error"] for line in refused}) > 50
    for line in outcomes:
        assert not line["error"] or line["error"].startswith("INVALID_ARGUMENT: "), line
        assert line["inside"], f"accepted, though a kernel would leave its buffers: {line['call']}"
        assert line["good"] == "", "a good call works after a refused one"
