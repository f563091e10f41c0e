"""cuda/ffi/mixed_ffi.cc: a custom call with corrupted attributes or buffers returns an error, never a crash."""

from __future__ import annotations

import pytest

from tests.handler_outcomes import Outcomes, check_corruptions, check_listed, outcomes_of
from tests.mixed_handler_calls import listed

EXPECTED = {name: said for name, _, said in listed()}


@pytest.fixture(scope="module")
def calls() -> Outcomes:
    """The calls' outcomes, by name or number."""
    return outcomes_of("mixed_handler_calls")


def test_names_are_different() -> None:
    assert len(EXPECTED) == len(list(listed()))


@pytest.mark.parametrize("name", EXPECTED)
def test_a_listed_call(name: str, calls: Outcomes) -> None:
    check_listed(calls[name]["error"], EXPECTED[name])


def test_random_corruptions(calls: Outcomes) -> None:
    check_corruptions(calls)
