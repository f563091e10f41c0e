"""The emulator that the tests of this folder run: built once, unless another one is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulator.library import Emulator, emulator


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--emulator", metavar="LIBRARY", help="test this build of the emulator instead of building one")


@pytest.fixture(scope="session")
def emulated(pytestconfig: pytest.Config) -> Emulator:
    given = pytestconfig.getoption("--emulator", None)
    return Emulator(Path(given)) if given else emulator()
